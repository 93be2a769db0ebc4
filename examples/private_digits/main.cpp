// Learning from people's data without learning about the people: differentially private training (DP-SGD, Abadi et
// al. 2016) of a small convolutional network on handwritten digits.
//
// No single image may move the network by more than a known amount. So every image's gradient is needed by itself: it
// is clipped to a fixed norm, the clipped gradients are added up, and noise of that scale hides each of them in the
// sum. A backward pass gives only the sum of all gradients. Here they come one by one and yet all at once, from
//
//   tower::vmap(tower::grad(loss), {.in_dims = {std::nullopt, 0, 0}})
//
// The program holds them against LibTorch's, taken one image at a time, trains, accounts for the privacy spent
// (accountant.h), and fails unless what it promises holds. Read `private_step` first.
//
// With --processes, started by script/launch or torchrun, the images of a step are spread over several processes.
// Nothing else changes: they take the same sample, add the same noise to the sum over all of its images, and end with
// the same weights as one process.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <tower/tower.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accountant.h"
#include "data/digits.h"
#include "network.h"
#include "progress.h"
#include "support/checks.h"
#include "support/command_line.h"

namespace private_digits {
namespace {

using support::Checks;
using support::seconds_of;

constexpr double kSamplingRate = 0.25;  // the probability with which a step takes an image
constexpr double kClippingNorm = 1;
constexpr double kLearningRate = 5;  // falls to zero over the run
constexpr double kPromisedAccuracy = 0.9;
constexpr int64_t kStepsOfShortRun = 12;

struct Options {
  double epsilon = 8;
  double delta = 1e-5;
  int64_t steps = 300;
  int64_t seed = 1;
  bool short_run = false;
  bool processes = false;
};

/// Of images and labels: each one's gradient, or something of all of them.
using PerExampleGradients = std::function<Parameters(const Parameters&, const at::Tensor&, const at::Tensor&)>;

/// The images of one step: each with the same probability, whatever the others do. The accountant relies on it.
digits::Set poisson_sample(const digits::Set& set) {
  const at::Tensor taken = at::rand({set.size()}) < kSamplingRate;
  return set.select(taken.nonzero().squeeze(1));
}

/// One image's gradient, made no longer than kClippingNorm over all parameters.
Parameters clipped(const Parameters& gradient) {
  std::vector<at::Tensor> squared_norms;
  for (const auto& [name, g] : gradient) squared_norms.push_back(g.square().sum());
  const at::Tensor factor = (kClippingNorm / at::stack(squared_norms).sum().sqrt()).clamp_max(1);
  Parameters result;
  for (const auto& [name, g] : gradient) result[name] = g * factor;
  return result;
}

/// The sum of the clipped gradients of all images of a step, of which this process has a part.
PerExampleGradients clipped_sum_of(DigitNet& network, const tower::Mesh& mesh) {
  const auto of_one = [gradient = tower::grad(loss_of(network))](const Parameters& parameters, const at::Tensor& image,
                                                                 const at::Tensor& label) {
    return tower::psum(clipped(gradient(parameters, image, label)), "images");
  };
  return tower::vmap(of_one,
                     {.in_dims = {std::nullopt, 0, 0}, .out_dims = std::nullopt, .axis = "images", .across = mesh});
}

/// What this process has of a batch that all processes took.
digits::Set own_part(const tower::Mesh& mesh, const digits::Set& batch) {
  if (!mesh.defined()) return batch;
  return {tower::part_of(mesh, "images", batch.images), tower::part_of(mesh, "images", batch.labels)};
}

/// One step of DP-SGD. The learning rate counts for one example: the number of examples in the batch is private too.
/// (at::normal is not a cryptographic source of noise; a release in earnest needs one.)
void private_step(const PerExampleGradients& clipped_sum, const Parameters& parameters, const digits::Set& part,
                  double noise_multiplier, double learning_rate) {
  const Parameters sum = clipped_sum(parameters, part.images, part.labels);
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor noise = at::normal(0, noise_multiplier * kClippingNorm, parameter.sizes());
    parameter.sub_(sum.at(name) + noise, learning_rate);
  }
}

/// Per-example gradients as one has them without transforms: a backward pass for every image.
Parameters backward_for_each(DigitNet& network, const digits::Set& batch) {
  std::map<std::string, std::vector<at::Tensor>> collected;
  for (int64_t i = 0; i < batch.size(); ++i) {
    network.zero_grad();
    at::cross_entropy_loss(network.forward(batch.images.narrow(0, i, 1)), batch.labels.narrow(0, i, 1)).backward();
    for (const auto& parameter : network.named_parameters())
      collected[parameter.key()].push_back(parameter.value().grad().clone());
  }
  Parameters stacked;
  for (const auto& [name, gradients] : collected) stacked[name] = at::stack(gradients);
  return stacked;
}

/// The largest difference between two sets of gradients, relative to the largest gradient of that parameter.
double relative_difference(const Parameters& a, const Parameters& b) {
  double largest = 0;
  for (const auto& [name, gradient] : b)
    largest = std::max(largest, ((a.at(name) - gradient).abs().max() / gradient.abs().max()).item<double>());
  return largest;
}

/// The fastest of a few calls, in milliseconds. The first is not counted: it fills caches.
double milliseconds_of(const std::function<void()>& f) {
  f();
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) fastest = std::min(fastest, 1e3 * seconds_of(f));
  return fastest;
}

