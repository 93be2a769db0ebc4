// The determinant by expansion along the first row, to the end, and its gradient.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "evaluation.h"

using at::Tensor;

namespace {

// The first levels make a batch of minors, of which each is a lane of a kernel. From this size on one lane expands
// alone: what is equal in a minor's own minors is computed once there.
constexpr int64_t kSize = 7;

// Of the rows from `row` on, in the columns that are left.
Tensor expanded(const std::vector<Tensor>& elements, int64_t size, int64_t row, const std::vector<int64_t>& columns) {
  const auto element = [&](int64_t column) { return elements[static_cast<size_t>(row * size + column)]; };
  if (columns.size() == 1) return element(columns[0]);
  Tensor sum;
  for (size_t j = 0; j < columns.size(); ++j) {
    std::vector<int64_t> others = columns;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(j));
    const Tensor term = element(columns[j]) * expanded(elements, size, row + 1, others);
    sum = j == 0 ? term : j % 2 == 0 ? sum + term : sum - term;
  }
  return sum;
}

Tensor determinant_of_small(const Tensor& a) {
  std::vector<int64_t> columns;
  for (int64_t j = 0; j < a.size(0); ++j) columns.push_back(j);
  return expanded(a.flatten().unbind(), a.size(0), 0, columns);
}

// One step of the expansion: the minors of `a`, and with what they count.
std::pair<Tensor, Tensor> minors(const Tensor& factor, const Tensor& a) {
  const int64_t n = a.size(0);
  const Tensor below = a.slice(0, 1);
  std::vector<Tensor> parts, factors;
  for (int64_t j = 0; j < n; ++j) {
    parts.push_back(at::cat({below.slice(1, 0, j), below.slice(1, j + 1)}, 1));
    factors.push_back(j % 2 == 0 ? factor * a[0][j] : -factor * a[0][j]);
  }
  return {at::stack(factors), at::stack(parts)};
}

Tensor determinant(const Tensor& a) {
  Tensor factors = at::ones({1}, a.options()), batch = a.unsqueeze(0);
  while (batch.size(1) > std::min(kSize, a.size(0) - 1)) {
    std::tie(factors, batch) = tower::vmap(minors)(factors, batch);
    factors = factors.flatten();
    batch = batch.flatten(0, 1);
  }
  return (factors * tower::vmap(determinant_of_small)(batch)).sum();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  const auto prepare = [](const auto& function) {
    return [=](const json& input) {
      const int64_t n = input["ell"];
      return evaluation(
          tower::compile(function), [](const Tensor& y) { return as_json(y.dim() == 0 ? y : y.flatten()); },
          tensor(input["A"]).view({n, n}));
    };
  };
  return program(argc, argv, {{"primal", prepare(determinant)}, {"gradient", prepare(tower::grad(determinant))}});
}
