// A chain of ordinary differential equations, y[0]' = x[0] and y[i]' = x[i] y[i - 1], by s steps of Runge and Kutta to
// time 2, and the gradient of the last unknown by x.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include "evaluation.h"

using at::Tensor;

namespace {

Tensor slope(const Tensor& x, const Tensor& y) { return x * at::cat({at::ones({1}, y.options()), y.slice(0, 0, -1)}); }

Tensor step(const Tensor& x, const Tensor& y, double h) {
  const Tensor k1 = slope(x, y), k2 = slope(x, y + h / 2 * k1), k3 = slope(x, y + h / 2 * k2),
               k4 = slope(x, y + h * k3);
  return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4);
}

struct Solution {
  explicit Solution(int64_t steps_) : steps(steps_), h(2 / static_cast<double>(steps)) {}
  Tensor operator()(const Tensor& x) const {
    return tower::fori_loop(
        0, steps, [x, h = h](int64_t, const Tensor& y) { return step(x, y, h); }, at::zeros_like(x));
  }
  int64_t steps;
  double h;
};

gradbench::Evaluation primal(const gradbench::json& input) {
  return gradbench::evaluation(tower::compile(Solution(input["s"])), gradbench::as_json, gradbench::tensor(input["x"]));
}

gradbench::Evaluation gradient(const gradbench::json& input) {
  const auto last_unknown = [solution = Solution(input["s"])](const Tensor& x) { return solution(x).select(0, -1); };
  return gradbench::evaluation(tower::compile(tower::grad(last_unknown)), gradbench::as_json,
                               gradbench::tensor(input["x"]));
}

}  // namespace

int main(int argc, char** argv) { return gradbench::program(argc, argv, {{"primal", primal}, {"gradient", gradient}}); }
