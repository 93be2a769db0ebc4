// Operators that look elements of their first operand, a table, up by an index, where lanes are elements of the result
// (fuse/elsewhere.h): which dimensions of table and index a dimension of the result is. Rules stand with the operators'
// other rules (rules/look_ups.cpp).
//
//   embedding(table [V, D], index [B, T]), of size [B, T, D]:
//   dim 0 of the table is what the index points along; of_index: 0, 1, none; of_table: none, none, 1
//
// The other way round are operators that give a table with something added where an index points (index_add).
#pragma once

#include <c10/util/SmallVector.h>

#include <functional>
#include <optional>

#include "core/operator.h"

namespace tower::compiler {

/// All for one example.
struct LookUp {
  static constexpr int64_t kAll = -1;  // the index counts all elements of the table, in their order
  static constexpr int64_t kNone = -1;
  using Dims = c10::SmallVector<int64_t, 6>;

  size_t index;       // operand
  int64_t along;      // dimension of the table to which the index points
  Dims of_table;      // of each dimension of the result: that of the table …
  Dims of_index;      // … and that of the index, or none
  bool from_the_end;  // an index below zero counts from there; else it is an error
};

struct LookUpCall {
  c10::ArrayRef<IValue> args;     // by schema position
  c10::ArrayRef<LeafRef> places;  // of the operands: the table, and what else there is
  c10::ArrayRef<int64_t> dims;    // how many each has
};

/// None where the call is more than that.
using LookUpRule = std::function<std::optional<LookUp>(const LookUpCall&)>;
/// Null where the operator has none.
const LookUpRule* look_up_rule(const Operator& op);
void set_look_up_rule(const Operator& op, LookUpRule rule);

/// Of an operator of three tensors, a table, an index and what is added to the table: how the first two would be looked
/// up so that the result had the dimensions of the third. Null where the operator has none.
const LookUpRule* adding_rule(const Operator& op);
void set_adding_rule(const Operator& op, LookUpRule rule);

}  // namespace tower::compiler
