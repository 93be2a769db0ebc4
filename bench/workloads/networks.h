// Gradients of networks: per-example ones of a perceptron and a convolutional network, clipped and averaged (DP-SGD);
// ensembles; curvature; a transformer's layer and a recurrent network.
#pragma once

#include <ATen/ATen.h>

#include <cmath>

#include "workloads/engine.h"

namespace workloads {

inline Dims none_but(size_t shared, size_t mapped) {
  Dims dims(shared, std::nullopt);
  dims.insert(dims.end(), mapped, 0);
  return dims;
}

/// Weights and biases of dense layers with these sizes, one after the other; `copies` of each where that is not zero.
inline Tensors dense_layers(const std::vector<int64_t>& sizes, int64_t copies = 0) {
  Tensors params;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    const double scale = 1 / std::sqrt(static_cast<double>(sizes[i]));
    std::vector<int64_t> weight{sizes[i + 1], sizes[i]}, bias{sizes[i + 1]};
    if (copies > 0) weight.insert(weight.begin(), copies), bias.insert(bias.begin(), copies);
    params.push_back(at::randn(weight, here()) * scale);
    params.push_back(at::randn(bias, here()) * scale);
  }
  return params;
}

inline at::Tensor perceptron(const Tensors& params, size_t layers, at::Tensor x,
                             at::Tensor (*activation)(const at::Tensor&)) {
  for (size_t i = 0; i < layers; ++i) {
    x = at::linear(x, params[2 * i], params[2 * i + 1]);
    if (i + 1 < layers) x = activation(x);
  }
  return x;
}

/// functorch's internals have no rule for LibTorch's own operator, which its Python front end brings along.
inline at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& y) {
  return -at::log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).mean();
}

/// The same for second derivatives: forward mode of what log_softmax leaves to its Python front end fails in functorch.
inline at::Tensor smooth_cross_entropy(const at::Tensor& logits, const at::Tensor& y) {
  return (at::logsumexp(logits, {-1}) - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)).mean();
}

/// Gradients of each example, in front: clipped to norm one and averaged.
inline Tensors clipped_mean(const Tensors& gradients) {
  Tensors squares, means;
  for (const at::Tensor& g : gradients) squares.push_back(g.flatten(1).square().sum(1));
  const at::Tensor factor = at::stack(squares).sum(0).sqrt().reciprocal().clamp_max(1) / gradients[0].size(0);
  for (const at::Tensor& g : gradients)
    means.push_back(at::mv(g.reshape({g.size(0), -1}).t(), factor).view(g.sizes().slice(1)));
  return means;
}

// ---- DP-SGD --------------------------------------------------------------------------------------------------------

inline Workload dp_perceptron(int64_t examples) {
  const Tensors params = dense_layers({64, 128, 10});
  const at::Tensor x = at::randn({examples, 64}, here()), y = at::randint(10, {examples}, here(at::kLong));
  Tensors arguments = params;
  arguments.insert(arguments.end(), {x, y});
  const auto with = [=](const Engine& engine) -> Work {
    const Function loss = [](const Tensors& a) -> Tensors {
      return {cross_entropy(perceptron(a, 2, a[4], at::relu), a[5])};
    };
    const Function gradients = engine.vmap(engine.grad(loss, first_arguments(4)), none_but(4, 2));
    return [=] { return clipped_mean(gradients(arguments)); };
  };
  const Work by_einsum = [=]() -> Tensors {
    const at::Tensor h = at::relu(at::linear(x, params[0], params[1]));
    at::Tensor d2 = at::softmax(at::linear(h, params[2], params[3]), 1);
    d2 = d2 - at::one_hot(y, 10);
    const at::Tensor d1 = at::where(h > 0, at::mm(d2, params[2]), 0.0);
    return clipped_mean({at::einsum("bi,bj->bij", {d1, x}), d1, at::einsum("bi,bj->bij", {d2, h}), d2});
  };
  return {"DP-SGD perceptron, " + std::to_string(examples) + " examples", with, by_einsum, 1.0, Workload::hand};
}

