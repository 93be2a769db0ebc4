#include "support/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace plot {
namespace {

constexpr double width = 640, height = 460;                     // of a panel, in pixels
constexpr double left = 78, right = 20, top = 44, bottom = 58;  // its margins

struct Axis {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  double tick = 1;

  void include(double value) { low = std::min(low, value), high = std::max(high, value); }

  /// Widens the range to whole ticks, of which there are about `count`, of length 1, 2 or 5 times a power of ten.
  void round_to_ticks(int count, bool whole) {
    const double raw = std::max(high - low, 1e-300) / count;
    const double power = std::pow(10, std::floor(std::log10(raw)));
    tick = power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
    if (whole) tick = std::max(1.0, std::round(tick));
    low = std::floor(low / tick + 1e-9) * tick;
    high = std::ceil(high / tick - 1e-9) * tick;
  }

  int tick_count() const { return static_cast<int>(std::lround((high - low) / tick)); }
};

void draw(const Panel& panel, std::back_insert_iterator<std::string> out) {
  const auto y_of = [&](double value) { return panel.log_y ? std::log10(value) : value; };
  Axis x_axis, y_axis;
  for (const Line& line : panel.lines)
    for (const auto& [x, y] : line.points) x_axis.include(x), y_axis.include(y_of(y));
  x_axis.round_to_ticks(7, panel.whole_x);
  y_axis.round_to_ticks(8, panel.log_y);
  const auto px = [&](double x) {
    return left + (x - x_axis.low) / (x_axis.high - x_axis.low) * (width - left - right);
  };
  const auto py = [&](double y) {
    return height - bottom - (y - y_axis.low) / (y_axis.high - y_axis.low) * (height - top - bottom);
  };

  for (int i = 0; i <= x_axis.tick_count(); ++i) {
    const double x = x_axis.low + i * x_axis.tick;
    fmt::format_to(out, "<path class='grid' d='M{:.1f} {:.1f}V{:.1f}'/>\n", px(x), top, height - bottom);
    fmt::format_to(out, "<text x='{:.1f}' y='{:.1f}' text-anchor='middle'>{:.4g}</text>\n", px(x), height - bottom + 18,
                   x);
  }
  for (int i = 0; i <= y_axis.tick_count(); ++i) {
    const double y = y_axis.low + i * y_axis.tick;
    fmt::format_to(out, "<path class='grid' d='M{:.1f} {:.1f}H{:.1f}'/>\n", left, py(y), width - right);
    const std::string label =
        panel.log_y ? fmt::format("10<tspan dy='-5' font-size='10'>{:.0f}</tspan>", y) : fmt::format("{:.4g}", y);
    fmt::format_to(out, "<text x='{:.1f}' y='{:.1f}' text-anchor='end'>{}</text>\n", left - 8, py(y) + 4, label);
  }
  fmt::format_to(out, "<rect class='frame' x='{}' y='{}' width='{}' height='{}'/>\n", left, top, width - left - right,
                 height - top - bottom);
  fmt::format_to(out, "<text class='title' x='{}' y='26' text-anchor='middle'>{}</text>\n", (left + width - right) / 2,
                 panel.title);
  fmt::format_to(out, "<text x='{}' y='{}' text-anchor='middle'>{}</text>\n", (left + width - right) / 2, height - 16,
                 panel.x_label);
  fmt::format_to(out, "<text transform='translate(20 {}) rotate(-90)' text-anchor='middle'>{}</text>\n",
                 (top + height - bottom) / 2, panel.y_label);

  for (const Line& line : panel.lines) {
    std::string path;
    for (const auto& [x, y] : line.points)
      path += fmt::format("{}{:.2f} {:.2f}", path.empty() ? "M" : "L", px(x), py(y_of(y)));
    fmt::format_to(out, "<path fill='none' stroke='{}' stroke-width='2'{} d='{}'/>\n", line.colour,
                   line.dashed ? " stroke-dasharray='7 5'" : "", path);
    if (!line.dots) continue;
    for (const auto& [x, y] : line.points)
      fmt::format_to(out, "<circle cx='{:.2f}' cy='{:.2f}' r='3.5' fill='{}'/>\n", px(x), py(y_of(y)), line.colour);
  }
}

/// The legend stands where the curves leave room: below those that rise, above those that fall.
void draw_legend(const Panel& panel, std::back_insert_iterator<std::string> out) {
  const bool rising = panel.lines[0].points.front().second < panel.lines[0].points.back().second;
  size_t longest = 0;
  for (const Line& line : panel.lines) longest = std::max(longest, line.label.size());
  const double row = 20, box_width = 64 + 7.2 * static_cast<double>(longest);
  const double box_height = row * static_cast<double>(panel.lines.size()) + 12;
  const double x0 = width - right - box_width - 12;
  const double y0 = rising ? height - bottom - box_height - 12 : top + 12;
  fmt::format_to(out, "<rect class='legend' x='{}' y='{}' width='{}' height='{}'/>\n", x0, y0, box_width, box_height);
  for (size_t i = 0; i < panel.lines.size(); ++i) {
    const Line& line = panel.lines[i];
    const double y = y0 + 16 + row * static_cast<double>(i);
    fmt::format_to(out, "<path stroke='{}' stroke-width='2'{} d='M{} {}h30'/>\n", line.colour,
                   line.dashed ? " stroke-dasharray='7 5'" : "", x0 + 10, y);
    fmt::format_to(out, "<text x='{}' y='{}'>{}</text>\n", x0 + 48, y + 4, line.label);
  }
}

}  // namespace

std::string svg(const std::vector<Panel>& panels) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out,
                 "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {}' font-family='sans-serif' font-size='13' "
                 "fill='#222'>\n",
                 width * static_cast<double>(panels.size()), height);
  text +=
      "<style>.grid{stroke:#e4e4e4}.frame{fill:none;stroke:#666}.title{font-weight:bold;font-size:15px}"
      ".legend{fill:#fff;fill-opacity:.9;stroke:#ccc}</style>\n"
      "<rect width='100%' height='100%' fill='#fff'/>\n";
  for (size_t i = 0; i < panels.size(); ++i) {
    fmt::format_to(out, "<g transform='translate({} 0)'>\n", width * static_cast<double>(i));
    draw(panels[i], out);
    draw_legend(panels[i], out);
    text += "</g>\n";
  }
  return text + "</svg>\n";
}

}  // namespace plot
