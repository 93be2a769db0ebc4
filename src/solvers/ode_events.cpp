// NOTE [Where an event is]
// A step whose ends have values of two signs is halved until its place θ is known to the last digit, on values that no
// derivative follows. From there some of Newton's steps make the derivatives: after k of them those of up to order
// 2ᵏ − 1 are those of the implicit function θ(…), for each step at a root doubles the order to which it is right. They
// are taken to the value that the event has at θ, which rounding leaves, or a jump: θ itself stays where it is, also
// where there is no slope to divide by. Unlike a call of implicit_root they are a few operators in the kernel of an
// ensemble.
#include "solvers/ode_events.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "tower/loops.h"

namespace tower::solvers {

using dynamic::Tensors;

namespace {

constexpr int kNewtonSteps = 3;  // derivatives up to order 7

}  // namespace

Tensor OdePath::state(const Tensor& theta) const {
  Tensor value = powers.back();
  for (size_t k = powers.size() - 1; k-- > 0;) value = at::addcmul(powers[k], theta, value);
  return at::addcmul(y, theta, value);
}

OdePath OdePath::detached() const {
  OdePath same{begin.detach(), length.detach(), y.detach(), powers};
  for (Tensor& p : same.powers) p = p.detach();
  return same;
}

Tensor OdeEventRule::first_sign(const Tensor& t, const Tensor& y, const Tensor& slope, const Tensor& way) const {
  const auto at_place = [&](const Tensors& in) { return Tensors{value(in[0], in[1])}; };
  const auto [now, rate] = dynamic::jvp(at_place, {t, y}, {way, way * slope});
  return at::where(now[0] == 0, rate[0], now[0]).detach();
}

Tensor OdeEventRule::crossed(const Tensor& before, const Tensor& now) const {
  const Tensor up = at::logical_and(before < 0, now >= 0), down = at::logical_and(before > 0, now <= 0);
  switch (crossing) {
    case OdeCrossing::rising:
      return up;
    case OdeCrossing::falling:
      return down;
    case OdeCrossing::any:
      break;
  }
  return at::logical_or(up, down);
}

Tensor OdeEventRule::place_on(const OdePath& path, const Tensor& before, const Tensor& happened) const {
  const Tensor zero = at::zeros_like(before.detach());
  Tensor theta;
  {
    const at::NoGradGuard values_alone;
    const OdePath fixed = path.detached();
    const auto halve = [rule = *this, fixed, sign = at::sign(before.detach())](int64_t, const Tensors& ends) {
      const Tensor middle = (ends[0] + ends[1]) / 2;
      const Tensor later = rule.value(fixed.time(middle), fixed.state(middle)).detach() * sign > 0;
      return Tensors{at::where(later, middle, ends[0]), at::where(later, ends[1], middle)};
    };
    const int digits =
        zero.scalar_type() == at::kDouble ? std::numeric_limits<double>::digits : std::numeric_limits<float>::digits;
    theta = at::where(happened, dynamic::fori_loop(0, digits, halve, {zero, at::ones_like(zero)})[1].detach(), zero);
  }
  const auto along = [&](const Tensors& in) { return Tensors{value(path.time(in[0]), path.state(in[0]))}; };
  for (int k = 0; k < kNewtonSteps; ++k) {
    const auto [now, rate] = dynamic::jvp(along, {theta}, {at::ones_like(theta)});
    const Tensor slope = at::where(happened, rate[0], 1), value = at::where(happened, now[0], zero);
    const Tensor remains = value - value.detach();  // zero, but for derivatives
    const Tensor is_flat = slope.detach() == 0;
    // The root of zero is zero, and its derivatives are infinite.
    const Tensor without_slope = at::where(is_flat, remains, 1).sqrt();
    theta = theta - at::where(is_flat, without_slope, remains / at::where(is_flat, 1, slope));
  }
  return theta;
}

}  // namespace tower::solvers
