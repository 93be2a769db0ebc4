// The outer Solar System: the Sun with the inner planets in it, Jupiter, Saturn, Uranus, Neptune, Pluto. Masses and
// places are those of Applegate, Douglas, Gürsel, Hunter, Seidelmann and Sussman ("A digital orrery", 1985), which
// benchmarks of integrators have used since (heyoka's among them). Units: astronomical, years of 365 days, the Sun.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <array>

namespace planets {

using at::Tensor;

inline constexpr int64_t kBodies = 6;
inline constexpr double kGravity = 0.01720209895 * 0.01720209895 * 365 * 365;
inline constexpr std::array<double, kBodies> kMasses{1.00000597682, 1 / 1047.355, 1 / 3501.6,
                                                     1 / 22869.,    1 / 19314.,   7.4074074e-09};

inline Tensor masses() { return at::tensor(at::ArrayRef<double>(kMasses), at::kDouble); }

/// Positions and velocities, [2, bodies, 3]; the centre of mass is at rest, at 0.
inline Tensor start() {
  const Tensor day = at::tensor({-4.06428567034226e-3, -6.08813756435987e-3, -1.66162304225834e-6,  //
                                 +3.40546614227466e+0, +3.62978190075864e+0, +3.42386261766577e-2,  //
                                 +6.60801554403466e+0, +6.38084674585064e+0, -1.36145963724542e-1,  //
                                 +1.11636331405597e+1, +1.60373479057256e+1, +3.61783279369958e-1,  //
                                 -3.01777243405203e+1, +1.91155314998064e+0, -1.53887595621042e-1,  //
                                 -2.13858977531573e+1, +3.20719104739886e+1, +2.49245689556096e+0,  //
                                 +6.69048890636161e-6, -6.33922479583593e-6, -3.13202145590767e-9,  //
                                 -5.59797969310664e-3, +5.51815399480116e-3, -2.66711392865591e-6,  //
                                 -4.17354020307064e-3, +3.99723751748116e-3, +1.67206320571441e-5,  //
                                 -3.25884806151064e-3, +2.06438412905916e-3, -2.17699042180559e-5,  //
                                 -2.17471785045538e-4, -3.11361111025884e-3, +3.58344705491441e-5,  //
                                 -1.76936577252484e-3, -2.06720938381724e-3, +6.58091931493844e-4},
                                at::kDouble)
                         .view({2, kBodies, 3});
  const Tensor y = at::stack({day[0], day[1] * 365});
  const Tensor m = masses();
  return y - at::tensordot(y, m, {1}, {0}).unsqueeze(1) / m.sum();
}

/// Each pair of bodies once, as a sum over pairs needs them: of three times six places that lie around a table, each
/// body with the next one, with the one behind that, and the first three with those that they face.
inline Tensor around(const Tensor& t, int64_t places) {
  return at::cat({t.narrow(0, places, kBodies - places), t.narrow(0, 0, places)});
}
inline Tensor apart(const Tensor& x) {
  return at::cat({around(x, 1) - x, around(x, 2) - x, x.narrow(0, 3, 3) - x.narrow(0, 0, 3)});
}

/// y' of y = (positions, velocities).
struct Attraction {
  Tensor weight = kGravity * masses().unsqueeze(1);

  Tensor operator()(const Tensor& y) const {
    const Tensor d = apart(y[0]), pull = (d * d).sum(1, true).pow(-1.5) * d;
    const Tensor next = pull.narrow(0, 0, 6), second = pull.narrow(0, 6, 6), facing = pull.narrow(0, 12, 3);
    const Tensor accelerations = around(weight, 1) * next - around(weight * next, 5) + around(weight, 2) * second -
                                 around(weight * second, 4) +
                                 at::cat({weight.narrow(0, 3, 3) * facing, -(weight.narrow(0, 0, 3) * facing)});
    return at::stack({y[1], accelerations});
  }
};

inline Tensor energy(const Tensor& y) {
  const Tensor m = masses(), d = apart(y[0]);
  const Tensor products = at::cat({around(m, 1) * m, around(m, 2) * m, m.narrow(0, 3, 3) * m.narrow(0, 0, 3)});
  return 0.5 * at::dot(m, y[1].square().sum(1)) - kGravity * at::dot(products, d.square().sum(1).rsqrt());
}

}  // namespace planets
