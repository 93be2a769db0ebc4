// Meshes of processes, and the collectives of named axes.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <tower/collectives.h>

#if TOWER_HAS_C10D
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

#include "function.h"
#include "module.h"

namespace tower::python {
namespace {

using Axes = std::vector<std::pair<std::string, int64_t>>;

std::vector<MeshAxis> axes_of(const Axes& axes) {
  std::vector<MeshAxis> result;
  for (const auto& [name, size] : axes) result.push_back({name, size});
  return result;
}

// torch.distributed registers its groups by name.
Mesh mesh_from_group([[maybe_unused]] const std::string& group, const Axes& axes, std::chrono::milliseconds timeout,
                     bool check) {
#if TOWER_HAS_C10D
  return Mesh::from_group(c10d::resolve_process_group(group), axes_of(axes), {timeout, check});
#else
  return Mesh::from_environment(axes_of(axes), {timeout, check});  // says that there are none
#endif
}

template <class F>
py::list listed(py::handle leaves, F&& f) {
  const Tensors tensors = to_tensors(leaves);
  return to_list(without_gil([&] { return f(tensors); }));
}

template <Tensors (*collective)(const Tensors&, std::string_view)>
py::list reduce(py::handle leaves, const std::string& axis) {
  return listed(leaves, [&](const Tensors& t) { return collective(t, axis); });
}

template <Tensors (*collective)(const Tensors&, std::string_view, int64_t)>
py::list along(py::handle leaves, const std::string& axis, int64_t dim) {
  return listed(leaves, [&](const Tensors& t) { return collective(t, axis, dim); });
}

template <at::Tensor (*collective)(const Mesh&, std::string_view, const at::Tensor&, int64_t)>
py::object across(const Mesh& mesh, const std::string& axis, py::handle tensor, int64_t dim) {
  const at::Tensor t = to_tensor(tensor);
  return to_object(without_gil([&] { return collective(mesh, axis, t, dim); }));
}

}  // namespace

void define_processes(py::module_& module) {
  py::class_<Mesh>(module, "Mesh")
      .def_property_readonly("rank", [](const Mesh& mesh) { return mesh.rank(); })
      .def_property_readonly("size", [](const Mesh& mesh) { return mesh.size(); })
      .def_property_readonly("axes",
                             [](const Mesh& mesh) {
                               Axes axes;
                               for (const MeshAxis& axis : mesh.axes()) axes.emplace_back(axis.name, axis.size);
                               return axes;
                             })
      .def("rank_along", [](const Mesh& mesh, const std::string& axis) { return mesh.rank(axis); });
  module.def("mesh_from_environment", [](const Axes& axes, std::chrono::milliseconds timeout, bool check) {
    return without_gil([&] { return Mesh::from_environment(axes_of(axes), {timeout, check}); });
  });
  module.def("mesh_from_group",
             [](const std::string& group, const Axes& axes, std::chrono::milliseconds timeout, bool check) {
               return without_gil([&] { return mesh_from_group(group, axes, timeout, check); });
             });
  module.def("psum", &reduce<dynamic::psum>);
  module.def("pmean", &reduce<dynamic::pmean>);
  module.def("pmax", &reduce<dynamic::pmax>);
  module.def("pmin", &reduce<dynamic::pmin>);
  module.def("all_gather", &along<dynamic::all_gather>);
  module.def("psum_scatter", &along<dynamic::psum_scatter>);
  module.def("ppermute",
             [](py::handle leaves, const std::string& axis, const std::vector<std::pair<int64_t, int64_t>>& pairs) {
               return listed(leaves, [&](const Tensors& t) { return dynamic::ppermute(t, axis, pairs); });
             });
  module.def("all_to_all", [](py::handle leaves, const std::string& axis, int64_t split_dim, int64_t concat_dim) {
    return listed(leaves, [&](const Tensors& t) { return dynamic::all_to_all(t, axis, split_dim, concat_dim); });
  });
  module.def("axis_index", [](const std::string& axis) { return to_object(axis_index(axis)); });
  module.def("axis_size", [](const std::string& axis) { return without_gil([&] { return axis_size(axis); }); });
  module.def("sum_across", [](const Mesh& mesh, const std::string& axis, py::handle leaves) {
    return listed(leaves, [&](const Tensors& t) { return tower::sum_across(mesh, axis, t); });
  });
  module.def("gather_across", &across<gather_across>);
  module.def("part_of", &across<part_of>);
}

}  // namespace tower::python
