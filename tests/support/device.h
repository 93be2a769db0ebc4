// The device that the suite runs on: TOWER_TEST_DEVICE=cuda, or apart:1 (apart/apart.h) where there is no GPU; else
// the CPU. TOWER_TEST_BACKEND is the library of a backend that LibTorch does not come with. The databases, the matrix,
// the random programs, and what else script/common lists make their tensors there; other tests are the CPU's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <functional>
#include <string>

namespace support {

at::Device device();

/// Runs a plain call, and tells whether LibTorch has it on the device: nothing that it throws there comes out, but is
/// counted under `name` (only want of memory is not). On the CPU it is not run.
bool runs_on_device(const std::string& name, const std::function<void()>& plain_call);

/// The same arguments on the CPU.
torch::jit::Stack on_cpu(const torch::jit::Stack& arguments);

/// Whether a call is refused for wrong values, such as indices that are out of range. Kernels find those: a GPU's when
/// the call has returned, and the device is lost to the tests that follow. Such calls are counted; on the CPU all are
/// made.
bool loses_device(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

/// How many calls were left out.
long calls_left_out();

/// What the device could not do, if it is not the CPU; after the tests.
void print_left_out();

}  // namespace support
