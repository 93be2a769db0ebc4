// What Tower is measured against: LibTorch's own two engines, driven from C++ the way its Python front end drives
// them, as functions that nest like Tower's dynamic ones and have the same type.
//
//   peer::autograd::grad(f)                           the tape that torch::Tensor::backward() uses
//   peer::functorch::vmap(peer::functorch::grad(f))   the interpreter stack behind torch.func
//
// Functions have one output and are differentiated by their first argument; all arguments are mapped.
//
// The second is internal to LibTorch and needs nlohmann/json.hpp; TOWER_BENCH_FUNCTORCH is 1 where that was found.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_unpack_dual.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#if TOWER_BENCH_FUNCTORCH
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/ops/movedim.h>
#endif

namespace peer {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

inline Tensors with_first(at::Tensor first, Tensors arguments) {
  arguments[0] = std::move(first);
  return arguments;
}

/// LibTorch has one level of forward-mode derivatives; it is entered once, however deep the nesting around it.
class DualLevel {
 public:
  DualLevel() : level_(torch::autograd::ForwardADLevel::get_next_idx()) {}
  ~DualLevel() { torch::autograd::ForwardADLevel::release_idx(level_); }
  DualLevel(const DualLevel&) = delete;
  DualLevel& operator=(const DualLevel&) = delete;

  at::Tensor dual(const at::Tensor& primal, const at::Tensor& tangent) const {
    return at::_make_dual(primal, tangent, static_cast<int64_t>(level_));
  }
  at::Tensor tangent(const at::Tensor& dual) const {
    return std::get<1>(at::_unpack_dual(dual, static_cast<int64_t>(level_)));
  }

 private:
  uint64_t level_;
};

namespace autograd {

enum class Order { first, higher };

/// The gradient of the scalar function `f`. `Order::higher` makes a result that can be differentiated again.
inline Function grad(Function f, Order order = Order::first) {
  return [f = std::move(f), order](const Tensors& arguments) -> Tensors {
    at::AutoGradMode enabled(true);
    const at::Tensor& input = arguments[0];
    const at::Tensor x = input.requires_grad() ? input : input.detach().requires_grad_();
    const bool create_graph = order == Order::higher;
    return torch::autograd::grad(f(with_first(x, arguments)), {x}, {}, create_graph, create_graph);
  };
}

/// The derivative of `f` along `tangent`.
inline Function jvp(Function f, at::Tensor tangent) {
  return [f = std::move(f), tangent = std::move(tangent)](const Tensors& arguments) -> Tensors {
    const DualLevel level;
    const at::Tensor x = level.dual(arguments[0], tangent);
    return {level.tangent(f(with_first(x, arguments))[0])};
  };
}

/// Forward over reverse: the derivative along `tangent` of the gradient of `f`.
inline Function jvp_of_grad(Function f, at::Tensor tangent) {
  return [f = std::move(f), tangent = std::move(tangent)](const Tensors& arguments) -> Tensors {
    at::AutoGradMode enabled(true);
    const DualLevel level;
    const at::Tensor x = level.dual(arguments[0], tangent).requires_grad_();
    return {level.tangent(torch::autograd::grad(f(with_first(x, arguments)), {x})[0])};
  };
}

}  // namespace autograd

#if TOWER_BENCH_FUNCTORCH
namespace functorch {

namespace ft = at::functorch;

/// One entry of LibTorch's interpreter stack, for as long as the object lives.
class Layer {
 public:
  explicit Layer(int64_t level) : level_(level) {}
  ~Layer() { ft::popDynamicLayerAndDeleteMetadata(); }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  int64_t level() const { return level_; }

  /// The value that a tensor of this layer wraps (torch._C._functorch._unwrap_for_grad).
  at::Tensor unwrap(const at::Tensor& tensor) const {
    const auto* wrapper = ft::maybeGetTensorWrapper(tensor);
    return wrapper != nullptr && wrapper->level() == level_ ? wrapper->value() : tensor;
  }

 private:
  int64_t level_;
};

/// torch.func.vmap over dimension 0 of all arguments.
inline Function vmap(Function f) {
  return [f = std::move(f)](const Tensors& arguments) -> Tensors {
    const c10::SymInt batch_size = arguments[0].size(0);
    const Layer layer(ft::initAndPushDynamicLayer(ft::TransformType::Vmap, batch_size, ft::RandomnessType::Error));
    Tensors mapped;
    for (const at::Tensor& argument : arguments) mapped.push_back(ft::makeBatched(argument, 0, layer.level()));
    const at::Tensor y = f(mapped)[0];
    const auto* batched = ft::maybeGetBatchedImpl(y);
    TORCH_CHECK(batched != nullptr && batched->level() == layer.level(), "the function ignores its arguments");
    return {batched->bdim() == 0 ? batched->value() : at::movedim(batched->value(), batched->bdim(), 0)};
  };
}

/// torch.func.grad. Like the original it always builds the graph of the backward pass: "need create_graph so that
/// backward pass isn't run in no_grad mode".
inline Function grad(Function f) {
  return [f = std::move(f)](const Tensors& arguments) -> Tensors {
    const Layer layer(
        ft::initAndPushDynamicLayer(ft::TransformType::Grad, std::nullopt, std::nullopt, c10::GradMode::is_enabled()));
    at::AutoGradMode enabled(true);
    const at::Tensor x = ft::makeTensorWrapper(arguments[0], layer.level());
    ft::setInplaceRequiresGradAllowed(true);
    x.requires_grad_();
    ft::setInplaceRequiresGradAllowed(false);
    const Tensors gradients = torch::autograd::grad(f(with_first(x, arguments)), {x}, {}, true, true);
    return {layer.unwrap(gradients[0])};
  };
}

/// torch.func.jvp; the tangent alone.
inline Function jvp(Function f, at::Tensor tangent) {
  return [f = std::move(f), tangent = std::move(tangent)](const Tensors& arguments) -> Tensors {
    const Layer layer(ft::initAndPushDynamicLayer(ft::TransformType::Jvp, std::nullopt, std::nullopt, std::nullopt,
                                                  c10::AutogradState::get_tls_state().get_fw_grad_mode()));
    const DualLevel level;
    const at::Tensor x = level.dual(arguments[0], tangent);
    return {layer.unwrap(level.tangent(f(with_first(x, arguments))[0]))};
  };
}

}  // namespace functorch
#endif

}  // namespace peer
