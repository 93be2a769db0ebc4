// What the private_digits example pays for not writing its per-example gradients by hand: vmap(grad(loss)) of the
// module against the same gradients derived on paper and batched with ATen's operators, in the same run.
//
//   private_digits [Google Benchmark's flags]
//
// Both must agree before anything is timed. One thread: the ratio then does not depend on who else uses the machine.
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh_backward.h>
#include <fmt/format.h>
#include <tower/tower.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "data/digits.h"
#include "private_digits/network.h"
#include "support/race.h"
#include "support/report.h"

namespace {

using private_digits::DigitNet;
using private_digits::loss_of;
using private_digits::Parameters;

constexpr int64_t kBatch = 256;
constexpr double kBudget = 1.25;

/// Gradients of a convolution's weight and bias, one per example: the patches that its kernel saw, weighted with the
/// gradients of what it made of them.
void convolution_gradients(const std::string& name, const at::Tensor& input, const at::Tensor& grad_output,
                           Parameters& gradients) {
  const at::Tensor patches = at::im2col(input, {3, 3}, {1, 1}, {1, 1}, {1, 1});  // [n, in * 9, pixels]
  const int64_t n = input.size(0), in = input.size(1), out = grad_output.size(1);
  gradients[name + ".weight"] = at::bmm(grad_output.flatten(2), patches.transpose(1, 2)).view({n, out, in, 3, 3});
  gradients[name + ".bias"] = grad_output.sum({2, 3});
}

/// Back through avg_pool2d(tanh(.), 2).
at::Tensor before_activation(const at::Tensor& grad_pooled, const at::Tensor& activated) {
  const at::Tensor grad = at::avg_pool2d_backward(grad_pooled, activated, {2, 2}, {2, 2}, {0, 0}, false, true, {});
  return at::tanh_backward(grad, activated);
}

/// The gradients of DigitNet's loss for each image, by hand.
Parameters hand_batched(const Parameters& p, const at::Tensor& images, const at::Tensor& labels) {
  const at::Tensor x = (images - 0.3) * 4;
  const at::Tensor a1 = at::conv2d(x, p.at("conv1.weight"), p.at("conv1.bias"), 1, 1).tanh();
  const at::Tensor p1 = at::avg_pool2d(a1, 2);
  const at::Tensor a2 = at::conv2d(p1, p.at("conv2.weight"), p.at("conv2.bias"), 1, 1).tanh();
  const at::Tensor features = at::avg_pool2d(a2, 2).flatten(1);
  const at::Tensor logits = at::addmm(p.at("linear.bias"), features, p.at("linear.weight").t());

  Parameters gradients;
  const at::Tensor d_logits = logits.softmax(1) - at::one_hot(labels, digits::kClasses);
  gradients["linear.weight"] = d_logits.unsqueeze(2) * features.unsqueeze(1);
  gradients["linear.bias"] = d_logits;

  const at::Tensor d_p2 = d_logits.mm(p.at("linear.weight")).view({-1, 32, 2, 2});
  const at::Tensor d_z2 = before_activation(d_p2, a2);
  convolution_gradients("conv2", p1, d_z2, gradients);

  const at::Tensor d_p1 = at::conv_transpose2d(d_z2, p.at("conv2.weight"), {}, 1, 1);
  const at::Tensor d_z1 = before_activation(d_p1, a1);
  convolution_gradients("conv1", x, d_z1, gradients);
  return gradients;
}

void check_that_both_agree(const Parameters& tower, const Parameters& by_hand) {
  if (tower.size() != by_hand.size()) throw std::runtime_error("different parameters");
  for (const auto& [name, expected] : by_hand)
    if (!at::allclose(tower.at(name), expected, 1e-4, 1e-6))
      throw std::runtime_error(fmt::format("the gradients of {} differ", name));
}

}  // namespace

int main(int argc, char** argv) try {
  Race race(argc, argv);
  at::set_num_threads(1);
  at::manual_seed(0);

  const digits::Set batch = digits::load().train.select(at::arange(kBatch));
  DigitNet network;
  const Parameters parameters = tower::parameters_of(network);
  const auto with_tower = tower::vmap(tower::grad(loss_of(network)), {.in_dims = {std::nullopt, 0, 0}});
  check_that_both_agree(with_tower(parameters, batch.images, batch.labels),
                        hand_batched(parameters, batch.images, batch.labels));

  race.add("tower", [&] { with_tower(parameters, batch.images, batch.labels); });
  race.add("by hand", [&] { hand_batched(parameters, batch.images, batch.labels); });
  const auto ns = race.run();

  const double ratio = ns.at("tower") / ns.at("by hand");
  report::Table table({fmt::format("gradients of each of {} digits", kBatch), "ms", "× by hand", "budget", ""});
  table.add({"batched by hand", fmt::format("{:.2f}", ns.at("by hand") / 1e6), "1.00", "", ""});
  table.add({"vmap(grad(loss))", fmt::format("{:.2f}", ns.at("tower") / 1e6), fmt::format("{:.2f}", ratio),
             fmt::format("{:.2f}", kBudget), report::verdict(ratio, kBudget)});
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "private_digits: {}\n", error.what());
  return EXIT_FAILURE;
}
