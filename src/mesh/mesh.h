// What a Mesh is a handle of: this process's groups, one for each axis, and the notice board that all processes can
// read.
#pragma once

#include <mutex>
#include <optional>

#include "mesh/group.h"
#include "tower/mesh.h"

namespace tower {

class Mesh::State : public std::enable_shared_from_this<Mesh::State> {
 public:
  State(std::vector<MeshAxis> axes, int64_t rank, MeshOptions options);
  virtual ~State() = default;

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  const MeshOptions& options() const { return options_; }
  /// The position of an axis; throws MeshError, which says what axes there are.
  size_t find(std::string_view axis) const;
  /// Where this process is along an axis.
  int64_t rank_along(size_t axis) const;
  /// The processes that differ from this one along the axis alone, this one among them.
  std::vector<int64_t> members(size_t axis) const;
  /// The group of an axis, which keeps all of this alive.
  std::shared_ptr<mesh::Group> group(std::string_view axis) { return {shared_from_this(), &group(find(axis))}; }

 private:
  virtual mesh::Group& group(size_t axis) = 0;
  int64_t stride(size_t axis) const;
  std::vector<MeshAxis> axes_;
  int64_t rank_, size_ = 1;
  MeshOptions options_;
};

namespace mesh {

/// The axes with -1 replaced by what it stands for. Throws MeshError where they do not fit the number of processes.
std::vector<MeshAxis> sized(std::vector<MeshAxis> axes, int64_t processes);

}  // namespace mesh
}  // namespace tower
