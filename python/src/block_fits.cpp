// Large sparse fits (torch_tower/_block_fits.py).
#include <pybind11/stl.h>
#include <tower/block_least_squares.h>

#include "kept_function.h"
#include "module.h"
#include "options.h"

namespace tower::python {
namespace {

FitUnknowns to_unknowns(const py::dict& given) {
  FitUnknowns unknowns;
  unknowns.x0 = to_tensor(given["x0"]);
  if (const py::object retract = given["retract"]; !retract.is_none())
    unknowns.retract = [f = keep_function(retract)](const at::Tensor& x, const at::Tensor& d) {
      py::gil_scoped_acquire gil;
      return to_tensor(call(f, to_object(x), to_object(d)));
    };
  unknowns.freedom = option<int64_t>(given, "freedom");
  const auto optional = [&](const char* name) {
    const py::object value = given[name];
    return value.is_none() ? at::Tensor() : to_tensor(value);
  };
  unknowns.held = optional("held");
  unknowns.lower = optional("lower");
  unknowns.upper = optional("upper");
  return unknowns;
}

FitTerm to_term(const py::dict& given) {
  FitTerm term{of_lists(given["residual"]), {}};
  for (const py::handle use : given["uses"]) {
    const auto pair = use.cast<py::tuple>();
    term.uses.push_back({pair[0].cast<std::size_t>(), to_tensor(pair[1])});
  }
  term.data = to_tensors(given["data"]);
  term.loss = to_loss(given);
  return term;
}

BlockLeastSquares block_least_squares(const std::vector<py::dict>& unknowns, const std::vector<py::dict>& terms,
                                      const py::dict& given) {
  std::vector<FitUnknowns> kinds;
  for (const py::dict& kind : unknowns) kinds.push_back(to_unknowns(kind));
  std::vector<FitTerm> all;
  for (const py::dict& term : terms) all.push_back(to_term(term));
  BlockFitOptions options;
  options.method =
      chosen<FitMethod>(option<std::string>(given, "method"), "method",
                        {{"levenberg_marquardt", FitMethod::levenberg_marquardt}, {"dogleg", FitMethod::dogleg}});
  if (const auto first = option<std::optional<int64_t>>(given, "eliminate")) {
    if (*first < 0)
      throw ArgumentError("eliminate is " + std::to_string(*first) + "; kinds of unknowns are from 0 on.");
    options.eliminate = static_cast<std::size_t>(*first);
  }
  options.solver = chosen<FitSolver>(option<std::string>(given, "solver"), "solver",
                                     {{"cholesky", FitSolver::cholesky},
                                      {"qr", FitSolver::qr},
                                      {"conjugate_gradients", FitSolver::conjugate_gradients}});
  options.cg_tolerance = option<double>(given, "cg_tolerance");
  options.ftol = option<double>(given, "ftol");
  options.xtol = option<double>(given, "xtol");
  options.gtol = option<double>(given, "gtol");
  options.max_steps = option<int64_t>(given, "max_steps");
  options.first_damping = option<double>(given, "first_damping");
  options.covariance = option<bool>(given, "covariance");
  if (const py::object progress = given["progress"]; !progress.is_none())
    options.progress = [f = keep_function(progress)](int64_t step, double cost) {
      const py::gil_scoped_acquire gil;
      call(f, py::int_(step), py::float_(cost));
    };
  return without_gil([&] { return BlockLeastSquares(std::move(kinds), std::move(all), options); });
}

py::tuple fitted(const BlockLeastSquares& solve, py::object data) {
  const Tensors given = data.is_none() ? Tensors() : to_tensors(data);
  const BlockFit fit = without_gil([&] { return data.is_none() ? solve() : solve(given); });
  return py::make_tuple(to_list(fit.x), to_object(fit.cost), to_object(fit.status), to_object(fit.steps),
                        to_list(fit.covariance));
}

}  // namespace

void define_block_fits(py::module_& module) {
  py::class_<BlockLeastSquares>(module, "BlockLeastSquares")
      .def(py::init(&block_least_squares))
      .def("fit", &fitted)
      .def("num_unknowns", &BlockLeastSquares::num_unknowns)
      .def("factored", &BlockLeastSquares::factored);
}

}  // namespace tower::python
