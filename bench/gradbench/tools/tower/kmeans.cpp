// k-means: the sum of squared distances from each point to the centroid that is closest, and the step of Newton's
// method to smaller ones. Its Hessian is diagonal.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include "evaluation.h"

using at::Tensor;

namespace {

auto cost(const Tensor& points) {
  return [points](const Tensor& centroids) {
    // Which centroid is closest depends on no derivative: |p - c|² is |p|² - 2 p·c + |c|², of which |p|² does not
    // count.
    const Tensor fixed = centroids.detach();
    const Tensor lengths = 0.5 * fixed.square().sum(1);
    const auto closest = [&](const Tensor& point) { return (lengths - at::mv(fixed, point)).argmin(); };
    return (points - centroids.index_select(0, tower::vmap(closest)(points))).square().sum();
  };
}

// The gradient, divided by the Hessian's diagonal, which is the Hessian's product with ones.
auto direction(const Tensor& points) {
  return [points](const Tensor& centroids) {
    const auto [gradient, diagonal] = tower::hvp(cost(points), centroids, at::ones_like(centroids));
    return gradient / diagonal;
  };
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  const auto prepare = [](const auto& function) {
    return [=](const json& input) {
      return evaluation(tower::compile(function(tensor(input["points"]))), as_json, tensor(input["centroids"]));
    };
  };
  return program(argc, argv, {{"cost", prepare(cost)}, {"dir", prepare(direction)}});
}
