// A wrong value, such as an index that is out of range, is found by the kernel: after a GPU's, when the call has
// returned long ago, the device refuses everything for the rest of the process.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace apart {

/// Whether a call that the CPU's kernel refused is refused for the values in its tensors alone: with zeros in the place
/// of whole numbers and 0.5 in that of others, as they lie in memory, it is not.
bool is_refused_for_values(const c10::OperatorHandle& op, torch::jit::Stack arguments);

/// Throws where the device is lost.
void check_alive();

/// A kernel of the CPU refused `arguments`, its own tensors: where a GPU's would have found that late, the device is
/// lost.
void after_refusal(const c10::OperatorHandle& op, torch::jit::Stack arguments);

}  // namespace apart
