// Operators on small tensors, element by element: what one lane of a kernel computes where a lane is one example. A
// tensor of an example is a list of expressions, and a rule, which stands with the operator's other rules, says what
// the operator makes of them:
//
//   op<at::_ops::trace>().small([](const SmallCall& c) { return c.give({}, {sum of the diagonal}); })
//
// What is pointwise, moves, folds or contracts needs no such rule: fuse/small.h has what these come to.
#pragma once

#include <functional>
#include <vector>

#include "numbers/element.h"

namespace tower::compiler {

/// A tensor of one example, row by row.
struct Small {
  Sizes sizes;
  std::vector<Id> ids;
  at::ScalarType dtype;
  bool number = false;  // LibTorch made it of a number

  size_t size(size_t d) const { return static_cast<size_t>(sizes[d]); }
};

/// Whether it is a table that all lanes share, too large to be numbers: its only id is the input that it is.
bool is_table(const Small& t);
/// The first operand of such operators may be a table, which only their rule for small tensors knows of.
bool looks_up(const Operator& op);
void set_looks_up(const Operator& op);

/// Of each element of `sizes`, the number of the one of `from` that is read for it, broadcast.
std::vector<size_t> broadcast(const Sizes& from, const Sizes& sizes);

/// The places of all elements of `sizes`, row by row.
std::vector<Sizes> places_in(const Sizes& sizes);

/// The results; none where no kernel is to compute the call. A result without elements is one that no kernel is to
/// compute.
using SmallResults = std::vector<Small>;

/// A call for one example.
struct SmallCall {
  Expressions& graph;
  const Operator& op;
  c10::ArrayRef<IValue> args;     // by schema position
  c10::ArrayRef<LeafRef> places;  // of the operands
  c10::ArrayRef<const Small*> operands;
  c10::ArrayRef<at::ScalarType> dtypes;  // of the results; Undefined where there is none
  bool checks;                           // what fails for the values that it finds must be an error

  const IValue& arg(size_t i) const { return args[i]; }
  /// Null where the argument is not a tensor.
  const Small* tensor(size_t arg) const;
  E at(const Small& t, size_t i) const { return {graph, t.ids[i]}; }
  /// The same in a result's type.
  E at(const Small& t, size_t i, size_t result) const { return at(t, i).to(type(result)); }
  Type type(size_t result) const { return *type_of(dtypes[result]); }
  E constant(Type type, double value) const { return {graph, graph.constant(type, value)}; }
  /// One result, of these elements, which are converted to its type.
  SmallResults give(Sizes sizes, const std::vector<E>& elements) const;
  /// What LibTorch's operator makes of `arguments` with these tensors in the operands' places.
  c10::SmallVector<Tensor, 2> run(Stack arguments, c10::ArrayRef<Tensor> tensors) const;
  c10::SmallVector<Tensor, 2> run(c10::ArrayRef<Tensor> tensors) const {
    return run(Stack(args.begin(), args.end()), tensors);
  }
};

using SmallRule = std::function<SmallResults(const SmallCall&)>;
/// Null where the operator has none of its own.
const SmallRule* small_rule(const Operator& op);
void set_small_rule(const Operator& op, SmallRule rule);

}  // namespace tower::compiler
