// Which operators have a rule for one interpreter and lack one for another, and why.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace docs {

/// From what the operators' records say: names without "aten::", by what lacks them: "vmap", "vjp", "jvp", "kernels",
/// "patterns"; views by "writes" through them, and "sizes" of other numbers of examples.
std::map<std::string, std::set<std::string>> missing_rules();

/// Operators that lack a rule for one reason.
struct Reason {
  std::string interpreter, why;
  std::vector<std::string> ops;
};
/// What tests/docs/missing_rules.txt has, in its order.
std::vector<Reason> reasons_for_missing_rules();

}  // namespace docs
