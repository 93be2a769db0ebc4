// torch::autograd::Function, LibTorch's own user functions, called inside a transform.
//
// NOTE [LibTorch's functions]
// Such a function runs its forward with gradients disabled and then ties its outputs to a node of LibTorch's graph. A
// transform sees only the first of that: operators that are not to be differentiated. It would take the outputs for
// constants, and their derivative for zero. But before anything else the function asks the thread's functorch state
// whether it is supported, and that is an interface: while a level runs, the state is Tower's, and says no.
#pragma once

namespace tower {

/// From here on LibTorch's functions are refused in this thread's transformed functions, in C++ and in Python, wherever
/// a derivative could be asked for; until `allow_libtorch_functions` was called as often.
void refuse_libtorch_functions();
void allow_libtorch_functions();

}  // namespace tower
