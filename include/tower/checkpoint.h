// checkpoint: a function whose intermediate values are not kept for the backward pass but computed again in it. Less
// memory for one more evaluation.
//
//   auto loss = [&](const Params& p, const at::Tensor& x) {
//     at::Tensor h = x;
//     for (const auto& layer : p) h = tower::checkpoint(block)(layer, h);
//     return h.square().mean();
//   };
#pragma once

#include <memory>
#include <utility>

#include "tower/detail/kept_call.h"
#include "tower/dynamic.h"
#include "tower/tree.h"

namespace tower {

namespace dynamic {

/// `f(operands)`. Where reverse mode records the call, here or in a level below, it keeps the operands only, and its
/// pullback evaluates `f` again: with the same random numbers, as far as they come from default generators.
///
/// Derivatives of any order, vmap, and checkpoints inside of checkpoints are as those of `f`. Tensors that `f` captures
/// are as good as operands; they must be captured by value, for `f` is kept until its pullback is gone.
Tensors checkpoint(Function f, const Tensors& operands);

}  // namespace dynamic

/// `f` so that its intermediate values are not kept for the backward pass, as dynamic::checkpoint says. Arguments and
/// results are trees (tower/tree.h).
template <class F>
auto checkpoint(F f) {
  return [f = std::move(f)](const auto&... args) {
    auto call = std::make_shared<detail::KeptCall<F, std::decay_t<decltype(args)>...>>(f, args...);
    dynamic::Tensors leaves;
    (append_leaves(args, leaves), ...);
    const auto outs = dynamic::checkpoint([call](const dynamic::Tensors& leaves) { return (*call)(leaves); }, leaves);
    return call->value.arrive(outs);
  };
}

}  // namespace tower
