// Differences between the LibTorch versions that Tower builds with (2.11 to 2.13), in one place.
#pragma once

namespace tower::torch_version {

/// Whether dimensions are named. LibTorch 2.13 removed named tensors.
template <class T>
bool has_names(const T& tensor) {
  if constexpr (requires { tensor.has_names(); }) return tensor.has_names();
  else return false;
}

}  // namespace tower::torch_version
