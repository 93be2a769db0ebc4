// What an operator's record says beyond the fields of Operator: rules and facts of which core, where that class is, has
// no types.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "core/operator.h"

namespace tower::rules {

/// Records are filled when the first call of an operator meets Tower, possibly while another thread reads them.
template <class Rule>
class RuleTable {
 public:
  /// Null where the operator has none. Stays where it is.
  const Rule* find(const Operator& op) const {
    const std::shared_lock lock(mutex_);
    const auto it = rules_.find(&op);
    return it == rules_.end() ? nullptr : &it->second;
  }
  void set(const Operator& op, Rule rule) {
    const std::unique_lock lock(mutex_);
    rules_.insert_or_assign(&op, std::move(rule));
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const Operator*, Rule> rules_;
};

}  // namespace tower::rules
