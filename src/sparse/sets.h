// Sets of numbers, each kept once: equal sets have equal ids, and a tensor of ids is a tensor of sets.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace tower::sparse {

/// Numbers by 64 bits that are not zero: a table without lists, as there are millions of them.
class NumbersByBits {
 public:
  /// The number of these bits, or the place for it, which has zero.
  int32_t& operator[](uint64_t bits);

 private:
  struct Slot {
    uint64_t bits = 0;
    int32_t number = 0;
  };
  Slot& slot(uint64_t bits);

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  size_t used_ = 0;
};

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
  NumbersByBits by_hash_;             // the last of those of one hash
  std::vector<int32_t> before_{0};    // the one before it
  NumbersByBits united_;              // by the two ids, each of 32 bits
  std::vector<int32_t> scratch_;
};

}  // namespace tower::sparse
