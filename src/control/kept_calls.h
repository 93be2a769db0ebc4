// What a checkpoint keeps of its function's intermediate values.
//
// NOTE [What a checkpoint keeps]
// Calls of operators that the function makes are known by their number. So that they come in the same order at each
// evaluation, with and without a tape, and whatever transforms lie below, the function is always evaluated on a level
// of its own, and that is a vjp level with the same inputs. At the first evaluation it notes which calls' results are
// to be kept; these are further outputs of the checkpoint's operator, so they are mapped, have tangents and are
// differentiated as all outputs are. At the evaluation for the pullback these calls are recorded, but not computed.
//
// In a compiled function the evaluation for the pullback is traced, once, and there a branch or a loop whose course
// values decide is one call, while at the first evaluation, which each run makes, it is the calls of what was decided.
// So what these call is not counted there, and nothing of it is kept.
#pragma once

#include "core/in_force.h"
#include "tower/checkpoint.h"

namespace tower {

/// The calls of one evaluation whose results are kept, in order.
struct KeptCalls {
  struct Kept {
    int64_t number;
    std::string op;
    size_t results;
  };
  bool compiled = false;  // in a compiled function
  size_t outs = 0;        // of the function
  std::vector<Kept> calls;
};

/// While it lives, code runs whose course values decide.
class DecidedByValues : public InForce<DecidedByValues> {};

/// Throws ArgumentError where the options name what cannot be kept.
void check_options(const CheckpointOptions& options);

/// Outputs of `f`, and behind them what is kept; notes in `kept` what that is.
dynamic::Tensors evaluate_and_choose(const dynamic::Function& f, const dynamic::Tensors& operands,
                                     const CheckpointOptions& options, KeptCalls& kept);
/// The same once more.
dynamic::Tensors evaluate_as_chosen(const dynamic::Function& f, const dynamic::Tensors& operands,
                                    const KeptCalls& kept);
/// Gradients of the operands that `needs` says, from cotangents of all these outputs, without computing the kept
/// `results` again.
dynamic::Tensors pull_back_with_kept(const dynamic::Function& f, const dynamic::Tensors& operands,
                                     const dynamic::Tensors& results, const KeptCalls& kept,
                                     const dynamic::Tensors& cotangents, const std::vector<bool>& needs);

}  // namespace tower
