// Which input elements each element of each value depends on: an interpreter that runs a function on its values and
// carries along, for every tensor, one of the same shape with the id of a set for each element.
//
//   moving data         views, cat, gather, pad, …: the operator itself, on the ids
//   pointwise           the union of what comes together
//   reductions          the union over the reduced dimensions
//   matrix products     that over rows and columns; of a constant or sparse matrix, over its entries
//   windows             convolutions, pooling: that over what a window sees
//   else                the operator's parts, if it has any, or what stands for it (Operator::stand_in); or all
//                       elements depend on all, and it is noted
//
// A set is a superset of what the derivative has entries for, whatever the values are.
#pragma once

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "core/level.h"
#include "core/wrapper.h"
#include "interpreters/history.h"
#include "sparse/sets.h"
#include "tower/sparse.h"

namespace tower::sparse {

struct CallWithIds;
/// Ids of the outputs, flattened; undefined where they depend on nothing.
using Rule = std::vector<Tensor> (*)(const CallWithIds& call);

/// Payloads have the ids in the tangent's place: float64, which every kernel that moves data takes. Their index says
/// whether the value was made from x, which one without ids, such as a comparison, may be, too.
class Dependence final : public Level {
 public:
  static constexpr int64_t kFromX = -2, kConstant = -1;
  static bool is_from_x(Wrapper& w) { return w.payload().index == kFromX; }
  /// Sets of what is computed on the way may have more numbers than the pattern has entries, but not many times more.
  static constexpr int64_t kSetsAnEntry = 4;

  Dependence(const char* label, const SparsityOptions& options)
      : Level(Kind::jvp, label),
        values_decide_(options.values_decide),
        most_entries_(options.most_entries),
        sets_(kSetsAnEntry * std::min(options.most_entries, std::numeric_limits<int64_t>::max() / kSetsAnEntry)) {}

  void process(const Operator& op, Stack& stack) override;
  void took(Wrapper& w) override { History::show_untracked(w); }

  /// The first of `count` elements that are in no set yet.
  int32_t new_elements(int64_t count);
  Sets& sets() { return sets_; }
  const Sets& sets() const { return sets_; }
  /// The operators of which nothing better was known than that all depends on all.
  const std::set<std::string>& taken_for_dense() const { return dense_; }
  int64_t most_entries() const { return most_entries_; }
  /// For a message that there is too much: the operators that were taken for dense, and the remedy.
  std::string why_and_what_to_do() const;

 private:
  std::vector<Tensor> found_by(Rule rule, const CallWithIds& call) const;
  std::vector<Tensor> by_stand_in(const Operator& op, const Stack& stack);

  void check_reads(const Operator& op) const;

  bool values_decide_;
  int64_t most_entries_;
  Sets sets_;
  int64_t elements_ = 0;
  std::set<std::string> dense_;
};

/// An operator's call: values, and the ids of those that depend on something.
struct CallWithIds {
  const Operator& op;
  c10::ArrayRef<IValue> args;
  c10::ArrayRef<IValue> outs;
  c10::ArrayRef<std::pair<LeafRef, Tensor>> tracked;
  Sets& sets;
  Mask varying;  // arguments that depend on x, if only by their values, as an index does that was sorted for

  /// Undefined where the argument depends on nothing.
  Tensor known_ids(size_t arg, size_t element = 0) const;
  /// Zeros there.
  Tensor ids(size_t arg) const;
  bool is_constant(size_t arg) const;
  /// Integers or bools that do: what they are at another x is not known, nor where they point to.
  bool points_by_x() const;
  /// Flattened.
  std::vector<Tensor> outputs() const;
  /// The position of the argument of this name; num_args() if there is none.
  size_t argument(const char* name) const;
};

/// The rule of an operator; null where there is none.
Rule rule_of(const Operator& op);
/// All outputs depend on all that the arguments depend on.
std::vector<Tensor> dense(const CallWithIds& call);

}  // namespace tower::sparse
