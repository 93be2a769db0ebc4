// Operators whose functions may capture tensors of running transforms, which then become operands.
#pragma once

#include "tower/higher_order.h"

namespace tower {

/// Calls the operator of these rules, whose last operands are the `captured` tensors; those that it turns out to
/// capture besides are appended, so that the next call need not find out. The rules have `lift`.
dynamic::Tensors call_lifting(HigherOrderRules rules, const dynamic::Tensors& operands, const Attributes& attributes,
                              dynamic::Tensors& captured);

/// `f` of operands of which the last stand for the tensors that it captured.
dynamic::Function with_captured(dynamic::Function f, const dynamic::Tensors& captured);

/// Throws InvisibleTensorError, by which it becomes an operand of the operator around, where one of the operands was
/// captured and cannot be seen. For what is an operator in a backward pass alone: its function may not use them.
void check_visible(const char* op, const dynamic::Tensors& operands);

/// What control flow goes by: the value under all levels, of all examples.
at::Tensor value_under_all_levels(at::Tensor t);

}  // namespace tower
