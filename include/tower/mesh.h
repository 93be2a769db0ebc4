// Processes that share the examples of a vmap. A mesh numbers them along named axes; vmap with one of these axes maps
// over a batch of which each process has a part, and means what vmap means in one process (docs/processes.md):
//
//   const tower::Mesh mesh = tower::Mesh::from_environment({{"data", 4}});  // torchrun's, or script/launch -n 4
//   const auto losses = tower::vmap(loss, {.in_dims = {std::nullopt, 0}, .axis = "data", .across = mesh});
//
// The collectives that the mapped function calls are in tower/collectives.h. Those of this header are for the code
// around it, where a mapped argument or result is this process's own part.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tower/errors.h"

namespace c10d {
class ProcessGroup;
}

namespace tower {

/// Something is wrong between processes: one died, hangs, failed, or does something else than the others.
class MeshError : public Error {
 public:
  using Error::Error;
};

/// One axis of a mesh.
struct MeshAxis {
  std::string name;  ///< "data": by which vmaps and collectives speak of it
  int64_t size;      ///< how many processes; -1 for one of the axes: as many as there are
};

/// How long the processes of a mesh wait for each other, and what they ask each other.
struct MeshOptions {
  /// How long a collective waits for the other processes before it throws, and how long making the mesh may take.
  std::chrono::milliseconds timeout{300000};
  /// Every collective first compares what the processes are about to do, and says what differs. It costs a second
  /// collective each time. The environment's TOWER_MESH_CHECK=1 turns it on, too.
  bool check = false;
};

/// A handle: copies are the same mesh, for one thread at a time. Every process makes it with the same axes.
class Mesh {
 public:
  /// No mesh: one process.
  Mesh() = default;
  /// With these `axes`, from torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. The last axis varies
  /// fastest with the rank.
  /// Throws MeshError where they are missing, do not fit the axes, or LibTorch has no distributed engine.
  static Mesh from_environment(std::vector<MeshAxis> axes, MeshOptions options = {});
  /// With these `axes`, from a `group` that the program made, of any backend. Between processes of gloo's the mesh has
  /// connections of its own; else an axis of a mesh with several is a group that the backend must be able to split off.
  static Mesh from_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::vector<MeshAxis> axes,
                         MeshOptions options = {});

  /// Whether there is a mesh; a Mesh() is none.
  bool defined() const { return state_ != nullptr; }
  /// The number of this process, from 0. Throws MeshError where there is no mesh, as what follows does.
  int64_t rank() const;
  /// How many processes there are.
  int64_t size() const;
  /// The axes, with their sizes.
  const std::vector<MeshAxis>& axes() const;
  /// Where this process is along `axis`, from 0. Throws MeshError where there is no such axis.
  int64_t rank(std::string_view axis) const;
  /// How many processes there are along `axis`. Throws MeshError where there is no such axis.
  int64_t size(std::string_view axis) const;

  class State;
  /// What the library knows of the mesh; not for programs.
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  explicit Mesh(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// The name of a vmap's examples, and where they are.
struct NamedExamples {
  std::string axis = {};  ///< the name; empty: none
  Mesh across = {};       ///< the processes that share them along its axis of that name; none: this one has all
};

// Between the parts that the processes of an axis have and what is the same for all of them, outside of the mapped
// function. They have derivatives: what is differentiated is the program of all processes. Every process of the axis
// calls them, or what waits throws MeshError after the mesh's timeout.

/// The sum of what the processes of `mesh` along `axis` have in `t`, of one shape and dtype everywhere.
at::Tensor sum_across(const Mesh& mesh, std::string_view axis, const at::Tensor& t);
/// The same for each of several `tensors`, which are sent together.
std::vector<at::Tensor> sum_across(const Mesh& mesh, std::string_view axis, const std::vector<at::Tensor>& tensors);
/// The parts that the processes of `mesh` along `axis` have, one behind the other along `dim`: each gives its `part`,
/// whose other dimensions are equal everywhere.
at::Tensor gather_across(const Mesh& mesh, std::string_view axis, const at::Tensor& part, int64_t dim = 0);
/// The part of this process, one of those of `mesh` along `axis`, of a `whole` that all have: a piece of `dim`. The
/// first processes have one more where the size does not divide.
at::Tensor part_of(const Mesh& mesh, std::string_view axis, const at::Tensor& whole, int64_t dim = 0);

}  // namespace tower
