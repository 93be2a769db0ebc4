// What one lane of a kernel computes where a lane is one example: what an operator makes of small tensors, by its
// record. Pointwise operators go element by element; those that move elements are run on the elements' numbers, and so
// say themselves where each comes from; those that fold rows and those that contract have one way each; what is left
// has a rule of its own (numbers/small.h).
#pragma once

#include "graph/graph.h"
#include "numbers/small.h"
#include "operators/known_code.h"

namespace tower::compiler {

/// Code that a kernel may take as it is, such as a loop's.
struct CodeInNumbers : KnownCode {
  /// For one lane; none where it does not fit into a kernel.
  virtual SmallResults in_numbers(const SmallCall& call) const = 0;
  /// Of which operands and results the steps of a loop have elements of their own: they are memory, of as many steps as
  /// there may be, and neither made nor read by what else is in the kernel.
  virtual bool is_stacked_operand(size_t) const { return false; }
  virtual bool is_stacked_result(size_t) const { return false; }
  /// Told where no kernel takes the code: it is worth compiling by itself.
  virtual void compile_itself() const = 0;
};
/// Null where an operator is none.
const CodeInNumbers* code_in_numbers(const Operator& op);

/// Whether the operator computes an element of its result otherwise than of the elements in its place.
bool has_small_form(const Operator& op);
/// The same, or that it does it so.
bool is_known_in_numbers(const Operator& op);

/// What a call of `op` gives for one example; none where no kernel is to compute it.
SmallResults small_results(const SmallCall& call);

/// Where the elements of an operator's results come from, if it moves them.
struct Origins {
  c10::SmallVector<Tensor, 2> results = {};  // of each element: `first` and the number of the operands' element, which
                                             // are counted one operand after the other; less: it is `filled`
  int64_t first = 0;
  at::Scalar filled = 0;
};
/// What the operator moves where. Of the call's operands, only sizes and dtypes count.
Origins origins(const SmallCall& call);

// By what the record says.
SmallResults moved(const SmallCall& call);
SmallResults folded(const SmallCall& call);
SmallResults contracted(const SmallCall& call);

}  // namespace tower::compiler
