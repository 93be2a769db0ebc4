// Functions that are evaluated again in the backward pass, for checkpoint and for the schedules of loops.
#pragma once

#include "control/repeated_draws.h"
#include "tower/higher_order.h"

namespace tower {

/// Whether user code that runs now may be recorded for a pullback: by a level, or, through one of the operands, by
/// LibTorch's autograd.
bool may_be_recorded(const dynamic::Tensors& operands);

/// A function that is told which tensors, among those it captured, stand-ins are there for.
using CapturingFunction = std::function<dynamic::Tensors(const dynamic::Tensors& operands, dynamic::Tensors& captured)>;

/// Gradients of the operands, of which the last stand for the `captured` tensors. `draws` are those of the evaluation.
using PullBack =
    std::function<dynamic::Tensors(Draws& draws, const dynamic::Tensors& captured, const dynamic::Tensors& operands,
                                   const dynamic::Tensors& cotangents, const std::vector<bool>& needs)>;

/// `f(operands)`, of which a tape keeps no more than the operands and the tensors that it captured. Those are appended
/// to `captured`, unless they are there. Its pullback evaluates `f` again, unless there is another way to it.
dynamic::Tensors evaluate_without_record(const char* name, const CapturingFunction& f, const dynamic::Tensors& operands,
                                         dynamic::Tensors& captured, const PullBack& pull_back = nullptr);

/// `f`, which must not be seen to be evaluated more than once: it throws where it writes to what it did not make.
dynamic::Function evaluated_often(const char* name, dynamic::Function f,
                                  const char* reason = "but it is evaluated again for derivatives.");

}  // namespace tower
