// What a tensor inside a transform is and holds. No transform is changed by looking.
//
//   if (auto seen = tower::inspect(x)) std::cerr << seen->transform << ' ' << seen->level << ' ' <<
//   seen->value.sizes();
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tower {

/// A tensor that a transform made, seen from outside.
struct Inspected {
  std::string transform;             ///< "vmap", "jvp", "vjp" or "trace"
  std::string label;                 ///< the public function that started it: "vmap", "grad", "jacfwd", …
  int level = 0;                     ///< counted from the outermost transform, which is 1
  bool ended = false;                ///< the transform has ended: the tensor can no longer be used
  bool constant = false;             ///< the value does not depend on what the transform tracks
  at::Tensor value;                  ///< one level down; under vmap with the whole batch
  at::Tensor tangent;                ///< under jvp; undefined: zero
  std::optional<int64_t> batch_dim;  ///< under vmap
};

/// What `t` holds, if a transform made it.
std::optional<Inspected> inspect(const at::Tensor& t);

/// What `t` holds, as text: "BatchedTensor(level=1, bdim=0, value=…)". `plain` gives the text of a plain tensor,
/// without one it is LibTorch's. LibTorch's own `std::cout << t` reads memory, which `t` may not have.
///
///   std::cerr << tower::to_string(x) << '\n';
std::string to_string(const at::Tensor& t, const std::function<std::string(const at::Tensor&)>& plain = {});

/// Whether `t` may differ between the examples of a batch: some `vmap` that is running maps over what it was made from.
/// For code that must choose a way by it, such as one without `item()`.
bool is_batched(const at::Tensor& t);

/// Whether a derivative is taken of `t`: some transform that is running differentiates (`grad`, `vjp`, `jvp`, …) by
/// what it was made from. A constant inside of a transform is neither tracked nor batched.
bool is_tracked(const at::Tensor& t);

/// LibTorch's dispatch key through which Tower sees operators: a kernel registered there for an operator runs in
/// Tower's place.
c10::DispatchKey dispatch_key();

/// True if a transform is running on this thread, and its function is being executed.
bool inside_transform();

/// While alive on this thread, operators are LibTorch's own, as outside every transform. For looking at plain values
/// in the middle of one; tensors of the transforms cannot be used meanwhile.
class Suspended {
 public:
  /// Begins.
  Suspended();
  ~Suspended();
  Suspended(const Suspended&) = delete;
  Suspended& operator=(const Suspended&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tower
