// Operators over rows of elements, such as sums and softmax: what one lane gives where all lanes of a row are the
// elements that are added up. Rules stand with the operators' other rules and read like the mathematics:
//
//   op<at::_ops::_softmax>().along({1}).maps_rows(over(1), [](RowCall& c) {
//     const E p = exp(c[0] - c.greatest(c[0]));
//     return c.give(p / c.sum(p));
//   });
//
// One rule serves kernels whose lanes are elements (fuse/rows.h) and those whose lanes are examples (fuse/small.h).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "numbers/element.h"

namespace tower::compiler {

/// A call whose rows are lanes.
class RowCall {
 public:
  RowCall(Expressions& graph, std::vector<OfRow>& of_row, c10::ArrayRef<IValue> args, c10::ArrayRef<LeafRef> places,
          int64_t length, std::vector<Id> operands, std::vector<Type> results)
      : graph_(graph),
        of_row_(of_row),
        args_(args),
        places_(places),
        length_(length),
        operands_(std::move(operands)),
        results_(std::move(results)) {
    for (Id& id : operands_) id = graph_.cast(id, computing_type(graph_[id].type));
  }

  const IValue& arg(size_t i) const { return args_[i]; }
  /// How many elements a row has.
  int64_t length() const { return length_; }
  /// An element of an operand in the type of the first result; `raw`: in its own. Half types are computed in float32
  /// throughout, and the results rounded: so the first operand, which may be told to become the result's, is rounded
  /// first, and others (weights) stay what they are.
  E operator[](size_t operand) const { return (operand == 0 ? raw(0).to(results_[0]) : raw(operand)).to(type()); }
  E raw(size_t operand) const { return {graph_, operands_[operand]}; }
  /// Of an argument that may be missing.
  std::optional<E> tensor(size_t arg) const;
  Type type(size_t result = 0) const { return computing_type(results_[result]); }
  E constant(Type type, double value) const { return {graph_, graph_.constant(type, value)}; }

  /// The same for all lanes of a row. Of booleans, the greatest says whether any is true, the least whether all are.
  E sum(E e) { return fold(OfRow::sum, e); }
  E product(E e) { return fold(OfRow::product, e); }
  E greatest(E e) { return fold(OfRow::greatest, e); }
  E least(E e) { return fold(OfRow::least, e); }
  /// The lane's number in its row.
  E place() { return of_row({OfRow::place, kNone}, Type::i32); }

  /// One for each result, in its type.
  template <class... Es>
  std::vector<Id> give(const Es&... results) const {
    const std::vector<E> all{results...};
    std::vector<Id> ids;
    for (size_t k = 0; k < all.size(); ++k) ids.push_back(all[k].to(results_[k]).id());
    return ids;
  }

 private:
  E fold(OfRow::How how, E e) { return of_row({how, e.id()}, e.type()); }
  E of_row(const OfRow& wanted, Type type);

  Expressions& graph_;
  std::vector<OfRow>& of_row_;
  const c10::ArrayRef<IValue> args_;
  const c10::ArrayRef<LeafRef> places_;
  const int64_t length_;
  std::vector<Id> operands_;
  const std::vector<Type> results_;
};

struct FoldRule {
  rules::FoldDims over;
  /// The results' elements; none where no kernel is to compute the call.
  std::function<std::vector<Id>(RowCall&)> elements;
  /// The first result has an element for each lane. The others, and otherwise all, have one for each row.
  bool goes_on = false;

  /// The dimensions of an example's first operand, which has `dims`, that make a row.
  std::vector<int64_t> dims(c10::ArrayRef<IValue> args, int64_t dims) const;
};
/// Null where the operator has none.
const FoldRule* fold_rule(const Operator& op);
void set_fold_rule(const Operator& op, FoldRule rule);

/// Whether sums of numbers of a dtype are kept in that dtype. Those of half types are kept in float32.
inline bool is_summed_in_itself(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kDouble; }

/// What the only result of a rule is, where that is as simple as this.
enum class SimpleFold : uint8_t { no, sum, root_of_squares };
/// Of operands and results of one type.
SimpleFold simple_fold(const Operator& op, c10::ArrayRef<IValue> args, Type type);

template <class Function>
void set_fold_rule(const Operator& record, rules::FoldDims over, Function f, bool goes_on) {
  set_fold_rule(record, FoldRule{over, rules::detail::kept<std::vector<Id>, RowCall&>(std::move(f)), goes_on});
}

}  // namespace tower::compiler
