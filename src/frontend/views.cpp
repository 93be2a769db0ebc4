#include "frontend/views.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <unordered_set>

#include "core/bind.h"
#include "core/layout.h"
#include "core/reuse.h"
#include "frontend/arguments.h"
#include "frontend/places.h"
#include "frontend/shown_part.h"
#include "tower/errors.h"
#include "tower/higher_order.h"

namespace tower::frontend {
namespace {

Tensor handle(Wrapper& w) { return Tensor(c10::intrusive_ptr<Wrapper>::reclaim_copy(&w)); }

// Views that no derivative goes through have a history of their own, which writes to their bases leave as it is.
bool cuts_history(const View& view) { return view.op->no_derivative(); }

bool is_small(int64_t numel, const Wrapper& root) { return numel * kSmall <= root.numel(); }

// NOTE [Small views of written tensors]
// What a tape keeps of a part that was read would keep the whole of the tensor's memory, and every later write would
// have to copy that. So a small view of a tensor that has been written to has memory of its own; a larger one has not,
// and the next write copies the tensor, at most four times what the view shows. An argument's views may leave as views
// of the caller's tensor, and what nothing tracks has memory that can be written to behind the transform's back.
void own_small_view(Wrapper& view) {
  Wrapper& root = view.root();
  if (!is_small(view.numel(), root) || root.shares_memory() || cuts_history(*view.view()) ||
      !as_wrapper(strip_constants(handle(view))) || !Arguments::made_inside(root))
    return;
  view.own_memory();
}

void tie(const Tensor& out, const Tensor& base, const Operator& op, View::Args&& args, size_t index) {
  Wrapper* view = as_wrapper(out);
  Wrapper* of = as_wrapper(base);
  if (!view || view == of || view->view() || &view->level() != &of->level()) return;
  if (is_memory_outside(*view)) return;  // aliases are told by what they share
  // Of a parameter that was made inside: modules give it other memory next (set_data), which a view could not follow.
  if (op.no_derivative() && of->requires_grad() && !as_wrapper(strip_constants(base))) {
    of->set_shares_memory();
    return view->set_shares_memory();
  }
  Wrapper& root = of->root();
  of->set_has_views();
  view->view() =
      std::make_unique<View>(View{c10::intrusive_ptr<Wrapper>::reclaim_copy(of), &root, root.generation(), of->form(),
                                  autograd_state().get_grad_mode(), &op, index, std::move(args)});
  show_place(*view, *of, op, view->view()->args, index);
  if (root.generation() > 0) own_small_view(*view);
}

// Runs the view operator again, on `base`.
Tensor view_again(const View& view, const Tensor& base) {
  Stack stack(view.args.begin(), view.args.end());
  stack[view.op->tensor_args()[0]] = base;
  bind_call(*view.op, stack);
  return flatten_outputs(stack)[view.out];
}

bool repeats(const View& view) {
  return view.op->view_repeats && view.op->view_repeats(handle(base_of(view)), view.args);
}

// Operators that only choose and order elements of their base.
bool only_moves(const Operator& op) {
  static const auto& names =
      *new std::unordered_set<std::string>{"aten::alias",          "aten::expand",        "aten::view",
                                           "aten::_reshape_alias", "aten::select.int",    "aten::slice.Tensor",
                                           "aten::permute",        "aten::transpose.int", "aten::t",
                                           "aten::squeeze",        "aten::squeeze.dim",   "aten::squeeze.dims",
                                           "aten::unsqueeze",      "aten::diagonal",      "aten::unfold",
                                           "aten::unbind.int",     "aten::split.Tensor",  "aten::split_with_sizes"};
  return names.count(op.name()) > 0;
}

// The bases of a view, nearest first, up to and including the last one that is shown with repetitions; empty if none
// is.
c10::SmallVector<View*, 4> links_to_repetition(Wrapper& target) {
  c10::SmallVector<View*, 4> links;
  size_t needed = 0;
  for (View* v = target.view().get(); v != nullptr; v = base_of(*v).view().get()) {
    links.push_back(v);
    if (repeats(*v)) needed = links.size();
  }
  links.resize(needed);
  return links;
}

[[noreturn]] void refuse(const Wrapper& target, const Operator& writer, const View& through, const std::string& why) {
  throw MutationError(target.level().describe() + ": " + writer.name() + " writes through a view made by " +
                      through.op->name() + ", " + why);
}

// The positions, in the base at the end of `links`, of the elements that the view at their start shows.
Tensor positions_shown(c10::ArrayRef<View*> links) {
  const Wrapper& base = base_of(*links.back());
  DispatchGuard keys;
  keys.see_every_operator(false);
  Tensor shown = at::arange(base.numel(), at::kLong).view(base.sizes());
  for (size_t k = links.size(); k-- > 0;) shown = view_again(*links[k], shown);
  return shown;
}

bool has_duplicates(const Tensor& positions) {
  DispatchGuard keys;
  keys.see_every_operator(false);
  const Tensor sorted = std::get<0>(positions.reshape(-1).sort());
  const int64_t n = sorted.numel();
  return n > 1 && sorted.slice(0, 1).eq(sorted.slice(0, 0, n - 1)).any().item<bool>();
}

// The write carried past repetitions by position: the base at the end of `links` after it.
Tensor put_by_position(const Tensor& base, const Tensor& value, c10::ArrayRef<View*> links) {
  const Tensor positions = positions_shown(links).to(base.device());
  return at::put(base, positions.reshape(-1), value.reshape(-1));
}

// Memory that others see, too: the write is one into a tensor from outside.
void write_memory(Wrapper& target, const Tensor& value) {
  if (is_memory_outside(target)) {
    static const Operator& copy = *Operator::find("aten::copy_", "");
    Stack stack{handle(target), value, false};
    return bind_call(copy, stack);
  }
  DispatchGuard keys;
  keys.see_every_operator(false);
  strip_constants(handle(target)).copy_(strip_constants(value));
}

// As in LibTorch, a write under no_grad changes the value and leaves the history as it was.
Tensor recorded_or_not(Wrapper& target, const Tensor& value) {
  return c10::GradMode::is_enabled() ? value : with_history_of(handle(target), value, false);
}

// The dimensions of more than one element, those that lie farthest apart in memory first.
c10::SmallVector<int64_t, 5> long_dims(const Tensor& t) {
  c10::SmallVector<int64_t, 5> order;
  for (const int64_t d : farthest_first(t.strides()))
    if (t.size(d) > 1) order.push_back(d);
  return order;
}

bool is_dense(const Tensor& t, c10::ArrayRef<int64_t> order) {
  int64_t expected = 1;
  for (size_t k = order.size(); k-- > 0;) {
    if (t.stride(order[k]) != expected) return false;
    expected *= t.size(order[k]);
  }
  return true;
}

bool lies_in_order(const Tensor& t, c10::ArrayRef<int64_t> order) {
  for (size_t k = 0; k < order.size(); ++k)
    if (t.stride(order[k]) == 0 || (k > 0 && t.stride(order[k - 1]) < t.stride(order[k]))) return false;
  return true;
}

// A write leaves the order of a tensor's elements in memory as it was: views that are taken of it later, and old ones
// that are read again, must find it so. Under vmap an example's elements may lie farther apart.
Tensor in_order_of(Wrapper& target, const Tensor& value) {
  const Tensor t = handle(target);
  if (value.numel() < 2 || value.strides() == t.strides() || !value.sizes().equals(t.sizes())) return value;
  const auto order = long_dims(t);
  if (!lies_in_order(t, order)) return value;
  Wrapper* w = as_wrapper(value);
  const bool mapped = target.level().kind() == Kind::vmap || (w && w->level().kind() == Kind::vmap);
  if (mapped || !is_dense(t, order) ? lies_in_order(value, order) : is_dense(value, order)) return value;
  std::vector<int64_t> there, back(static_cast<size_t>(t.dim()));
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.size(d) <= 1) there.push_back(d);
  there.insert(there.end(), order.begin(), order.end());
  for (size_t k = 0; k < there.size(); ++k) back[static_cast<size_t>(there[k])] = static_cast<int64_t>(k);
  return value.permute(there).clone(at::MemoryFormat::Contiguous).permute(back);
}

// A small part of a tensor that has been written to is read from it directly: a tape would know each version of a
// larger view between, and the gradient of a small part of that would be as large as the view.
std::optional<ShownPart> small_part(std::optional<ShownPart> part, bool recorded) {
  if (!part || part->base().view() || !is_small(part->numel(), part->base()) || !part->made_in_grad_mode(recorded))
    part.reset();
  return part;
}

// A part of the tensor replaced, in place where nobody else sees the old values.
Tensor overwritten(const Operator& scatter, Wrapper& base, const Tensor& value, c10::ArrayRef<IValue> view_args) {
  Stack call = call_on_part(as_it_is(handle(base)), value, view_args);
  const Reuse reuse(base);
  bind_call(scatter, call);
  return std::move(call[0]).toTensor();
}

// Whether a tensor has all elements of its root, in another shape or order: what replaces it may be the root's memory.
bool shows_all_of_root(Wrapper& w) {
  static const Operator &view = *Operator::find("aten::view", ""), &alias = *Operator::find("aten::_reshape_alias", "");
  Wrapper* at = &w;
  while (at->view()) {
    const auto part = ShownPart::shown_by(*at);
    if (part ? part->numel() != part->base().numel() : at->view()->op != &view && at->view()->op != &alias)
      return false;
    at = part ? &part->base() : &base_of(*at->view());
  }
  return true;
}

// Whether a tape, or LibTorch's autograd outside, knows where the value came from.
bool is_recorded(Tensor value) {
  while (Wrapper* w = as_wrapper(value)) {
    const Payload& payload = w->payload();
    if (w->level().heeds_no_grad() && payload.tracked()) return true;
    if (payload.tangent.defined() && is_recorded(payload.tangent)) return true;
    value = Tensor(payload.value);
  }
  return libtorch_records(value);
}

bool same_strides(const Tensor& a, const Tensor& b) {
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

}  // namespace

void make_view(const Operator& op, Stack& stack) {
  const size_t place = op.tensor_args()[0];
  const Tensor base = stack[place].isTensor() ? stack[place].toTensor() : Tensor();
  if (!as_wrapper(base)) return bind_call(op, stack);
  // Bytes taken for another dtype have no derivative. As the dtype that it has, it is a view like any other.
  static const Operator &as_dtype = *Operator::find("aten::view", "dtype"), &alias = *Operator::find("aten::alias", "");
  if (&op == &as_dtype && base.scalar_type() == stack[1].toScalarType()) {
    stack.pop_back();
    return make_view(alias, stack);
  }
  if (const Tensor memory = memory_around(op, base, stack.back()); memory.defined()) {
    stack[place] = memory;
    if (stack.back().isNone()) stack.back() = base.storage_offset();
    return make_view(op, stack);
  }
  View::Args args(stack.begin(), stack.end());
  args[place] = IValue(Tensor());
  Wrapper& of = *as_wrapper(base);
  std::optional<ShownPart> part;
  if (of.view() && of.root().generation() > 0 && &of.level() == &of.root().level())
    part = small_part(ShownPart::shown_by(of, op, args), c10::GradMode::is_enabled());
  if (part) stack.assign(1, part->read());
  else bind_call(op, stack);
  // What a decomposition makes besides belongs to the level on top, and so may the result: as a constant of that level.
  const int depth = as_wrapper(base)->level().depth();
  replace_outputs(stack, [&](Tensor&& t, size_t) { return strip_constants(t, depth); });
  // It reads by index, and what it orders that by is no view of this base. Of memory outside of a trace it is a view as
  // any other.
  if (Wrapper* w = is_as_strided(op) ? as_wrapper(stack[0].toTensor()) : nullptr; w && !is_memory_outside(*w))
    stack[0] = as_it_is(stack[0].toTensor());
  if (stack.size() == 1 && stack[0].isTensor()) return tie(stack[0].toTensor(), base, op, std::move(args), 0);
  size_t index = 0;
  for (const Tensor& out : flatten_outputs(stack)) tie(out, base, op, View::Args(args), index++);
}

void refresh(Wrapper& w) {
  View& view = *w.view();
  const uint32_t generation = w.root().generation();
  Wrapper& base = base_of(view);
  // The view was recorded or not when it was made, whatever the mode is where it happens to be read next.
  c10::AutoGradMode mode(view.recorded);
  const auto part = base.view() ? small_part(ShownPart::shown_by(w), view.recorded) : std::nullopt;
  if (!part) base.payload();  // the base may be an old view itself
  const Tensor now = part ? part->read() : view_again(view, handle(base));
  take_in_place(w, cuts_history(view) ? with_history_of(wrap(w.level(), Payload(w.stored())), now, true) : now);
  view.seen = generation;
  own_small_view(w);
}

Tensor as_it_is(const Tensor& t) {
  Wrapper* w = as_wrapper(t);
  if (!w) return t;
  Tensor copy = wrap(w->level(), Payload(w->payload()));
  copy_place(*as_wrapper(copy), *w);
  return copy;
}

bool is_memory_outside(Wrapper& w) {
  return w.shares_memory() && w.level().kind() == Kind::trace && w.payload().tracked();
}

bool may_give_up(Wrapper& w) { return !w.view() && !w.shares_memory() && w.payload().tracked(); }

Tensor view_below(Wrapper& w) {
  c10::SmallVector<const View*, 4> links;
  Wrapper* root = &w;
  for (; root->view(); root = &base_of(*root->view())) links.push_back(root->view().get());
  Tensor value = root->payload().value;
  const Below below(w.level());
  for (size_t k = links.size(); k-- > 0;) {
    const View& view = *links[k];
    const c10::AutoGradMode mode(view.recorded);
    Stack stack(view.args.begin(), view.args.end());
    stack[view.op->tensor_args()[0]] = value;
    make_view(*view.op, stack);
    value = flatten_outputs(stack)[view.out];
  }
  return value;
}

void check_writable(Wrapper& target, const Tensor& value, const Operator& writer) {
  if (target.root().shares_memory() && !is_memory_outside(target.root()) && as_wrapper(strip_constants(value)))
    throw MutationError(target.level().describe() + ": " + writer.name() +
                        " would write into memory that data() or set_ gave to a tensor, which others may see, but the "
                        "value differs with what the transform tracks. clone() the tensor first.");
  if (c10::GradMode::is_enabled())
    for (View* v = target.view().get(); v != nullptr && !cuts_history(*v); v = base_of(*v).view().get())
      if (!v->recorded && is_recorded(value))
        refuse(target, writer, *v,
               "in no_grad mode, a value whose history is recorded, and such a view keeps none. Make the view outside "
               "of no_grad, or write in no_grad mode, too.");
  const auto links = links_to_repetition(target);
  const std::string once = "Write to the tensor where each element of it is seen once, or clone() the view first.";
  for (View* v : links)
    if (!only_moves(*v->op)) refuse(target, writer, *v, "which shows elements more than once. " + once);
  if (!links.empty() && has_duplicates(positions_shown(links)))
    refuse(target, writer, *links.back(), "in which more than one element is the same memory. " + once);
  for (View* v = links.empty() ? target.view().get() : base_of(*links.back()).view().get(); v != nullptr;
       v = base_of(*v).view().get())
    if (!v->op->view_inverse)
      refuse(target, writer, *v,
             "and such a write cannot be carried to the tensor it views. Write to that tensor directly, or clone() the "
             "view first.");
}

bool is_replaced_by_scatter(const Tensor& target) {
  Wrapper* w = as_wrapper(target);
  if (!w || !w->view()) return false;
  const View& view = *w->view();
  return scatter_of(*view.op) && !base_of(view).view();
}

void write_through(Wrapper& target, const Tensor& value, const Operator& writer, bool is_new) {
  View* view = target.view().get();
  if (view == nullptr) {
    if (target.generation() == 0) Arguments::note_write(target);
    if (target.shares_memory()) write_memory(target, value);
    else take_in_place(target, recorded_or_not(target, in_order_of(target, value)));
    target.wrote();
    return;
  }
  const auto links = links_to_repetition(target);
  const Operator* scatter = scatter_of(*view->op);
  const bool direct = scatter && !base_of(*view).view();
  const auto part = links.empty() && !direct ? ShownPart::shown_by(target) : std::nullopt;
  Wrapper& base = part ? part->base() : base_of(links.empty() ? *view : *links.back());
  // A level above the base's own may keep what it computes with: then it must be the base as it is now.
  Wrapper* v = as_wrapper(value);
  const bool above = v && v->level().depth() > base.level().depth();
  const Tensor before = above ? as_it_is(handle(base)) : handle(base);
  Tensor updated = !links.empty() ? put_by_position(before, value, links)
                   : part ? part->write(value, shows_all_of_root(base) && may_give_up(base.root()) ? &target : nullptr)
                   : direct && may_give_up(base) ? overwritten(*scatter, base, value, view->args)
                                                 : view->op->view_inverse(before, value, view->args, view->out);
  updated = strip_constants(updated, base.level().depth());  // of what was made besides, as in make_view
  const Tensor own = is_new ? recorded_or_not(target, value) : Tensor();
  write_through(base, updated, writer);
  if (!is_new) return;  // read from the base when it is needed
  // What lies in memory as it should is known already; anything else is read again from the base.
  const bool fits = same_strides(handle(target), own);
  if (fits || cuts_history(*view)) take_in_place(target, own);
  if (fits) view->seen = target.root().generation();
  else if (cuts_history(*view)) refresh(target);
}

namespace {

// Whether any level, or LibTorch's autograd outside, follows how the value was computed.
bool has_derivatives(Tensor value) {
  while (Wrapper* w = as_wrapper(value)) {
    const Payload& payload = w->payload();
    if (w->level().kind() != Kind::vmap && payload.tracked()) return true;
    value = Tensor(payload.value);
  }
  return libtorch_follows(value);
}

// The same for the derivatives that LibTorch's own autograd knows.
Tensor with_libtorch_history_of(const Tensor& history, const Tensor& value, bool tangents) {
  const bool duals = tangents && (is_libtorch_dual(history) || is_libtorch_dual(value));
  if (!duals && !libtorch_records(history) && !libtorch_records(value)) return value;
  DispatchGuard keys;
  keys.see_every_operator(false);
  keys.with_libtorch_autograd();
  c10::AutoGradMode record(true);
  Tensor result = history.clone();
  c10::AutoGradMode value_only(false);
  c10::AutoFwGradMode tangent_of_value(!tangents);
  return result.copy_(value);
}

// The same as an operator of a graph: which derivatives there are is known when the graph is run.
const HigherOrderOperator& history_operator(bool tangents) {
  static const auto make = [](bool with_tangents) {
    HigherOrderRules rules;
    rules.name = with_tangents ? "value with history and tangents" : "value with history";
    rules.forward = [](const std::vector<Tensor>& x, const Attributes&) { return std::vector<Tensor>{x[1].alias()}; };
    rules.save = [](const auto&, const auto&, const Attributes&) { return Residuals{}; };
    rules.vjp = [](const Residuals&, const std::vector<Tensor>& cts, const std::vector<bool>&, const Attributes&) {
      return std::vector<Tensor>{cts[0], Tensor()};
    };
    rules.jvp = [with_tangents](const Residuals&, const std::vector<Tensor>& tangents, const Attributes&) {
      if (with_tangents) return std::vector<Tensor>{tangents[0]};
      if (!tangents[0].defined()) return std::vector<Tensor>{tangents[1]};
      const Tensor now = tangents[1].defined() ? tangents[1] : at::zeros_like(tangents[0]);
      return history_operator(false)({tangents[0], now});
    };
    return HigherOrderOperator(std::move(rules));
  };
  static const HigherOrderOperator reverse = make(false), both = make(true);
  return tangents ? both : reverse;
}

}  // namespace

Tensor with_history_of(const Tensor& history, const Tensor& value, bool tangents) {
  Wrapper* h = as_wrapper(history);
  Wrapper* v = as_wrapper(value);
  if (!h && !v) return with_libtorch_history_of(history, value, tangents);
  if (!has_derivatives(history) && !has_derivatives(value)) return value;
  Level& level = !h || (v && v->level().depth() > h->level().depth()) ? v->level() : h->level();
  const auto payload_at = [&](Wrapper* w, const Tensor& t) {
    return w && &w->level() == &level ? w->payload() : Payload{t, {}, -1};
  };
  Payload old = payload_at(h, history), now = payload_at(v, value);
  Payload result;
  if (level.kind() == Kind::vmap) {
    Below below(level);
    c10::AutoGradMode record(true);  // the history goes through what aligns the two
    int64_t size = -1;
    for (Payload* p : {&old, &now}) {
      if (p->tracked()) p->value = p->value.movedim(p->index, 0);
      if (p->tracked()) size = p->value.size(0);
    }
    if (size >= 0)
      for (Payload* p : {&old, &now}) {
        if (p->tracked()) continue;
        Sizes sizes{size};
        sizes.append(p->value.sizes().begin(), p->value.sizes().end());
        p->value = p->value.unsqueeze(0).expand(sizes);
      }
    result.index = size >= 0 ? 0 : -1;
  } else if (level.kind() == Kind::trace) {
    const c10::AutoGradMode record(true);
    return history_operator(tangents)({history, value})[0];
  } else if (level.kind() == Kind::vjp) {
    // Forward mode heeds no_grad as little as LibTorch's does.
    result.index = tangents || level.heeds_no_grad() ? old.index : now.index;
  } else {
    // So the tangent changes, and its own history stays.
    if (tangents || !old.tangent.defined()) result.tangent = tangents ? old.tangent : now.tangent;
    else
      result.tangent =
          with_history_of(old.tangent, now.tangent.defined() ? now.tangent : at::zeros_like(old.tangent), tangents);
  }
  result.value = with_history_of(old.value, now.value, tangents);
  return wrap(level, std::move(result));
}

namespace {
[[maybe_unused]] const bool is_known = (view_calls = {refresh, make_view}, true);
}

}  // namespace tower::frontend
