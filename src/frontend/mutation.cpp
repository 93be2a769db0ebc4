#include "frontend/mutation.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/strides.h>

#include <algorithm>

#include "core/bind.h"
#include "core/reuse.h"
#include "core/wrapper.h"
#include "frontend/arguments.h"
#include "frontend/effects.h"
#include "frontend/places.h"
#include "frontend/twins.h"
#include "frontend/views.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower::frontend {
namespace {

[[noreturn]] void refuse(const Operator& op, const Level& level, const Tensor& target, const std::string& why) {
  throw MutationError(level.describe() + ": " + op.name() + " would write into a tensor of " + describe(target) + " " +
                      why);
}

std::string make_it_inside(const Level& level) {
  return std::string("Make the tensor inside the function, or pass it in as ") +
         (level.kind() == Kind::vmap ? "a mapped argument." : "an argument.");
}

[[noreturn]] void refuse_captured(const Operator& op, const Level& level, const Tensor& target,
                                  const std::string& advice) {
  refuse(op, level, target,
         "that was made outside of the transformed function, but the value differs with what the transform tracks "
         "(the example, the tangent or the tape). " +
             advice);
}

// ---- what is written to --------------------------------------------------------------------------------------------

// The tensors that are written to, elements of lists one by one.
std::vector<Tensor> targets_of(const Operator& op, const Stack& stack) {
  std::vector<Tensor> targets;
  for (size_t i = 0; i < op.num_args(); ++i) {
    if (!writes_to(op, i)) continue;
    if (stack[i].isTensor()) {
      if (stack[i].toTensor().defined()) targets.push_back(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      for (const auto& e : stack[i].toListRef()) targets.push_back(e.toTensor());
    }
  }
  return targets;
}

// The highest level that tracks one of the arguments.
Level* tracking_level(const Operator& op, const Stack& stack) {
  Level* found = nullptr;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper(strip_constants(t));
    if (w && (!found || w->level().depth() > found->depth())) found = &w->level();
  });
  return found;
}

// Whether a tensor is memory that a trace of `level` reads and writes at each run: what was there before it.
bool is_outside_of_trace(const Level& level, const Tensor& target) {
  Wrapper* w = as_wrapper(target);
  return level.kind() == Kind::trace && (!w || w->level().depth() < level.depth());
}

// The level that tracks `value` and that `target` cannot belong to: it started after the target had been made.
Level* too_deep_for(const Tensor& target, const Tensor& value) {
  Wrapper* v = as_wrapper(value);
  if (!v || is_outside_of_trace(v->level(), target)) return nullptr;
  Wrapper* w = as_wrapper(target);
  if (!w) return &v->level();
  if (v->level().depth() <= w->level().depth()) return nullptr;
  return is_memory_outside(w->root()) || w->root().made_in() < v->level().id() ? &v->level() : nullptr;
}

// ---- tensors from outside ------------------------------------------------------------------------------------------

// Every vmap that is running owes each of its examples a draw of its own, unless it was told that they share one.
void check_shared_draw(const Operator& op, const Tensor& target) {
  for (Level* level = top(); level; level = level->below())
    if (level->draws_for_each(op))
      refuse(op, *level, target,
             std::string("that was made outside of the mapped function, but each example draws random numbers of its "
                         "own. Make the tensor inside the function, or use ") +
                 detail::spellings().same_draws + ".");
}

void write_plain(const Operator& op, Stack& stack, const std::vector<Tensor>& targets) {
  if (op.random() && !targets.empty()) check_shared_draw(op, targets[0]);
  bind_call(op, stack);
}

// ---- in-place views ------------------------------------------------------------------------------------------------

void detach_in_place(const Operator& op, Stack& stack, const Tensor& target) {
  Wrapper& w = *as_wrapper(target);
  if (w.view()) refuse(op, w.level(), target, "that is a view, and views cannot be detached in place. Use detach().");
  bind_call(*twin_of(op).op, stack);
  w.take(stack[0].toTensor());
}

// The tensor becomes a view of what it was.
void give_form(Wrapper& w, const Operator& view, View::Args args, const Tensor& value) {
  if (is_memory_outside(w)) return w.take(value);  // of which nothing is tied to it
  args[0] = IValue(Tensor());
  const Tensor before = as_it_is(Tensor(c10::intrusive_ptr<Wrapper>::reclaim_copy(&w)));
  w.change_form(view, std::move(args), value);
  Wrapper& hidden = base_of(*w.view());
  copy_place(hidden, *as_wrapper(before));
  show_place(w, hidden, view, w.view()->args, 0);
}

