#include "mesh/mesh.h"

#include <ATen/Functions.h>

#include <cstdlib>

#include "core/level.h"
#include "mesh/across.h"
#include "tower/errors.h"

namespace tower {
namespace mesh {

std::vector<MeshAxis> sized(std::vector<MeshAxis> axes, int64_t processes) {
  if (axes.empty()) throw MeshError("Mesh: it has no axes. Name at least one, such as \"data\" of size -1.");
  int64_t known = 1;
  MeshAxis* open = nullptr;
  std::string text;
  for (MeshAxis& axis : axes) {
    text += (text.empty() ? "" : " x ") + axis.name + " " + std::to_string(axis.size);
    for (const MeshAxis* other = axes.data(); other != &axis; ++other)
      if (other->name == axis.name) throw MeshError("Mesh: two axes are called '" + axis.name + "'.");
    if (axis.size == -1 && !open) open = &axis;
    else if (axis.size > 0) known *= axis.size;
    else
      throw MeshError("Mesh: axis '" + axis.name + "' has size " + std::to_string(axis.size) +
                      ". A size is positive, or -1 for one of the axes.");
  }
  if (open && processes % known == 0) open->size = processes / known;
  else if (open || known != processes)
    throw MeshError("Mesh: the axes (" + text + ") do not fit " + std::to_string(processes) +
                    " processes. Their product is the number of processes.");
  return axes;
}

}  // namespace mesh

Mesh::State::State(std::vector<MeshAxis> axes, int64_t rank, MeshOptions options)
    : axes_(std::move(axes)), rank_(rank), options_(options) {
  for (const MeshAxis& axis : axes_) size_ *= axis.size;
  const char* check = std::getenv("TOWER_MESH_CHECK");
  options_.check = options_.check || (check && std::string_view(check) == "1");
}

size_t Mesh::State::find(std::string_view axis) const {
  std::string names;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return i;
    names += (names.empty() ? "'" : ", '") + axes_[i].name + "'";
  }
  throw MeshError("Mesh: there is no axis '" + std::string(axis) + "'; there is " + names + ".");
}

int64_t Mesh::State::stride(size_t axis) const {
  int64_t stride = 1;
  for (size_t i = axis + 1; i < axes_.size(); ++i) stride *= axes_[i].size;
  return stride;
}

int64_t Mesh::State::rank_along(size_t axis) const { return rank_ / stride(axis) % axes_[axis].size; }

std::vector<int64_t> Mesh::State::members(size_t axis) const {
  const int64_t first = rank_ - rank_along(axis) * stride(axis);
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < axes_[axis].size; ++i) ranks.push_back(first + i * stride(axis));
  return ranks;
}

namespace {

Mesh::State& state_of(const Mesh& mesh) {
  if (!mesh.defined()) throw MeshError("Mesh: there is none. Make one by from_environment or from_group.");
  return *mesh.state();
}

}  // namespace

int64_t Mesh::rank() const { return state_of(*this).rank(); }
int64_t Mesh::size() const { return state_of(*this).size(); }
const std::vector<MeshAxis>& Mesh::axes() const { return state_of(*this).axes(); }
int64_t Mesh::rank(std::string_view axis) const { return state_of(*this).rank_along(state_of(*this).find(axis)); }
int64_t Mesh::size(std::string_view axis) const { return axes()[state_of(*this).find(axis)].size; }

std::vector<at::Tensor> sum_across(const Mesh& mesh, std::string_view axis, const std::vector<at::Tensor>& tensors) {
  return tensors.empty() ? tensors : mesh::sum(state_of(mesh).group(axis), "sum_across", tensors);
}
at::Tensor sum_across(const Mesh& mesh, std::string_view axis, const at::Tensor& t) {
  return sum_across(mesh, axis, std::vector<at::Tensor>{t})[0];
}

at::Tensor gather_across(const Mesh& mesh, std::string_view axis, const at::Tensor& part, int64_t dim) {
  const auto group = state_of(mesh).group(axis);
  const auto counts =
      std::make_shared<const std::vector<int64_t>>(group->gather_number("gather_across", part.size(dim)));
  return mesh::gather(group, "gather_across", counts, {part.movedim(dim, 0)})[0].movedim(0, dim);
}

at::Tensor part_of(const Mesh& mesh, std::string_view axis, const at::Tensor& whole, int64_t dim) {
  const auto group = state_of(mesh).group(axis);
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < group->size(); ++r)
    counts.push_back(whole.size(dim) / group->size() + (r < whole.size(dim) % group->size()));
  return mesh::part(group, std::make_shared<const std::vector<int64_t>>(std::move(counts)), {whole.movedim(dim, 0)})[0]
      .movedim(0, dim);
}

}  // namespace tower
