// Least squares: the coefficients of a polynomial that is to be the sign at n points between -1 and 1.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include "evaluation.h"

using at::Tensor;

namespace {

// What the polynomial misses at one point.
Tensor residual(const Tensor& x, const Tensor& t) {
  Tensor value = at::zeros({}, t.options());
  for (int64_t j = x.size(0) - 1; j >= 0; --j) value = value * t + x.select(0, j);
  return t.sign() - value;
}

auto half_sum_of_squares(int64_t n) {
  const Tensor t = at::linspace(-1, 1, n, at::kDouble);
  return [t](const Tensor& x) {
    return tower::vmap(residual, {.in_dims = {std::nullopt, 0}})(x, t).square().sum() / 2;
  };
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  return program(argc, argv,
                 {{"primal",
                   [](const json& input) {
                     return evaluation(tower::compile(half_sum_of_squares(input["n"])), as_json, tensor(input["x"]));
                   }},
                  {"gradient", [](const json& input) {
                     return evaluation(tower::compile(tower::grad(half_sum_of_squares(input["n"]))), as_json,
                                       tensor(input["x"]));
                   }}});
}