// The same of as_strided, which may read what lies around a view: then it is one of that.
void give_strides(const Operator& op, Wrapper& w, const Operator& as_strided, View::Args args) {
  Stack call(args.begin(), args.end());
  const Tensor memory = memory_around(as_strided, args[0].toTensor(), args.back());
  if (!memory.defined()) {
    bind_call(as_strided, call);
    return give_form(w, as_strided, std::move(args), call[0].toTensor());
  }
  if (w.has_views())
    refuse(op, w.level(), args[0].toTensor(),
           "and give other strides to a view that has views, which could not follow. Use as_strided().");
  make_view(as_strided, call);
  Wrapper& other = *as_wrapper(call[0].toTensor());
  w.view() = std::move(other.view());
  w.take(call[0].toTensor());
  copy_place(w, other);
}

// Fewer elements are a view of the first ones in memory. More have no memory to be in.
void resize_in_place(const Operator& op, Stack& stack, const Tensor& target) {
  Wrapper& w = *as_wrapper(target);
  const auto sizes = stack[1].isTensor() ? stack[1].toTensor().sizes().vec() : stack[1].toIntVector();
  const int64_t count = c10::multiply_integers(sizes);
  if (target.sizes().equals(sizes)) return;
  if (!w.view() && !is_memory_outside(w) && (count == 0 || target.numel() == 0)) {
    w.take(at::empty(sizes, target.options()));
    return w.wrote();
  }
  if (count > target.numel())
    refuse(op, w.level(), target,
           "and give it more elements than it has memory for. Make a tensor of the new size, and copy the old one into "
           "a part of it.");
  static const Operator& as_strided = *Operator::find("aten::as_strided", "");
  View::Args args{target, sizes, at::IntArrayRef(c10::contiguous_strides(sizes)), IValue()};
  give_strides(op, w, as_strided, std::move(args));
}

// Gives the tensor memory that lies elsewhere, which nothing may track.
void set_in_place(const Operator& op, Stack& stack, const Tensor& target, const Twin& twin) {
  Wrapper& w = *as_wrapper(target);
  if (tracking_level(op, stack))
    refuse(op, w.level(), target, std::string("and is refused inside transforms: ") + twin.refused);
  if (w.view() || w.has_views())
    refuse(op, w.level(), target,
           "that is a view or has views, which could not follow. Make a new tensor, and give that the memory.");
  Stack call = stack;
  for (size_t i = 1; i < call.size(); ++i)
    if (call[i].isTensor()) {
      NoEffects::check_write(op, call[i].toTensor());  // to which, from now on, a write to the target would go
      if (Wrapper* source = as_wrapper(call[i].toTensor())) source->root().set_shares_memory();
      call[i] = strip_constants(call[i].toTensor());
    }
  {
    DispatchGuard keys;
    keys.see_every_operator(false);
    call[0] = at::empty({0}, strip_constants(target).options());
  }
  bind_call(op, call);
  w.take(call[0].toTensor());
  w.set_shares_memory();
  stack.assign(1, target);
}

void view_in_place(const Operator& op, Stack& stack, const Tensor& target) {
  const std::string& name = op.schema().name();
  if (name == "aten::detach_") detach_in_place(op, stack, target);
  else if (name == "aten::resize_" || name == "aten::resize_as_") resize_in_place(op, stack, target);
  else if (name == "aten::as_strided_") {
    const c10::AutoGradMode recording(true);
    give_strides(op, *as_wrapper(target), *twin_of(op).op, View::Args(stack.begin(), stack.end()));
  } else {
    const c10::AutoGradMode recording(true);  // under no_grad, too: it changes no values
    View::Args args(stack.begin(), stack.end());
    const Operator& view = *twin_of(op).op;
    bind_call(view, stack);
    give_form(*as_wrapper(target), view, std::move(args), stack[0].toTensor());
  }
  stack.assign(1, target);
}

// ---- writing -------------------------------------------------------------------------------------------------------

// Then the write is part of what the trace records.
bool written_at_each_run(const Tensor& target, const Tensor& value) {
  Wrapper* v = as_wrapper(value);
  return v && is_outside_of_trace(v->level(), target);
}

struct Write {
  Tensor target, value;
};

// Whether copy_ puts into a part of a tensor what fits as it is: then the write of the part is the copy.
bool copies_into_part(const Operator& op, const Stack& stack, const Tensor& target) {
  static const Operator& copy = *Operator::find("aten::copy_", "");
  if (&op != &copy || tracing() || !is_replaced_by_scatter(target)) return false;
  const Tensor& source = stack[1].toTensor();
  return source.scalar_type() == target.scalar_type() && source.device() == target.device() &&
         source.layout() == target.layout() && source.sizes().equals(target.sizes()) && !source.is_conj() &&
         !source.is_neg();
}

