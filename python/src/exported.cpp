// Exported models (tower/exported.h), as functions of leaves: the veneer has the trees.
#include <pybind11/stl.h>
#include <tower/exported.h>

#include "function.h"
#include "module.h"

namespace tower::python {
namespace {

using dynamic::ExportedModel;

py::dict to_dict(const NamedTensors& tensors) {
  py::dict result;
  for (const auto& [name, tensor] : tensors) result[py::str(name)] = to_object(tensor);
  return result;
}

ExportedLeaf to_leaf(py::handle object) {
  if (object.is_none()) return std::monostate();
  if (THPVariable_Check(object.ptr())) return to_tensor(object);
  if (py::isinstance<py::bool_>(object)) return object.cast<bool>();
  if (py::isinstance<py::int_>(object)) return object.cast<int64_t>();
  if (py::isinstance<py::float_>(object)) return object.cast<double>();
  if (py::isinstance<py::str>(object)) return object.cast<std::string>();
  throw ArgumentError("exported model: an argument is of the type " + std::string(py::str(py::type::of(object))) +
                      ", and not a tensor, number, string or None.");
}

py::object from_leaf(const ExportedLeaf& leaf) {
  return std::visit(
      [](const auto& value) -> py::object {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) return py::none();
        else if constexpr (std::is_same_v<T, at::Tensor>) return to_object(value);
        else return py::cast(value);
      },
      leaf);
}

py::list call_exported(const ExportedModel& model, const py::dict& weights, const py::list& leaves) {
  NamedTensors named;
  for (const auto& [name, tensor] : weights) named.emplace(name.cast<std::string>(), to_tensor(tensor));
  std::vector<ExportedLeaf> given;
  for (const auto leaf : leaves) given.push_back(to_leaf(leaf));
  py::list results;
  for (const ExportedLeaf& leaf : without_gil([&] { return model.call(named, given); }))
    results.append(from_leaf(leaf));
  return results;
}

// (what it is: a leaf's text or Python's type, its children's keys, its children); None for the children of a leaf.
py::tuple to_tuple(const ExportedTree& tree) {
  py::list children;
  for (const ExportedTree& child : tree.children) children.append(to_tuple(child));
  const bool leaf = tree.kind == ExportedTree::Kind::leaf;
  return py::make_tuple(tree.text, tree.keys, leaf ? py::object(py::none()) : py::object(children));
}

}  // namespace

void define_exported(py::module_& module) {
  py::class_<ExportedModel>(module, "ExportedModel")
      .def("call", &call_exported)
      .def("parameters", [](const ExportedModel& m) { return to_dict(m.parameters()); })
      .def("buffers", [](const ExportedModel& m) { return to_dict(m.buffers()); })
      .def("constants", [](const ExportedModel& m) { return to_dict(m.constants()); })
      .def("arguments", [](const ExportedModel& m) { return to_tuple(m.arguments()); })
      .def("results", [](const ExportedModel& m) { return to_tuple(m.results()); })
      .def("signature", &ExportedModel::signature)
      .def("report", [](const ExportedModel& m) { return without_gil([&] { return m.report(); }); });
  module.def("load_exported", [](const std::string& path, const std::string& model, bool any_version) {
    return without_gil([&] { return dynamic::load_exported(path, {.model = model, .any_version = any_version}); });
  });
}

}  // namespace tower::python
