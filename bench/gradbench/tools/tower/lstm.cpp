// A recurrent network with diagonal weights that guesses the next character of a text, character by character: its mean
// loss, and the gradient by all parameters. The text goes through a compiled function part by part.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include "evaluation.h"

using at::Tensor;

namespace {

struct Parameters {
  Tensor layers;  // [2 layers, 4 hidden]: weights and biases of the gates forget, in, out and change
  Tensor extra;   // [3, hidden]: of the input, and weights and biases of the output
};
constexpr auto tower_fields(const Parameters&) { return std::tuple(&Parameters::layers, &Parameters::extra); }

// The loss of one step, after which `state`, [2 layers, hidden], is the next one. Even rows are what a layer gives, odd
// ones its memory.
std::pair<Tensor, Tensor> step(const Parameters& p, const Tensor& state, const Tensor& character, const Tensor& next) {
  Tensor value = character * p.extra[0];
  std::vector<Tensor> states;
  for (int64_t layer = 0; layer < state.size(0); layer += 2) {
    const Tensor hidden = state[layer], cell = state[layer + 1];
    const auto weights = p.layers[layer].chunk(4), biases = p.layers[layer + 1].chunk(4);
    const Tensor forget = at::sigmoid(value * weights[0] + biases[0]);
    const Tensor in = at::sigmoid(hidden * weights[1] + biases[1]);
    const Tensor out = at::sigmoid(value * weights[2] + biases[2]);
    const Tensor change = at::tanh(hidden * weights[3] + biases[3]);
    states.push_back(cell * forget + in * change);
    value = out * states.back().tanh();
    states.insert(states.end() - 1, value);
  }
  const Tensor guess = value * p.extra[1] + p.extra[2];
  const Tensor loss = -(next * (guess - (guess.exp().sum() + 2).log())).sum();
  return {at::stack(states), loss};
}

// The losses of all steps of a part of the text, and the state after it.
std::pair<Tensor, Tensor> losses(const Parameters& p, const Tensor& state, const Tensor& text, const Tensor& next) {
  auto [last, each] =
      tower::scan([p](const Tensor& s, const std::pair<Tensor, Tensor>& at) { return step(p, s, at.first, at.second); },
                  state, std::pair(text, next));
  return {last, each.sum()};
}

constexpr int64_t kSteps = 16;  // of a part

auto mean_loss() {
  const auto part = tower::compile(losses);
  const auto function = [part](const Parameters& p, Tensor state, const Tensor& text) {
    const int64_t steps = text.size(0) - 1;
    Tensor total = at::zeros({}, state.options());
    for (int64_t at = 0; at < steps; at += kSteps) {
      const int64_t end = std::min(at + kSteps, steps);
      const auto [last, loss] = part(p, state, text.slice(0, at, end), text.slice(0, at + 1, end + 1));
      state = last;
      total = total + loss;
    }
    return total / static_cast<double>(steps * text.size(1));
  };
  return std::pair(function, [part] { return part.report(); });
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  const auto prepare = [](const auto& transform, const auto& output) {
    return [=](const json& input) {
      const auto [function, report] = mean_loss();
      return evaluation(Plain(transform(function), report), output,
                        Parameters{tensor(input["main_params"]), tensor(input["extra_params"])}, tensor(input["state"]),
                        tensor(input["sequence"]));
    };
  };
  return program(argc, argv,
                 {{"objective", prepare([](const auto& f) { return f; }, as_json)},
                  {"jacobian", prepare([](const auto& f) { return tower::grad(f); },
                                       [](const Parameters& by) {
                                         return as_json(at::cat({by.layers.flatten(), by.extra.flatten()}));
                                       })}});
}
