// The dense Hessian of examples/laplace_digits, 650 × 650 over 1,437 images: Tower's `hessian`, against the same
// algorithm (forward over reverse, in the same chunks of columns) batched and differentiated by hand, in ATen. The
// closed form, for which one must know the answer, stands beside as the end of the road. All on one thread: what is
// compared is the work, and threads waiting for each other on a busy machine would drown it.
//
//   laplace_digits [Google Benchmark's flags]
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/diag_embed.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>
#include <tower/dynamic.h>

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <vector>

#include "laplace_digits/softmax_regression.h"
#include "support/race.h"
#include "support/report.h"

namespace {

using namespace laplace_digits;

constexpr double kBudget = 1.25;
constexpr int64_t kChunk = 50;

/// Forward over reverse by hand. The gradient of the loss by the logits is p - onehot(label), so along a direction it
/// changes by dp = p (dz - Σ p dz), where dz is the change of the logits; the rest is the linear layer and its
/// transpose.
at::Tensor hand_batched(const Evidence& evidence, const at::Tensor& theta) {
  const at::Tensor& images = evidence.images;
  const at::Tensor p = at::softmax(logits(theta, images), 1);
  const at::Tensor directions = at::eye(kParameters, theta.options());
  std::vector<at::Tensor> columns;
  for (int64_t begin = 0; begin < kParameters; begin += kChunk) {
    const at::Tensor chunk = directions.narrow(0, begin, std::min(kChunk, kParameters - begin));
    const at::Tensor weight = chunk.narrow(1, 0, kWeights).view({-1, digits::kClasses, kPixels});
    const at::Tensor bias = chunk.narrow(1, kWeights, digits::kClasses);
    const at::Tensor dz = at::matmul(images, weight.mT()) + bias.unsqueeze(1);  // chunk × images × classes
    const at::Tensor dp = p * (dz - (p * dz).sum(2, true));
    const at::Tensor by_weight = at::matmul(dp.mT(), images).flatten(1);
    columns.push_back(at::cat({by_weight, dp.sum(1)}, 1) + evidence.prior_precision * chunk);
  }
  return at::cat(columns);
}

/// Σ over the images of (diag(p) - p pᵀ) ⊗ x xᵀ, with the bias as the weight of a pixel that is always 1.
at::Tensor closed_form(const Evidence& evidence, const at::Tensor& theta) {
  const at::Tensor& images = evidence.images;
  const int64_t n = images.size(0), classes = digits::kClasses, inputs = kPixels + 1;
  const at::Tensor p = at::softmax(logits(theta, images), 1);
  const at::Tensor x = at::cat({images, at::ones({n, 1}, images.options())}, 1);
  const at::Tensor curvature = at::diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1);  // n × classes × classes
  const at::Tensor weighted = curvature.permute({1, 2, 0}).unsqueeze(3) * x;         // classes² × n × inputs
  const at::Tensor blocks = at::matmul(x.t(), weighted);                             // classes² × inputs²
  const at::Tensor square = blocks.permute({0, 2, 1, 3}).reshape({classes * inputs, classes * inputs});

  // From (class, input) to the order of the parameters: all weights, then all biases.
  std::vector<int64_t> order;
  for (int64_t c = 0; c < classes; ++c)
    for (int64_t i = 0; i < kPixels; ++i) order.push_back(c * inputs + i);
  for (int64_t c = 0; c < classes; ++c) order.push_back(c * inputs + kPixels);
  const at::Tensor index = at::tensor(order);
  return square.index_select(0, index).index_select(1, index) +
         evidence.prior_precision * at::eye(kParameters, theta.options());
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  Race race(argc, argv);
  const digits::Set train = digits::load().train;
  const Evidence evidence{train.images.flatten(1).to(at::kDouble), train.labels, 1.0};
  const at::Tensor theta = 0.1 * at::randn({kParameters}, at::kDouble);

  const auto loss = [&](const tower::dynamic::Tensors& x) { return tower::dynamic::Tensors{evidence(x[0])}; };
  const auto hessian = tower::dynamic::hessian(loss, {0}, {.chunk_size = kChunk});
  const auto tower_hessian = [&] { return hessian({theta})[0]; };

  const at::Tensor expected = hand_batched(evidence, theta);
  if (!at::allclose(closed_form(evidence, theta), expected, 1e-9, 1e-9))
    throw std::runtime_error("the two Hessians written by hand differ");
  if (!at::allclose(tower_hessian(), expected, 1e-9, 1e-9))
    throw std::runtime_error("Tower's Hessian differs from the one written by hand");

  race.add("tower", [&] { tower_hessian(); });
  race.add("hand_batched", [&] { hand_batched(evidence, theta); });
  race.add("closed_form", [&] { closed_form(evidence, theta); });
  const auto ns = race.run();

  const double by_hand = ns.at("hand_batched");
  report::Table table({"Hessian of softmax regression", "ms", "× hand-batched", "budget", ""});
  const auto row = [&](const char* name, const char* key, bool judged) {
    const double ratio = ns.at(key) / by_hand;
    table.add({name, fmt::format("{:.1f}", ns.at(key) / 1e6), fmt::format("{:.2f}", ratio),
               judged ? fmt::format("{:.2f}", kBudget) : "", judged ? report::verdict(ratio, kBudget) : ""});
  };
  row("tower::hessian", "tower", true);
  row("forward over reverse by hand", "hand_batched", false);
  row("closed form", "closed_form", false);
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "laplace_digits: {}\n", error.what());
  return EXIT_FAILURE;
}
