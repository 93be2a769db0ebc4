// What second derivatives are good for: how sharply a loss curves, and what a classifier does not know.
//
//   softmax_regression.h  a model of 650 parameters and its loss
//   posterior.h           its dense Hessian, and the doubt that follows from it
//   lanczos.h             the largest eigenvalues without the matrix
//   perceptron.h          a torch::nn::Module whose Hessian only exists as products with it
//   main.cpp              runs all of it on handwritten digits and holds every claim against something that knows
//   better
//
// Exits non-zero when a check fails.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "data/digits.h"
#include "lanczos.h"
#include "perceptron.h"
#include "posterior.h"
#include "softmax_regression.h"
#include "support/checks.h"
#include "support/command_line.h"

namespace laplace_digits {
namespace {

using support::Checks;
using support::seconds_of;

struct Options {
  bool short_run = false;
  double prior_precision = 1;
  int64_t seed = 1;

  int64_t training_images() const { return short_run ? 300 : 1437; }
  int64_t draws() const { return short_run ? 100 : 500; }
  int training_steps() const { return short_run ? 10 : 60; }
};

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

at::Tensor unit(const at::Tensor& v) { return v / v.norm(); }

/// The first `count` images as rows of 64 pixels, in double precision.
digits::Set rows(const digits::Set& set, int64_t count) {
  const auto first = [&](const at::Tensor& t) { return t.narrow(0, 0, std::min(count, t.size(0))); };
  return {first(set.images).flatten(1).to(at::kDouble), first(set.labels)};
}

double accuracy(const at::Tensor& scores, const at::Tensor& labels) {
  return scores.argmax(1).eq(labels).to(at::kDouble).mean().item<double>();
}

void check_hessian(const Evidence& evidence, const Posterior& posterior, Checks& check) {
  fmt::print("\nThe Hessian at the peak, {0} × {0}\n", kParameters);
  const at::Tensor& hessian = posterior.hessian;
  check(relative_difference(hessian.t(), hessian) < 1e-12, "it is symmetric");

  const double h = 1e-4;
  const auto gradient = tower::grad(evidence);
  const at::Tensor direction = unit(at::randn({kParameters}, at::kDouble));
  const at::Tensor slope =
      (gradient(posterior.mode + h * direction) - gradient(posterior.mode - h * direction)) / (2 * h);
  const double error = relative_difference(hessian.mv(direction), slope);
  check(error < 1e-6, fmt::format("it turns a direction into the change of the gradient: off by {:.1e}", error));

  const int64_t count = 8;
  const auto apply = [&](const at::Tensor& v) { return tower::hvp(evidence, posterior.mode, v).second; };
  const Spectrum found = largest_eigenvalues(apply, kParameters, count, 40);
  const at::Tensor dense = at::linalg_eigvalsh(hessian).flip(0).narrow(0, 0, count);
  fmt::print("\n  {:>10}  {:>16}  {:>16}  {:>10}\n", "eigenvalue", "dense matrix", "Lanczos on hvp", "relative");
  for (int64_t i = 0; i < count; ++i) {
    const double exact = dense[i].item<double>(), value = found.values[i].item<double>();
    fmt::print("  {:>10}  {:>16.8f}  {:>16.8f}  {:>10.1e}\n", i + 1, exact, value, std::abs(value / exact - 1));
  }
  check(relative_difference(found.values, dense) < 1e-9, "40 products with it give its largest eigenvalues");
}

/// What the model makes of a group of images: by its best parameters alone, and over all that are plausible.
struct Certainty {
  double confidence, entropy, averaged_confidence, averaged_entropy;
};

Certainty certainty(const std::string& group, const Posterior& posterior, const at::Tensor& images, int64_t draws) {
  const auto confidence = [](const at::Tensor& p) { return std::get<0>(p.max(1)).mean().item<double>(); };
  const auto doubt = [](const at::Tensor& p) { return entropy(p).mean().item<double>(); };
  const at::Tensor best = at::softmax(logits(posterior.mode, images), 1);
  const at::Tensor averaged = predict_all(posterior, images, draws);
  const Certainty result{confidence(best), doubt(best), confidence(averaged), doubt(averaged)};
  fmt::print("  {:<24} {:>6}  {:>12.3f} {:>9.3f}  {:>12.3f} {:>9.3f}\n", group, images.size(0), result.confidence,
             result.entropy, result.averaged_confidence, result.averaged_entropy);
  return result;
}

void check_doubt(const Posterior& posterior, const digits::Set& held_out, int64_t draws, Checks& check) {
  fmt::print("\nWhat the model says it knows (entropy: 0 is certain, {:.2f} is no idea)\n", std::log(10.0));
  fmt::print("  {:<24} {:>6}  {:>22}  {:>22}\n", "", "", "best parameters", "averaged (Laplace)");
  fmt::print("  {:<24} {:>6}  {:>12} {:>9}  {:>12} {:>9}\n", "images", "number", "confidence", "entropy", "confidence",
             "entropy");
  const at::Tensor is_right = logits(posterior.mode, held_out.images).argmax(1).eq(held_out.labels);
  const auto those = [&](const at::Tensor& mask) { return held_out.images.index_select(0, mask.nonzero().view(-1)); };
  const at::Tensor scrambled = held_out.images.index_select(1, at::randperm(kPixels));

  const auto right = certainty("held out, told right", posterior, those(is_right), draws);
  const auto wrong = certainty("held out, told wrong", posterior, those(is_right.logical_not()), draws);
  const auto mixed = certainty("pixels scrambled", posterior, scrambled, draws);
  const auto noise = certainty("noise", posterior, at::rand_like(held_out.images), draws);

  check(wrong.averaged_entropy > right.averaged_entropy + 0.3, "it doubts the images that it gets wrong");
  check(mixed.averaged_entropy > right.averaged_entropy + 0.6, "it doubts images that are no digits");
  check(noise.averaged_entropy > right.averaged_entropy + 0.6, "it doubts noise");
  check(noise.averaged_entropy > noise.entropy && mixed.averaged_entropy > mixed.entropy,
        "more than its best parameters alone would");
}

void check_perceptron(const digits::Split& data, const Options& options, Checks& check) {
  Perceptron network;
  const PerceptronLoss loss{network, data.train.images, data.train.labels};
  const Parameters parameters = train(loss, tower::parameters_of(network), options.training_steps());
  const int64_t n = flatten(parameters).numel();
  const at::Tensor scores =
      tower::functional_call(network, parameters, tower::buffers_of(network), data.held_out.images);
  fmt::print("\nA network of {} parameters: loss {:.4f}, {:.1f} % of held-out images right\n", n,
             loss(parameters).item<double>(), 100 * accuracy(scores, data.held_out.labels));

  // Forward over reverse: how the gradient changes along a direction, for the price of a few gradients.
  const auto gradient = tower::grad(loss);
  const auto by_operators = [&](const Parameters& at, const Parameters& direction) {
    return tower::jvp(gradient, at, direction).second;
  };
  const auto compiled = tower::compile(by_operators);
  const auto hessian_times = [&](const Parameters& direction) { return compiled(parameters, direction); };
  const Parameters direction = unflatten(unit(at::randn({n}, at::kDouble)), parameters);
  const at::Tensor product = flatten(hessian_times(direction));

  const double h = 1e-4;
  const auto gradient_at = [&](double t) { return flatten(gradient(step_along(parameters, t, direction))); };
  const double error = relative_difference(product, (gradient_at(h) - gradient_at(-h)) / (2 * h));
  check(error < 1e-6, fmt::format("jvp(grad) is the change of the gradient: off by {:.1e}", error));

  const at::Tensor other = flatten(by_operators(parameters, direction));
  const double difference =
      relative_difference(flatten(hessian_times(direction)), other);  // the first that is compiled
  check(difference < 1e-12, fmt::format("compiled, it gives the same: off by {:.1e}", difference));
  const auto fastest = [](const auto& f) { return std::min({seconds_of(f), seconds_of(f), seconds_of(f)}); };
  const double gradient_time = fastest([&] { gradient(parameters); });
  const double product_time = fastest([&] { by_operators(parameters, direction); });
  const double compiled_time = fastest([&] { hessian_times(direction); });
  fmt::print("  one gradient {:.1f} ms, one product with the Hessian {:.1f} ms, compiled {:.1f} ms\n",
             1e3 * gradient_time, 1e3 * product_time, 1e3 * compiled_time);

  const auto apply = [&](const at::Tensor& v) { return flatten(hessian_times(unflatten(v, parameters))); };
  const Spectrum top = largest_eigenvalues(apply, n, 3, options.short_run ? 20 : 40);
  fmt::print("\n  {:>10}  {:>14}  {:>14}\n", "eigenvalue", "Lanczos", "|Hv - λv| / λ");
  double worst = 0;
  for (int64_t i = 0; i < top.values.size(0); ++i) {
    const at::Tensor v = top.vectors[i];
    const double value = top.values[i].item<double>();
    const double residual = (apply(v) - value * v).norm().item<double>() / value;
    fmt::print("  {:>10}  {:>14.6f}  {:>14.1e}\n", i + 1, value, residual);
    worst = std::max(worst, residual);
  }
  check(worst < 1e-3, "they are eigenvalues");
}

int run(const Options& options) {
  if (options.short_run) at::set_num_threads(1);  // tests run side by side, and this little work needs no company
  at::manual_seed(options.seed);
  const digits::Split all = digits::load();
  const digits::Split data{rows(all.train, options.training_images()), rows(all.held_out, all.held_out.size())};
  Checks check;

  fmt::print("Softmax regression on {} images: {} parameters, Newton's method\n", data.train.size(), kParameters);
  const Evidence evidence{data.train.images, data.train.labels, options.prior_precision};
  Posterior posterior;
  const double seconds = seconds_of([&] { posterior = fit(evidence, 20); });
  const double right = accuracy(logits(posterior.mode, data.held_out.images), data.held_out.labels);
  fmt::print("  {:.2f} s, {:.1f} % of {} held-out images right\n", seconds, 100 * right, data.held_out.size());
  check(tower::grad(evidence)(posterior.mode).norm().item<double>() < 1e-8, "it stands on the peak");
  check(right > 0.9, "it reads digits");

  check_hessian(evidence, posterior, check);
  check_doubt(posterior, data.held_out, options.draws(), check);
  check_perceptron(data, options, check);
  return check.failed() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace laplace_digits

int main(int argc, char** argv) {
  laplace_digits::Options options;
  support::CommandLine line(
      "laplace_digits",
      "Hessians of classifiers of handwritten digits, dense and as products, and what they say of doubt");
  line.option("--prior-precision", options.prior_precision, "how firmly parameters are believed to be near zero")
      .option("--seed", options.seed, "of all random numbers")
      .flag("--short", options.short_run, "fewer images and steps, for the tests");
  return line.run(argc, argv, [&] { return laplace_digits::run(options); });
}
