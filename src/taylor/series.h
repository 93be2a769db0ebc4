// What a level of Taylor mode carries in its wrappers, where jvp has a tangent: the derivatives of the value by the
// parameter t of a curve, an undefined one being zero for reasons of structure, which costs nothing.
//
//   jet         {y', y'', …, y⁽ᴷ⁾} at t = 0
//   laplacian   {the first derivatives along all directions, stacked in front; the sum over directions of the second}
//
// Derivatives, and not coefficients of powers of t: those are what `jet` carries where it is asked for them
// (taylor/growing.h).
#pragma once

#include <c10/core/TensorImpl.h>

#include <vector>

#include "core/wrapper.h"

namespace tower::taylor {

using Derivatives = std::vector<Tensor>;

/// In a payload's `tangent`. It is no tensor that an operator could be called with: it has no dispatch key.
class Series final : public c10::TensorImpl {
 public:
  explicit Series(Derivatives derivatives)
      : TensorImpl(c10::DispatchKeySet(), caffe2::TypeMeta(), std::nullopt), derivatives_(std::move(derivatives)) {}
  const Derivatives& derivatives() const { return derivatives_; }

 private:
  Derivatives derivatives_;
};

/// A value with its derivatives as a tensor of `level`; a constant where all are zero.
inline Tensor wrap_series(Level& level, Tensor value, Derivatives derivatives) {
  for (const Tensor& d : derivatives)
    if (d.defined())
      return wrap(level, Payload{std::move(value), Tensor(c10::make_intrusive<Series>(std::move(derivatives))), -1});
  return wrap_constant(level, std::move(value));
}

/// Those of a payload of such a level; none of a constant.
inline Derivatives derivatives_of(const Payload& payload) {
  if (!payload.tangent.defined()) return {};
  return static_cast<const Series*>(payload.tangent.unsafeGetTensorImpl())->derivatives();
}

/// Whether a payload's tangent is a series.
inline bool is_series(const Tensor& tangent) {
  return tangent.defined() && dynamic_cast<const Series*>(tangent.unsafeGetTensorImpl()) != nullptr;
}

}  // namespace tower::taylor
