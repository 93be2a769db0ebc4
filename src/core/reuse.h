// Memory of an old value that nobody else can see, reused for the new one: what makes a write to a part of a tensor
// cost the part. Operators stay functional; the plain evaluation of one that replaces a part of its first argument
// (select_scatter, index_put, …) writes into that argument if the call's stack holds the only reference to it.
//
//   x[i] = v      x := select_scatter(x, v, 0, i)      front end: Reuse(x), x's payload in a wrapper of the stack's own
//     level 2     takes the value out of the wrapper, which dies
//     level 1     the same
//     plain       the stack and x's payload have the only references to the tensor: written in place
//
// A level that keeps the old value (a tape for its rule, a view that shows it) holds a reference: then it is a copy.
//
// Pointwise operators do the same with what a rule or a tape uses for the last time, cotangents and temporaries: the
// result takes the memory of an argument that was moved into the stack. That saves an allocation and a pass through
// memory; large tensors are added in two thirds of the time.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/operator.h"

namespace tower {

/// While it lives, a call is under way whose caller has given up the old value of its first argument. Whoever has
/// moved the only reference into the stack says no more; a tensor whose value the call will replace, and those that it
/// is a view of, may keep their payloads until then, so that they are as they were if the call throws.
class Reuse {
 public:
  Reuse() : outer_(current_), replaced_(outer_ ? outer_->replaced_ : nullptr) { current_ = this; }
  explicit Reuse(Wrapper& replaced) : outer_(current_), replaced_(&replaced) { current_ = this; }
  ~Reuse() { current_ = outer_; }
  Reuse(const Reuse&) = delete;
  Reuse& operator=(const Reuse&) = delete;

  static bool active() { return current_ != nullptr; }
  /// The value in a stack's first place where nobody else sees it, or else a copy of it, to be written to; undefined
  /// where no call is under way or the value is not of a kind that is written to like this.
  static Tensor to_overwrite(const Stack& stack);
  /// A tensor on the stack that the result of a pointwise operator may be written to: nobody else sees it, and the
  /// result is of its shape, type and order in memory. Null where there is none, or no call is under way.
  static const Tensor* to_write_result(const Stack& stack);

 private:
  static bool is_seen(const Tensor& t);

  const Reuse* outer_;
  Wrapper* replaced_;
  static constinit thread_local const Reuse* current_ __attribute__((tls_model("initial-exec")));
};

/// A plain tensor that LibTorch's autograd does not follow.
bool is_plain(const Tensor& t);

/// Whether `t` is a plain tensor that may be written to, of whose memory nobody knows but the one who holds it here.
bool is_own(const Tensor& t);

/// Whether the result of a pointwise operator of the two, plain tensors, may be written to `into`: that is the holder's
/// own, and of the result's shape, type and order in memory.
bool may_hold_result(const Tensor& into, const Tensor& other);

/// The operator itself, which may write its result to what is moved into the stack: a pointwise one to any of its
/// tensors, one that replaces a part to its first.
Tensor call_overwriting(const Operator& op, Stack&& stack);

/// a + b, in the memory of one of them where nobody else sees it.
Tensor add_overwriting(Tensor&& a, Tensor&& b);

/// The operator that replaces the part of a tensor that `view` shows, whose arguments are those of `view` with the new
/// part in second place; null if there is none.
const Operator* scatter_of(const Operator& view);

/// Whether an operator that stands for an in-place one overwrites its first argument where it may.
bool replaces_part(const Operator& op);

/// A part of a tensor is small if the tensor has so many times its elements: it is copied rather than shown.
constexpr int64_t kSmall = 4;

/// The call of a view or of its scatter: the base, what goes into second place, if anything, and the view's others.
Stack call_on_part(Tensor base, c10::ArrayRef<IValue> view_args);
Stack call_on_part(Tensor base, Tensor part, c10::ArrayRef<IValue> view_args);

}  // namespace tower
