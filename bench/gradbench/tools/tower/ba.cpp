// Bundle adjustment: how far the projections of points are from where cameras saw them. Each observation has a camera,
// a point and a weight of its own, so the Jacobian is sparse: two rows of fifteen entries for an observation.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include "evaluation.h"

using at::Tensor;

namespace {

// The product of a x b, by components.
Tensor cross_product(const Tensor& a, const Tensor& b) {
  const auto element = [&](int64_t i, int64_t j) { return a[i] * b[j] - a[j] * b[i]; };
  return at::stack({element(1, 2), element(2, 0), element(0, 1)});
}

// A point, turned about the axis `rotation` by its length (Rodrigues).
Tensor rotated(const Tensor& rotation, const Tensor& point) {
  const Tensor squared = rotation.square().sum();
  const Tensor moves = squared > 0;
  const Tensor angle = at::where(moves, squared, 1).sqrt();
  const Tensor axis = rotation / angle, cosine = angle.cos();
  const Tensor turned =
      point * cosine + cross_product(axis, point) * angle.sin() + axis * (axis.dot(point) * (1 - cosine));
  return at::where(moves, turned, point + cross_product(rotation, point));
}

// Of a camera: rotation, centre, focal length, principal point, radial distortion.
Tensor projected(const Tensor& camera, const Tensor& point) {
  const Tensor seen = rotated(camera.slice(0, 0, 3), point - camera.slice(0, 3, 6));
  const Tensor flat = seen.slice(0, 0, 2) / seen[2];
  const Tensor radius = flat.square().sum();
  const Tensor distortion = 1 + camera[9] * radius + camera[10] * radius * radius;
  return flat * distortion * camera[6] + camera.slice(0, 7, 9);
}

Tensor row_of(const Tensor& table, const Tensor& row) { return table.index_select(0, row.unsqueeze(0))[0]; }

// Of one observation.
Tensor projection_error(const Tensor& camera, const Tensor& point, const Tensor& weight, const Tensor& feature) {
  return weight * (projected(camera, point) - feature);
}
Tensor weight_error(const Tensor& weight) { return 1 - weight * weight; }

// The entries of the Jacobian, row by row: each observation's two rows, by camera, point and weight, then weights'.
Tensor jacobian_entries(const Tensor& cameras, const Tensor& points, const Tensor& weights, const Tensor& features,
                        const Tensor& camera_of, const Tensor& point_of) {
  const auto rows = [=](const Tensor& weight, const Tensor& feature, const Tensor& camera, const Tensor& point) {
    const auto [by_camera, by_point, by_weight] =
        tower::jacrev<0, 1, 2>(projection_error)(row_of(cameras, camera), row_of(points, point), weight, feature);
    return at::cat({by_camera, by_point, by_weight.unsqueeze(1)}, 1);
  };
  const Tensor blocks = tower::vmap(rows)(weights, features, camera_of, point_of);
  return at::cat({blocks.flatten(), tower::vmap(tower::grad(weight_error))(weights)});
}

struct Input {
  Tensor cameras, points, weights, features, camera_of, point_of;
};

Input read(const gradbench::json& input) {
  const int64_t n = input["n"], m = input["m"], p = input["p"];
  const Tensor observations = at::arange(p);
  const auto repeated = [&](const char* name, int64_t times) {
    const Tensor one = gradbench::tensor(input[name]);
    return (one.dim() == 0 ? one.repeat({times}) : one.repeat({times, 1})).contiguous();
  };
  return {repeated("cam", n),  repeated("x", m), repeated("w", p),
          repeated("feat", p), observations % n, observations % m};
}

gradbench::Evaluation objective(const gradbench::json& json_input) {
  const Input in = read(json_input);
  const auto errors = tower::compile([](const Tensor& cameras, const Tensor& points, const Tensor& weights,
                                        const Tensor& features, const Tensor& camera_of, const Tensor& point_of) {
    const auto error = [=](const Tensor& weight, const Tensor& feature, const Tensor& camera, const Tensor& point) {
      return projection_error(row_of(cameras, camera), row_of(points, point), weight, feature);
    };
    return std::pair(tower::vmap(error)(weights, features, camera_of, point_of), tower::vmap(weight_error)(weights));
  });
  const auto output = [](const std::pair<Tensor, Tensor>& result) {
    const auto& [projection, weight] = result;
    return gradbench::json{
        {"reproj_error", {{"elements", gradbench::as_json(projection[0])}, {"repeated", projection.size(0)}}},
        {"w_err", {{"element", weight[0].item<double>()}, {"repeated", weight.size(0)}}}};
  };
  return gradbench::evaluation(errors, output, in.cameras, in.points, in.weights, in.features, in.camera_of,
                               in.point_of);
}

// Of a sparse matrix the evaluation sees the first thirty entries and the last one, or of `rows`, where rows start, the
// first thirty and the end.
Tensor excerpt(const Tensor& all) { return at::cat({all.slice(0, 0, 30), all.slice(0, -1)}); }

gradbench::Evaluation jacobian(const gradbench::json& json_input) {
  const Input in = read(json_input);
  const int64_t n = in.cameras.size(0), m = in.points.size(0), p = in.weights.size(0);
  // Where the entries are is the same for any values.
  const Tensor of_weight = 11 * n + 3 * m + at::arange(p);
  const Tensor row = at::cat({11 * in.camera_of.unsqueeze(1) + at::arange(11),
                              11 * n + 3 * in.point_of.unsqueeze(1) + at::arange(3), of_weight.unsqueeze(1)},
                             1);
  const Tensor columns = at::cat({row.unsqueeze(1).expand({p, 2, 15}).flatten(), of_weight});
  const Tensor starts = at::cat({at::arange(2 * p) * 15, 30 * p + at::arange(p + 1)});
  const auto output = [=](const Tensor& entries) {
    return gradbench::json{{"rows", gradbench::as_json(excerpt(starts))},
                           {"cols", gradbench::as_json(excerpt(columns))},
                           {"vals", gradbench::as_json(excerpt(entries))}};
  };
  return gradbench::evaluation(tower::compile(jacobian_entries), output, in.cameras, in.points, in.weights, in.features,
                               in.camera_of, in.point_of);
}

}  // namespace

int main(int argc, char** argv) {
  return gradbench::program(argc, argv, {{"objective", objective}, {"jacobian", jacobian}});
}
