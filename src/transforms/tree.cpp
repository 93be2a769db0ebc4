#include "tower/tree.h"

#include <c10/core/TensorImpl.h>

#include "tower/errors.h"

namespace tower::detail {

const at::Tensor& LeafReader::next() {
  if (next_ == leaves_.size()) {
    throw ArgumentError("tree: it has more tensors than the " + std::to_string(leaves_.size()) +
                        " given: give one for each of its tensors");
  }
  return leaves_[next_++];
}

void LeafReader::finish() const {
  if (next_ != leaves_.size()) {
    throw ArgumentError("tree: it has " + std::to_string(next_) + " tensors, but " + std::to_string(leaves_.size()) +
                        " were given: give one for each of its tensors");
  }
}

void refuse_unnamed_field() {
  throw ArgumentError("tree: a field was asked for that the struct does not name in tower_fields");
}

const at::Tensor& placeholder() {
  // Made without an operator call, so that no running transform sees it.
  static const auto& empty = *new at::Tensor(c10::make_intrusive<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>(), c10::Device(c10::kCPU)));
  return empty;
}

}  // namespace tower::detail
