// The scene, seen from above, as SVG text: points, and cameras as wedges that open to where they look.
#pragma once

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <tower/transforms.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "projection.h"

namespace bundle_adjustment {

class Picture {
 public:
  /// Of a scene as large as `cameras` and most of `points`: a few may be anywhere.
  Picture(const Tensor& cameras, const Tensor& points) {
    const Tensor sorted = std::get<0>(from_above(points).sort(0)), part = at::tensor({0.02, 0.98}, at::kDouble);
    const Tensor most = sorted.index_select(0, (part * (points.size(0) - 1)).to(at::kLong));
    const Tensor all = at::cat({from_above(tower::vmap(centre)(cameras)), most});
    const Tensor least = all.amin(0), extent = all.amax(0) - least;
    middle_ = least + extent / 2;
    scale_ = 0.85 * kSide / std::max(extent.max().item<double>(), 1e-9);
  }

  void add_points(const Tensor& points, const std::string& colour) {
    // A picture of more would be a large file.
    const int64_t every = 1 + points.size(0) / 5'000;
    const Tensor dots = on_paper(from_above(points.slice(0, 0, points.size(0), every))).contiguous();
    const auto* at = dots.const_data_ptr<double>();
    for (int64_t k = 0; k < dots.size(0); ++k)
      if (is_inside(at + 2 * k))
        body_ += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='1.5' fill='{}'/>\n", at[2 * k], at[2 * k + 1], colour);
  }

  void add_cameras(const Tensor& cameras, const std::string& colour) {
    const Tensor places = on_paper(from_above(tower::vmap(centre)(cameras))).contiguous();
    const auto ahead = [](const Tensor& camera) {
      const Tensor axis = at::cat({at::zeros({2}, camera.options()), -at::ones({1}, camera.options())});
      return rotated(-camera.slice(0, 0, 3), axis);
    };
    const Tensor ways = from_above(tower::vmap(ahead)(cameras)).contiguous();
    const auto *at = places.const_data_ptr<double>(), *way = ways.const_data_ptr<double>();
    for (int64_t k = 0; k < places.size(0); ++k, at += 2, way += 2)
      if (is_inside(at))
        body_ += fmt::format("<polygon points='{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}' fill='none' stroke='{}'/>\n",
                             at[0], at[1], at[0] + 14 * way[0] - 5 * way[1], at[1] + 14 * way[1] + 5 * way[0],
                             at[0] + 14 * way[0] + 5 * way[1], at[1] + 14 * way[1] - 5 * way[0], colour);
  }

  std::string svg(const std::string& title) const {
    return fmt::format(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {0}' width='{0}' height='{0}'>\n"
        "<rect width='{0}' height='{0}' fill='white'/>\n"
        "<text x='12' y='24' font-family='sans-serif' font-size='14'>{1}</text>\n{2}</svg>\n",
        kSide, title, body_);
  }

 private:
  static constexpr double kSide = 520;

  // The first and the third coordinate.
  static Tensor from_above(const Tensor& places) { return places.slice(1, 0, 3, 2); }
  Tensor on_paper(const Tensor& places) const { return kSide / 2 + scale_ * (places - middle_); }
  static bool is_inside(const double* at) { return at[0] > 0 && at[0] < kSide && at[1] > 0 && at[1] < kSide; }

  Tensor middle_;
  double scale_;
  std::string body_;
};

}  // namespace bundle_adjustment
