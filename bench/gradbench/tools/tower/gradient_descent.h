// Gradient descent as the evaluations `particle` and `saddle` define it: the step's length doubles after ten steps that
// went down, and halves where one would go up.
#pragma once

#include <ATen/Functions.h>
#include <tower/tower.h>

#include <tuple>
#include <utility>

namespace gradbench {

/// How a gradient is computed.
struct Reverse {
  /// A function's value and gradient at `x`.
  template <class F>
  static std::pair<at::Tensor, at::Tensor> value_and_gradient(const F& f, const at::Tensor& x) {
    return tower::value_and_grad(f)(x);
  }
};
struct Forward {
  /// The same.
  template <class F>
  static std::pair<at::Tensor, at::Tensor> value_and_gradient(const F& f, const at::Tensor& x) {
    const auto twice = [&f](const at::Tensor& at) {
      const at::Tensor value = f(at);
      return std::pair(value, value);
    };
    const auto [gradient, value] = tower::jacfwd(twice, tower::has_aux)(x);
    return {value, gradient};
  }
};

struct Descent {
  at::Tensor x, value, gradient;
  at::Tensor length;  // of a step
  at::Tensor good;    // steps down since it changed
  at::Tensor goes_on;
};
constexpr auto tower_fields(const Descent&) {
  return std::tuple(&Descent::x, &Descent::value, &Descent::gradient, &Descent::length, &Descent::good,
                    &Descent::goes_on);
}

/// Where `f` is smallest, from `start`.
template <class Mode, class F>
at::Tensor argmin(const F& f, const at::Tensor& start) {
  const auto norm = [](const at::Tensor& v) { return v.detach().square().sum().sqrt(); };
  const auto step = [=](const Descent& now) {
    const at::Tensor next = now.x - now.length * now.gradient;
    const at::Tensor small = (norm(now.gradient) <= 1e-5), lengthens = now.good == 10;
    const at::Tensor ends = small | (~lengthens & (norm(now.x - next) <= 1e-5));
    const auto [value, gradient] = Mode::value_and_gradient(f, next);
    const at::Tensor down = ~ends & ~lengthens & (value < now.value);
    return Descent{.x = at::where(down, next, now.x),
                   .value = at::where(down, value, now.value),
                   .gradient = at::where(down, gradient, now.gradient),
                   .length = at::where(lengthens, now.length * 2, at::where(down | ends, now.length, now.length / 2)),
                   .good = at::where(down, now.good + 1, 0),
                   .goes_on = ~ends};
  };
  const auto [value, gradient] = Mode::value_and_gradient(f, start);
  const auto last = tower::while_loop([](const Descent& now) { return now.goes_on; }, step,
                                      Descent{.x = start,
                                              .value = value,
                                              .gradient = gradient,
                                              .length = at::full({}, 1e-5, start.options()),
                                              .good = at::zeros({}, at::kLong),
                                              .goes_on = at::ones({}, at::kBool)});
  return last.x;
}

/// Where `f` is largest.
template <class Mode, class F>
at::Tensor argmax(const F& f, const at::Tensor& start) {
  return argmin<Mode>([f](const at::Tensor& x) { return -f(x); }, start);
}

}  // namespace gradbench
