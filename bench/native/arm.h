// An arm of seven turning joints: what torques a motion takes, by the recursive Newton-Euler algorithm (Luh, Walker and
// Paul 1980; in frames of the links, as in Featherstone, Rigid Body Dynamics Algorithms, 2008, section 5.3). For ONE
// state. bench/native/casadi_functions.py has the same in CasADi's symbols.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace arm {

using at::Tensor;

constexpr int64_t kJoints = 7;

struct Link {
  double mass, length;  // kg; m, from its joint to the next
  double centre;        // of mass, m along the link
  double inertia[3];    // about it, kg m²
};

inline Link link(int64_t i) {
  const auto k = static_cast<double>(i);
  return {4 - 0.4 * k, 0.3 - 0.02 * k, 0.12 - 0.01 * k, {0.05 - 0.004 * k, 0.04 - 0.003 * k, 0.02 - 0.002 * k}};
}

inline Tensor vector(double x, double y, double z) { return at::tensor({x, y, z}, at::kDouble); }
inline Tensor cross_product(const Tensor& a, const Tensor& b) { return at::linalg_cross(a, b); }

/// From the frame of link i to that of the one before: a turn about the joint's axis, and a quarter about x, one way
/// and the other in turns.
inline Tensor rotation(const Tensor& angle, int64_t i) {
  const Tensor c = angle.cos(), s = angle.sin(), zero = at::zeros_like(c), one = at::ones_like(c);
  const Tensor sign = i % 2 == 0 ? one : -one;
  return at::stack({at::stack({c, -s, zero}), at::stack({zero, zero, -sign}), at::stack({sign * s, sign * c, zero})});
}

/// The torques of the joints for angles, speeds and accelerations, {7} each.
inline Tensor torques(const Tensor& angles, const Tensor& speeds, const Tensor& accelerations) {
  const Tensor axis = vector(0, 0, 1);
  std::vector<Tensor> turns, forces, moments;
  Tensor turning = vector(0, 0, 0), turning_more = turning, moving_more = vector(0, 0, 9.81), offset = turning;
  for (int64_t i = 0; i < kJoints; ++i) {
    const Link l = link(i);
    const Tensor turn = rotation(angles[i], i), back = turn.t(), own = axis * speeds[i];
    moving_more = back.mv(moving_more + cross_product(turning_more, offset) +
                          cross_product(turning, cross_product(turning, offset)));
    const Tensor before = back.mv(turning);
    turning_more = back.mv(turning_more) + axis * accelerations[i] + cross_product(before, own);
    turning = before + own;
    const Tensor centre = vector(0, 0, l.centre), inertia = vector(l.inertia[0], l.inertia[1], l.inertia[2]);
    forces.push_back(l.mass * (moving_more + cross_product(turning_more, centre) +
                               cross_product(turning, cross_product(turning, centre))));
    moments.push_back(inertia * turning_more + cross_product(turning, inertia * turning) +
                      cross_product(centre, forces.back()));
    turns.push_back(turn);
    offset = vector(0, 0, l.length);
  }
  std::vector<Tensor> torque(kJoints);
  Tensor force, moment;
  for (int64_t i = kJoints; i-- > 0;) {
    const auto k = static_cast<size_t>(i);
    if (force.defined()) {
      const Tensor carried = turns[k + 1].mv(force);
      moment = moments[k] + turns[k + 1].mv(moment) + cross_product(vector(0, 0, link(i).length), carried);
      force = forces[k] + carried;
    } else {
      moment = moments[k];
      force = forces[k];
    }
    torque[k] = moment[2];
  }
  return at::stack(torque);
}

}  // namespace arm
