// Regions whose lanes are all elements: pointwise calls whose results have the same sizes, mapped dimensions included.
// An operand from outside is read once for each lane, or, where it has one element, once for all. Sums of what these
// calls give, over few elements each, are added up on the way: rows of lanes to the same memory.
#pragma once

#include "compile/groups.h"
#include "compile/kernel_calls.h"
#include "compile/places.h"

namespace tower::compiler {

class Rows {
 public:
  explicit Rows(const Graph& graph);

  /// Which calls can be in such a region.
  const Joining& joining() const { return joining_; }
  /// Whether these can, together.
  bool serves(const std::vector<size_t>& calls) const;
  /// The call of a kernel in the place of `calls`, in the graph's order.
  Call write(const std::vector<size_t>& calls, const Readers& readers, Kernels& kernels,
             std::vector<Fused>& report) const;

  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

 private:
  friend class RowWriter;
  // A sum over few elements of a value, or of such a sum.
  struct Sum {
    ValueId terms;  // the value whose elements are the lanes
    Places places;  // where each of its dimensions is in the sum; −1: summed over
  };
  std::optional<Sum> sum_of(const Call& call) const;
  const Sum* sum(ValueId id) const;

  const Graph& graph_;
  std::unordered_map<ValueId, Sum> sums_;
  Joining joining_;
};

}  // namespace tower::compiler