inline Workload dp_convolutional(int64_t images) {
  const auto weight = [](at::IntArrayRef sizes) {
    return at::randn(sizes, here()) / std::sqrt(static_cast<double>(c10::multiply_integers(sizes.slice(1))));
  };
  Tensors arguments{weight({16, 1, 8, 8}),
                    at::zeros({16}, here()),
                    weight({32, 16, 4, 4}),
                    at::zeros({32}, here()),
                    weight({32, 512}),
                    at::zeros({32}, here()),
                    weight({10, 32}),
                    at::zeros({10}, here()),
                    at::randn({images, 1, 28, 28}, here()),
                    at::randint(10, {images}, here(at::kLong))};
  const auto with = [=](const Engine& engine) -> Work {
    const Function loss = [](const Tensors& p) -> Tensors {
      at::Tensor x = at::relu(at::conv2d(p[8].unsqueeze(0), p[0], p[1], 2, 3));
      x = at::max_pool2d(x, 2, 1);
      x = at::max_pool2d(at::relu(at::conv2d(x, p[2], p[3], 2)), 2, 1).flatten(1);
      x = at::linear(at::relu(at::linear(x, p[4], p[5])), p[6], p[7]);
      return {cross_entropy(x, p[9].unsqueeze(0))};
    };
    const Function gradients = engine.vmap(engine.grad(loss, first_arguments(8)), none_but(8, 2));
    return [=] { return clipped_mean(gradients(arguments)); };
  };
  return {"DP-SGD convolutional, " + std::to_string(images) + " images 28²", with, {}, 0.85};
}

// ---- ensembles -----------------------------------------------------------------------------------------------------

inline Function cross_entropy_of_perceptron() {
  return [](const Tensors& a) -> Tensors { return {cross_entropy(perceptron(a, 2, a[4], at::relu), a[5])}; };
}

inline Workload ensemble_forward(int64_t members) {
  Tensors arguments = dense_layers({64, 128, 10}, members);
  arguments.push_back(at::randn({64, 64}, here()));
  const auto with = [=](const Engine& engine) -> Work {
    const Function forward = [](const Tensors& a) -> Tensors { return {perceptron(a, 2, a[4], at::relu)}; };
    return [=, mapped = engine.vmap(forward, {0, 0, 0, 0, std::nullopt})] { return mapped(arguments); };
  };
  const Work by_hand = [=]() -> Tensors {
    const Tensors& p = arguments;
    const at::Tensor h = at::baddbmm(p[1].unsqueeze(1), p[4].expand({members, 64, 64}), p[0].mT()).relu_();
    return {at::baddbmm(p[3].unsqueeze(1), h, p[2].mT())};
  };
  return {"ensemble of " + std::to_string(members) + ", forward", with, by_hand, 1.15, Workload::hand};
}

inline Workload ensemble_training(int64_t members) {
  const Tensors params = dense_layers({64, 128, 10}, members);
  const at::Tensor x = at::randn({64, 64}, here()), y = at::randint(10, {64}, here(at::kLong));
  const auto updated = [=](const Tensors& gradients) {
    Tensors result;
    for (size_t i = 0; i < params.size(); ++i) result.push_back(at::sub(params[i], gradients[i], 0.1));
    return result;
  };
  const auto with = [=](const Engine& engine) -> Work {
    const Function step = engine.vmap(engine.grad(cross_entropy_of_perceptron(), first_arguments(4)),
                                      {0, 0, 0, 0, std::nullopt, std::nullopt});
    Tensors arguments = params;
    arguments.insert(arguments.end(), {x, y});
    return [=] { return updated(step(arguments)); };
  };
  const Work by_hand = [=]() -> Tensors {
    const at::Tensor inputs = x.expand({members, 64, 64});
    const at::Tensor h = at::baddbmm(params[1].unsqueeze(1), inputs, params[0].mT()).relu_();
    at::Tensor d2 = at::softmax(at::baddbmm(params[3].unsqueeze(1), h, params[2].mT()), 2);
    d2 = (d2 - at::one_hot(y, 10)).div_(64);
    const at::Tensor d1 = at::threshold_backward(at::bmm(d2, params[2]), h, 0);
    return updated({at::bmm(d1.mT(), inputs), d1.sum(1), at::bmm(d2.mT(), h), d2.sum(1)});
  };
  return {"ensemble of " + std::to_string(members) + ", training step", with, by_hand, 1.15, Workload::hand};
}

