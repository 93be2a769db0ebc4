// The door: the one fallback through which every operator call reaches Tower while a transform is running or a
// wrapper is among its arguments. See key.h for why this key, and typed_door.h for a quicker way to the same place.
#include <ATen/core/dispatch/Dispatcher.h>

#include "core/bind.h"
#include "core/functorch.h"
#include "core/wrapper.h"
#include "door/typed_door.h"
#include "frontend/effects.h"
#include "frontend/enter.h"
#include "rules/rules.h"
#include "tower/errors.h"

namespace tower {
namespace {

// NOTE [functorch inside]
// A transform of torch.func that runs inside of Tower's is above them all. An operator goes to functorch's front key,
// to functorch's interpreters, from the innermost out, each of which calls it again with the front key excluded, and
// from the last of them to the levels here, as a call of the values that functorch's tensors hold. On the way it also
// comes to this door, since a level asks to see every operator, but with tensors of functorch, which are none of its
// own: a functorch interpreter is in the middle of its work, and what it makes must not be wrapped. After the transform
// its tensors stand for their values; a pullback has some of them.
bool functorch_interprets() { return dispatch_keys().excluded().has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode); }

C10_NOINLINE void pass_to_functorch(const Operator& op, Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard passed(kKey);
  op.call(stack);
}

C10_NOINLINE void unwrap_dead(const Operator& op, Stack& stack) {
  replace_tensors(op, stack, [](const Tensor& t, LeafRef) { return functorch::unwrap_dead(t); });
}

}  // namespace

void arrive(const Operator& op, Stack& stack, c10::DispatchKeySet keys) {
  if (functorch_interprets()) return pass_to_functorch(op, stack);
  if (keys.has(c10::DispatchKey::FuncTorchGradWrapper)) unwrap_dead(op, stack);
  enter(op, stack);
}

namespace {

struct Door : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const Operator& op = Operator::of(handle);
    if (stack->size() == op.num_args()) return arrive(op, *stack, keys);
    // A boxed caller keeps other values below the arguments.
    auto first = stack->end() - static_cast<std::ptrdiff_t>(op.num_args());
    Stack own(std::make_move_iterator(first), std::make_move_iterator(stack->end()));
    stack->erase(first, stack->end());
    arrive(op, own, keys);
    for (auto& v : own) stack->push_back(std::move(v));
  }
};

// LibTorch's forward mode keeps tangents where levels do not see them: they would take its duals for constants. Duals
// that were made outside are plain values.
struct ForwardModeDoor : Door {
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const Operator& op = Operator::of(handle);
    const bool makes = op.name() == "aten::_make_dual";
    const c10::ArrayRef<IValue> args(stack->data() + stack->size() - op.num_args(), op.num_args());
    if (top() && (makes || highest_level(op, args)))
      throw UnsupportedError(top()->describe() + ": " + op.name() +
                             " was called: LibTorch's forward mode (make_dual, unpack_dual) inside of a transform, "
                             "which does not see its tangents. Use jvp or jacfwd of Tower, which nest.");
    Door::operator()(handle, keys, stack);
  }
};

// x.set_data(y) asks whether y fits, and then copies what y's implementation consists of into that of x. A tensor from
// outside would become half of a wrapper.
struct SetDataDoor : Door {
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    static const Operator& set_data = *Operator::find("aten::set_data", "");
    for (size_t back : {2, 1}) frontend::NoEffects::check_write(set_data, (*stack)[stack->size() - back].toTensor());
    const Wrapper* given = as_wrapper(stack->back().toTensor());
    if (given && !as_wrapper((*stack)[stack->size() - 2].toTensor()))
      throw UnsupportedError(given->level().describe() +
                             ": set_data (x.data = y) would give a tensor from outside of the transform the memory of "
                             "one that was made inside. Write with x.copy_(y), or use y in place of x. Call a lazy "
                             "module, which makes its parameters at the first call, once before.");
    Door::operator()(handle, keys, stack);
  }
};

struct Registration {
  Registration() {
    if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey))
      throw Error(
          "Tower cannot be loaded: another library has already registered a fallback at the LibTorch dispatch key that "
          "Tower needs. Only one of the two can run in a process.");
    handle = c10::Dispatcher::singleton().registerFallback(
        kKey, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Door>()), "tower");
    rules::register_all();
    doors = open_typed_doors();
    doors.push_back(c10::Dispatcher::singleton().registerImpl(
        {"aten::_has_compatible_shallow_copy_type", ""}, kKey,
        c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<SetDataDoor>()), std::nullopt, nullptr, "tower"));
    for (const char* name : {"aten::_make_dual", "aten::_fw_primal", "aten::_unpack_dual"})
      doors.push_back(c10::Dispatcher::singleton().registerImpl(
          {name, ""}, kKey, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ForwardModeDoor>()),
          std::nullopt, nullptr, "tower"));
  }
  c10::RegistrationHandleRAII handle{[] {}};
  std::vector<c10::RegistrationHandleRAII> doors;
};

const Registration registration;

}  // namespace
}  // namespace tower
