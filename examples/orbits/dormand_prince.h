// The Dormand–Prince method of order 5(4), which chooses its own steps: y' = f(y), for one trajectory. How many steps
// there are depends on the trajectory; under vmap each makes its own.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/loops.h>

#include <array>
#include <tuple>
#include <vector>

namespace orbits {

using at::Tensor;

struct Tolerances {
  double relative = 1e-9, absolute = 1e-10;
};

/// How the steps are run: what is kept for a backward pass, and whether trajectories that have arrived are left out.
struct Running {
  tower::Checkpoints checkpoints = tower::Checkpoints::all();
  double compact = 0;
};

/// A trajectory on its way.
struct Stepping {
  Tensor y, slope;        // slope = f(y)
  Tensor left, step;      // time to go, and the length of the step to try next
  Tensor steps, refused;  // how many there were
};
constexpr auto tower_fields(const Stepping&) {
  return std::tuple(&Stepping::y, &Stepping::slope, &Stepping::left, &Stepping::step, &Stepping::steps,
                    &Stepping::refused);
}

namespace detail {

// Row i gives stage i + 1; the last row is the solution of order 5, where the next step begins.
inline const std::vector<std::vector<double>> kStages{
    {1. / 5},
    {3. / 40, 9. / 40},
    {44. / 45, -56. / 15, 32. / 9},
    {19372. / 6561, -25360. / 2187, 64448. / 6561, -212. / 729},
    {9017. / 3168, -355. / 33, 46732. / 5247, 49. / 176, -5103. / 18656},
    {35. / 384, 0, 500. / 1113, 125. / 192, -2187. / 6784, 11. / 84},
};
// Order 5 less order 4.
inline const std::vector<double> kError{71. / 57600,      0,         -71. / 16695, 71. / 1920,
                                        -17253. / 339200, 22. / 525, -1. / 40};

inline Tensor combined(const std::vector<double>& weights, const std::vector<Tensor>& slopes) {
  Tensor sum = slopes[0] * weights[0];
  for (size_t i = 1; i < weights.size(); ++i)
    if (weights[i] != 0) sum = at::add(sum, slopes[i], weights[i]);
  return sum;
}

}  // namespace detail

/// y(duration) from y(0). Derivatives are those of the steps that were made: their lengths count as given.
template <class F>
Stepping integrate(const F& f, const Tensor& y, const Tensor& duration, const Tolerances& tolerances,
                   const Running& running = {}) {
  const auto step = [f, tolerances](const Stepping& s) {
    const Tensor h = at::minimum(s.step, s.left).detach();
    std::vector<Tensor> slopes{s.slope};
    Tensor y;
    for (const auto& weights : detail::kStages) {
      y = s.y + h * detail::combined(weights, slopes);
      slopes.push_back(f(y));
    }
    const Tensor allowed = at::maximum(s.y.abs(), y.abs()) * tolerances.relative + tolerances.absolute;
    const Tensor error = (h * detail::combined(detail::kError, slopes) / allowed).detach().square().mean().sqrt();
    const Tensor good = error <= 1;
    const Tensor factor = (0.9 * error.clamp_min(1e-10).pow(-0.2)).clamp(0.2, 5);
    return Stepping{at::where(good, y, s.y),
                    at::where(good, slopes.back(), s.slope),
                    at::where(good, s.left - h, s.left),
                    h * factor,
                    s.steps + 1,
                    s.refused + good.logical_not()};
  };
  const Tensor none = at::zeros({}, at::kLong);
  const Stepping start{y, f(y), duration, duration * 1e-3, none, none};
  return tower::while_loop([](const Stepping& s) { return s.left > 0; }, step, start,
                           {.max_steps = 100'000, .checkpoints = running.checkpoints, .compact = running.compact});
}

}  // namespace orbits
