#include "frontend/enter.h"

#include "core/bind.h"
#include "core/wrapper.h"
#include "frontend/arguments.h"
#include "frontend/autocast.h"
#include "frontend/mutation.h"
#include "frontend/substitution.h"
#include "frontend/views.h"

namespace tower {

namespace {

// Fresh tensors that user code makes inside a transform are wrapped, although they depend on nothing yet, and those of
// an outer level remember where they were made: a later in-place write may put a batched, dual or taped value into
// them.
void settle_outputs(const Operator& op, Stack& stack) {
  Level* level = top();
  if (!level) return;
  // A view's memory is its base's; but lift_fresh is how a new tensor comes in, though its schema calls it a view.
  static const Operator& lift_fresh = *Operator::find("aten::lift_fresh", "");
  if (op.is_view() && &op != &lift_fresh) return;
  replace_outputs(stack, [&](Tensor&& t, size_t) {
    if (!as_wrapper(t)) return wrap_constant(*level, std::move(t));
    note_made_here(t);
    return Tensor(std::move(t));
  });
}

C10_ALWAYS_INLINE void resolve(const Operator& op, Stack& stack) {
  Level* highest = highest_level(op, stack);
  if (!highest && op.composite() && !op.custom) {
    decompose(op, stack);
    return;
  }
  if (op.mutates()) return frontend::write(op, stack);
  if (!highest) {
    bind_call(op, stack, nullptr);
    return settle_outputs(op, stack);
  }
  // A composite view without a rule is a sequence of real ones (or a copy): those are what must be tied to the base.
  if (op.is_view() && (!op.composite() || op.has_rule(Kind::vmap))) return frontend::make_view(op, stack);
  if (op.is_view()) return static_cast<void>(decompose(op, stack));
  bind_call(op, stack, highest);
  if (highest != top()) settle_outputs(op, stack);
}

C10_NOINLINE void resolve_with_autocast(const Operator& op, Stack& stack, c10::DispatchKeySet active) {
  if (frontend::run_autocast(op, stack, active)) return;
  // The operators that a composite, a function, or another library's kernel is made of may be cast for.
  if (op.composite() || !op.handle() || op.handle()->operator_name().getNamespace() != "aten")
    return resolve(op, stack);
  DispatchGuard keys;
  keys.skip_autocast();
  resolve(op, stack);
}

}  // namespace

void enter(const Operator& op, Stack& stack) {
  frontend::substitute(op, stack);
  frontend::check_up_to_date(op, stack);
  const c10::DispatchKeySet autocast = frontend::active_autocast();
  if (autocast.empty()) resolve(op, stack);
  else resolve_with_autocast(op, stack, autocast);
}

}  // namespace tower
