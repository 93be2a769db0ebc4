// LibTorch's own forward mode around a transform.
#pragma once

#include <ATen/Functions.h>
#include <torch/csrc/autograd/forward_grad.h>

namespace support {

/// While it lives, LibTorch's dual tensors can be made.
class LibtorchForwardMode {
 public:
  LibtorchForwardMode() = default;
  ~LibtorchForwardMode() { torch::autograd::ForwardADLevel::release_idx(level_); }
  LibtorchForwardMode(const LibtorchForwardMode&) = delete;
  LibtorchForwardMode& operator=(const LibtorchForwardMode&) = delete;

  at::Tensor dual(const at::Tensor& primal, const at::Tensor& tangent) const {
    return at::_make_dual(primal, tangent, static_cast<int64_t>(level_));
  }
  /// Undefined if `dual` has none.
  at::Tensor tangent(const at::Tensor& dual) const {
    return std::get<1>(at::_unpack_dual(dual, static_cast<int64_t>(level_)));
  }

 private:
  uint64_t level_ = torch::autograd::ForwardADLevel::get_next_idx();
};

}  // namespace support
