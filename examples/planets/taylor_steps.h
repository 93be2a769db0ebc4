// An integrator by Taylor series of a high order, for y' = f(y): at each step the series of the solution, by
// recurrence, and of its last terms the length of the step (Jorba and Zou, "A software package for the numerical
// integration of ODEs by means of high-order Taylor methods", 2005). There are no steps to refuse. Under vmap each
// trajectory makes its own.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/loops.h>
#include <tower/taylor.h>

#include <cmath>
#include <tuple>
#include <vector>

namespace planets {

using at::Tensor;

/// A trajectory on its way.
struct Flight {
  Tensor y;
  Tensor left;   // time to go
  Tensor steps;  // how many there were
};
constexpr auto tower_fields(const Flight&) { return std::tuple(&Flight::y, &Flight::left, &Flight::steps); }

/// The coefficients of t, t², …, t to the `order`, of the solution of y' = f(y): with those of y up to one, f gives the
/// next.
template <class F>
std::vector<Tensor> series_of_solution(const F& f, const Tensor& y, int64_t order) {
  std::vector<Tensor> series{f(y)};
  while (std::ssize(series) < order) {
    const auto slopes = tower::jet(f, y, series, {.scaling = tower::Scaling::coefficients}).second;
    series.push_back(slopes.back() / static_cast<double>(slopes.size() + 1));
  }
  return series;
}

/// y(duration) from y(0) = `y`.
template <class F>
Flight fly(const F& f, const Tensor& y, const Tensor& duration, int64_t order) {
  const auto step = [f, order](const Flight& s) {
    const std::vector<Tensor> series = series_of_solution(f, s.y, order);
    // Where the last terms would be as large as y: twice over, and by the smaller.
    const auto radius = [&](int64_t k) {
      return (s.y.abs().amax() / series[static_cast<size_t>(k - 1)].abs().amax()).pow(1 / static_cast<double>(k));
    };
    const double safe = std::exp(-2 - 0.7 / static_cast<double>(order - 1));
    const Tensor h = at::minimum(at::minimum(radius(order - 1), radius(order)) * safe, s.left);
    Tensor y = series.back();
    for (size_t k = series.size() - 1; k-- > 0;) y = series[k] + h * y;
    return Flight{s.y + h * y, s.left - h, s.steps + 1};
  };
  const Flight start{y, duration, at::zeros({}, at::kLong)};
  return tower::while_loop([](const Flight& s) { return s.left > 0; }, step, start, {.max_steps = 100'000});
}

}  // namespace planets
