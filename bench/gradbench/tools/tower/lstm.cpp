// A recurrent network with diagonal weights that guesses the next character of a text, character by character: its mean
// loss, and the gradient by all parameters. Each cell goes through the text for itself, as a scan; the loss sees all
// cells' guesses.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include <utility>
#include <vector>

#include "evaluation.h"

using at::Tensor;

namespace {

struct Parameters {
  Tensor layers;  // [2 layers, 4 cells]: weights and biases of the gates forget, in, out and change
  Tensor extra;   // [3, cells]: of the input, and weights and biases of the output
};
constexpr auto tower_fields(const Parameters&) { return std::tuple(&Parameters::layers, &Parameters::extra); }

// The guesses of one cell for all characters. `layers`: [layers, 2, 4], weights and biases by gate; `start`: of each
// layer what it gave, and its memory.
Tensor guesses(const Tensor& layers, const Tensor& extra, const Tensor& start, const Tensor& text) {
  const auto step = [=](const Tensor& state, const Tensor& character) {
    Tensor value = character * extra[0];
    std::vector<Tensor> next;
    for (int64_t l = 0; l < layers.size(0); ++l) {
      const Tensor hidden = state[l][0], cell = state[l][1], weights = layers[l][0], biases = layers[l][1];
      const auto gate = [&](int64_t i, const Tensor& x) { return x * weights[i] + biases[i]; };
      const Tensor forget = gate(0, value).sigmoid(), in = gate(1, hidden).sigmoid(), out = gate(2, value).sigmoid();
      const Tensor memory = cell * forget + in * gate(3, hidden).tanh();
      value = out * memory.tanh();
      next.insert(next.end(), {value, memory});
    }
    return std::pair(at::stack(next).view_as(state), value * extra[1] + extra[2]);
  };
  return tower::scan(step, start, text).second;
}

// `start`: [2 layers, cells]; `text`: [characters, cells].
Tensor mean_loss(const Parameters& p, const Tensor& start, const Tensor& text) {
  const int64_t cells = text.size(1), layers = p.layers.size(0) / 2;
  const Tensor guess = tower::vmap(guesses, {.in_dims = {3, 1, 2, 1}, .out_dims = 1})(
      p.layers.view({layers, 2, 4, cells}), p.extra, start.view({layers, 2, cells}), text.slice(0, 0, -1));
  const Tensor likely = guess - (guess.exp().sum(1, /*keepdim=*/true) + 2).log();
  return -(text.slice(0, 1) * likely).mean();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  const auto prepare = [](const auto& f, const auto& output) {
    return [=](const json& input) {
      return evaluation(tower::compile(f), output,
                        Parameters{tensor(input["main_params"]), tensor(input["extra_params"])}, tensor(input["state"]),
                        tensor(input["sequence"]));
    };
  };
  return program(argc, argv,
                 {{"objective", prepare(mean_loss, as_json)},
                  {"jacobian", prepare(tower::grad(mean_loss), [](const Parameters& by) {
                     return as_json(at::cat({by.layers.flatten(), by.extra.flatten()}));
                   })}});
}
