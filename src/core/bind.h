// How a call finds the level that must handle it.
#pragma once

#include "core/operator.h"
#include "tower/errors.h"

namespace tower {

/// Runs a functional operator: the highest level among the arguments' wrappers processes it; without any, LibTorch
/// does. Replaces the arguments on the stack by the results. Throws EscapedTensorError for a wrapper of a level that
/// has ended, lives on another thread, or is not visible from the current top.
void bind_call(const Operator& op, Stack& stack);
/// The same when the highest level among the arguments' wrappers is already known (null: there are no wrappers).
void bind_call(const Operator& op, Stack& stack, Level* highest);

/// Whether a trace that runs knows the tensor as what is substituted around it (frontend/substitution.h): then it is a
/// value from outside, although its level cannot be seen. Set by the front end.
inline bool (*is_known_by_name)(const Tensor& t) = nullptr;

/// A tensor of a running level was met where that level cannot be seen: code below the level had captured it.
class InvisibleTensorError : public EscapedTensorError {
 public:
  InvisibleTensorError(const std::string& what, Tensor tensor) : EscapedTensorError(what), tensor_(std::move(tensor)) {}
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
};

/// Runs `op` on values one level below `level`, while Below says so: without any detour where they are plain tensors,
/// no other level is running, and nobody listens. `wrapped`: some value is a wrapper.
inline void call_below(const Level& level, const Operator& op, Stack& stack, bool wrapped) {
  if (wrapped) bind_call(op, stack);
  else if (level.below() || thread_state.recorder) bind_call(op, stack, nullptr);
  else op.call(stack);
}

/// The highest level among the arguments' wrappers; null if there is no wrapper.
Level* highest_level(const Operator& op, c10::ArrayRef<IValue> args);

/// Runs `op` by its decomposition or LibTorch's composite kernel, if it has one: their operators find their own way.
bool decompose(const Operator& op, Stack& stack);

/// The same, or by its implementation, if it has one.
bool evaluate_inside(const Operator& op, Stack& stack);

/// Whether a tensor is a plain one that carries a tangent of LibTorch's own forward mode.
inline bool is_libtorch_dual(const Tensor& t) {
  constexpr uint64_t kOnlyLevel = 0;  // LibTorch does not nest forward mode
  return t.unsafeGetTensorImpl()->autograd_meta() && !t.key_set().has(kKey) && t._fw_grad(kOnlyLevel).defined();
}

/// Whether LibTorch's own autograd follows what is computed from a tensor in reverse mode. It follows no wrapper, even
/// if it shows that it requires grad (interpreters/history.h).
inline bool libtorch_records(const Tensor& t) {
  return t.unsafeGetTensorImpl()->requires_grad() && !t.key_set().has(kKey);
}

/// The same, in reverse or in forward mode.
inline bool libtorch_follows(const Tensor& t) { return libtorch_records(t) || is_libtorch_dual(t); }

/// True if LibTorch's own autograd follows the call: then its kernels must not be skipped.
bool libtorch_follows(const Operator& op, c10::ArrayRef<IValue> args);

/// While code runs that may be a user's, such as an implementation or a rule: its operators find their own way, and
/// what it allocates may be written to with tracked values.
class AsUserCode {
 public:
  AsUserCode() { keys_.see_every_operator(top() != nullptr); }

 private:
  DispatchGuard keys_;
};

/// The nearest vmap level at or below `from`, which decides what random operators mean; null if there is none.
Level* nearest_vmap(Level* from);

}  // namespace tower
