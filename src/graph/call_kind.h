// What a graph is right for: calls whose tensors and state are of one kind.
#pragma once

#include "core/level.h"
#include "core/operator.h"
#include "frontend/autocast.h"

namespace tower::compiler {

/// All of a tensor but its values that decides which operators a function calls.
struct TensorKind {
  TensorKind() : defined(false) {}
  explicit TensorKind(const Tensor& t) : defined(t.defined()) {
    if (!defined) return;
    sizes = t.sizes();
    strides = t.strides();
    dtype = t.scalar_type();
    device = t.device();
    requires_grad = t.requires_grad();
    leaf = t.is_leaf();
    number = t.unsafeGetTensorImpl()->is_wrapped_number();
  }
  bool operator==(const TensorKind&) const = default;

  /// Whether `t` is of this kind, found without making a TensorKind of it. `as_plain`: whether `t` would be, if no
  /// gradient were asked for it.
  bool is_of(const Tensor& t, bool as_plain = false) const {
    if (!defined || !t.defined()) return defined == t.defined();
    // A tensor that no gradient is asked for is a leaf, too.
    return dtype == t.scalar_type() && t.sizes().equals(sizes) && t.strides().equals(strides) && device == t.device() &&
           requires_grad == (t.requires_grad() && !as_plain) && (!requires_grad || leaf == t.is_leaf()) &&
           number == t.unsafeGetTensorImpl()->is_wrapped_number();
  }

  bool defined, requires_grad = false, leaf = false, number = false;
  at::ScalarType dtype = at::ScalarType::Undefined;
  at::Device device = at::kCPU;
  Sizes sizes, strides;
};

/// LibTorch's state of the thread.
struct Modes {
  bool operator==(const Modes&) const = default;
  /// The same where LibTorch's autograd records.
  Modes recording() const {
    Modes modes = *this;
    modes.grad = modes.forward_grad = true;
    modes.inference = false;
    return modes;
  }

  bool grad = autograd_state().get_grad_mode(), forward_grad = autograd_state().get_fw_grad_mode(),
       inference = autograd_state().get_inference_mode();
  caffe2::TypeMeta default_dtype = c10::get_default_dtype();
  uint64_t autocast = frontend::active_autocast().raw_repr();
  /// Of every device: the function may turn autocast on.
  frontend::AutocastDtypes autocast_dtypes = frontend::dtypes_of_autocast();
};

}  // namespace tower::compiler
