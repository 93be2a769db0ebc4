// Softmax regression on the digits: 64 pixels to 10 classes by one matrix and one bias. Its 650 parameters are kept in
// one flat vector, so that the Hessian of the loss is one 650 × 650 matrix.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>

#include <cstdint>

#include "data/digits.h"

namespace laplace_digits {

constexpr int64_t kPixels = digits::kSide * digits::kSide;
constexpr int64_t kWeights = digits::kClasses * kPixels;
constexpr int64_t kParameters = kWeights + digits::kClasses;

/// What the classes of one image (64 pixels) or of many (n × 64) score.
inline at::Tensor logits(const at::Tensor& theta, const at::Tensor& images) {
  const at::Tensor weight = theta.narrow(0, 0, kWeights).view({digits::kClasses, kPixels});
  const at::Tensor bias = theta.narrow(0, kWeights, digits::kClasses);
  return at::linear(images, weight, bias);
}

/// Images with their labels, and how firmly the parameters are believed to be near zero before any image is seen.
struct Evidence {
  at::Tensor images;  // n × 64
  at::Tensor labels;  // n
  double prior_precision;

  /// Minus the logarithm of the posterior density of `theta`, up to a constant.
  at::Tensor operator()(const at::Tensor& theta) const {
    const at::Tensor misfit = at::cross_entropy_loss(logits(theta, images), labels, {}, at::Reduction::Sum);
    return misfit + 0.5 * prior_precision * theta.dot(theta);
  }
};

}  // namespace laplace_digits
