// Running an operator's derivative rules, or what stands in for them: LibTorch's own autograd formula for a missing vjp
// rule, the transposed vjp for a missing jvp rule. Both the jvp and vjp interpreters and the tape use these.
#pragma once

#include "core/wrapper.h"

namespace tower {

/// Whether the derivative of `op` with respect to the tensor at `leaf` is asked for, whose wrapper holds `payload`.
inline bool is_tracked(const Operator& op, LeafRef leaf, const Payload& payload) {
  return payload.tracked() && !(op.inactive_args >> leaf.arg & 1);
}
/// The arguments with such a tensor, of wrappers that belong to `level`.
Mask tracked_args(const Level& level, const Operator& op, c10::ArrayRef<IValue> args);

/// What run_vjp (run_jvp) will need of a call with tracked tensors in the arguments `tracked`.
Keeps keeps_for_vjp(const Operator& op, Mask tracked, Served served);
Keeps keeps_for_jvp(const Operator& op, Mask tracked, Served served);

/// What is known of an output. One that is undefined, which its call did not ask for, has no dtype: it has no
/// derivative and no dimensions.
inline Meta meta_of_output(const Tensor& t) {
  if (t.defined()) return Meta(t);
  Meta none;
  none.dtype = at::ScalarType::Undefined;
  return none;
}

/// Fills frame.gradients; `served` as served_vjp says. Throws DerivativeError where the operator has no derivative that
/// anyone knows.
void run_vjp(VjpFrame& frame, Served served);

/// Fills frame.tangents; `served` as served_jvp says.
void run_jvp(JvpFrame& frame, Mask tracked, Served served);

/// How the operator's vjp (jvp) is served when arguments `tracked` are differentiated; `error` if not at all.
Served served_vjp(const Operator& op, Mask tracked);
Served served_jvp(const Operator& op, Mask tracked);

/// vjp of `op` by LibTorch's autograd formula, as an operator that every level below can process in turn.
void vjp_by_libtorch(VjpFrame& frame);

}  // namespace tower
