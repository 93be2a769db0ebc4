// The logarithm of a sum of exponentials, and its gradient.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include "evaluation.h"

using at::Tensor;

namespace {

Tensor log_sum_exp(const Tensor& x) {
  const Tensor largest = x.detach().max();
  return (x - largest).exp().sum().log() + largest;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  const auto prepare = [](const auto& function) {
    return [=](const json& input) { return evaluation(tower::compile(function), as_json, tensor(input["x"])); };
  };
  return program(argc, argv, {{"primal", prepare(log_sum_exp)}, {"gradient", prepare(tower::grad(log_sum_exp))}});
}
