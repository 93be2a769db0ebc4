// Sets of numbers, each kept once: equal sets have equal ids, and a tensor of ids is a tensor of sets.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

namespace tower::sparse {

class Sets {
 public:
  using Id = int64_t;
  static constexpr Id kEmpty = 0;
  /// There would be more numbers in sets of several than there may be.
  struct TooMany : std::runtime_error {
    TooMany() : std::runtime_error("sparsity: there are more elements in sets than the option most_entries lets.") {}
  };

  /// Sets of several numbers have `most`, all together.
  explicit Sets(int64_t most) : most_(static_cast<size_t>(most)) {}

  Id single(int32_t element);
  Id intern(const std::vector<int32_t>& ascending);
  Id unite(Id a, Id b);
  /// Of many at once. Sorts and uses up `ids`.
  Id unite_all(std::vector<Id>& ids);
  /// In ascending order.
  c10::ArrayRef<int32_t> elements(Id id) const {
    const auto k = static_cast<size_t>(id);
    return {elements_.data() + starts_[k], starts_[k + 1] - starts_[k]};
  }

 private:
  size_t most_, in_unions_ = 0;
  std::vector<int32_t> elements_;     // of all sets, one after the other
  std::vector<size_t> starts_{0, 0};  // and where the next one starts: the first is empty
  std::unordered_multimap<uint64_t, Id> by_hash_;
  std::unordered_map<uint64_t, Id> united_;  // by the two ids, each of 32 bits
  std::vector<int32_t> scratch_;
};

}  // namespace tower::sparse
