// What the exporter assumed of sizes and of integers that vary, where Python's code asked and went one way: lines of
// Python such as "(L['x'].size()[0] % 2) == 0". The graph has only the way that was gone, so for other sizes its values
// would be wrong. The lines are parsed as arithmetic of integers and comparisons; nothing is evaluated as Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tower::exported {

class Guard {
 public:
  /// What an argument has: size `dim` of a leaf, or the leaf's own value where there is no dim. None where it has none.
  using Find = std::function<std::optional<int64_t>(size_t leaf, std::optional<int64_t> dim)>;

  /// `leaves` are the arguments' names, "x", "options.scale", "pair[0]". Throws FileError, and NotSupported for what
  /// is no arithmetic of integers.
  Guard(const std::string& text, const std::vector<std::string>& leaves);

  /// Whether it holds; none where that cannot be told, as a number has more than 64 bits.
  std::optional<bool> holds(const Find& find) const;
  /// As Python would write it, "(x.size()[0] % 2) == 0".
  const std::string& text() const { return text_; }

  struct Term;

 private:
  std::shared_ptr<const Term> term_;  // null: of strides, on which values do not depend
  std::string text_;
};

}  // namespace tower::exported
