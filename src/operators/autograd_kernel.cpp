#include "operators/autograd_kernel.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "core/bind.h"
#include "interpreters/libtorch_bridge.h"

namespace tower {
namespace {

struct AutogradKernel final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const Operator& op = Operator::of(handle);
    // A boxed caller may keep other values below the arguments.
    const c10::ArrayRef<IValue> args = c10::ArrayRef<IValue>(*stack).slice(stack->size() - op.num_args());
    if (libtorch_follows(op, args)) {
      Stack own(args.begin(), args.end());
      if (record_in_libtorch(op, own)) {
        stack->resize(stack->size() - op.num_args());
        for (IValue& v : own) stack->push_back(std::move(v));
        return;
      }
    }
    // Writes inside the kernel still count as such: versions of tensors go up.
    const at::AutoDispatchBelowAutograd below;
    handle.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
};

}  // namespace

c10::KernelFunction autograd_kernel() {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<AutogradKernel>());
}

}  // namespace tower