// ---- curvature -----------------------------------------------------------------------------------------------------

/// A perceptron of 16, 20 and 8 units without a bias at its end has 500 parameters, given as one vector.
inline Workload hessian_500() {
  const Tensors arguments{at::randn({500}, here()) / 4, at::randn({64, 16}, here()),
                          at::randint(8, {64}, here(at::kLong))};
  const auto with = [=](const Engine& engine) -> Work {
    const Function loss = [](const Tensors& a) -> Tensors {
      const Tensors p{a[0].slice(0, 0, 320).view({20, 16}), a[0].slice(0, 320, 340),
                      a[0].slice(0, 340, 500).view({8, 20}), at::zeros({8}, here())};
      return {smooth_cross_entropy(perceptron(p, 2, a[1], at::tanh), a[2])};
    };
    return [=, hessian = engine.jacfwd(engine.jacrev(loss))] { return hessian(arguments); };
  };
  return {"Hessian of 500 parameters", with, {}, 0.8};
}

/// 99,978 parameters, the product alone: the gradient of the derivative along the direction. (The derivative of the
/// gradient computes the gradient, too.) By hand: the R-operator, the tangents of the backward pass beside it.
inline Workload hessian_vector_product() {
  const Tensors params = dense_layers({256, 256, 128, 10}), directions = dense_layers({256, 256, 128, 10});
  const at::Tensor x = at::randn({64, 256}, here()), y = at::randint(10, {64}, here(at::kLong));
  const auto with = [=](const Engine& engine) -> Work {
    const Function loss = [](const Tensors& a) -> Tensors {
      return {smooth_cross_entropy(perceptron(a, 3, a[6], at::tanh), a[7])};
    };
    Tensors arguments = params;
    arguments.insert(arguments.end(), {x, y});
    return [=, product = engine.grad(engine.jvp(loss, directions), first_arguments(6))] { return product(arguments); };
  };
  const Work by_hand = [=]() -> Tensors {
    const Tensors &p = params, &v = directions;
    // Values h and tangents r of the layers, forward.
    Tensors h{x}, r{at::Tensor()};
    for (size_t i = 0; i < 3; ++i) {
      at::Tensor z = at::linear(h[i], p[2 * i], p[2 * i + 1]), rz = at::linear(h[i], v[2 * i], v[2 * i + 1]);
      if (r[i].defined()) rz.addmm_(r[i], p[2 * i].t());
      if (i < 2) {
        z = at::tanh(z);
        rz = at::tanh_backward(rz, z);
      }
      h.push_back(z);
      r.push_back(rz);
    }
    const at::Tensor s = at::softmax(h[3], 1);
    at::Tensor d = (s - at::one_hot(y, 10)) / 64;
    at::Tensor rd = s * (r[3] - (s * r[3]).sum(1, true)) / 64;
    Tensors result(6);
    for (size_t i = 3; i-- > 0;) {
      result[2 * i] = at::mm(rd.t(), h[i]);
      if (r[i].defined()) result[2 * i].addmm_(d.t(), r[i]);
      result[2 * i + 1] = rd.sum(0);
      if (i == 0) break;
      const at::Tensor back = at::mm(d, p[2 * i]), r_back = at::mm(rd, p[2 * i]).addmm_(d, v[2 * i]);
      const at::Tensor slope = 1 - h[i].square();
      d = back * slope;
      rd = r_back * slope - 2 * back * h[i] * r[i];
    }
    return result;
  };
  return {"hvp, 1e5 parameters", with, by_hand, 1.2, Workload::hand};
}

// ---- a transformer's encoder layer, a recurrent network ------------------------------------------------------------

