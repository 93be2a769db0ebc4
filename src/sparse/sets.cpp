#include "sparse/sets.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tower::sparse {

NumbersByBits::Slot& NumbersByBits::slot(uint64_t bits) {
  const size_t mask = slots_.size() - 1;
  size_t at = static_cast<size_t>((bits * 0x9E3779B97F4A7C15ULL) >> 20) & mask;
  while (slots_[at].bits != 0 && slots_[at].bits != bits) at = (at + 1) & mask;
  return slots_[at];
}

int32_t& NumbersByBits::operator[](uint64_t bits) {
  Slot* found = &slot(bits);
  if (found->bits == 0) {
    if (2 * ++used_ > slots_.size()) {
      std::vector<Slot> old(2 * slots_.size());
      old.swap(slots_);
      for (const Slot& s : old)
        if (s.bits != 0) slot(s.bits) = s;
      found = &slot(bits);
    }
    found->bits = bits;
  }
  return found->number;
}

Sets::Id Sets::intern(const std::vector<int32_t>& ascending) {
  if (ascending.empty()) return kEmpty;
  uint64_t hash = 1469598103934665603ULL;
  for (const int32_t e : ascending) hash = (hash ^ static_cast<uint64_t>(e)) * 1099511628211ULL;
  int32_t& last = by_hash_[hash | 1];
  for (int32_t id = last; id != kEmpty; id = before_[static_cast<size_t>(id)])
    if (elements(id).equals(ascending)) return id;
  if (ascending.size() > 1) in_unions_ += ascending.size();
  if (in_unions_ > most_) throw TooMany();
  const auto id = static_cast<Id>(starts_.size() - 1);
  elements_.insert(elements_.end(), ascending.begin(), ascending.end());
  starts_.push_back(elements_.size());
  before_.push_back(std::exchange(last, static_cast<int32_t>(id)));
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
  int32_t& known = united_[static_cast<uint64_t>(a) << 32 | static_cast<uint64_t>(b)];
  if (known != kEmpty) return known;
  const auto of_a = elements(a), of_b = elements(b);
  scratch_.clear();
  std::set_union(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(scratch_));
  const Id id = intern(scratch_);
  known = static_cast<int32_t>(id);
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
