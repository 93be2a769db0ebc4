// The processes along one axis of a mesh, and what they do together with plain tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "interpreters/pending.h"

namespace tower::mesh {

using at::Tensor;
using Tensors = std::vector<Tensor>;

enum class Extremum : uint8_t { largest, smallest };

class Owner;

/// Every process of the group calls the same functions in the same order; each returns when all have. They throw
/// MeshError, which names the axis and the collective. After that the group is of no more use.
class Group {
 public:
  Group(std::string axis, int64_t rank, int64_t size) : axis_(std::move(axis)), rank_(rank), size_(size) {}
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& axis() const { return axis_; }
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  /// For messages: a collective, over which axis, in which process.
  std::string where(const char* name) const;
  /// Of the mesh (NOTE [One thread at a time]).
  virtual Owner& owner() = 0;

  /// The sums of what the processes have: one message for each dtype among them. `name`: the collective, for messages.
  virtual Tensors sum(const char* name, const Tensors& tensors) = 0;
  /// A sum that goes on while this process does something else, such as to begin another. The tensors are not written
  /// to meanwhile.
  virtual std::unique_ptr<Unfinished> begin_sum(const char* name, const Tensors& tensors) = 0;
  virtual Tensors extremum(const char* name, Extremum which, const Tensors& tensors) = 0;
  /// The tensors of all processes, of process r behind those of r - 1: `part` has sizes[r] in its first dimension
  /// there.
  virtual Tensors gather(const char* name, const Tensors& parts, const std::vector<int64_t>& sizes) = 0;
  /// Sends give[r] to process r, which has room for it in its take[this process]: tensors without gaps, which are
  /// written to. Nothing goes where they have no elements. `parts`: what it is about, for messages.
  virtual void exchange(const char* name, const Tensors& parts, const std::vector<Tensors>& give,
                        const std::vector<Tensors>& take) = 0;
  /// Where a program is checked (MeshOptions::check), throws unless these are the same in all processes. `what`: what
  /// they are, with their number behind it. Undefined ones are passed over.
  virtual void check_agreement(const char* what, const Tensors& values) = 0;
  /// The number that each process has.
  std::vector<int64_t> gather_number(const char* name, int64_t number);
  /// What was gathered for who asks next.
  std::optional<std::vector<int64_t>> foretold;
  /// Tells the other processes, who may be waiting for this one, that it will not come, and why.
  virtual void fail(const std::string& why) noexcept = 0;

 private:
  std::string axis_;
  int64_t rank_, size_;
};

}  // namespace tower::mesh