/// Width 64, four heads, feed-forward 128, on a sequence of 16 tokens; its squared output, averaged.
inline Tensors encoder_layer_loss(const Tensors& p) {
  const at::Tensor& x = p[12];
  const int64_t tokens = x.size(0);
  const auto heads = [&](const at::Tensor& t) { return t.view({tokens, 4, 16}).transpose(0, 1); };
  const at::Tensor normed = at::layer_norm(x, {64}, p[0], p[1]);
  const Tensors qkv = at::linear(normed, p[2], p[3]).chunk(3, -1);
  const at::Tensor attended = at::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]));
  const at::Tensor mixed = x + at::linear(attended.transpose(0, 1).reshape({tokens, 64}), p[4], p[5]);
  const at::Tensor inner = at::linear(at::layer_norm(mixed, {64}, p[6], p[7]), p[8], p[9]);
  return {(mixed + at::linear(at::gelu(inner), p[10], p[11])).square().mean()};
}

inline Tensors encoder_layer_params() {
  const auto weight = [](int64_t out, int64_t in) {
    return at::randn({out, in}, here()) / std::sqrt(static_cast<double>(in));
  };
  return {at::ones({64}, here()), at::zeros({64}, here()),  weight(192, 64),        at::zeros({192}, here()),
          weight(64, 64),         at::zeros({64}, here()),  at::ones({64}, here()), at::zeros({64}, here()),
          weight(128, 64),        at::zeros({128}, here()), weight(64, 128),        at::zeros({64}, here())};
}

inline Workload transformer_gradients(int64_t examples) {
  Tensors arguments = encoder_layer_params();
  arguments.push_back(at::randn({examples, 16, 64}, here()));
  const auto with = [=](const Engine& engine) -> Work {
    const Function gradients = engine.vmap(engine.grad(encoder_layer_loss, first_arguments(12)), none_but(12, 1));
    return [=] { return clipped_mean(gradients(arguments)); };
  };
  return {"transformer layer, per-example gradients, " + std::to_string(examples), with, {}, 0.8};
}

inline Workload transformer_hvp() {
  Tensors arguments = encoder_layer_params(), directions;
  for (const at::Tensor& p : arguments) directions.push_back(at::randn_like(p));
  arguments.push_back(at::randn({16, 64}, here()));
  const auto with = [=](const Engine& engine) -> Work {
    const Function product = engine.hvp(encoder_layer_loss, directions);
    return [=] { return product(arguments); };
  };
  return {"transformer layer, hvp", with, {}, 0.8};
}

inline Workload recurrent_gradients(int64_t examples) {
  constexpr int64_t kInputs = 16, kHidden = 32, kSteps = 50;
  const auto weight = [](int64_t out, int64_t in) {
    return at::randn({out, in}, here()) / std::sqrt(static_cast<double>(in));
  };
  const Tensors arguments{weight(4 * kHidden, kInputs),
                          weight(4 * kHidden, kHidden),
                          at::zeros({4 * kHidden}, here()),
                          at::zeros({4 * kHidden}, here()),
                          at::randn({examples, kSteps, kInputs}, here()),
                          at::zeros({examples, 1, kHidden}, here()),
                          at::zeros({examples, 1, kHidden}, here())};
  const auto with = [=](const Engine& engine) -> Work {
    const Function loss = [](const Tensors& p) -> Tensors {
      // The cell adds in place to what comes of the state: functorch's internals need that to be mapped.
      at::Tensor h = p[5], c = p[6];
      for (const at::Tensor& x : p[4].unbind(0))
        std::tie(h, c) = at::lstm_cell(x.unsqueeze(0), {h, c}, p[0], p[1], p[2], p[3]);
      return {h.square().sum()};
    };
    const Function gradients = engine.vmap(engine.grad(loss, first_arguments(4)), none_but(4, 3));
    return [=] { return gradients(arguments); };
  };
  return {"LSTM, 50 steps, per-example gradients, " + std::to_string(examples), with, {}, 0.8};
}

}  // namespace workloads
