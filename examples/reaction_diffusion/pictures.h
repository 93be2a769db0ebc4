// Pictures of a field, as SVG text.
#pragma once

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace reaction_diffusion {

inline std::string svg(double width, double height, const std::string& title, const std::string& body) {
  return fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='-10 -30 {0} {1}' width='{0}' height='{1}'>\n"
      "<rect x='-10' y='-30' width='{0}' height='{1}' fill='white'/>\n"
      "<text x='0' y='-10' font-family='sans-serif' font-size='14'>{2}</text>\n{3}</svg>\n",
      width + 20, height + 40, title, body);
}

/// Values from 0 to 1, from dark blue over green to yellow; at most 100 squares a side.
inline std::string picture_of_field(const at::Tensor& u, const std::string& title) {
  constexpr int64_t kSide = 4;
  const int64_t count = std::min<int64_t>(100, u.size(0));
  const at::Tensor shown = at::adaptive_avg_pool2d(u.unsqueeze(0), {count, count})[0].contiguous();
  const auto* values = shown.const_data_ptr<double>();
  std::string body;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < count; ++j) {
      const double v = std::clamp(values[i * count + j], 0.0, 1.0);
      const auto part = [&](double low, double middle, double high) {
        return std::lround(v < 0.5 ? low + 2 * v * (middle - low) : middle + (2 * v - 1) * (high - middle));
      };
      body += fmt::format("<rect x='{}' y='{}' width='{}' height='{}' fill='rgb({},{},{})'/>\n", j * kSide, i * kSide,
                          kSide, kSide, part(68, 33, 253), part(1, 145, 231), part(84, 140, 37));
    }
  return svg(count * kSide, count * kSide, title, body);
}

}  // namespace reaction_diffusion
