// The dynamic layer's transforms, called at once: each takes the function, what makes a list of its result, the tensors
// of the arguments, and gives back lists of tensors. The trees are the veneer's part (torch_tower/*.py).
#include <c10/core/SafePyObject.h>
#include <pybind11/stl.h>
#include <tower/check_grads.h>
#include <tower/detail/flat.h>
#include <tower/detail/saved_tensor_hooks.h>
#include <tower/differential_operator.h>
#include <tower/value_and_jacobian.h>

#include "function.h"
#include "module.h"

namespace tower::python {
namespace {

using dynamic::Dims;
using Argnums = std::vector<int64_t>;
using Chunk = std::optional<int64_t>;

/// A pullback or pushforward: a function of lists of tensors.
struct Linear {
  dynamic::Function function;
};

py::list apply_linear(const Linear& linear, py::handle directions) {
  const Tensors given = to_tensors(directions);
  return to_list(without_gil([&] { return linear.function(given); }));
}

// vmap's function also settles out_dims, once the tree of its outputs is known: `depart` returns (outputs, out_dims).
class MappedCallback : public Callback {
 public:
  MappedCallback(py::handle function, py::handle depart, Dims& out_dims, bool always_depart)
      : Callback(function, depart, always_depart), out_dims_(out_dims) {}

  std::pair<Tensors, Tensors> operator()(const Tensors& args) const {
    py::gil_scoped_acquire gil;
    const py::object result = call(args);
    if (THPVariable_Check(result.ptr())) return {{THPVariable_Unpack(result.ptr())}, {}};
    const auto pair = py::cast<py::tuple>(result);
    out_dims_ = to_dims(pair[1]);
    return {to_tensors(pair[0]), {}};
  }

