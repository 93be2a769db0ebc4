// Operators on small tensors, element by element: what one lane of a kernel computes where a lane is one example. A
// tensor of an example is a list of expressions, and a rule says what an operator makes of them:
//
//   {"aten::dot", [](const SmallCall& c) { return c.give(sum of products …); }}
//
// Moves (views, cat, flip, pad, …) need no rule of their own: the operator itself, run on numbers of elements, says
// where each element comes from.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "numbers/element.h"
#include "operators/known_code.h"

namespace tower::compiler {

/// A tensor of one example, row by row.
struct Small {
  Sizes sizes;
  std::vector<Id> ids;
  at::ScalarType dtype;
  bool number = false;  // LibTorch made it of a number
};

/// A call for one example.
struct SmallCall {
  Expressions& graph;
  const Call& call;
  c10::ArrayRef<const Small*> operands;
  c10::ArrayRef<at::ScalarType> dtypes;  // of the results; Undefined where there is none

  const IValue& arg(size_t i) const { return call.args[i]; }
  /// Null where the argument is not a tensor.
  const Small* tensor(size_t arg) const;
  std::vector<const Small*> list(size_t arg) const;
  E at(const Small& t, size_t i) const { return {graph, t.ids[i]}; }
  /// The same in a result's type.
  E at(const Small& t, size_t i, size_t result) const { return at(t, i).to(type(result)); }
  Type type(size_t result) const { return *type_of(dtypes[result]); }
  E constant(Type type, double value) const { return {graph, graph.constant(type, value)}; }
};

/// The results; none where no kernel is to compute the call. A result without elements is one that no kernel is to
/// compute.
using SmallResults = std::vector<Small>;
using SmallRule = std::function<SmallResults(const SmallCall&)>;
/// By the operators' names.
using SmallRules = std::unordered_map<std::string, SmallRule>;

/// Tables by concept.
const SmallRules& small_moves();
const SmallRules& small_sums();
const SmallRules& small_products();
const SmallRules& small_solves();

/// Code that a kernel may take as it is, such as a loop's.
struct CodeInNumbers : KnownCode {
  /// For one lane; none where it does not fit into a kernel.
  virtual SmallResults in_numbers(const SmallCall& call) const = 0;
  /// Told where no kernel takes the code: it is worth compiling by itself.
  virtual void compile_itself() const = 0;
};
/// Null where an operator is none.
const CodeInNumbers* code_in_numbers(const Operator& op);

/// Null where the operator has no small rule; it may have an element rule (numbers/element.h).
const SmallRule* small_rule(const Operator& op);
/// Whether the operator only moves elements.
bool moves(const Operator& op);

/// What the call gives for one example: by its small rule, or element by element.
SmallResults small_results(const SmallCall& call);

}  // namespace tower::compiler