// The value as it goes into the target. Throws if it cannot.
Write fitted(const Operator& op, const Operator& twin, const Level& highest, const Tensor& target, Tensor value,
             bool grows) {
  Wrapper* w = as_wrapper(target);
  const auto where = [&] { return (w ? w->level() : highest).describe() + ": " + op.name(); };
  if (!grows && !value.sizes().equals(target.sizes()))
    throw MutationError(where() + " gives " + describe(value) + ", which does not fit the tensor it writes to, " +
                        describe(target) + ". An in-place operator cannot change a shape.");
  if (value.scalar_type() != target.scalar_type()) {
    // Pointwise operators cast their result to the written tensor where that loses no kind of number; others demand its
    // dtype. abs_ of complex numbers is LibTorch's one exception.
    const bool casts = op.pointwise_tag() || twin.pointwise_tag();
    if (!casts || !c10::canCast(value.scalar_type(), target.scalar_type()) || op.name() == "aten::abs_")
      throw MutationError(where() + ": result type " + c10::toString(value.scalar_type()) +
                          " can't be cast to the written tensor's type " + c10::toString(target.scalar_type()) + ".");
    value = at::_to_copy(value, target.scalar_type());
  }
  value = strip_constants(value, w ? w->level().depth() : 0);
  if (Level* level = too_deep_for(target, value)) refuse_captured(op, *level, target, make_it_inside(*level));
  if (w && !written_at_each_run(target, value)) check_writable(*w, value, op);
  return {target, std::move(value)};
}

void commit(const Operator& op, const Write& write) {
  if (written_at_each_run(write.target, write.value)) {
    static const Operator& copy = *Operator::find("aten::copy_", "");
    Stack stack{write.target, write.value, false};
    bind_call(copy, stack);
  } else if (Wrapper* w = as_wrapper(write.target)) write_through(*w, write.value, op);
  else write.target.copy_(write.value);
}

// What stands for a tensor that is written to among the arguments of the call that computes what is written. A level
// above the tensor's own may keep it: then it must be as it was.
Tensor old_value(const Tensor& t, const Operator& twin, const Level& highest) {
  // The old values do not matter to a draw, nor does their history.
  if (twin.random() && twin.no_derivative()) return t.detach();
  Wrapper* w = as_wrapper(t);
  return w && (&w->level() != &highest || replaces_part(twin)) ? as_it_is(t) : t;
}

// The tensor itself where the call may take its old value for the new one. Nothing refuses the result afterwards: it
// has the tensor's shape, dtype and level.
Wrapper* given_up(const Operator& twin, const Tensor& target, const Level& highest) {
  if (!replaces_part(twin) || !target.defined()) return nullptr;
  Wrapper* w = as_wrapper_of(target, highest);
  return w && may_give_up(*w) ? w : nullptr;
}

Stack call_of(const Operator& op, const Twin& twin, const Stack& stack, const Tensor& target, const Level& highest) {
  const bool in_place = !is_out_argument(op, op.num_args() - 1);
  Stack call;
  call.reserve(twin.arguments.size());
  for (int8_t source : twin.arguments) {
    const auto i = static_cast<size_t>(source);
    if (source >= 0 && stack[i].isTensor() && stack[i].toTensor().defined() && writes_to(op, i))
      call.emplace_back(old_value(stack[i].toTensor(), *twin.op, highest));
    else if (source >= 0 && in_place && stack[i].isNone() && op.schema().arguments()[i].name() == "dtype")
      call.emplace_back(target.scalar_type());  // the functional cumsum makes int64 of int32
    else if (source >= 0) call.push_back(stack[i]);
    else if (source == Twin::dtype_of_out) call.emplace_back(target.scalar_type());
    else if (source == Twin::device_of_out) call.emplace_back(target.device());
    else call.emplace_back();
  }
  return call;
}

// Whether elements of the written list share memory: then what is written to one changes another's old value.
bool elements_overlap(const Stack& stack) {
  std::vector<const Wrapper*> roots;
  std::vector<Tensor> outside;
  for (const auto& e : stack[0].toListRef()) {
    Tensor t = e.toTensor();
    Wrapper* w = t.defined() ? as_wrapper(t) : nullptr;
    if (w && !is_memory_outside(w->root())) {
      if (std::find(roots.begin(), roots.end(), &w->root()) != roots.end()) return true;
      roots.push_back(&w->root());
    } else if (t.defined()) {
      if (w) t = w->root().payload().value;
      if (std::any_of(outside.begin(), outside.end(), [&](const Tensor& o) { return may_overlap(o, t); })) return true;
      outside.push_back(std::move(t));
    }
  }
  return false;
}