/// Tower's per-example gradients against the loop over the images: the same numbers, in what time. (Training does not
/// compile them: every sample is of another size, and convolutions are traced anew for each.)
void compare_with_the_loop(const PerExampleGradients& per_example_gradients, const Parameters& parameters,
                           DigitNet& network, const digits::Set& batch, Checks& check) {
  Parameters at_once, looped, by_kernels;
  const double ms = milliseconds_of([&] { at_once = per_example_gradients(parameters, batch.images, batch.labels); });
  const double loop_ms = milliseconds_of([&] { looped = backward_for_each(network, batch); });
  const PerExampleGradients compiled = tower::compile(per_example_gradients);
  compiled(parameters, batch.images, batch.labels);  // traces
  const double compiled_ms = milliseconds_of([&] { by_kernels = compiled(parameters, batch.images, batch.labels); });
  const auto n = static_cast<double>(batch.size());
  fmt::print("Gradients of each of {} images        ms  µs an image\n", batch.size());
  fmt::print("  backward() for each image     {:8.1f}  {:11.1f}\n", loop_ms, 1e3 * loop_ms / n);
  fmt::print("  vmap(grad(loss)) for all      {:8.1f}  {:11.1f}  {:.1f} times as fast\n", ms, 1e3 * ms / n,
             loop_ms / ms);
  fmt::print("  the same, compiled            {:8.1f}  {:11.1f}  {:.1f} times as fast\n", compiled_ms,
             1e3 * compiled_ms / n, loop_ms / compiled_ms);

  const double error = std::max(relative_difference(at_once, looped), relative_difference(by_kernels, looped));
  check(error < 1e-5, fmt::format("all agree: the largest relative difference is {:.1e}", error));
}

struct Score {
  double loss;
  double accuracy;
};

Score score(DigitNet& network, const digits::Set& set) {
  const at::NoGradGuard no_grad;
  const at::Tensor logits = network.forward(set.images);
  return {at::cross_entropy_loss(logits, set.labels).item<double>(),
          (logits.argmax(1) == set.labels).to(at::kDouble).mean().item<double>()};
}

