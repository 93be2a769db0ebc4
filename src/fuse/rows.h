// Regions whose lanes are all elements: pointwise calls whose results have the same sizes, mapped dimensions included.
// An operand from outside is read once for each lane, or, where it has one element, once for all. Sums of what these
// calls give, over few elements each, are added up on the way: rows of lanes to the same memory.
//
// Where calls are over rows of elements (numbers/fold.h), which lie next to each other, the lanes are one row, and
// what has one element for each row is computed once for it, before the lanes that read it.
//
// Calls that move elements, or look them up, read them elsewhere in operands that are whole (fuse/elsewhere.h).
#pragma once

#include <algorithm>
#include <optional>

#include "fuse/elsewhere.h"
#include "fuse/kernel_calls.h"
#include "fuse/regions.h"
#include "graph/pointwise.h"
#include "numbers/fold.h"

namespace tower::compiler {

/// Whether a kernel of many rows, of so many lanes each, walks them: such rows may be short.
bool is_walked(int64_t lanes);

class Rows {
 public:
  /// `taken`: groups that are kernels already.
  explicit Rows(const Graph& graph, const std::vector<Regions::Calls>& taken = {});

  /// Which calls can be in such a region.
  const Joining& joining() const { return joining_; }
  /// Whether these calls can be one kernel.
  bool serves(const std::vector<size_t>& calls) const;
  /// The call of a kernel in the place of `calls`, in the graph's order; none where a report would be lost
  /// (numbers/reports.h): then each is for itself.
  std::optional<Call> write(const std::vector<size_t>& calls, const Readers& readers, Kernels& kernels,
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

  // Lanes of which some dimensions, in their order, are a row.
  struct Form {
    Sizes lanes, row;
    bool in_row(size_t d) const { return std::find(row.begin(), row.end(), static_cast<int64_t>(d)) != row.end(); }
    int64_t length() const;
    bool operator==(const Form&) const = default;
  };
  // A value with one element for each row.
  struct OfRow {
    Form form;
    Places places;  // where each dimension of the lanes is in the value; −1: it is in the row
    int depth;      // how many calls, one after the other, make it of what rows come to
  };
  std::optional<Form> form_of(const Call& call) const;
  std::optional<OfRow> result_of_row(const Form& form, const Value& result) const;
  std::optional<OfRow> computed_of_row(const Call& call) const;
  std::optional<OfRow> viewed_of_row(const Call& call) const;
  std::vector<Id> elements_over_rows(Region& region, const Form& form, const Call& call,
                                     const std::function<Id(size_t)>& element) const;
  void add_call_over_rows(const Call& call, const Form& form);
  void add_call_elsewhere(size_t n, const ById<ValueId, bool>& read_lane_by_lane);
  // Null for calls that read their operands lane by lane.
  const Elsewhere* elsewhere_of(const Call& call) const;
  // Null for calls that have nothing to do with rows, and for values that are not one number a row.
  const Form* form(const Call& call) const;
  const OfRow* of_row(ValueId id) const;
  // Whether the call is computed once for each row, of operands that have one element for each row.
  bool is_of_row(const Call& call) const { return form(call) && !fold_rule(*call.op); }
  bool only_views(const Call& call) const { return is_of_row(call) && !element_rule(*call.op); }
  bool reads_inside(const Call& call, size_t k) const;
  // Where the lanes are in an operand.
  Places lane_places(const Call& call, size_t k) const;

  const Graph& graph_;
  const Pointwise pointwise_;
  std::unordered_map<ValueId, Sum> sums_;
  std::unordered_map<ValueId, Form> forms_;           // of calls over rows, by their first results
  std::unordered_map<ValueId, OfRow> of_row_;         // values with one element for each row
  std::unordered_map<ValueId, Elsewhere> elsewhere_;  // by the results of the calls
  ById<ValueId, bool> leaves_;                        // values that somebody outside may see
  Joining joining_;
};

}  // namespace tower::compiler
