// Arguments of boxed calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace apart {

/// The value with `f` of each of its tensors, alone or in a list, in the tensors' place.
template <class F>
c10::IValue with_tensors(const c10::IValue& v, const F& f) {
  if (v.isTensor()) return f(v.toTensor());
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : v.toTensorVector()) list.push_back(f(t));
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& t : v.toListRef())
      list.push_back(t.isTensor() ? std::optional<at::Tensor>(f(t.toTensor())) : std::nullopt);
    return list;
  }
  return v;
}

}  // namespace apart
