// Calls of typed functions that operators keep, to evaluate them again.
#pragma once

#include <tuple>
#include <utility>

#include "tower/detail/flat.h"
#include "tower/tree.h"

namespace tower::detail {

/// A function of trees with the static parts of its arguments, as a function of their tensors that can be kept.
template <class F, class... D>
struct KeptCall {
  F function;
  std::tuple<D...> arguments;
  Travelling<typename ResultOf<F, D...>::type> value;

  KeptCall(F f, const D&... args) : function(std::move(f)), arguments(static_parts(std::tuple<D...>(args...))) {}

  Tensors operator()(const Tensors& leaves) {
    auto filled = with_leaves(arguments, leaves);
    return value.depart(std::apply(function, std::move(filled)));
  }
};

}  // namespace tower::detail
