// Small programs of operators, views and factories whose sizes follow from those of their arguments in any way: for
// compiled functions that are called with sizes for which they were not traced.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace sizes {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// An operator of one or two registers, with two small numbers.
struct Action {
  std::string text;
  size_t operands;
  std::function<Tensor(const Tensor& x, const Tensor& y, int64_t a, int64_t b)> run;
};
const std::vector<Action>& actions();

struct Step {
  size_t action, x, y;  // registers
  int64_t a, b;
};

struct Program {
  size_t inputs;
  std::vector<Step> steps;

  /// The last register, in float64.
  Tensor operator()(const Tensors& in) const;
  std::string text() const;
};

/// Without steps that the last one does not need.
Program without_dead_steps(const Program& program);

/// A program that runs on each of these arguments and gives no more than `most` elements anywhere.
Program generate(std::mt19937_64& random, const std::vector<Tensors>& arguments, int64_t most);

}  // namespace sizes
