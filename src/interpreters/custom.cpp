#include "interpreters/custom.h"

#include <c10/util/Exception.h>

#include "core/wrapper.h"
#include "tower/errors.h"

namespace tower {
namespace {

// LibTorch's autograd follows the plain tensor under all wrappers.
bool libtorch_may_differentiate(Tensor t) {
  while (Wrapper* w = as_wrapper(t)) {
    Tensor value = w->payload().value;
    t = std::move(value);
  }
  return t.defined() && ((c10::GradMode::is_enabled() && t.requires_grad()) || is_libtorch_dual(t));
}

bool any_tracked(const Level& level, const Operator& op, c10::ArrayRef<IValue> args) {
  bool found = false;
  for_each_tensor(op, args, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper_of(t, level);
    found = found || (w && w->payload().tracked());
  });
  return found;
}

}  // namespace

bool opens_under_trace(const Operator& op) {
  if (op.handle()) return false;
  const auto* made = dynamic_cast<const MadeOperator*>(&op);
  return made && made->opens_under_trace();
}

bool derivative_may_be_wanted(const Level* from, const Operator& op, c10::ArrayRef<IValue> args) {
  if (op.opens_up() || op.no_derivative()) return false;
  for (; from; from = from->below())
    if (from->kind() != Kind::vmap) return true;
  bool found = false;
  for_each_tensor(op, args, [&](const Tensor& t, LeafRef) { found = found || libtorch_may_differentiate(t); });
  return found;
}

namespace {

bool saves_at_every_level(const Operator& op) {
  const auto* made = dynamic_cast<const MadeOperator*>(&op);
  return made && made->saves_at_every_level();
}

}  // namespace

Operator::Values call_and_save(const Operator& op, Stack& stack) {
  if (op.call_and_save && ((!op.vmap && !derivative_may_be_wanted(top(), op, stack)) || saves_at_every_level(op))) {
    const AsUserCode user;
    auto [outs, saved] = op.call_and_save(stack);
    stack = std::move(outs);
    return saved;
  }
  const Stack args = stack;
  bind_call(op, stack);
  return save_for_derivatives(op, args, stack);
}

bool run_implementation(Level& level, const Operator& op, Stack& stack) {
  if (op.reads_memory || !any_tracked(level, op, stack)) return false;
  Stack own = stack;
  const Topped as_top(op.lifts_captured ? &level : top());
  try {
    if (!evaluate_inside(op, own)) return false;
  } catch (const UnsupportedError&) {
    op.reads_memory = true;
    return false;
  } catch (const c10::Error& error) {
    if (std::string_view(error.what_without_backtrace()).find(kNoMemory) == std::string_view::npos) throw;
    op.reads_memory = true;
    return false;
  }
  stack = std::move(own);
  return true;
}

}  // namespace tower
