#include "missing_rules.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <tower/coverage.h>

#include <sstream>
#include <stdexcept>

#include "sparse/dependence.h"
#include "support.h"
#include "verbs.h"

namespace docs {
namespace {

using tower::Operator;

constexpr const char* kList = "tests/docs/missing_rules.txt";

// All of LibTorch's that do not write: these run as their functional form.
std::vector<const Operator*> functional_operators() {
  std::vector<const Operator*> result;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle && !Operator::of(*handle).mutates()) result.push_back(&Operator::of(*handle));
  }
  return result;
}

bool has_derivative_rule(const Operator& op) { return !op.vjp.empty() || !op.jvp.empty(); }

// Whether somebody has written down something of the operator itself, not only what it is made of.
bool has_a_rule(const Operator& op) {
  return op.vmap || has_derivative_rule(op) || !known_to_kernels(op).empty() || op.depends != tower::Depends::unsaid;
}

// What coverage() says where Tower has no rule.
bool is_last_resort(const std::string& served) {
  return served == "loop" || served == "LibTorch autograd" || served.starts_with("transposed") ||
         served.starts_with("error");
}

std::string without_namespace(const std::string& name) { return name.substr(name.find("::") + 2); }

}  // namespace

std::map<std::string, std::set<std::string>> missing_rules() {
  std::map<std::string, std::set<std::string>> result;
  std::set<std::string> with_a_rule;
  for (const Operator* op : functional_operators()) {
    if (!has_a_rule(*op)) continue;
    with_a_rule.insert(op->name());
    const std::string name = without_namespace(op->name());
    if (op->is_view() && !op->view_inverse) result["writes"].insert(name);
    if (op->is_view() && !op->view_keeps) result["sizes"].insert(name);
    if (op->decomposes()) continue;  // kernels and patterns have its parts
    if (known_to_kernels(*op).empty()) result["kernels"].insert(name);
    if (has_derivative_rule(*op) && known_to_patterns(*op).empty()) result["patterns"].insert(name);
  }
  for (const auto& row : tower::coverage())
    if (with_a_rule.count(row.op) && is_last_resort(row.served))
      result[row.transform].insert(without_namespace(row.op));
  return result;
}

std::vector<Reason> reasons_for_missing_rules() {
  std::vector<Reason> result;
  std::istringstream lines(read(kList));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] != ' ') {
      const size_t colon = line.find(": ");
      if (colon == std::string::npos) throw std::runtime_error(std::string(kList) + ": no reason in: " + line);
      result.push_back({line.substr(0, colon), line.substr(colon + 2), {}});
      continue;
    }
    if (result.empty()) throw std::runtime_error(std::string(kList) + ": operators before a reason");
    std::istringstream words(line);
    for (std::string op; words >> op;) result.back().ops.push_back(op);
  }
  return result;
}

namespace {

std::string in_lines(const std::set<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += "  " + name + "\n";
  return text;
}

std::set<std::string> difference(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::set<std::string> result;
  for (const auto& name : a)
    if (!b.count(name)) result.insert(name);
  return result;
}

// Another LibTorch may lack it.
bool is_there(const std::string& op) {
  const size_t dot = op.find('.');
  const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({"aten::" + op.substr(0, dot), overload}).has_value();
}

TEST(missing_rules, are_listed_each_with_its_reason_and_no_others_are) {
  std::map<std::string, std::set<std::string>> listed;
  for (const auto& [interpreter, why, ops] : reasons_for_missing_rules()) {
    EXPECT_FALSE(ops.empty()) << interpreter << ": " << why;
    for (const auto& op : ops) {
      if (!is_there(op)) continue;
      EXPECT_TRUE(listed[interpreter].insert(op).second) << interpreter << " has two reasons for " << op;
    }
  }
  auto missing = missing_rules();
  for (const auto& [interpreter, ops] : listed) missing[interpreter];
  for (const auto& [interpreter, ops] : missing) {
    const auto unexplained = difference(ops, listed[interpreter]), explained = difference(listed[interpreter], ops);
    EXPECT_TRUE(unexplained.empty()) << "have a rule, but none for " << interpreter << ", and " << kList
                                     << " does not say why:\n"
                                     << in_lines(unexplained);
    EXPECT_TRUE(explained.empty()) << "do not lack a rule for " << interpreter << ", but stand in " << kList << ":\n"
                                   << in_lines(explained);
  }
}

TEST(missing_rules, of_patterns_are_those_that_the_interpreter_has_no_rule_for) {
  for (const Operator* op : functional_operators())
    EXPECT_EQ(known_to_patterns(*op).empty(), tower::sparse::rule_of(*op) == nullptr) << op->name();
}

}  // namespace
}  // namespace docs
