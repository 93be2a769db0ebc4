// What a loop that is a call of a graph is under transforms: a higher-order operator's rules, made of what the loop is.
#pragma once

#include "compile/traced_loop.h"
#include "tower/higher_order.h"

namespace tower::compiler {

class LoopBackwards;

HigherOrderRules rules_of(const std::shared_ptr<const Loop>& loop);
/// Of its pullback, which is `code`: `given`, of which results there are cotangents, and `needs`, the gradients of
/// which operands are asked for.
HigherOrderRules rules_of_pullback(const std::shared_ptr<const LoopBackwards>& code,
                                   const std::shared_ptr<const Loop>& loop, const std::vector<bool>& given,
                                   const std::vector<bool>& needs);

/// A function of the operands of `f` and of those cotangents of its results that are `given`, behind them: the
/// gradients of the operands that `needs` says.
dynamic::Function pullback_of(const dynamic::Function& f, const std::vector<bool>& given,
                              const std::vector<bool>& needs);

// Lists with places for what is not there.
std::vector<bool> are_defined(const dynamic::Tensors& tensors);
dynamic::Tensors only_defined(dynamic::Tensors tensors);
/// From `next` on, in the places that are true.
dynamic::Tensors in_places(const std::vector<bool>& places, dynamic::Tensors::const_iterator next);
Tensor or_zeros(const Tensor& t, const Tensor& like);

}  // namespace tower::compiler
