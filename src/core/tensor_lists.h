// Lists of tensors, which operators without a signature of their own take and give.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace tower {

/// The tensors of an argument or result that is a list; undefined ones among them.
inline std::vector<at::Tensor> tensors_of(const c10::IValue& list) {
  const auto elements = list.toListRef();
  std::vector<at::Tensor> result;
  result.reserve(elements.size());
  for (const c10::IValue& element : elements) result.push_back(element.toTensor());
  return result;
}

/// Those of `a`, and then those of `b`.
inline std::vector<at::Tensor> joined(std::vector<at::Tensor> a, const std::vector<at::Tensor>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace tower
