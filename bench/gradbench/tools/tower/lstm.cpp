// A recurrent network with diagonal weights that guesses the next character of a text, character by character: its mean
// loss, and the gradient by all parameters. The text goes through a compiled function part by part.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "evaluation.h"

using at::Tensor;

namespace {

struct Parameters {
  Tensor layers;  // [2 layers, 4 hidden]: weights and biases of the gates forget, in, out and change
  Tensor extra;   // [3, hidden]: of the input, and weights and biases of the output
};
constexpr auto tower_fields(const Parameters&) { return std::tuple(&Parameters::layers, &Parameters::extra); }

using Vectors = std::vector<Tensor>;

// The parameters as vectors: of each layer four weights and four biases, then what is extra.
Vectors vectors_of(const Parameters& p) {
  Vectors all;
  for (const Tensor& row : p.layers.unbind()) {
    for (const Tensor& gate : row.chunk(4)) all.push_back(gate);
  }
  for (const Tensor& row : p.extra.unbind()) all.push_back(row);
  return all;
}

// The loss of one step, after which `state` is the next one: of each layer what it gives, and its memory.
std::pair<Vectors, Tensor> step(const Vectors& p, const Vectors& state, const Tensor& character, const Tensor& next) {
  const Vectors extra(p.end() - 3, p.end());
  Tensor value = character * extra[0];
  Vectors states;
  for (size_t layer = 0; 2 * layer < state.size(); ++layer) {
    const Tensor hidden = state[2 * layer], cell = state[2 * layer + 1];
    const auto gate = [&](size_t i, const Tensor& x) { return x * p[8 * layer + i] + p[8 * layer + 4 + i]; };
    const Tensor forget = gate(0, value).sigmoid(), in = gate(1, hidden).sigmoid(), out = gate(2, value).sigmoid();
    const Tensor memory = cell * forget + in * gate(3, hidden).tanh();
    value = out * memory.tanh();
    states.insert(states.end(), {value, memory});
  }
  const Tensor guess = value * extra[1] + extra[2];
  return {states, -(next * (guess - (guess.exp().sum() + 2).log())).sum()};
}

// The losses of all steps of a part of the text, and the state after it.
std::pair<Vectors, Tensor> losses(const Vectors& p, const Vectors& state, const Tensor& text, const Tensor& next) {
  auto [last, each] = tower::scan(
      [p](const Vectors& s, const std::pair<Tensor, Tensor>& at) { return step(p, s, at.first, at.second); }, state,
      std::pair(text, next));
  return {last, each.sum()};
}

constexpr int64_t kSteps = 8;  // of a part

auto mean_loss() {
  const auto part = tower::compile(losses);
  const auto function = [part](const Parameters& p, const Tensor& start, const Tensor& text) {
    const int64_t steps = text.size(0) - 1;
    const Vectors parameters = vectors_of(p);
    Vectors state = start.unbind();
    Tensor total = at::zeros({}, start.options());
    for (int64_t at = 0; at < steps; at += kSteps) {
      const int64_t end = std::min(at + kSteps, steps);
      auto [last, loss] = part(parameters, state, text.slice(0, at, end), text.slice(0, at + 1, end + 1));
      state = std::move(last);
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
