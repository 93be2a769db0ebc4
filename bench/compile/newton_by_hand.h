// Newton's corrections of examples/material_newton in plain C++: one point at a time, the Jacobian derived on paper.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "material_newton/material.h"

namespace scalar {

struct Point {
  double strain_increment[6], duration, stress[6], plastic_strain;
};

class Newton {
 public:
  explicit Newton(const material_newton::Material& m)
      : c_(m.c), three_g_(3 * m.shear()), two_g_(2 * m.shear()), lame_(m.lame()) {}

  /// One correction of x = (σ, 3GΔp); the residual's norm.
  double correct(const Point& point, double* x) const {
    double trial[6], s[6], r[7], jacobian[7][7] = {};
    const double* e = point.strain_increment;
    const double trace = e[0] + e[1] + e[2];
    for (int i = 0; i < 6; ++i) trial[i] = point.stress[i] + two_g_ * e[i] + (i < 3 ? lame_ * trace : 0);
    const double trial_squared = deviator(trial, s), yield = yield_stress(point.plastic_strain);
    const bool yields = 1.5 * trial_squared > yield * yield;
    const double squared = deviator(x, s);
    const double von_mises = yields ? std::sqrt(1.5 * squared) : c_.yield_stress;
    const double drop = x[6], ratio = drop / von_mises, increment = drop / three_g_;
    const double along = yields ? 1.5 / (von_mises * von_mises) : 0;
    for (int i = 0; i < 6; ++i) {
      r[i] = x[i] - trial[i] + ratio * s[i];
      for (int j = 0; j < 6; ++j) {
        const double projection = (i == j) - (i < 3 && j < 3 ? 1.0 / 3 : 0);
        jacobian[i][j] = (i == j) + ratio * (projection - along * s[i] * s[j]);
      }
      jacobian[i][6] = s[i] / von_mises;
      jacobian[6][i] = yields ? -1.5 * s[i] / von_mises : 0;
    }
    const double p = point.plastic_strain + increment, rate = increment / point.duration;
    r[6] = yields ? yield_stress(p) + c_.drag * std::asinh(rate / c_.reference_rate) - von_mises : drop;
    const double slope = c_.hardening + c_.saturation * c_.saturation_rate * std::exp(-c_.saturation_rate * p) +
                         c_.drag / std::hypot(c_.reference_rate * point.duration, increment);
    jacobian[6][6] = yields ? slope / three_g_ : 1;
    double norm = 0;
    for (const double v : r) norm += v * v;
    solve(jacobian, r);
    for (int i = 0; i < 7; ++i) x[i] -= r[i];
    return std::sqrt(norm);
  }

 private:
  static double deviator(const double* stress, double* s) {
    const double mean = (stress[0] + stress[1] + stress[2]) / 3;
    double squared = 0;
    for (int i = 0; i < 6; ++i) {
      s[i] = stress[i] - (i < 3 ? mean : 0);
      squared += s[i] * s[i];
    }
    return squared;
  }
  double yield_stress(double p) const {
    return c_.yield_stress + c_.hardening * p - c_.saturation * std::expm1(-c_.saturation_rate * p);
  }
  // With partial pivoting; r becomes the solution.
  static void solve(double (&a)[7][7], double (&r)[7]) {
    for (int k = 0; k < 7; ++k) {
      int pivot = k;
      for (int i = k + 1; i < 7; ++i)
        if (std::fabs(a[i][k]) > std::fabs(a[pivot][k])) pivot = i;
      if (pivot != k) {
        std::swap(a[k], a[pivot]);
        std::swap(r[k], r[pivot]);
      }
      for (int i = k + 1; i < 7; ++i) {
        const double f = a[i][k] / a[k][k];
        for (int j = k + 1; j < 7; ++j) a[i][j] -= f * a[k][j];
        r[i] -= f * r[k];
      }
    }
    for (int k = 7; k-- > 0;) {
      for (int j = k + 1; j < 7; ++j) r[k] -= a[k][j] * r[j];
      r[k] /= a[k][k];
    }
  }

  material_newton::Constants c_;
  double three_g_, two_g_, lame_;
};

}  // namespace scalar
