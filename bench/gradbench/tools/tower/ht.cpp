// Hand tracking: how far measured points are from those on a model of a hand that they belong to. A pose (26 numbers)
// turns the bones, the bones move the vertices; a point lies on a triangle at its own two coordinates u, or, in the
// simple case, is a vertex.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include <vector>

#include "evaluation.h"

using at::Tensor;

namespace {

struct Hand {
  std::vector<int64_t> parents;
  Tensor relatives, inverse_absolutes;  // of bones: [bone, 4, 4]
  Tensor positions;                     // of vertices: [vertex, 4]
  Tensor weights;                       // [vertex, bone]
  bool mirrored;
};

// A turn about an axis by its length.
Tensor turn(const Tensor& axis_angle) {
  const Tensor squared = axis_angle.square().sum();
  const Tensor turns = squared >= 1e-8;
  const Tensor angle = at::where(turns, squared, 1).sqrt();
  const Tensor axis = axis_angle / angle, sine = angle.sin(), cosine = angle.cos();
  const Tensor zero = at::zeros({}, angle.options()), x = axis[0], y = axis[1], z = axis[2];
  const Tensor crossing = at::stack({zero, -z, y, z, zero, -x, -y, x, zero}).view({3, 3});
  const Tensor eye = at::eye(3, angle.options());
  return at::where(turns, cosine * eye + sine * crossing + (1 - cosine) * at::outer(axis, axis), eye);
}

// Turns about the axes x, y and z, in this order.
Tensor joint(const Tensor& angles) {
  const Tensor sine = angles.sin(), cosine = angles.cos();
  const Tensor sx = sine[0], sz = sine[1], sy = sine[2], cx = cosine[0], cz = cosine[1], cy = cosine[2];
  const Tensor zero = at::zeros({}, angles.options()), one = at::ones({}, angles.options());
  const auto matrix = [](std::vector<Tensor> elements) { return at::stack(elements).view({4, 4}); };
  const Tensor rx = matrix({one, zero, zero, zero, zero, cx, -sx, zero, zero, sx, cx, zero, zero, zero, zero, one});
  const Tensor ry = matrix({cy, zero, sy, zero, zero, one, zero, zero, -sy, zero, cy, zero, zero, zero, zero, one});
  const Tensor rz = matrix({cz, -sz, zero, zero, sz, cz, zero, zero, zero, zero, one, zero, zero, zero, zero, one});
  return at::mm(at::mm(rz, ry), rx);
}

// The angles of all bones, [bone, 3]: of a pose only fingers have some, each four, two of them at the second bone.
Tensor angles_of(const Tensor& pose, int64_t bones) {
  std::vector<Tensor> rows(static_cast<size_t>(bones), at::zeros({3}, pose.options()));
  const Tensor zero = at::zeros({1}, pose.options());
  for (int64_t finger = 0; finger < 5; ++finger) {
    const auto bone = static_cast<size_t>(2 + 4 * finger);
    const Tensor own = pose.slice(0, 6 + 4 * finger, 10 + 4 * finger);
    rows[bone] = at::cat({own.slice(0, 0, 2), zero});
    rows[bone + 1] = at::cat({own.slice(0, 2, 3), zero, zero});
    rows[bone + 2] = at::cat({own.slice(0, 3, 4), zero, zero});
  }
  return at::stack(rows);
}

// Where a bone takes the vertices, [bone, 4, 4].
Tensor transforms(const Hand& hand, const Tensor& pose) {
  const Tensor angles = angles_of(pose, static_cast<int64_t>(hand.parents.size()));
  std::vector<Tensor> absolutes;
  for (size_t i = 0; i < hand.parents.size(); ++i) {
    const auto bone = static_cast<int64_t>(i);
    const Tensor relative = at::mm(hand.relatives[bone], joint(angles[bone]));
    absolutes.push_back(hand.parents[i] < 0 ? relative
                                            : at::mm(absolutes[static_cast<size_t>(hand.parents[i])], relative));
  }
  return at::bmm(at::stack(absolutes), hand.inverse_absolutes);
}

// Where the vertices are, [vertex, 3]: the bones' moves of the vertices, weighted.
Tensor vertices(const Hand& hand, const Tensor& pose) {
  const Tensor moves = transforms(hand, pose).slice(1, 0, 3);                     // [bone, 3, 4]
  const Tensor shares = hand.weights.unsqueeze(2) * hand.positions.unsqueeze(1);  // [vertex, bone, 4]
  Tensor skinned = at::mm(shares.flatten(1), moves.transpose(1, 2).reshape({-1, 3}));
  if (hand.mirrored) skinned = skinned * at::tensor({-1.0, 1.0, 1.0});
  return at::mm(skinned, turn(pose.slice(0, 0, 3)).t()) + pose.slice(0, 3, 6);
}

struct Input {
  Hand hand;
  Tensor pose, points, us;
  Tensor corners;  // of each point: the vertices of its triangle, or its vertex
};

Input read(const gradbench::json& input) {
  const auto& data = input["data"];
  const auto& model = data["model"];
  Input in{.hand = {.parents = model["parents"],
                    .relatives = gradbench::tensor(model["base_relatives"]),
                    .inverse_absolutes = gradbench::tensor(model["inverse_base_absolutes"]),
                    .positions = gradbench::tensor(model["base_positions"]),
                    .weights = gradbench::tensor(model["weights"]),
                    .mirrored = model["is_mirrored"]},
           .pose = gradbench::tensor(input["theta"]),
           .points = gradbench::tensor(data["points"]),
           .us = gradbench::tensor(input["us"]),
           .corners = gradbench::indices(data["correspondences"])};
  if (in.us.numel() > 0) in.corners = gradbench::indices(model["triangles"]).index_select(0, in.corners);
  return in;
}

// The errors of all points, [point, 3].
auto errors(const Input& in) {
  const Hand hand = in.hand;
  const bool on_triangles = in.us.numel() > 0;
  return [=](const Tensor& pose, const Tensor& us, const Tensor& points, const Tensor& corners) {
    const Tensor at_vertices = vertices(hand, pose);
    const auto error = [&](const Tensor& u, const Tensor& point, const Tensor& corner) {
      const Tensor a = at_vertices.index_select(0, corner);
      return point - (u[0] * a[0] + u[1] * a[1] + (1 - u[0] - u[1]) * a[2]);
    };
    return on_triangles ? tower::vmap(error)(us, points, corners) : points - at_vertices.index_select(0, corners);
  };
}

// The Jacobian, [point, 3, column]: by each point's own u, and by the pose.
auto jacobian(const Input& in) {
  const bool on_triangles = in.us.numel() > 0;
  return [=, f = errors(in)](const Tensor& pose, const Tensor& us, const Tensor& points, const Tensor& corners) {
    if (!on_triangles) return tower::jacfwd(f)(pose, us, points, corners);
    // A point's error depends on no other point's u: all of them go along in two columns.
    const auto moved = [&](const Tensor& by) {
      return f(pose + by.slice(0, 2), us + by.slice(0, 0, 2), points, corners);
    };
    return tower::jacfwd(moved)(at::zeros({pose.size(0) + 2}, pose.options()));
  };
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  const auto prepare = [](const auto& function, const auto& output) {
    return [=](const json& json_input) {
      const Input in = read(json_input);
      return evaluation(tower::compile(function(in)), output, in.pose, in.us, in.points, in.corners);
    };
  };
  return program(argc, argv,
                 {{"objective", prepare([](const Input& in) { return errors(in); },
                                        [](const Tensor& e) { return as_json(e.flatten()); })},
                  {"jacobian", prepare([](const Input& in) { return jacobian(in); },
                                       [](const Tensor& j) { return as_json(j.flatten(0, 1)); })}});
}
