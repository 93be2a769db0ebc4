// Laplace's approximation: around its peak, the posterior of the parameters is taken for a normal distribution whose
// inverse covariance is the Hessian of minus its logarithm. A class probability is then an average over all the
// parameters that the data leave plausible, and an image unlike the data gets the doubt it deserves.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_cholesky.h>
#include <ATen/ops/linalg_inv.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/special_xlogy.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <tower/tower.h>

#include <cstdint>

#include "softmax_regression.h"

namespace laplace_digits {

struct Posterior {
  at::Tensor mode;        // 650
  at::Tensor hessian;     // 650 × 650
  at::Tensor covariance;  // its inverse
};

/// The Hessian is computed for so many columns at once, which keeps what is computed on the way in the cache.
inline constexpr tower::JacobianOptions kHessianOptions{.chunk_size = 50};

/// Climbs to the peak by Newton's method and measures its width there.
inline Posterior fit(const Evidence& evidence, int max_steps) {
  at::Tensor theta = at::zeros({kParameters}, at::kDouble);
  at::Tensor hessian;
  fmt::print("  {:>4}  {:>14}  {:>12}\n", "step", "loss", "|gradient|");
  for (int step = 0;; ++step) {
    const auto [loss, gradient] = tower::value_and_grad(evidence)(theta);
    const double slope = gradient.norm().template item<double>();
    fmt::print("  {:>4}  {:>14.6f}  {:>12.2e}\n", step, loss.template item<double>(), slope);
    hessian = tower::hessian(evidence, kHessianOptions)(theta);
    if (slope < 1e-8 || step == max_steps) break;
    theta = theta - at::linalg_solve(hessian, gradient);
  }
  return {theta, hessian, at::linalg_inv(hessian)};
}

/// The class probabilities of one image, averaged over draws from the posterior. The logits are linear in the
/// parameters near the peak, so the draws are made where there are 10 numbers and not 650: of the logits.
inline at::Tensor predict(const Posterior& posterior, const at::Tensor& image, int64_t draws) {
  const auto scores = [&](const at::Tensor& theta) { return logits(theta, image); };
  const at::Tensor jacobian = tower::jacrev(scores)(posterior.mode);  // 10 × 650
  const at::Tensor covariance = at::matmul(at::matmul(jacobian, posterior.covariance), jacobian.t());
  const at::Tensor spread = at::linalg_cholesky(covariance);
  const at::Tensor noise = at::randn({draws, digits::kClasses}, image.options());
  return at::softmax(scores(posterior.mode) + at::matmul(noise, spread.t()), 1).mean(0);
}

/// Written for one image, used for many: `vmap` supplies the batch, and each image draws for itself.
inline at::Tensor predict_all(const Posterior& posterior, const at::Tensor& images, int64_t draws) {
  const auto one = [&](const at::Tensor& image) { return predict(posterior, image, draws); };
  return tower::vmap(one, {.randomness = tower::Randomness::different, .chunk_size = 60})(images);
}

/// How undecided each row of probabilities is: 0 when certain, log 10 when all classes are as likely.
inline at::Tensor entropy(const at::Tensor& probabilities) {
  return -at::special_xlogy(probabilities, probabilities).sum(1);
}

}  // namespace laplace_digits
