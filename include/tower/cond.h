// cond: one of two functions, chosen by a value. Unlike an `if`, the predicate may differ between the examples of a
// vmap; unlike where() over both results, the branch that an example did not take has no part in its derivatives: no
// nan of it gets into a gradient.
//
//   auto root = tower::cond(x > 0, [](const Tensor& x) { return x.sqrt(); },
//                                  [](const Tensor& x) { return at::zeros_like(x); }, x);
#pragma once

#include <memory>
#include <tuple>
#include <utility>

#include "tower/detail/kept_call.h"
#include "tower/dynamic.h"
#include "tower/errors.h"
#include "tower/tree.h"

namespace tower {

namespace dynamic {

/// `true_branch(operands)` where `predicate`, a tensor of one element, is not zero, else `false_branch(operands)`.
///
/// Where the predicate is the same for all examples of every surrounding vmap, only the branch taken is run, as if
/// called from an `if`. Where it differs between examples both are run and each example takes its own results and
/// derivatives; the branches must then return outputs of the same number, shape and dtype (and trees that are equal in
/// everything but tensors), or ArgumentError is thrown, and must be functions without side effects. Tensors that they
/// capture are as good as operands; they must be captured by value, for the branches are kept, and run again when a
/// pullback asks for their derivatives.
Tensors cond(const at::Tensor& predicate, Function true_branch, Function false_branch, const Tensors& operands);

}  // namespace dynamic

/// `true_branch(args...)` or `false_branch(args...)`, as dynamic::cond says. Arguments and results are trees
/// (tower/tree.h); both branches return the same type.
template <class F, class G, class... Args>
auto cond(const at::Tensor& predicate, F true_branch, G false_branch, const Args&... args) {
  using True = detail::KeptCall<F, Args...>;
  using False = detail::KeptCall<G, Args...>;
  static_assert(std::is_same_v<decltype(True::value), decltype(False::value)>,
                "tower: the two branches of cond return different types.");
  dynamic::Tensors leaves;
  (append_leaves(args, leaves), ...);
  auto when_true = std::make_shared<True>(std::move(true_branch), args...);
  auto when_false = std::make_shared<False>(std::move(false_branch), args...);
  struct Taken {
    bool when_true = false, when_false = false;
  };
  Taken taken;
  // What was run to its end tells the static parts of the result; of the derivatives nobody asks for them.
  auto asked = std::make_shared<Taken*>(&taken);
  auto outs = dynamic::cond(
      predicate,
      [when_true, asked](const dynamic::Tensors& leaves) {
        auto results = (*when_true)(leaves);
        if (*asked) (*asked)->when_true = true;
        return results;
      },
      [when_false, asked](const dynamic::Tensors& leaves) {
        auto results = (*when_false)(leaves);
        if (*asked) (*asked)->when_false = true;
        return results;
      },
      leaves);
  *asked = nullptr;
  if (taken.when_true && taken.when_false &&
      !detail::same_static_parts(when_true->value.static_parts(), when_false->value.static_parts()))
    throw ArgumentError(
        "cond: the branches returned trees with different numbers, keys or sizes, but the predicate differs between "
        "examples: both must return the same. Return a number that differs as a tensor.");
  return taken.when_true ? when_true->value.arrive(outs) : when_false->value.arrive(outs);
}

}  // namespace tower
