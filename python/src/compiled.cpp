// compile and graph. The trees are the veneer's part (torch_tower/_compiled.py).
#include <c10/core/SafePyObject.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/PyInterpreter.h>
#include <tower/compile.h>
#include <tower/graph.h>

#include "function.h"
#include "module.h"

namespace tower::python {
namespace {

using Specialisations = detail::Specialisations;

// Two trees that are one but for their tensors. What cannot be compared may differ.
bool same_tree(const Specialisations::Rest& a, const Specialisations::Rest& b) {
  py::gil_scoped_acquire gil;
  const auto tree = [](const Specialisations::Rest& rest) {
    return py::reinterpret_borrow<py::object>(
        static_cast<const c10::SafePyObject*>(rest.get())->ptr(getPyInterpreter()));
  };
  return py::cast<bool>(tree(a).attr("same")(tree(b)));
}

// The results, and the tree that they are of: `tree`, or that of the call that was traced.
py::tuple run(const Specialisations& specialisations, py::handle function, py::handle tree, py::handle leaves) {
  const Tensors args = to_tensors(leaves);
  const py::object depart = tree.attr("depart");
  Callback callback(function, depart);
  const auto keep = [&]() -> Specialisations::Rest {
    py::gil_scoped_acquire gil;
    return std::make_shared<const c10::SafePyObject>(tree.inc_ref().ptr(), getPyInterpreter());
  };
  auto [results, rest] = without_gil(
      [&] { return specialisations.run(args, detail::StaticKey::of(), callback.without_aux(), keep, &same_tree); });
  const auto& kept = *static_cast<const c10::SafePyObject*>(rest.get());
  return py::make_tuple(to_list(results), py::reinterpret_borrow<py::object>(kept.ptr(getPyInterpreter())));
}

Graph graph(py::handle function, py::handle depart, py::handle leaves) {
  const Tensors args = to_tensors(leaves);
  Callback callback(function, depart);
  return without_gil([&] { return dynamic::graph(callback.without_aux())(args); });
}

py::object dtype_of(const GraphValue& value) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(value.dtype)));
}

const char* origin_of(const GraphValue& value) {
  switch (value.origin) {
    case ValueOrigin::argument:
      return "argument";
    case ValueOrigin::captured:
      return "captured";
    case ValueOrigin::constant:
      return "constant";
    case ValueOrigin::result:
      return "result";
  }
  return "";
}

}  // namespace

void define_compiled(py::module_& module) {
  py::class_<Specialisations>(module, "Compiled")
      .def(py::init<>())
      .def("run", &run)
      .def("graphs", &Specialisations::count)
      .def("report", [](const Specialisations& s) { return without_gil([&] { return s.report(); }); });
  py::class_<MappedOver>(module, "MappedOver")
      .def_readonly("axis", &MappedOver::axis)
      .def_readonly("batch_size", &MappedOver::batch_size)
      .def_readonly("dims", &MappedOver::dims);
  py::class_<GraphValue>(module, "GraphValue")
      .def_property_readonly("origin", &origin_of)
      .def_readonly("sizes", &GraphValue::sizes)
      .def_property_readonly("dtype", &dtype_of);
  py::class_<GraphCall>(module, "GraphCall")
      .def_readonly("op", &GraphCall::op)
      .def_readonly("attributes", &GraphCall::attributes)
      .def_readonly("operands", &GraphCall::operands)
      .def_readonly("results", &GraphCall::results)
      .def_readonly("vmaps", &GraphCall::vmaps)
      .def_readonly("writes", &GraphCall::writes);
  py::class_<Graph>(module, "Graph")
      .def_readonly("values", &Graph::values)
      .def_readonly("arguments", &Graph::arguments)
      .def_readonly("calls", &Graph::calls)
      .def_readonly("results", &Graph::results)
      .def("__str__", [](const Graph& g) { return g.text; });
  module.def("graph", &graph);
}

}  // namespace tower::python
