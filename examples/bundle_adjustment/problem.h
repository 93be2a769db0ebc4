// Problems in the form of Bundle Adjustment in the Large (grail.cs.washington.edu/projects/bal): a line with the
// numbers of cameras, points and observations; of each observation a line with its camera, its point and where it was
// seen; nine numbers of each camera, three of each point.
#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>

namespace bundle_adjustment {

struct Problem {
  at::Tensor cameras, points;            // where they start: {count, 9}, {count, 3}
  at::Tensor camera_of, point_of, seen;  // of each observation
};

inline Problem read(const std::string& path) {
  std::ifstream in(path);
  const auto check = [&](bool fits, const std::string& what) {
    if (!fits)
      throw std::runtime_error(path + ": " + what +
                               ". It is to be a problem of BAL's, whose files are to be unpacked with bunzip2 first");
  };
  check(in.good(), "it cannot be read");
  int64_t cameras = 0, points = 0, observations = 0;
  in >> cameras >> points >> observations;
  constexpr int64_t kMost = 1'000'000'000;
  check(in.good() && cameras > 0 && points > 0 && observations > 0 && std::max({cameras, points, observations}) < kMost,
        "it does not begin with the numbers of cameras, points and observations");
  Problem p{at::empty({cameras, 9}, at::kDouble), at::empty({points, 3}, at::kDouble),
            at::empty({observations}, at::kLong), at::empty({observations}, at::kLong),
            at::empty({observations, 2}, at::kDouble)};
  auto *camera_of = p.camera_of.mutable_data_ptr<int64_t>(), *point_of = p.point_of.mutable_data_ptr<int64_t>();
  auto* seen = p.seen.mutable_data_ptr<double>();
  for (int64_t k = 0; k < observations; ++k) {
    in >> camera_of[k] >> point_of[k] >> seen[2 * k] >> seen[2 * k + 1];
    check(in.good() && camera_of[k] >= 0 && camera_of[k] < cameras && point_of[k] >= 0 && point_of[k] < points,
          "observation " + std::to_string(k) + " is none");
  }
  for (at::Tensor* t : {&p.cameras, &p.points}) {
    auto* values = t->mutable_data_ptr<double>();
    for (int64_t k = 0; k < t->numel(); ++k) in >> values[k];
  }
  check(!in.fail(), "numbers of cameras or points are missing");
  return p;
}

}  // namespace bundle_adjustment
