// Differences between the LibTorch versions that Tower builds with (2.11 to 2.15), in one place.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <memory>
#include <string_view>
#include <utility>

#if __has_include(<ATen/ops/_upsample_lanczos2d_aa.h>)
#define TOWER_HAS_LANCZOS 1  // from 2.12 on
#endif
#if __has_include(<ATen/ops/cholesky.h>)
#define TOWER_HAS_CHOLESKY 1  // before 2.14; linalg_cholesky is in all
#endif

namespace tower::torch_version {

constexpr int kMinor = TORCH_VERSION_MAJOR > 2 ? 1000 : TORCH_VERSION_MINOR;

/// Whether this version lacks an operator that rules and tests name, which came later or went. Rules for those that the
/// dispatcher does not know are left out (rules::record_of), and so are their tests.
inline bool lacks(std::string_view op) {
  if (op == "aten::cholesky") return kMinor >= 14;
  if (op == "aten::_foreach_mm") return kMinor < 13;
  return kMinor < 12 && (op == "aten::_foreach_clone" || op.starts_with("aten::_upsample_lanczos2d_aa"));
}

/// What tests of the operator leave out in this version, by the database's word for it, and why.
inline std::pair<const char*, const char*> exception(std::string_view op) {
  if (kMinor < 12 && (op == "aten::aminmax" || op == "aten::narrow_copy"))
    return {"no_autograd", "LibTorch has its derivative from 2.12 on; Tower in all versions"};
  if (kMinor > 13 && op == "aten::native_group_norm")
    return {"decomposition dtypes", "later versions take any dtypes where there are no elements"};
  return {nullptr, nullptr};
}

/// Whether kernels lay their results out in memory as LibTorch 2.13's do, of which the tests have a list.
constexpr bool kLaysAs213 = kMinor <= 13;

/// Whether attention's gradient in bfloat16 is as near to the exact one as LibTorch 2.13's: 2.15's is off by twice
/// that.
constexpr bool kAttentionIsNear = kMinor <= 13;

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
