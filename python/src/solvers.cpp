// Linear systems, implicit functions, differential equations, fits, minima, sparse derivatives over lists of tensors.
// The trees are the veneer's part (torch_tower/_solvers.py, _odes.py, _minima.py, _sparse.py).
#include <ATen/ops/tensor.h>
#include <pybind11/stl.h>
#include <tower/implicit.h>
#include <tower/least_squares.h>
#include <tower/linear_solve.h>
#include <tower/minimize.h>
#include <tower/odeint.h>
#include <tower/sparse.h>

#include "kept_function.h"
#include "module.h"
#include "options.h"

namespace tower::python {
namespace {

/// A linear function of lists of tensors, as Python sees it.
py::cpp_function to_python(const dynamic::Function& f) {
  return py::cpp_function([f](py::handle given) {
    const Tensors list = to_tensors(given);
    return to_list(without_gil([&] { return f(list); }));
  });
}

using Solver = decltype(LinearSolveOptions<Tensors>::solve);

Solver to_solver(py::object function) {
  if (function.is_none()) return {};
  return [f = keep_function(std::move(function))](const dynamic::Function& apply, const Tensors& b) {
    py::gil_scoped_acquire gil;
    return to_tensors(call(f, to_python(apply), to_list(b)));
  };
}

IterativeOptions<Tensors> to_iteration(const py::dict& given) {
  IterativeOptions<Tensors> options;
  options.tolerance = option<std::optional<double>>(given, "tolerance");
  options.absolute_tolerance = option<double>(given, "absolute_tolerance");
  options.max_steps = option<std::optional<int64_t>>(given, "max_steps");
  options.preconditioner = of_lists_or_none(given["preconditioner"]);
  if (const py::object start = given["start"]; !start.is_none()) options.start = to_tensors(start);
  options.restart = option<int64_t>(given, "restart");
  options.on_no_convergence =
      chosen<NoConvergence>(option<std::string>(given, "on_no_convergence"), "on_no_convergence",
                            {{"error", NoConvergence::error}, {"report", NoConvergence::report}});
  return options;
}

LinearSolveOptions<Tensors> to_linear(const py::dict& given) {
  LinearSolveOptions<Tensors> options;
  options.method = chosen<LinearMethod>(option<std::string>(given, "method"), "method",
                                        {{"automatic", LinearMethod::automatic},
                                         {"dense", LinearMethod::dense},
                                         {"cg", LinearMethod::cg},
                                         {"bicgstab", LinearMethod::bicgstab},
                                         {"gmres", LinearMethod::gmres}});
  options.dense_up_to = option<int64_t>(given, "dense_up_to");
  options.symmetric = option<bool>(given, "symmetric");
  options.iteration = to_iteration(given);
  options.solve = to_solver(given["solve"]);
  options.solve_transposed = to_solver(given["solve_transposed"]);
  options.per_example = option<bool>(given, "per_example");
  return options;
}

py::list linear_solve(py::object apply, py::handle b, const py::dict& given) {
  const Tensors rhs = to_tensors(b);
  const dynamic::Function f = of_lists(std::move(apply));
  const LinearSolveOptions<Tensors> options = to_linear(given);
  return to_list(without_gil([&] { return dynamic::linear_solve(f, rhs, options); }));
}

py::tuple iterate(const std::string& method, py::object apply, py::handle b, const py::dict& given) {
  using Method = IterativeSolution<Tensors> (*)(dynamic::Function, const Tensors&, IterativeOptions<Tensors>);
  const Method solve = chosen<Method>(
      method, "method", {{"cg", &dynamic::cg}, {"bicgstab", &dynamic::bicgstab}, {"gmres", &dynamic::gmres}});
  const Tensors rhs = to_tensors(b);
  const dynamic::Function f = of_lists(std::move(apply));
  const IterativeOptions<Tensors> options = to_iteration(given);
  const auto found = without_gil([&] { return solve(f, rhs, options); });
  return py::make_tuple(to_list(found.x), to_object(found.converged), to_object(found.steps),
                        to_object(found.residual));
}

// implicit_root, or fixed_point.
py::list implicit(bool is_map, py::object residual, py::object solver, py::handle leaves, py::object preconditioner,
                  bool solver_per_example, const py::dict& linear) {
  const Tensors params = to_tensors(leaves);
  const dynamic::Residual f = [held = keep_function(std::move(residual))](const Tensors& x, const Tensors& given) {
    py::gil_scoped_acquire gil;
    return to_tensors(call(held, to_list(x), to_list(given)));
  };
  const dynamic::Function find = of_lists(std::move(solver));
  ImplicitOptions options{to_linear(linear)};
  if (!preconditioner.is_none())
    options.preconditioner = [held = keep_function(std::move(preconditioner))](
                                 const Tensors& x, const Tensors& given) -> dynamic::Function {
      py::gil_scoped_acquire gil;
      return of_lists(call(held, to_list(x), to_list(given)));
    };
  options.per_example = solver_per_example;
  const auto run = is_map ? &dynamic::fixed_point : &dynamic::implicit_root;
  return to_list(without_gil([&] { return run(f, find, params, options); }));
}

py::tuple minimize(py::object function, py::handle x0, const py::dict& given) {
  MinimizeOptions options;
  options.method = chosen<Minimizer>(option<std::string>(given, "method"), "method",
                                     {{"lbfgs", Minimizer::lbfgs}, {"newton", Minimizer::newton}});
  options.gtol = option<double>(given, "gtol");
  options.ftol = option<double>(given, "ftol");
  options.max_steps = option<int64_t>(given, "max_steps");
  options.memory = option<int64_t>(given, "memory");
  options.first_radius = option<double>(given, "first_radius");
  const Tensors start = to_tensors(x0);
  const dynamic::Function f = of_lists(std::move(function));
  const auto found = without_gil([&] { return dynamic::minimize(f, start, options); });
  return py::make_tuple(to_list(found.x), to_object(found.value), to_object(found.gradient), to_object(found.status),
                        to_object(found.steps), to_object(found.products));
}

py::tuple least_squares(py::object residuals, py::handle x0, const py::dict& given) {
  LeastSquaresOptions options;
  options.loss = to_loss(given);
  options.ftol = option<double>(given, "ftol");
  options.xtol = option<double>(given, "xtol");
  options.gtol = option<double>(given, "gtol");
  options.max_steps = option<int64_t>(given, "max_steps");
  options.first_damping = option<double>(given, "first_damping");
  for (const auto& [name, bound] : {std::pair("lower", &options.lower), std::pair("upper", &options.upper)})
    if (const py::object value = given[name]; !value.is_none()) *bound = to_tensors(py::make_tuple(value))[0];
  const Tensors start = to_tensors(x0);
  const dynamic::Function f = of_lists(std::move(residuals));
  const auto found = without_gil([&] { return dynamic::least_squares(f, start, options); });
  return py::make_tuple(to_list(found.x), to_object(found.cost), to_object(found.status), to_object(found.steps),
                        to_object(found.covariance));
}

// A number, or a list of tensors.
Tolerance to_tolerance(const py::dict& given, const char* name) {
  if (py::isinstance<py::list>(given[name])) return to_tensors(given[name]);
  return option<double>(given, name);
}

OdeOptions to_ode_options(const py::dict& given) {
  OdeOptions options;
  options.method =
      chosen<Ode>(option<std::string>(given, "method"), "method",
                  {{"tsit5", Ode::tsit5}, {"dopri5", Ode::dopri5}, {"dop853", Ode::dop853}, {"rodas5p", Ode::rodas5p}});
  options.rtol = to_tolerance(given, "rtol");
  options.atol = to_tolerance(given, "atol");
  options.step = option<std::optional<double>>(given, "step");
  options.first_step = option<std::optional<double>>(given, "first_step");
  options.longest_step = option<std::optional<double>>(given, "longest_step");
  options.max_steps = option<int64_t>(given, "max_steps");
  options.checkpoints = to_checkpoints(given["checkpoints"]);
  options.compact = option<double>(given, "compact");
  options.adjoint = chosen<OdeAdjoint>(option<std::string>(given, "adjoint"), "adjoint",
                                       {{"steps", OdeAdjoint::steps}, {"continuous", OdeAdjoint::continuous}});
  options.crossing = chosen<OdeCrossing>(
      option<std::string>(given, "crossing"), "crossing",
      {{"any", OdeCrossing::any}, {"rising", OdeCrossing::rising}, {"falling", OdeCrossing::falling}});
  return options;
}

dynamic::OdeFunction to_slope(py::object function) {
  return [f = keep_function(std::move(function))](const at::Tensor& t, const Tensors& y) {
    py::gil_scoped_acquire gil;
    return to_tensors(call(f, to_object(t), to_list(y)));
  };
}

py::tuple odeint(py::object slope, py::handle y0, const at::Tensor& ts, const py::dict& given) {
  const Tensors start = to_tensors(y0);
  const dynamic::OdeFunction f = to_slope(std::move(slope));
  const OdeOptions options = to_ode_options(given);
  const auto found = without_gil([&] { return dynamic::odeint(f, start, ts, options); });
  return py::make_tuple(to_list(found.ys), to_object(found.t), to_object(found.status), to_object(found.steps),
                        to_object(found.rejected));
}

py::tuple odeint_until(py::object slope, py::object event, py::handle y0, const at::Tensor& ts, const py::dict& given) {
  const Tensors start = to_tensors(y0);
  const dynamic::OdeFunction f = to_slope(std::move(slope));
  const dynamic::OdeEvent until = [held = keep_function(std::move(event))](const at::Tensor& t, const Tensors& y) {
    py::gil_scoped_acquire gil;
    return to_tensor(call(held, to_object(t), to_list(y)));
  };
  const OdeOptions options = to_ode_options(given);
  const auto found = without_gil([&] { return dynamic::odeint_until(f, until, start, ts, options); });
  return py::make_tuple(to_list(found.ys), to_object(found.t), to_list(found.y), to_object(found.status),
                        to_object(found.steps), to_object(found.rejected));
}

template <Sparsity (*find)(const dynamic::Function&, const Tensors&, const SparsityOptions&)>
Sparsity sparsity(py::object function, py::handle leaves, bool values_decide, int64_t most_entries) {
  const Tensors x = to_tensors(leaves);
  const dynamic::Function f = of_lists(std::move(function));
  return without_gil([&] { return find(f, x, {values_decide, most_entries}); });
}

at::Layout to_layout(const std::string& name) {
  return chosen<at::Layout>(name, "layout",
                            {{"torch.sparse_csr", at::kSparseCsr},
                             {"torch.sparse_csc", at::kSparseCsc},
                             {"torch.sparse_coo", at::kSparse},
                             {"torch.sparse_bsr", at::kSparseBsr}});
}

dynamic::SparsePlan plan(const Sparsity& pattern, bool symmetric, std::optional<int64_t> chunk_size,
                         const std::string& layout, std::array<int64_t, 2> block) {
  const SparseOptions options{chunk_size, to_layout(layout), block};
  return without_gil([&] { return dynamic::SparsePlan(pattern, options, symmetric); });
}

// `gradient`: of the function, whose Hessian is wanted.
at::Tensor values(const dynamic::SparsePlan& plan, py::object function, py::handle leaves, bool gradient) {
  const Tensors x = to_tensors(leaves);
  dynamic::Function f = of_lists(std::move(function));
  if (gradient) {
    std::vector<int64_t> all(x.size());
    std::iota(all.begin(), all.end(), 0);
    f = dynamic::grad(std::move(f), std::move(all));
  }
  return without_gil([&] { return plan.values(f, x); });
}

at::Tensor numbers(const std::vector<int64_t>& list) { return at::tensor(list, at::kLong); }

}  // namespace

void define_solvers(py::module_& module) {
  define_block_fits(module);
  module.def("linear_solve", &linear_solve);
  module.def("iterate", &iterate);
  module.def("implicit", &implicit);
  module.def("minimize", &minimize);
  module.def("least_squares", &least_squares);
  module.def("odeint", &odeint);
  module.def("odeint_until", &odeint_until);
  module.def("jacobian_sparsity", &sparsity<&dynamic::jacobian_sparsity>);
  module.def("hessian_sparsity", &sparsity<&dynamic::hessian_sparsity>);
  py::class_<Sparsity>(module, "Sparsity")
      .def_static("of", &Sparsity::of, py::arg("matrix"),
                  "Where `matrix`, dense or sparse, has entries that are not zero. ValueError where it is no matrix.")
      .def_property_readonly(
          "shape", [](const Sparsity& s) { return py::make_tuple(s.num_rows(), s.num_columns()); },
          "(rows, columns): the elements of the outputs, and of the inputs.")
      .def_property_readonly("num_entries", &Sparsity::num_entries, "How many entries there are.")
      .def(
          "crow_indices", [](const Sparsity& s) { return numbers(s.starts()); },
          "Where each row's entries start among those of all, and the end of the last: int64 [rows + 1], as CSR has "
          "it.")
      .def(
          "col_indices", [](const Sparsity& s) { return numbers(s.columns()); },
          "The column of each entry, row by row: int64 [entries], as CSR has it.")
      .def_property_readonly("taken_for_dense", &Sparsity::taken_for_dense,
                             "The operators of which nothing better was known than that all depends on all.")
      .def("mask", &Sparsity::mask, "A bool matrix, true where there are entries.")
      .def("transposed", &Sparsity::transposed, "The pattern of the transposed matrix.")
      .def("__repr__", [](const Sparsity& s) {
        return "Sparsity(" + std::to_string(s.num_rows()) + " × " + std::to_string(s.num_columns()) + ", " +
               std::to_string(s.num_entries()) + " entries)";
      });
  py::class_<dynamic::SparsePlan>(module, "SparsePlan")
      .def(py::init(&plan))
      .def("values", &values)
      .def("matrix", &dynamic::SparsePlan::matrix)
      .def_property_readonly("sparsity", &dynamic::SparsePlan::pattern)
      .def_property_readonly("num_colours", &dynamic::SparsePlan::num_colours)
      .def_property_readonly("num_row_colours", &dynamic::SparsePlan::num_row_colours);
}

}  // namespace tower::python
