#include "core/bind.h"

#include <c10/core/GradMode.h>

#include "core/call_recorder.h"
#include "core/wrapper.h"
#include "tower/detail/foreign_frame.h"
#include "tower/errors.h"

namespace tower {
namespace {

[[noreturn]] void refuse_escaped(const Operator& op, const Level& level, c10::ArrayRef<IValue> args) {
  const std::string what = level.describe() + ": " + op.name() + " was given a tensor of this transform";
  if (level.ended())
    throw EscapedTensorError(what + " after the " + level.label() +
                             " that made it has ended. Return the tensor from the transformed function instead of "
                             "keeping it in a variable outside.");
  if (level.thread() != this_thread())
    throw EscapedTensorError(what + " on another thread. A transform's tensors belong to the thread it runs on.");
  Tensor found;
  for_each_tensor(op, args, [&](const Tensor& t, LeafRef) {
    if (Wrapper* w = as_wrapper(t); w && &w->level() == &level) found = t;
  });
  detail::ForeignFrame::raise(InvisibleTensorError(
      what + " inside one of the transform's own rules or below it, where it cannot be seen.", std::move(found)));
}

void call_guarded(const Operator& op, Stack& stack, bool skip_libtorch_autograd) {
  DispatchGuard guard;
  guard.see_no_operator();
  if (skip_libtorch_autograd) guard.skip_libtorch_autograd();
  op.call(stack);
}

void call_plain(const Operator& op, Stack& stack) {
  const auto& keys = dispatch_keys();
  const bool included = keys.included().has(kKey);
  const bool skipping = keys.excluded().has(c10::DispatchKey::AutogradFunctionality);
  if (!included && (skipping || !top())) return op.call(stack);
  call_guarded(op, stack, !skipping && !libtorch_follows(op, stack));
}

}  // namespace

namespace {

template <class Counts>
Level* highest_level_of(const Operator& op, c10::ArrayRef<IValue> args, Counts counts) {
  Level* found = nullptr;
  for_each_tensor(op, args, [&](const Tensor& t, LeafRef) {
    if (Wrapper* w = as_wrapper(t); w && counts(t)) {
      if (w->view()) w->payload();  // what was written to its base may have taken it to a higher level
      Level& level = w->level();
      if (!found || level.depth() > found->depth()) found = &level;
    }
  });
  return found;
}

Level* highest_level_without_known(const Operator& op, c10::ArrayRef<IValue> args) {
  return highest_level_of(op, args, [](const Tensor& t) { return !is_known_by_name(t); });
}

}  // namespace

Level* highest_level(const Operator& op, c10::ArrayRef<IValue> args) {
  return highest_level_of(op, args, [](const Tensor&) { return true; });
}

bool libtorch_follows(const Operator& op, c10::ArrayRef<IValue> args) {
  bool found = false;
  for_each_tensor(op, args, [&](const Tensor& t, LeafRef) { found = found || libtorch_follows(t); });
  return found;
}

Level* nearest_vmap(Level* from) {
  while (from && from->kind() != Kind::vmap) from = from->below();
  return from;
}

Operator::Values save_for_derivatives(const Operator& op, c10::ArrayRef<IValue> args, c10::ArrayRef<IValue> outs) {
  if (!op.save) return {};
  const AsUserCode user;
  return op.save(args, outs);
}

namespace {

// The decompositions that run now. One that ends in its own operator would run until the stack overflows.
class Nested {
 public:
  explicit Nested(const Operator& op) : op_(op), outer_(innermost_) {
    constexpr int kOften = 100;
    int times = 0;
    for (const Nested* n = outer_; n; n = n->outer_) times += &n->op_ == &op;
    if (times == kOften)
      throw UnsupportedError("The decomposition of " + op.name() + " does not end: it runs inside itself " +
                             std::to_string(kOften) + " times. It must not call the operator that it stands for.");
    innermost_ = this;
  }
  ~Nested() { innermost_ = outer_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  const Operator& op_;
  const Nested* outer_;
  static thread_local const Nested* innermost_;
};
thread_local const Nested* Nested::innermost_ = nullptr;

}  // namespace

bool decompose(const Operator& op, Stack& stack) {
  const auto rule = op.decomposition;
  if (!rule && !op.composite()) return false;
  const AsUserCode user;
  if (rule) {
    const Nested nested(op);
    (*rule)(stack);
  } else {
    op.handle()->callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  }
  return true;
}

bool evaluate_inside(const Operator& op, Stack& stack) {
  if (decompose(op, stack)) return true;
  if (!op.implementation) return false;
  const AsUserCode user;
  op.implementation(stack);
  return true;
}

namespace {

bool any_tracked(const Level& level, const Operator& op, const Stack& stack) {
  bool found = false;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) {
    if (Wrapper* w = as_wrapper_of(t, level)) found = found || w->payload().tracked();
  });
  return found;
}

C10_ALWAYS_INLINE void run_at(Level* level, const Operator& op, Stack& stack) {
  if (!level) return call_plain(op, stack);
  const Kind kind = level->kind();
  // What a level refuses is a value that depends on what it tracks; a constant is as good as a plain tensor.
  if (const auto& why = op.unsupported[static_cast<size_t>(kind)]; why && any_tracked(*level, op, stack))
    throw UnsupportedError(level->describe() + ": " + op.name() + " is not supported: " + *why);
  if (op.opens_up() && !op.has_rule(kind) && decompose(op, stack)) return;
  level->process(op, stack);
}

void run_recorded(CallRecorder& recorder, Level* level, const Operator& op, Stack& stack) {
  RecordedCall call(recorder, op, level);
  run_at(level, op, stack);
  call.done();
}

// A constant does not depend on the level that made it: its value is as good after the level has ended.
void bind_without_constants_of_ended_levels(const Operator& op, Stack& stack, const Level& invisible) {
  c10::SmallVector<std::pair<Tensor, Tensor>, 2> stripped;  // and what code that captured one knows it by
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper(t);
    if (!w || is_visible(&w->level()) || w->payload().tracked()) return t;
    stripped.emplace_back(strip_constants(t), t);
    return stripped.back().first;
  });
  if (stripped.empty()) refuse_escaped(op, invisible, stack);
  try {
    // A collective may give such a value on as it is, when nobody knows any more what it was known by.
    for (const auto& [value, known] : stripped)
      if (const Wrapper* w = as_wrapper(value); w && !is_visible(&w->level())) refuse_escaped(op, w->level(), stack);
    bind_call(op, stack);
  } catch (const InvisibleTensorError& error) {
    for (const auto& [value, known] : stripped)
      if (value.is_same(error.tensor())) detail::ForeignFrame::raise(InvisibleTensorError(error.what(), known));
    throw;
  }
}

}  // namespace

void bind_call(const Operator& op, Stack& stack) { bind_call(op, stack, highest_level(op, stack)); }

void bind_call(const Operator& op, Stack& stack, Level* level) {
  if (level && !is_visible(level) && thread_state.substitutions) level = highest_level_without_known(op, stack);
  if (level && !is_visible(level)) return bind_without_constants_of_ended_levels(op, stack, *level);
  if (op.random() && !op.composite()) {
    Level* mapped = nearest_vmap(top());
    if (mapped && (!level || mapped->depth() > level->depth())) level = mapped;
  }
  // NOTE [In sight of a trace] (level.h): what lies below one has to pass it.
  if (Level* here = top();
      level != here && here && here->trace() && (!level || level->depth() < here->trace()->depth()))
    level = here->trace();
  if (thread_state.recorder) return run_recorded(*thread_state.recorder, level, op, stack);
  run_at(level, op, stack);
}

void VmapFrame::call() {
  if (op.is_view()) view_calls.make(op, stack);
  else bind_call(op, stack);
}

}  // namespace tower