 private:
  Dims& out_dims_;
};

// `out_dim` is that of a function that returns a single tensor; without one, `depart` is always asked.
py::list vmap(py::handle function, py::handle depart, py::handle leaves, py::handle in_dims,
              std::optional<int64_t> out_dim, const std::string& randomness, Chunk chunk_size, const std::string& axis,
              std::optional<Mesh> across, py::handle name) {
  const Tensors args = to_tensors(leaves);
  const Dims in = to_dims(in_dims);
  const VmapOptions options{to_randomness(randomness), chunk_size};
  const NamedExamples examples{axis, across.value_or(Mesh())};
  Dims out{out_dim};
  MappedCallback callback(function, depart, out, !out_dim);
  auto name_of = [&](size_t i) {
    py::gil_scoped_acquire gil;
    return name(i).cast<std::string>();
  };
  return to_list(
      without_gil([&] { return detail::run_vmap(std::cref(callback), args, in, out, options, examples, name_of); }));
}

py::tuple to_pair(const std::pair<Tensors, Tensors>& lists) {
  return py::make_tuple(to_list(lists.first), to_list(lists.second));
}

py::tuple grad(py::handle function, py::handle depart, py::handle leaves, Argnums argnums, bool has_aux) {
  const Tensors args = to_tensors(leaves);
  Callback callback(function, depart, has_aux);
  return to_pair(without_gil([&] { return dynamic::grad(callback.with_aux(), std::move(argnums))(args); }));
}

// With aux, it follows the value in the second list.
py::tuple grad_and_value(py::handle function, py::handle depart, py::handle leaves, Argnums argnums, bool has_aux) {
  const Tensors args = to_tensors(leaves);
  Callback callback(function, depart, has_aux);
  auto value_and_aux = [&](const Tensors& tensors) {
    auto [values, aux] = callback(tensors);
    values.insert(values.end(), aux.begin(), aux.end());
    return values;
  };
  return to_pair(without_gil([&] { return dynamic::grad_and_value(value_and_aux, std::move(argnums))(args); }));
}

py::tuple vjp(py::handle function, py::handle depart, py::handle leaves, bool has_aux) {
  const Tensors primals = to_tensors(leaves);
  Callback callback(function, depart, has_aux);
  auto [outs, pullback, aux] = without_gil([&] { return dynamic::vjp(callback.with_aux(), primals); });
  return py::make_tuple(to_list(outs), Linear{std::move(pullback)}, to_list(aux));
}

py::tuple jvp(py::handle function, py::handle depart, py::handle leaves, py::handle directions, bool strict,
              bool has_aux) {
  const Tensors primals = to_tensors(leaves), tangents = to_tensors(directions);
  Callback callback(function, depart, has_aux);
  auto [outs, out_tangents, aux] =
      without_gil([&] { return dynamic::jvp(callback.with_aux(), primals, tangents, {strict}); });
  return py::make_tuple(to_list(outs), to_list(out_tangents), to_list(aux));
}

py::tuple linearize(py::handle function, py::handle depart, py::handle leaves) {
  const Tensors primals = to_tensors(leaves);
  Callback callback(function, depart);
  auto [outs, pushforward] = without_gil([&] { return dynamic::linearize(callback.without_aux(), primals); });
  return py::make_tuple(to_list(outs), Linear{std::move(pushforward)});
}

using Jacobian = dynamic::FunctionWithAux(dynamic::FunctionWithAux, Argnums, JacobianOptions);

template <Jacobian* transform>
py::tuple jacobian(py::handle function, py::handle depart, py::handle leaves, Argnums argnums, bool has_aux,
                   Chunk chunk_size, const std::string& randomness) {
  const Tensors args = to_tensors(leaves);
  const JacobianOptions options{chunk_size, to_randomness(randomness)};
  Callback callback(function, depart, has_aux);
  return to_pair(without_gil([&] { return transform(callback.with_aux(), std::move(argnums), options)(args); }));
}

// With aux, it follows the values in the first list.
py::tuple value_and_jacobian(py::handle function, py::handle depart, py::handle leaves, Argnums argnums, bool has_aux,
                             bool forward, Chunk chunk_size, const std::string& randomness) {
  const Tensors args = to_tensors(leaves);
  const JacobianOptions options{chunk_size, to_randomness(randomness)};
  const Mode mode = forward ? Mode::forward : Mode::reverse;
  Callback callback(function, depart, has_aux);
  return to_pair(without_gil(
      [&] { return dynamic::value_and_jacobian(callback.with_aux(), std::move(argnums), mode, options)(args); }));
}

py::tuple hvp(py::handle function, py::handle depart, py::handle leaves, py::handle directions) {
  const Tensors primals = to_tensors(leaves), tangents = to_tensors(directions);
  Callback callback(function, depart);
  return to_pair(without_gil([&] { return dynamic::hvp(callback.without_aux(), primals, tangents); }));
}

// The derivatives are lists by order, as `series` is.
py::tuple jet(py::handle function, py::handle depart, py::handle leaves, const std::vector<py::list>& series,
              bool coefficients) {
  const Tensors primals = to_tensors(leaves);
  std::vector<Tensors> terms;
  for (const py::list& each : series) terms.push_back(to_tensors(each));
  const JetOptions options{coefficients ? Scaling::coefficients : Scaling::derivatives};
  Callback callback(function, depart);
  const auto [outs, derivatives] =
      without_gil([&] { return dynamic::jet(callback.without_aux(), primals, terms, options); });
  py::list by_order;
  for (const Tensors& each : derivatives) by_order.append(to_list(each));
  return py::make_tuple(to_list(outs), by_order);
}

py::tuple laplacian(py::handle function, py::handle depart, py::handle leaves, Argnums argnums, py::handle directions,
                    Chunk chunk_size) {
  const Tensors args = to_tensors(leaves);
  const LaplacianOptions options{to_tensors(directions), chunk_size};
  Callback callback(function, depart);
  return to_pair(
      without_gil([&] { return dynamic::laplacian(callback.without_aux(), std::move(argnums), options)(args); }));
}

py::list biharmonic(py::handle function, py::handle depart, py::handle leaves, Argnums argnums) {
  const Tensors args = to_tensors(leaves);
  Callback callback(function, depart);
  return to_list(without_gil([&] { return dynamic::biharmonic(callback.without_aux(), std::move(argnums))(args); }));
}

// A term's coefficient is a number where there is no tensor of it.
py::list differential_operator(py::handle function, py::handle depart, py::handle leaves, Argnums argnums,
                               const std::vector<double>& numbers, py::handle tensors,
                               std::vector<std::vector<int64_t>> by, py::handle directions, Chunk chunk_size) {
  const Tensors args = to_tensors(leaves), coefficients = to_tensors(tensors);
  std::vector<DerivativeTerm> terms;
  for (size_t k = 0; k < numbers.size(); ++k)
    terms.push_back(
        {coefficients[k].defined() ? Coefficient(coefficients[k]) : Coefficient(numbers[k]), std::move(by[k])});
  const DifferentialOptions options{to_tensors(directions), chunk_size};
  Callback callback(function, depart);
  return to_list(without_gil([&] {
    return dynamic::differential_operator(callback.without_aux(), std::move(argnums), std::move(terms), options)(args);
  }));
}

py::tuple stochastic_laplacian(py::handle function, py::handle depart, py::handle leaves, Argnums argnums,
                               py::handle directions, Chunk chunk_size) {
  const Tensors args = to_tensors(leaves), along = to_tensors(directions);
  Callback callback(function, depart);
  return to_pair(without_gil([&] {
    return dynamic::stochastic_laplacian(callback.without_aux(), std::move(argnums), along, chunk_size)(args);
  }));
}

py::list stochastic_biharmonic(py::handle function, py::handle depart, py::handle leaves, Argnums argnums,
                               py::handle directions, Chunk chunk_size) {
  const Tensors args = to_tensors(leaves), along = to_tensors(directions);
  Callback callback(function, depart);
  return to_list(without_gil([&] {
    return dynamic::stochastic_biharmonic(callback.without_aux(), std::move(argnums), along, chunk_size)(args);
  }));
}

void check_grads(py::handle function, py::handle depart, py::handle leaves, int order, bool forward, bool reverse,
                 double step, double relative, double absolute) {
  const Tensors args = to_tensors(leaves);
  std::vector<Mode> modes;
  if (forward) modes.push_back(Mode::forward);
  if (reverse) modes.push_back(Mode::reverse);
  Callback callback(function, depart);
  without_gil([&] { dynamic::check_grads(callback.without_aux(), args, order, modes, {step, relative, absolute}); });
}

// A checkpoint computes again what it was given: its hooks only save memory.
bool is_of_a_checkpoint(const c10::SafePyObject& pack) {
  py::gil_scoped_acquire gil;
  const py::handle hook(pack.ptr(&pack.pyinterpreter()));
  return py::getattr(hook, "__module__", py::none()).equal(py::str("torch.utils.checkpoint"));
}

}  // namespace

void define_transforms(py::module_& module) {
  detail::may_pass_over_hooks = &is_of_a_checkpoint;
  py::class_<Linear>(module, "Linear").def("__call__", &apply_linear);
  module.def("vmap", &vmap);
  module.def("grad", &grad);
  module.def("grad_and_value", &grad_and_value);
  module.def("vjp", &vjp);
  module.def("jvp", &jvp);
  module.def("linearize", &linearize);
  module.def("jacrev", &jacobian<dynamic::jacrev>);
  module.def("jacfwd", &jacobian<dynamic::jacfwd>);
  module.def("value_and_jacobian", &value_and_jacobian);
  module.def("hessian", &jacobian<dynamic::hessian>);
  module.def("hvp", &hvp);
  module.def("jet", &jet);
  module.def("laplacian", &laplacian);
  module.def("biharmonic", &biharmonic);
  module.def("differential_operator", &differential_operator);
  module.def("stochastic_laplacian", &stochastic_laplacian);
  module.def("stochastic_biharmonic", &stochastic_biharmonic);
  module.def("check_grads", &check_grads);
}

}  // namespace tower::python
