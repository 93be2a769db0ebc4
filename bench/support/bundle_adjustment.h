// Bundle adjustment: how far the projections of points are from where cameras saw them. An observation has a camera, a
// point and a weight, so the Jacobian is sparse: two rows of fourteen entries for each, and one of one for its weight.
// The problem is ADBench's, and as large as its first one (BA1): Šrajer, Kukelova and Fitzgibbon, "A benchmark of
// selected algorithmic differentiation tools on some problems in computer vision and machine learning", 2018.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/tower.h>

#include <tuple>
#include <utility>

namespace bundle_adjustment {

using at::Tensor;

// A point, turned about the axis `rotation` by its length (Rodrigues).
inline Tensor rotated(const Tensor& rotation, const Tensor& point) {
  const Tensor squared = rotation.square().sum();
  const Tensor moves = squared > 0;
  const Tensor angle = at::where(moves, squared, 1).sqrt();
  const Tensor axis = rotation / angle, cosine = angle.cos();
  const Tensor turned =
      point * cosine + at::linalg_cross(axis, point) * angle.sin() + axis * (axis.dot(point) * (1 - cosine));
  return at::where(moves, turned, point + at::linalg_cross(rotation, point));
}

// Of a camera: rotation, centre, focal length, principal point, radial distortion.
inline Tensor projected(const Tensor& camera, const Tensor& point) {
  const Tensor seen = rotated(camera.slice(0, 0, 3), point - camera.slice(0, 3, 6));
  const Tensor flat = seen.slice(0, 0, 2) / seen[2];
  const Tensor radius = flat.square().sum();
  const Tensor distortion = 1 + camera[9] * radius + camera[10] * radius * radius;
  return flat * distortion * camera[6] + camera.slice(0, 7, 9);
}

inline Tensor row_of(const Tensor& table, const Tensor& row) { return table.index_select(0, row.unsqueeze(0))[0]; }

// Of one observation.
inline Tensor projection_error(const Tensor& camera, const Tensor& point, const Tensor& weight, const Tensor& feature) {
  return weight * (projected(camera, point) - feature);
}
inline Tensor weight_error(const Tensor& weight) { return 1 - weight * weight; }

/// What the errors are differentiated by: cameras, points, weights.
using Unknowns = std::tuple<Tensor, Tensor, Tensor>;

struct Problem {
  Tensor features, camera_of, point_of;

  /// Both errors of all observations.
  std::pair<Tensor, Tensor> operator()(const Unknowns& x) const {
    const auto& [cameras, points, weights] = x;
    const auto error = [&cameras = cameras, &points = points](const Tensor& weight, const Tensor& feature,
                                                              const Tensor& camera, const Tensor& point) {
      return projection_error(row_of(cameras, camera), row_of(points, point), weight, feature);
    };
    return {tower::vmap(error)(weights, features, camera_of, point_of), tower::vmap(weight_error)(weights)};
  }
  /// The entries of the Jacobian, row by row, as a person writes them who knows where they are.
  Tensor entries(const Unknowns& x) const {
    const auto& [cameras, points, weights] = x;
    const auto rows = [&cameras = cameras, &points = points](const Tensor& weight, const Tensor& feature,
                                                             const Tensor& camera, const Tensor& point) {
      const auto [by_camera, by_point, by_weight] =
          tower::jacrev<0, 1, 2>(projection_error)(row_of(cameras, camera), row_of(points, point), weight, feature);
      return at::cat({by_camera, by_point, by_weight.unsqueeze(1)}, 1);
    };
    const Tensor blocks = tower::vmap(rows)(weights, features, camera_of, point_of);
    return at::cat({blocks.flatten(), tower::vmap(tower::grad(weight_error))(weights)});
  }
  /// Of these, those that may differ from zero: each coordinate of the principal point moves its own row only.
  Tensor that_may_differ(const Tensor& entries) const {
    const int64_t n = features.size(0);
    Tensor kept = at::ones({n, 30}, at::kBool);
    kept.select(1, 8).fill_(false);
    kept.select(1, 15 + 7).fill_(false);
    return at::cat({entries.narrow(0, 0, 30 * n).masked_select(kept.flatten()), entries.narrow(0, 30 * n, n)});
  }
};

inline std::pair<Problem, Unknowns> some_problem(int64_t cameras = 49, int64_t points = 7'776,
                                                 int64_t observations = 31'843) {
  const auto f64 = at::dtype(at::kDouble);
  const Tensor ahead = at::tensor({0, 0, 10}, f64);  // so that no point is beside a camera
  return {{at::randn({observations, 2}, f64), at::randint(0, cameras, {observations}, at::kLong),
           at::randint(0, points, {observations}, at::kLong)},
          {0.1 * at::randn({cameras, 11}, f64), at::randn({points, 3}, f64) + ahead, at::randn({observations}, f64)}};
}

}  // namespace bundle_adjustment
