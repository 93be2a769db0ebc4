// Differences between the LibTorch versions that Tower builds with (2.11 to 2.15), in one place.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <memory>
#include <string_view>

#if __has_include(<ATen/ops/_upsample_lanczos2d_aa.h>)
#define TOWER_HAS_LANCZOS 1  // from 2.12 on
#endif
#if __has_include(<ATen/ops/cholesky.h>)
#define TOWER_HAS_CHOLESKY 1  // before 2.14; linalg_cholesky is in all
#endif

namespace tower::torch_version {

/// Whether this version lacks an operator that rules and tests name, which came later or went. Rules for those that the
/// dispatcher does not know are left out (rules::record_of), and so are their tests.
inline bool lacks(std::string_view op) {
  constexpr int minor = TORCH_VERSION_MAJOR > 2 ? 1000 : TORCH_VERSION_MINOR;
  if (op == "aten::cholesky") return minor >= 14;
  if (op == "aten::_foreach_mm") return minor < 13;
  return minor < 12 && (op == "aten::_foreach_clone" || op.starts_with("aten::_upsample_lanczos2d_aa"));
}

/// Whether LibTorch differentiates the operator from a version after this one on. Tower does in all.
inline bool derivative_comes_later(std::string_view op) {
  constexpr int minor = TORCH_VERSION_MAJOR > 2 ? 1000 : TORCH_VERSION_MINOR;
  return minor < 12 && (op == "aten::aminmax" || op == "aten::narrow_copy");
}

/// How LibTorch's graph holds its nodes: by std::shared_ptr before 2.13.
using NodePtr = decltype(torch::autograd::Edge::function);

template <class Node, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<Node>(std::forward<Args>(args)...);
  else return c10::make_intrusive<Node>(std::forward<Args>(args)...);
}

/// Tells the node of an input of the shape of a number, to which LibTorch can bring gradients of any shape.
template <class Node>
void add_input(Node& node, const at::TensorOptions& options) {
  if constexpr (requires { node.add_input_metadata(options, c10::SymIntArrayRef(), false, false, std::nullopt); })
    node.add_input_metadata(options, c10::SymIntArrayRef(), false, false, std::nullopt);
  else node.add_input_metadata(options, c10::SymIntArrayRef(), false, false);
}

/// Whether dimensions are named. LibTorch 2.13 removed named tensors.
template <class T>
bool has_names(const T& tensor) {
  if constexpr (requires { tensor.has_names(); }) return tensor.has_names();
  else return false;
}

}  // namespace tower::torch_version
