// What Tower asks LibTorch's functorch, whose transforms may run inside of Tower's (NOTE [functorch inside], door.cpp).
// functorch's headers need nlohmann/json.hpp. A build that does not find it goes without: transforms of torch.func
// inside of Tower's then fail where functorch asks for a permission.
#pragma once

#include <ATen/core/Tensor.h>

#if __has_include(<nlohmann/json.hpp>)
#define TOWER_HAS_FUNCTORCH 1
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>
#else
#define TOWER_HAS_FUNCTORCH 0
#endif

namespace tower::functorch {

#if TOWER_HAS_FUNCTORCH
/// The transforms of torch.func that run on a thread, as functorch's own thread state begins with them.
using Layers = std::vector<at::functorch::DynamicLayer>;

inline bool allows_single_level_functions() { return at::functorch::getSingleLevelAutogradFunctionAllowed(); }
inline bool allows_inplace_requires_grad() { return at::functorch::getInplaceRequiresGradAllowed(); }

/// The value of a tensor whose transform has ended.
inline at::Tensor unwrap_dead(at::Tensor t) {
  while (at::functorch::isDeadTensorWrapper(t)) t = at::functorch::unwrapIfDead(t);
  return t;
}
#else
class Layers {
 public:
  bool empty() const { return true; }

 private:
  [[maybe_unused]] void* as_long_as_a_vector_[3] = {};
};

inline bool allows_single_level_functions() { return false; }
inline bool allows_inplace_requires_grad() { return false; }
inline at::Tensor unwrap_dead(at::Tensor t) { return t; }
#endif

}  // namespace tower::functorch
