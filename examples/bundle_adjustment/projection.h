// How cameras see: the model of Bundle Adjustment in the Large (S. Agarwal, N. Snavely, S. M. Seitz, R. Szeliski,
// 2010), written for one camera and one point.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace bundle_adjustment {

using at::Tensor;

/// A point, turned about the axis `rotation` by its length (Rodrigues).
inline Tensor rotated(const Tensor& rotation, const Tensor& point) {
  const Tensor squared = rotation.square().sum(), moves = squared > 0;
  const Tensor angle = at::where(moves, squared, 1).sqrt(), axis = rotation / angle, cosine = angle.cos();
  const Tensor turned =
      point * cosine + at::linalg_cross(axis, point) * angle.sin() + axis * (axis.dot(point) * (1 - cosine));
  return at::where(moves, turned, point + at::linalg_cross(rotation, point));
}

/// Where a camera, nine numbers, sees a point: rotation, translation, focal length, two of radial distortion.
inline Tensor projected(const Tensor& camera, const Tensor& point) {
  const Tensor moved = rotated(camera.slice(0, 0, 3), point) + camera.slice(0, 3, 6);
  const Tensor flat = -moved.slice(0, 0, 2) / moved[2], square = flat.square().sum();
  return camera[6] * (1 + square * (camera[7] + camera[8] * square)) * flat;
}

/// The residuals of one observation.
inline Tensor error(const Tensor& camera, const Tensor& point, const Tensor& seen) {
  return projected(camera, point) - seen;
}

/// Where a camera is.
inline Tensor centre(const Tensor& camera) { return -rotated(-camera.slice(0, 0, 3), camera.slice(0, 3, 6)); }

}  // namespace bundle_adjustment