void train(const tower::Mesh& mesh, const Parameters& parameters, DigitNet& network, const digits::Split& data,
           const Options& options, Checks& check) {
  const PerExampleGradients clipped_sum = clipped_sum_of(network, mesh);
  const double noise_multiplier =
      privacy::noise_multiplier_for(options.epsilon, options.delta, kSamplingRate, options.steps);
  const double expected_batch = kSamplingRate * static_cast<double>(data.train.size());
  fmt::print("\nTraining on {} images, about {:.0f} a step; {} held out\n", data.train.size(), expected_batch,
             data.held_out.size());
  fmt::print("  noise of {:.2f} clipping norms keeps {} steps within ε = {}, δ = {}\n\n", noise_multiplier,
             options.steps, options.epsilon, options.delta);

  // Only held-out images are reported on: the training loss would tell about the private ones.
  const auto spent_after = [&](int64_t steps) {
    privacy::Accountant accountant;
    accountant.compose({kSamplingRate, noise_multiplier}, steps);
    return accountant.epsilon(options.delta);
  };
  const auto print_row = [&](int64_t step, const Score& now) {
    fmt::print("  {:>4}  {:>6.2f}  {:>13.3f}  {:>15.1f} %\n", step, spent_after(step), now.loss, 100 * now.accuracy);
  };
  const int64_t steps = options.short_run ? std::min(kStepsOfShortRun, options.steps) : options.steps;
  const int64_t steps_per_row = std::max<int64_t>(steps / 6, 1);

  const Score before = score(network, data.held_out);
  fmt::print("  step       ε  held-out loss  held-out accuracy\n");
  print_row(0, before);
  Progress progress("training", steps);
  for (int64_t step = 1; step <= steps; ++step) {
    const double remaining = 1 - static_cast<double>(step - 1) / static_cast<double>(options.steps);
    private_step(clipped_sum, parameters, own_part(mesh, poisson_sample(data.train)), noise_multiplier,
                 kLearningRate * remaining / expected_batch);
    progress.advance();
    if (step % steps_per_row == 0) {
      progress.clear();
      print_row(step, score(network, data.held_out));
    }
  }
  progress.clear();

  const Score after = score(network, data.held_out);
  const double spent = spent_after(steps);
  fmt::print("\n");
  check(spent <= options.epsilon, fmt::format("privacy spent: ε = {:.2f} at δ = {}", spent, options.delta));
  check(after.loss < before.loss, fmt::format("held-out loss fell from {:.3f} to {:.3f}", before.loss, after.loss));
  if (!options.short_run)
    check(after.accuracy >= kPromisedAccuracy, fmt::format("{:.1f} % of the held-out images right, {:.0f} % promised",
                                                           100 * after.accuracy, 100 * kPromisedAccuracy));
}

/// All processes have the same weights, and those of a run of one process with the same seed, which prints them too.
void compare_weights(const tower::Mesh& mesh, const Parameters& parameters, Checks& check) {
  double sum = 0, squares = 0, apart = 0;
  for (const auto& [name, parameter] : parameters) {
    sum += parameter.sum().item<double>();
    squares += parameter.square().sum().item<double>();
    if (!mesh.defined()) continue;
    const at::Tensor mean = tower::sum_across(mesh, "images", parameter) / mesh.size();
    apart = std::max(apart, (parameter - mean).abs().max().item<double>());
  }
  if (mesh.defined()) check(apart < 1e-6, fmt::format("the processes' weights differ by {:.1e} at most", apart));
  fmt::print("  weights at the end: sum {:.4f}, norm {:.4f}\n", sum, std::sqrt(squares));
}

int run(const Options& options) {
  // One thread: so small a network gains little from more, and its numbers then do not depend on the machine's cores.
  at::set_num_threads(1);
  at::manual_seed(options.seed);
  const digits::Split data = digits::load();
  Checks check;

  DigitNet network;
  const Parameters parameters = tower::parameters_of(network);
  const PerExampleGradients per_example_gradients =
      tower::vmap(tower::grad(loss_of(network)), {.in_dims = {std::nullopt, 0, 0}});

  compare_with_the_loop(per_example_gradients, parameters, network, data.train.select(at::arange(256)), check);
  const tower::Mesh mesh = options.processes ? tower::Mesh::from_environment({{"images", -1}}) : tower::Mesh();
  train(mesh, parameters, network, data, options, check);
  compare_weights(mesh, parameters, check);
  return check.failed() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace private_digits

int main(int argc, char** argv) {
  private_digits::Options options;
  support::CommandLine line("private_digits", "Differentially private training of a network on handwritten digits");
  const support::Range positive{std::numeric_limits<double>::min()};
  line.option("--epsilon", options.epsilon, "privacy budget", positive)
      .option("--delta", options.delta, "probability with which the budget may fail")
      .option("--steps", options.steps, "training steps", positive)
      .option("--seed", options.seed, "of weights, samples and noise")
      .flag("--short", options.short_run, "only the first few steps, for the tests")
      .flag("--processes", options.processes, "the images of a step spread over processes (script/launch)");
  return line.run(argc, argv, [&] { return private_digits::run(options); });
}
