// compile and graph. The trees are the veneer's part (torch_tower/_compiled.py).
#include <c10/core/SafePyObject.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/PyInterpreter.h>
#include <tower/compile.h>
#include <tower/detail/known_generators.h>
#include <tower/export_c.h>
#include <tower/graph.h>

#include "function.h"
#include "module.h"

namespace tower::python {
namespace {

using Specialisations = detail::Specialisations;

// What belongs to a graph: the veneer's tree of the result, which knows what else the graph is for.
struct KeptTree final : detail::Kept {
  explicit KeptTree(py::handle tree) : object(tree.inc_ref().ptr(), getPyInterpreter()) {}
  std::string signature() const override { return "torch_tower"; }
  std::string stored() const override {
    py::gil_scoped_acquire gil;
    return py::cast<std::string>(tree().attr("stored")());
  }
  py::object tree() const { return py::reinterpret_borrow<py::object>(object.ptr(getPyInterpreter())); }
  c10::SafePyObject object;
};

py::object tree_of(const Specialisations::Rest& rest) { return static_cast<const KeptTree*>(rest.get())->tree(); }

// Two trees that are one but for their tensors. What cannot be compared may differ.
bool same_tree(const Specialisations::Rest& a, const Specialisations::Rest& b) {
  py::gil_scoped_acquire gil;
  return py::cast<bool>(tree_of(a).attr("same")(tree_of(b)));
}

std::vector<at::Generator> to_generators(const py::list& objects) {
  std::vector<at::Generator> generators;
  for (const py::handle object : objects) generators.push_back(reinterpret_cast<THPGenerator*>(object.ptr())->cdata);
  return generators;
}

// The results, and the tree that they are of: `tree`, or that of the call that was traced. `generators` are all that
// the function has from outside.
py::tuple run(const Specialisations& specialisations, py::handle function, py::handle tree, py::handle leaves,
              const py::list& generators) {
  const Tensors args = to_tensors(leaves);
  const detail::KnownGenerators known(to_generators(generators));
  const py::object depart = tree.attr("depart");
  Callback callback(function, depart);
  const auto keep = [&]() -> Specialisations::Rest {
    py::gil_scoped_acquire gil;
    return std::make_shared<const KeptTree>(tree);
  };
  auto [results, rest] = without_gil(
      [&] { return specialisations.run(args, detail::StaticKey::of(), callback.without_aux(), keep, &same_tree); });
  return py::make_tuple(to_list(results), tree_of(rest));
}

Specialisations compiled(bool fast, std::string cache) {
  return Specialisations(CompileOptions{fast ? Math::fast : Math::strict, std::move(cache)});
}

void save_compiled(const std::string& path, const std::vector<Specialisations>& functions) {
  without_gil([&] { Specialisations::save(path, functions); });
}

// The options are words that the veneer has checked.
void export_compiled(const Specialisations& function, const std::string& name, const py::dict& options) {
  const auto is = [&](const char* option, const char* word) { return options[option].cast<std::string>() == word; };
  ExportOptions given;
  given.folder = options["folder"].cast<std::string>();
  given.target = options["target"].cast<std::string>();
  given.also = options["also"].cast<std::vector<std::string>>();
  if (is("captured", "arguments")) given.captured = ExportOptions::Captured::arguments;
  if (is("abi", "casadi")) given.abi = CAbi::casadi;
  given.derivatives = options["derivatives"].cast<int>();
  given.parameters = options["parameters"].cast<std::vector<int64_t>>();
  given.argument_names = options["argument_names"].cast<std::vector<std::string>>();
  given.result_names = options["result_names"].cast<std::vector<std::string>>();
  without_gil([&] { detail::export_c(function, name, given); });
}

// `restore` makes the tree for a graph of the function with a number.
std::vector<Specialisations> load(const std::string& path, py::handle restore) {
  const auto restored = [&](size_t function, const std::string& stored) {
    py::gil_scoped_acquire gil;
    return std::pair<detail::StaticKey, Specialisations::Rest>(
        detail::StaticKey::of(), std::make_shared<const KeptTree>(restore(function, py::bytes(stored))));
  };
  return without_gil([&] { return Specialisations::load(path, "torch_tower", restored, &same_tree); });
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
      .def(py::init(&compiled))
      .def("run", &run)
      .def("graphs", &Specialisations::count)
      .def("report", [](const Specialisations& s) { return without_gil([&] { return s.report(); }); })
      .def("listing", [](const Specialisations& s) { return without_gil([&] { return s.listing(); }); });
  module.def("save_compiled", &save_compiled);
  module.def("load_compiled", &load);
  module.def("export_compiled", &export_compiled);
  py::class_<MappedOver>(module, "MappedOver", "One vmap around a call of a graph.")
      .def_readonly("axis", &MappedOver::axis, "Which vmap: equal numbers are the same examples.")
      .def_readonly("batch_size", &MappedOver::batch_size, "How many examples.")
      .def_readonly(
          "dims", &MappedOver::dims,
          "Of each operand the dimension that is mapped, in what the vmaps before this one left of it; -1: none.");
  py::class_<GraphValue>(module, "GraphValue", "A tensor of a graph.")
      .def_property_readonly(
          "origin", &origin_of,
          "\"argument\", \"captured\" (read again at each run), \"constant\", or \"result\" of a call.")
      .def_readonly("sizes", &GraphValue::sizes, "Its sizes, of all examples.")
      .def_property_readonly("dtype", &dtype_of, "Its torch.dtype.");
  py::class_<GraphCall>(module, "GraphCall", "An operator call of a graph.")
      .def_readonly("op", &GraphCall::op, "The operator: \"aten::mul.Tensor\".")
      .def_readonly("attributes", &GraphCall::attributes, "Arguments that are no tensors, as text: \"dim=0, index=6\".")
      .def_readonly("operands", &GraphCall::operands, "The values that it reads: their places in Graph.values.")
      .def_readonly("results", &GraphCall::results, "The values that it gives; -1: none.")
      .def_readonly("vmaps", &GraphCall::vmaps, "The vmaps around it, outermost first.")
      .def_readonly("writes", &GraphCall::writes, "Whether it writes to its first operand.");
  py::class_<Graph>(module, "Graph", "What a function computed when it was run; str() of it is a line a call.")
      .def_readonly("values", &Graph::values, "All tensors that have a part in it.")
      .def_readonly("arguments", &Graph::arguments, "The value of each tensor of the arguments; -1: none.")
      .def_readonly("calls", &Graph::calls, "The calls, in the order in which they were made.")
      .def_readonly("results", &Graph::results, "The value of each tensor of the result.")
      .def("__str__", [](const Graph& g) { return g.text; });
  module.def("graph", &graph);
}

}  // namespace tower::python
