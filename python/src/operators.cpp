// Higher-order operators whose rules are methods of a Python object: what torch.autograd.Function becomes inside a
// transform (torch_tower/_functions.py).
#include <pybind11/stl.h>
#include <tower/higher_order.h>

#include "function.h"
#include "kept.h"
#include "module.h"

namespace tower::python {
namespace {

py::handle kept(const Attributes& attributes) {
  return attributes ? attributes_as<Kept>(attributes).get() : py::handle(Py_None);
}

py::list dims_to_list(const dynamic::Dims& dims) {
  py::list list;
  for (const auto& dim : dims) list.append(dim ? py::object(py::int_(*dim)) : py::none());
  return list;
}

Residuals to_residuals(py::handle pair) {
  const auto both = py::cast<py::tuple>(pair);
  return {to_tensors(both[0]), keep(both[1])};
}

// Calls an implementation. What it cannot do under vmap are errors that operators raised to Python, as RuntimeError.
py::object implement(const Kept& methods, const char* method, const Attributes& call, const Tensors& operands) {
  try {
    return methods.get().attr(method)(kept(call), to_list(operands));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
    const std::string text = py::str(error.value());
    // Refusals of random numbers and of writes hold for every way to run it.
    const bool holds = text.find(" draws random numbers.") != std::string::npos ||
                       text.find(" would write into a tensor") != std::string::npos;
    if (text.rfind("vmap (level ", 0) == 0 && !holds) throw ImplementationError(error);
    throw;
  }
}

// The methods of `object` that are not None, and its `linear_vjp`. They get and return lists of tensors, None for
// undefined ones.
HigherOrderRules rules_of(const std::string& name, py::object object) {
  HigherOrderRules rules;
  rules.name = name;
  rules.linear_vjp = object.attr("linear_vjp").cast<bool>();
  rules.generate_derivatives = object.attr("generate_derivatives").cast<bool>();
  const auto has = [&](const char* method) { return !object.attr(method).is_none(); };
  const bool forward = has("forward"), save = has("save"), both = has("forward_and_save"), vjp = has("vjp"),
             jvp = has("jvp"), vmap = has("vmap"), sparsity = has("sparsity");
  const auto methods = keep(std::move(object));
  if (forward)
    rules.forward = [methods](const Tensors& operands, const Attributes& call) {
      py::gil_scoped_acquire gil;
      return to_tensors(implement(*methods, "forward", call, operands));
    };
  if (save)
    rules.save = [methods](const Tensors& operands, const Tensors& outs, const Attributes& call) {
      py::gil_scoped_acquire gil;
      return to_residuals(methods->get().attr("save")(kept(call), to_list(operands), to_list(outs)));
    };
  if (both)
    rules.forward_and_save = [methods](const Tensors& operands, const Attributes& call) {
      py::gil_scoped_acquire gil;
      const auto result = py::cast<py::tuple>(implement(*methods, "forward_and_save", call, operands));
      return std::pair(to_tensors(result[0]), to_residuals(result[1]));
    };
  if (vjp)
    rules.vjp = [methods](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                          const Attributes& call) {
      py::gil_scoped_acquire gil;
      return to_tensors(methods->get().attr("vjp")(kept(call), to_list(saved.tensors), kept(saved.other),
                                                   to_list(cotangents), py::cast(needs)));
    };
  if (jvp)
    rules.jvp = [methods](const Residuals& saved, const Tensors& tangents, const Attributes& call) {
      py::gil_scoped_acquire gil;
      return to_tensors(
          methods->get().attr("jvp")(kept(call), to_list(saved.tensors), kept(saved.other), to_list(tangents)));
    };
  if (vmap)
    rules.vmap = [methods](const VmapInfo& info, const dynamic::Dims& in_dims, const Tensors& operands,
                           const Attributes& call) {
      py::gil_scoped_acquire gil;
      const auto result = py::cast<py::tuple>(methods->get().attr("vmap")(
          kept(call), info.batch_size, to_name(info.randomness), dims_to_list(in_dims), to_list(operands)));
      return std::pair(to_tensors(result[0]), to_dims(result[1]));
    };
  if (sparsity)
    rules.sparsity = [methods](const Tensors& operands, const Attributes& call) {
      py::gil_scoped_acquire gil;
      return to_tensors(methods->get().attr("sparsity")(kept(call), to_list(operands)));
    };
  return rules;
}

py::list call_with(const HigherOrderOperator& op, py::handle operands, py::object attributes) {
  const Tensors given = to_tensors(operands);
  const Attributes call = keep(std::move(attributes));
  return to_list(without_gil([&] { return op(given, call); }));
}

}  // namespace

void define_operators(py::module_& module) {
  py::class_<HigherOrderOperator>(module, "HigherOrderOperator")
      .def(py::init([](const std::string& name, py::object rules) {
        return HigherOrderOperator(rules_of(name, std::move(rules)));
      }))
      .def("__call__", &call_with);
}

}  // namespace tower::python
