// A small line plot written as SVG text.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace plot {

struct Line {
  std::string label;
  std::string colour;
  std::vector<std::pair<double, double>> points;
  bool dashed = false;
  bool dots = false;  // marks at the points
};

/// One pair of axes. `log_y` plots the decimal logarithm, with ticks at powers of ten.
struct Panel {
  std::string title, x_label, y_label;
  std::vector<Line> lines;
  bool log_y = false;
  bool whole_x = false;  // ticks at whole numbers only
};

/// The panels side by side, as the text of an SVG file.
std::string svg(const std::vector<Panel>& panels);

}  // namespace plot
