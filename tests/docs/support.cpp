#include "support.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <vector>

namespace docs {
namespace {

std::vector<std::string> lines_of(const std::string& text, bool indentation) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    line.erase(line.find_last_not_of(" \t") + 1);
    if (!indentation) line.erase(0, line.find_first_not_of(' '));
    lines.push_back(line);
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

// Whether `pattern`, in which "…" stands for anything, is `line`.
bool matches(const std::string& pattern, const std::string& line) {
  static const std::string anything = "…";
  const size_t hole = pattern.find(anything);
  if (hole == std::string::npos) return pattern == line;
  if (line.compare(0, hole, pattern, 0, hole) != 0) return false;
  const std::string rest = pattern.substr(hole + anything.size());
  for (size_t i = hole; i <= line.size(); ++i)
    if (matches(rest, line.substr(i))) return true;
  return false;
}

// Where times are shown as holes, what is sorted by time may come in another order.
bool same_lines(const std::vector<std::string>& patterns, std::vector<std::string> lines) {
  if (patterns.size() != lines.size()) return false;
  const bool ordered = std::none_of(patterns.begin(), patterns.end(),
                                    [](const std::string& p) { return p.find("…") != std::string::npos; });
  if (ordered) return patterns == lines;
  for (const auto& pattern : patterns) {
    const auto found =
        std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return matches(pattern, line); });
    if (found == lines.end()) return false;
    lines.erase(found);
  }
  return true;
}

struct Captured {
  Captured() : outer(std::cout.rdbuf(text.rdbuf())) { formats.copyfmt(std::cout); }
  ~Captured() {
    std::cout.copyfmt(formats);
    std::cout.rdbuf(outer);
  }
  std::ostringstream text;
  std::ios formats{nullptr};
  std::streambuf* outer;
};

}  // namespace

std::string read(const std::string& path) {
  std::ifstream file(std::filesystem::path(TOWER_SOURCE_DIR) / path);
  if (!file) return {};
  return {std::istreambuf_iterator<char>(file), {}};
}

void go_to_repository() { std::filesystem::current_path(TOWER_SOURCE_DIR); }

std::string op_db_folder() { return (std::filesystem::path(TOWER_SOURCE_DIR) / "tests/op_db").string(); }

void expect_output(void (*program)(), const std::string& expected) {
  std::string text;
  {
    const Captured captured;
    program();
    text = captured.text.str();
  }
  const auto found = lines_of(text, true), wanted = lines_of(expected, true);
  EXPECT_TRUE(same_lines(wanted, found)) << "The document shows\n" << expected << "but the program prints\n" << text;
}

void expect_quoted(const std::string& path, const std::string& code) {
  const auto lines = lines_of(read(path), false), quoted = lines_of(code, false);
  ASSERT_FALSE(lines.empty()) << path << " is empty or does not exist";
  ASSERT_FALSE(quoted.empty());
  EXPECT_NE(std::search(lines.begin(), lines.end(), quoted.begin(), quoted.end()), lines.end())
      << path << " does not have the lines\n"
      << code;
}

}  // namespace docs
