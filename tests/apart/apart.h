// A device that is not the CPU, on every machine: "apart", a backend at LibTorch's key PrivateUse1. What is left on the
// wrong device, reads a device's memory itself, or takes device 0 for the tensor's own, fails on it as on a GPU.
//
//   memory      the addresses of its tensors are no addresses of the process: whoever follows one, crashes. The bytes
//               are the CPU's, at the address without kFar.
//   operators   one boxed fallback lends the CPU's kernels stand-ins for the tensors, with the same memory (so that
//               views, writes, out= and resizing mean the same), and takes what they return in.
//   strictness  tensors of the CPU beside those of the device are refused where a GPU refuses them, and so are tensors
//               of its other device: there are two.
//   generators  one for each device; the CPU's is as it was after draws on the device.
//   streams     kernels run when they are called; those that a GPU might run in another order are refused (streams.h).
//   autocast    casts for the operators that LibTorch lists for every device (casts.cpp).
//   wrong values that a kernel finds, such as indices that are out of range, lose the device: from then on it refuses
//               everything, as a GPU does (asserts.h).
//   pinning     what is copied to pinned memory without waiting comes when the program waits (pinned.h).
//
// It has no kernels of its own: LibTorch's composite kernels choose as they do for devices unknown to them.
#pragma once

#include <c10/core/Device.h>

namespace apart {

inline constexpr c10::DeviceIndex kDevices = 2;

/// Registers the backend with LibTorch, which then knows devices "apart:0" and "apart:1". For the rest of the process.
void install();

/// As in a new process, where the device was lost.
void recover();

/// Whether this is what is at LibTorch's key.
bool installed();

/// How often operators made the program wait: those that give a value (item, a bool) or a size that depends on values,
/// and copies to the CPU.
long waits();

}  // namespace apart
