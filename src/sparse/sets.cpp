#include "sparse/sets.h"

#include <algorithm>
#include <iterator>

namespace tower::sparse {

Sets::Id Sets::intern(const std::vector<int32_t>& ascending) {
  if (ascending.empty()) return kEmpty;
  uint64_t hash = 1469598103934665603ULL;
  for (const int32_t e : ascending) hash = (hash ^ static_cast<uint64_t>(e)) * 1099511628211ULL;
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto found = first; found != last; ++found)
    if (elements(found->second).equals(ascending)) return found->second;
  if (ascending.size() > 1) in_unions_ += ascending.size();
  if (in_unions_ > most_) throw TooMany();
  const auto id = static_cast<Id>(starts_.size() - 1);
  elements_.insert(elements_.end(), ascending.begin(), ascending.end());
  starts_.push_back(elements_.size());
  by_hash_.emplace(hash, id);
  return id;
}

Sets::Id Sets::single(int32_t element) {
  scratch_.assign(1, element);
  return intern(scratch_);
}

Sets::Id Sets::unite(Id a, Id b) {
  if (a == b || b == kEmpty) return a;
  if (a == kEmpty) return b;
  if (a > b) std::swap(a, b);
  const uint64_t both = static_cast<uint64_t>(a) << 32 | static_cast<uint64_t>(b);
  if (const auto known = united_.find(both); known != united_.end()) return known->second;
  const auto of_a = elements(a), of_b = elements(b);
  scratch_.clear();
  std::set_union(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(scratch_));
  const Id id = intern(scratch_);
  united_.emplace(both, id);
  return id;
}

Sets::Id Sets::unite_all(std::vector<Id>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.empty()) return kEmpty;
  if (ids.size() <= 2) return unite(ids.front(), ids.back());
  scratch_.clear();
  for (const Id id : ids) {
    const auto of_one = elements(id);
    scratch_.insert(scratch_.end(), of_one.begin(), of_one.end());
  }
  std::sort(scratch_.begin(), scratch_.end());
  scratch_.erase(std::unique(scratch_.begin(), scratch_.end()), scratch_.end());
  return intern(scratch_);
}

}  // namespace tower::sparse