// An operator over lists (_foreach_mul_ and its kin), as a call for each element.
void write_one_by_one(const Operator& op, const Stack& stack) {
  const size_t count = stack[0].toListRef().size();
  for (size_t e = 0; e < count; ++e) {
    Stack call = stack;
    for (IValue& v : call) {
      if (!v.isList() || v.toListRef().size() != count) continue;
      c10::impl::GenericList one(v.toList().elementType());
      one.push_back(v.toListRef()[e]);
      v = std::move(one);
    }
    write(op, call);
  }
}

void copy_into_part(const Operator& op, const Twin& twin, Stack& stack, const Level& highest) {
  const Write write = fitted(op, *twin.op, highest, stack[0].toTensor(), stack[1].toTensor(), false);
  write_through(*as_wrapper(write.target), write.value, op, false);
  stack.resize(1);
}

void write_by_twin(const Operator& op, const Twin& twin, Stack& stack, const Tensor& target, const Level& highest) {
  const bool into_out = is_out_argument(op, op.num_args() - 1);
  Stack results = call_of(op, twin, stack, target, highest);
  if (twin.op->composite()) {
    decompose(*twin.op, results);
  } else {
    std::optional<Reuse> reuse;
    if (Wrapper* w = given_up(*twin.op, target, highest)) reuse.emplace(*w);
    bind_call(*twin.op, results);
  }
  c10::SmallVector<Write, 2> writes;
  const auto add = [&](const Tensor& to, const Tensor& value) {
    // LibTorch gives an empty out= tensor the shape of the result.
    const bool grows = into_out && to.numel() == 0 && !value.sizes().equals(to.sizes());
    if (to.defined()) writes.push_back(fitted(op, *twin.op, highest, to, value, grows));
  };
  for (size_t k = 0; k < results.size(); ++k) {
    if (twin.results[k] < 0) continue;
    IValue& to = stack[static_cast<size_t>(twin.results[k])];
    if (to.isTensorList()) {
      const auto& elements = to.toListRef();
      const auto& values = results[k].toListRef();
      for (size_t e = 0; e < elements.size(); ++e) add(elements[e].toTensor(), values[e].toTensor());
    } else if (to.isTensor()) {
      add(to.toTensor(), results[k].toTensor());
    }
    results[k] = to;
  }
  for (const Write& write : writes) commit(op, write);
  for (size_t k = 0; k < op.num_outs(); ++k)
    if (twin.results[k] < 0 && results[k].isTensor()) note_made_here(results[k].toTensor());
  results.resize(op.num_outs());
  stack = std::move(results);
}

}  // namespace

void write(const Operator& op, Stack& stack) {
  const auto targets = targets_of(op, stack);
  for (const Tensor& t : targets) NoEffects::check_write(op, t);
  const Level* highest = highest_level(op, stack);
  if (!highest) return write_plain(op, stack, targets);
  const auto is_own = [](const Tensor& t) { return as_wrapper(t) != nullptr; };
  const auto own = std::find_if(targets.begin(), targets.end(), is_own);
  const auto captured = std::find_if_not(targets.begin(), targets.end(), is_own);
  const Twin& twin = twin_of(op);
  if (op.num_outs() == 0 && stack[0].isTensorList() && elements_overlap(stack)) {
    write_one_by_one(op, stack);
    stack.clear();
    return;
  }
  if (own != targets.end() && op.schema().name() == "aten::set_") return set_in_place(op, stack, *own, twin);
  if (own != targets.end() && twin.refused)
    refuse(op, as_wrapper(*own)->level(), *own, std::string("and is refused inside transforms: ") + twin.refused);
  if (captured != targets.end()) {
    // A tensor from outside: only values that no transform tracks may go in. A functional form tells which those are.
    Level* tracking = tracking_level(op, stack);
    if (tracking && (!twin.op || twin.refused || op.inplace_view()))
      refuse_captured(op, *tracking, *captured, make_it_inside(*tracking));
    if (!tracking && own == targets.end()) {
      replace_tensors(op, stack, [](const Tensor& t, LeafRef) { return strip_constants(t); });
      return write_plain(op, stack, targets);
    }
  }
  if (op.inplace_view() && !op.composite()) return view_in_place(op, stack, targets[0]);
  // Composite in-place operators know their own checks; composite out= operators write through memory of their own.
  if ((!twin.op || !is_out_argument(op, op.num_args() - 1)) && decompose(op, stack)) return;
  if (copies_into_part(op, stack, targets[0])) return copy_into_part(op, twin, stack, *highest);
  write_by_twin(op, twin, stack, targets.empty() ? Tensor() : targets[0], *highest);
}

void check_holds(const Operator& op, const Tensor& target, const Tensor& value, const std::string& advice) {
  Wrapper* w = as_wrapper(target);
  if (Level* level = too_deep_for(target, strip_constants(value, w ? w->level().depth() : 0)))
    refuse_captured(op, *level, target, advice);
}

}  // namespace tower::frontend
