// Tables that a person reads: columns as wide as their widest cell, the first to the left, the others to the right.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace report {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  void print() const {
    std::vector<size_t> width(rows_.front().size(), 0);
    for (const auto& row : rows_)
      for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], columns(row[i]));
    for (size_t r = 0; r < rows_.size(); ++r) {
      std::string line;
      for (size_t i = 0; i < rows_[r].size(); ++i) {
        const std::string& cell = rows_[r][i];
        const std::string padding(width[i] - columns(cell), ' ');
        line += i == 0 ? cell + padding : "  " + padding + cell;
      }
      fmt::print("{}\n", line);
      if (r == 0) fmt::print("{}\n", std::string(columns(line), '-'));
    }
    std::fflush(stdout);
  }

 private:
  /// Columns on the screen: one for each character of UTF-8, whose later bytes are 10xxxxxx.
  static size_t columns(const std::string& text) {
    return static_cast<size_t>(std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; }));
  }

  std::vector<std::vector<std::string>> rows_;
};

inline std::string verdict(double measured, double budget) { return measured <= budget ? "met" : "MISSED"; }

}  // namespace report
