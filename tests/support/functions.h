// The functions and values that tests of the engine are written with.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "tower/dynamic.h"

namespace support {

// ---- list functions ------------------------------------------------------------------------------------------------

/// A list function from a function of one tensor.
template <class F>
tower::dynamic::Function of_one(F f) {
  return [f](const tower::dynamic::Tensors& in) { return tower::dynamic::Tensors{f(in[0])}; };
}

/// The sum of all elements of the first output.
inline tower::dynamic::Function summed(tower::dynamic::Function f) {
  return [f = std::move(f)](const tower::dynamic::Tensors& in) { return tower::dynamic::Tensors{f(in)[0].sum()}; };
}

/// The derivative along ones.
inline tower::dynamic::Function along_ones(tower::dynamic::Function f) {
  return [f = std::move(f)](const tower::dynamic::Tensors& in) {
    return tower::dynamic::jvp(f, in, {at::ones_like(in[0])}).second;
  };
}

inline tower::dynamic::Function mapped(tower::dynamic::Function f) {
  return tower::dynamic::vmap(std::move(f), {0}, {0});
}

inline tower::dynamic::Function gradient(tower::dynamic::Function f) { return tower::dynamic::grad(std::move(f), {0}); }

/// The first output for a batch.
inline at::Tensor mapped(const tower::dynamic::Function& f, const at::Tensor& x) { return mapped(f)({x})[0]; }

/// The same example by example, each of which has memory of its own.
inline at::Tensor looped(const tower::dynamic::Function& f, const at::Tensor& x, int64_t dim = 0) {
  tower::dynamic::Tensors all;
  for (int64_t i = 0; i < x.size(dim); ++i) all.push_back(f({x.select(dim, i).clone()})[0]);
  return at::stack(all);
}

// ---- values in float64 ---------------------------------------------------------------------------------------------

/// A tensor without dimensions.
inline at::Tensor number(double v) { return at::full({}, v, at::kDouble); }

/// 1, 2, 3, …
inline at::Tensor numbers(at::IntArrayRef sizes) {
  return at::arange(1, c10::multiply_integers(sizes) + 1, at::kDouble).view(sizes);
}

/// Numbers in [-1, 1], of which all differ; another `phase`, other numbers.
inline at::Tensor waves(at::IntArrayRef sizes, double phase = 0.2) { return at::sin(numbers(sizes) * 1.3 + phase); }

}  // namespace support
