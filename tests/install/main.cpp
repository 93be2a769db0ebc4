// A program outside the repository: the gradient of a sum of cubes is three squares.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <tower/dynamic.h>

int main() {
  const auto cubes = [](const tower::dynamic::Tensors& x) { return tower::dynamic::Tensors{x[0].pow(3).sum()}; };
  const auto x = at::arange(4, at::kDouble);
  const auto gradient = tower::dynamic::grad(tower::dynamic::Function(cubes), {0})({x})[0];
  return at::allclose(gradient, x.square().mul(3)) ? 0 : 1;
}
