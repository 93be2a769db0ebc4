// What patterns look like.
#include <algorithm>
#include <ostream>
#include <sstream>

#include "tower/sparse.h"

namespace tower {
namespace {

constexpr int64_t kMostCharacters = 64;  // in a line, and lines

int64_t blocks_of(int64_t size, int64_t side) { return (size + side - 1) / side; }

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return result;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Sparsity& pattern) {
  const int64_t rows = pattern.num_rows(), columns = pattern.num_columns();
  const int64_t side = std::max<int64_t>(1, blocks_of(std::max(rows, columns), kMostCharacters));
  out << rows << " × " << columns << ", " << pattern.num_entries() << " entries";
  if (side > 1) out << "; each character is a block of " << side << " × " << side;
  out << '\n';
  for (int64_t r = 0; r < rows; r += side) {
    std::string line(static_cast<size_t>(blocks_of(columns, side)), '.');
    const int64_t end = pattern.starts()[static_cast<size_t>(std::min(r + side, rows))];
    for (int64_t k = pattern.starts()[static_cast<size_t>(r)]; k < end; ++k)
      line[static_cast<size_t>(pattern.columns()[static_cast<size_t>(k)] / side)] = '*';
    out << line << '\n';
  }
  return out;
}

std::string Sparsity::svg(const std::string& title) const {
  constexpr int64_t kSide = 4, kMargin = 10, kTitle = 20;
  const int64_t top = kMargin + (title.empty() ? 0 : kTitle);
  const int64_t width = num_columns() * kSide + 2 * kMargin, height = num_rows() * kSide + top + kMargin;
  std::ostringstream out;
  out << "<svg xmlns='http://www.w3.org/2000/svg' viewBox='" << -kMargin << ' ' << -top << ' ' << width << ' ' << height
      << "' width='" << width << "' height='" << height << "'>\n<rect x='" << -kMargin << "' y='" << -top << "' width='"
      << width << "' height='" << height << "' fill='white'/>\n";
  if (!title.empty()) out << "<text y='-10' font-family='sans-serif' font-size='14'>" << escaped(title) << "</text>\n";
  for (int64_t r = 0; r < num_rows(); ++r)
    for (int64_t k = starts_[static_cast<size_t>(r)]; k < starts_[static_cast<size_t>(r) + 1]; ++k)
      out << "<rect x='" << columns_[static_cast<size_t>(k)] * kSide << "' y='" << r * kSide << "' width='" << kSide
          << "' height='" << kSide << "'/>\n";
  out << "</svg>\n";
  return out.str();
}

}  // namespace tower
