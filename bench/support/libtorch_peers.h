// What Tower is measured against: LibTorch's own two engines, driven from C++ the way its Python front end drives
// them, as functions that nest like Tower's dynamic ones and have the same type.
//
//   peer::autograd::grad(f)                           the tape that torch::Tensor::backward() uses
//   peer::functorch::vmap(peer::functorch::grad(f))   the interpreter stack behind torch.func
//
// Functions that are differentiated have one output; autograd's are differentiated by their first argument.
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
#include <ATen/ops/eye.h>
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

/// torch.func.vmap, over dimension 0 of all arguments if none are named; results are mapped in front.
inline Function vmap(Function f, std::vector<std::optional<int64_t>> in_dims = {}) {
  return [f = std::move(f), in_dims = std::move(in_dims)](const Tensors& arguments) -> Tensors {
    const auto dim_of = [&](size_t i) { return in_dims.empty() ? std::optional<int64_t>(0) : in_dims[i]; };
    int64_t batch_size = -1;
    for (size_t i = 0; i < arguments.size(); ++i)
      if (dim_of(i)) batch_size = arguments[i].size(*dim_of(i));
    const Layer layer(
        ft::initAndPushDynamicLayer(ft::TransformType::Vmap, c10::SymInt(batch_size), ft::RandomnessType::Error));
    Tensors mapped = arguments;
    for (size_t i = 0; i < arguments.size(); ++i)
      if (dim_of(i)) mapped[i] = ft::makeBatched(arguments[i], *dim_of(i), layer.level());
    Tensors results = f(mapped);
    for (at::Tensor& y : results) {
      const auto* batched = ft::maybeGetBatchedImpl(y);
      if (batched == nullptr || batched->level() != layer.level()) {
        std::vector<int64_t> sizes = y.sizes().vec();
        sizes.insert(sizes.begin(), batch_size);
        y = y.expand(sizes);
      } else {
        y = batched->bdim() == 0 ? batched->value() : at::movedim(batched->value(), batched->bdim(), 0);
      }
    }
    return results;
  };
}

/// What torch.func does to an argument that is differentiated.
inline at::Tensor tracked(const Layer& layer, const at::Tensor& argument) {
  const at::Tensor x = ft::makeTensorWrapper(argument, layer.level());
  ft::setInplaceRequiresGradAllowed(true);
  x.requires_grad_();
  ft::setInplaceRequiresGradAllowed(false);
  return x;
}

/// torch.func.grad. Like the original it always builds the graph of the backward pass: "need create_graph so that
/// backward pass isn't run in no_grad mode".
inline Function grad(Function f, std::vector<int64_t> argnums = {0}) {
  return [f = std::move(f), argnums = std::move(argnums)](const Tensors& arguments) -> Tensors {
    const Layer layer(
        ft::initAndPushDynamicLayer(ft::TransformType::Grad, std::nullopt, std::nullopt, c10::GradMode::is_enabled()));
    at::AutoGradMode enabled(true);
    Tensors inside = arguments, inputs;
    for (int64_t i : argnums) {
      at::Tensor& x = inside[static_cast<size_t>(i)];
      x = tracked(layer, x);
      inputs.push_back(x);
    }
    Tensors gradients = torch::autograd::grad(f(inside), inputs, {}, true, true);
    for (at::Tensor& g : gradients) g = layer.unwrap(g);
    return gradients;
  };
}

/// torch.func.jvp; the tangent alone. `tangents` are those of the first arguments.
inline Function jvp(Function f, Tensors tangents) {
  return [f = std::move(f), tangents = std::move(tangents)](const Tensors& arguments) -> Tensors {
    const Layer layer(ft::initAndPushDynamicLayer(ft::TransformType::Jvp, std::nullopt, std::nullopt, std::nullopt,
                                                  c10::AutogradState::get_tls_state().get_fw_grad_mode()));
    const DualLevel level;
    Tensors inside = arguments;
    for (size_t i = 0; i < tangents.size(); ++i) inside[i] = level.dual(arguments[i], tangents[i]);
    Tensors results = f(inside);
    for (at::Tensor& y : results) y = layer.unwrap(level.tangent(y));
    return results;
  };
}

/// One row for each element of `like`, in its shape.
inline at::Tensor unit_vectors(const at::Tensor& like) {
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes.insert(sizes.begin(), like.numel());
  return at::eye(like.numel(), like.options()).view(sizes);
}

/// torch.func.jacrev by the first argument.
inline Function jacrev(Function f) {
  return [f = std::move(f)](const Tensors& arguments) -> Tensors {
    const Layer layer(
        ft::initAndPushDynamicLayer(ft::TransformType::Grad, std::nullopt, std::nullopt, c10::GradMode::is_enabled()));
    at::AutoGradMode enabled(true);
    const at::Tensor x = tracked(layer, arguments[0]);
    const at::Tensor y = f(with_first(x, arguments))[0];
    const Function pullback = [&](const Tensors& cotangents) {
      return torch::autograd::grad({y}, {x}, cotangents, true, true);
    };
    std::vector<int64_t> sizes = y.sizes().vec();
    sizes.insert(sizes.end(), x.sizes().begin(), x.sizes().end());
    return {layer.unwrap(vmap(pullback)({unit_vectors(y)})[0].reshape(sizes))};
  };
}

/// torch.func.jacfwd by the first argument.
inline Function jacfwd(Function f) {
  return [f = std::move(f)](const Tensors& arguments) -> Tensors {
    const Function push = [&](const Tensors& direction) { return jvp(f, direction)(arguments); };
    const at::Tensor columns = at::movedim(vmap(push)({unit_vectors(arguments[0])})[0], 0, -1);
    std::vector<int64_t> sizes = columns.sizes().vec();
    sizes.pop_back();
    sizes.insert(sizes.end(), arguments[0].sizes().begin(), arguments[0].sizes().end());
    return {columns.reshape(sizes)};
  };
}

}  // namespace functorch
#endif

}  // namespace peer
