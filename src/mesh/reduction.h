// Sums and extrema of what processes have, on their way.
#pragma once

#include <optional>
#include <vector>

#include "mesh/first_message.h"

namespace tower::mesh {

using Tensors = std::vector<Tensor>;

/// The first message is sent when it is made; what does not fit into that when go_on is called, which is to be at the
/// same place in all processes. The tensors are not written to meanwhile.
class Reduction {
 public:
  using Kind = c10d::ReduceOp::RedOpType;
  Reduction(Wire& wire, const char* name, int64_t number, Kind kind, const Tensors& tensors);
  /// Whether LibTorch can do it with tensors of this type. What it cannot is not sent.
  static bool can_do(Kind kind, at::ScalarType type);
  const Tensors& tensors() const { return tensors_; }

  /// Whether the processes mean the same; false: the others may do whatever else.
  bool go_on();
  /// After go_on. Each result has memory of its own.
  Tensors finish();

 private:
  // Tensors of one type and device, which go together, complex ones as real numbers.
  struct Bundle {
    at::ScalarType type;
    at::Device device;
    std::vector<size_t> members = {};
    int64_t numel = 0, begin = 0;      // begin: in the first message
    std::vector<Tensor> message = {};  // the second, one, of numbers that backends reduce
    WorkPointer work = {};
    int64_t bytes() const { return numel * static_cast<int64_t>(c10::elementSize(type)); }
  };
  void fill(const Bundle& bundle, const Tensor& message) const;
  Tensor reduced(const Bundle& bundle) const;

  Wire& wire_;
  Kind kind_;
  Tensors tensors_;
  std::vector<Bundle> bundles_;
  std::optional<FirstMessage> first_message_;
};

}  // namespace tower::mesh
