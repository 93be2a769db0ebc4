// NOTE [TorchScript]
// LibTorch runs a TorchScript function as it is written at first, and replaces it once it knows its arguments. Where
// they require grad, it makes parts of it differentiable graphs: such a part detaches its arguments, computes, and ties
// its results to a backward of its own. That is right for LibTorch's autograd, and cuts what levels track. So:
//
// - While a transform runs, its thread runs functions as they are written and learns nothing from them.
// - A function that was called outside may be replaced already. In its differentiable graphs detach() is alias(), so
//   that levels, and LibTorch's autograd outside, follow what is computed. The backward is never asked for: whoever
//   starts it from inside comes to what refuses that (interpreters/history.h). But its graph saves tensors, for which
//   they need a version counter, and makes them require grad: those made from then on can.
#pragma once

namespace tower {

/// An outermost transform starts on this thread, and ends; there may be others while Suspended.
void enter_torchscript_as_written();
void leave_torchscript_as_written();

/// Whether a differentiable graph of TorchScript detaches its arguments now; asked by detach() only. From the first
/// time on, saved_by_torchscript().
bool in_differentiable_graph();

extern constinit thread_local bool saves_for_torchscript __attribute__((tls_model("initial-exec")));
/// Whether tensors may be saved by the graphs of a TorchScript function.
inline bool saved_by_torchscript() { return saves_for_torchscript; }

}  // namespace tower
