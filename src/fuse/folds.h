// Operators over rows of elements, such as sums and softmax: what a lane gives where all lanes of a row are the
// elements that are added up. Rules read like the mathematics:
//
//   {"aten::_softmax", {dim<1>, [](RowCall& c) {
//     const E p = exp(c[0] - c.greatest(c[0]));
//     return c.give(p / c.sum(p));
//   }}}
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "kernels/emit.h"
#include "numbers/element.h"

namespace tower::compiler {

/// A call whose rows are the lanes of a region.
class RowCall {
 public:
  RowCall(Region& region, const Call& call, int64_t length, std::vector<Id> operands, std::vector<Type> results)
      : region_(region), call_(call), length_(length), operands_(std::move(operands)), results_(std::move(results)) {}

  const IValue& arg(size_t i) const { return call_.args[i]; }
  /// How many elements a row has.
  int64_t length() const { return length_; }
  /// An element of an operand in the type of the first result; `raw`: in its own.
  E operator[](size_t operand) const { return raw(operand).to(type()); }
  E raw(size_t operand) const { return {region_.graph, operands_[operand]}; }
  /// Of an argument that may be missing.
  std::optional<E> tensor(size_t arg) const;
  Type type(size_t result = 0) const { return results_[result]; }
  E constant(Type type, double value) const { return {region_.graph, region_.graph.constant(type, value)}; }

  /// The same for all lanes of a row. Of booleans, the greatest says whether any is true, the least whether all are.
  E sum(E e) { return fold(Region::OfRow::sum, e); }
  E product(E e) { return fold(Region::OfRow::product, e); }
  E greatest(E e) { return fold(Region::OfRow::greatest, e); }
  E least(E e) { return fold(Region::OfRow::least, e); }
  /// The lane's number in its row.
  E place() { return of_row({Region::OfRow::place, kNone}, Type::i32); }

  /// One for each result, in its type.
  template <class... Es>
  std::vector<Id> give(const Es&... results) const {
    const std::vector<E> all{results...};
    std::vector<Id> ids;
    for (size_t k = 0; k < all.size(); ++k) ids.push_back(all[k].to(results_[k]).id());
    return ids;
  }

 private:
  E fold(Region::OfRow::How how, E e) { return of_row({how, e.id()}, e.type()); }
  E of_row(const Region::OfRow& wanted, Type type);

  Region& region_;
  const Call& call_;
  const int64_t length_;
  const std::vector<Id> operands_;
  const std::vector<Type> results_;
};

struct RowRule {
  /// The dimensions of an example's operand that make a row.
  std::function<std::vector<int64_t>(const Call& call, int64_t dims)> dims;
  /// The results' elements; none where no kernel is to compute the call.
  std::function<std::vector<Id>(RowCall&)> elements;
  /// The first result has an element for each lane. The others, and otherwise all, have one for each row.
  bool goes_on = false;
};
/// Null where the operator has none.
const RowRule* row_rule(const Operator& op);

}  // namespace tower::compiler
