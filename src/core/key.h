// NOTE [The one key]
// Tower sees operators through kernels on one functionality key (door.cpp, typed_door.h), which is named only here.
// DeferredInit has no backend bits, sits above autograd and autocast, is looked up before composite decomposition, and
// no LibTorch library registers anything at it. (AutogradPrivateUseN, which looks natural, leaves its backend bit in
// the thread-local set, and factories then dispatch to a backend that does not exist.)
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace tower {

inline constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;
inline constexpr c10::DispatchKeySet kKeySet{kKey};

}  // namespace tower
