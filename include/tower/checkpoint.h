// checkpoint: a function whose intermediate values are not kept for the backward pass but computed again in it. Less
// memory for one more evaluation. A policy says what is kept all the same.
//
//   auto loss = [&](const Params& p, const at::Tensor& x) {
//     at::Tensor h = x;
//     for (const auto& layer : p) h = tower::checkpoint(block)(layer, h);
//     return h.square().mean();
//   };
//   auto block = tower::checkpoint(attention, {.keep = {"aten::mm"}, .keep_names = {"scores"}});
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tower/detail/kept_call.h"
#include "tower/dynamic.h"
#include "tower/tree.h"

namespace tower {

/// Which intermediate values are kept, where any of these says so. Of a value that a view shows, the whole is kept.
/// Random numbers are drawn again in any case.
struct CheckpointOptions {
  /// The results of these operators: "aten::mm", or one overload, "aten::add.Tensor".
  std::vector<std::string> keep = {};
  /// What `checkpoint_name` gives these names. (Results of operators with several results are computed again.)
  std::vector<std::string> keep_names = {};
  /// True for a call whose results are to be kept. It may ask for their sizes, and is asked once for each call.
  std::function<bool(const std::string& op, const std::vector<at::Tensor>& results)> policy = nullptr;
};

/// `t`, which checkpoints around this code keep if it has a name that their `.keep_names` has.
at::Tensor checkpoint_name(const at::Tensor& t, const std::string& name);

namespace dynamic {

/// `f(operands)`. Where reverse mode records the call, here or in a level below, it keeps the operands only, and its
/// pullback evaluates `f` again: with the same random numbers, as far as they come from default generators.
///
/// Derivatives of any order, vmap, and checkpoints inside of checkpoints are as those of `f`. Tensors that `f` captures
/// are as good as operands; they must be captured by value, for `f` is kept until its pullback is gone.
Tensors checkpoint(Function f, const Tensors& operands, const CheckpointOptions& options = {});

}  // namespace dynamic

/// `f` so that its intermediate values are not kept for the backward pass, as dynamic::checkpoint says. Arguments and
/// results are trees (tower/tree.h).
template <class F>
auto checkpoint(F f, CheckpointOptions options = {}) {
  return [f = std::move(f), options = std::move(options)](const auto&... args) {
    auto call = std::make_shared<detail::KeptCall<F, std::decay_t<decltype(args)>...>>(f, args...);
    dynamic::Tensors leaves;
    (append_leaves(args, leaves), ...);
    const auto outs =
        dynamic::checkpoint([call](const dynamic::Tensors& leaves) { return (*call)(leaves); }, leaves, options);
    return call->value.arrive(outs);
  };
}

}  // namespace tower
