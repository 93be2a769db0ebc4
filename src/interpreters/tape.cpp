#include "interpreters/tape.h"

#include <ATen/Functions.h>
#include <ATen/SavedTensorHooks.h>

#include <utility>

#include "core/bind.h"
#include "core/of_thread.h"
#include "core/reuse.h"
#include "core/wrapper.h"
#include "frontend/views.h"
#include "interpreters/derivatives.h"
#include "interpreters/pending.h"
#include "tower/detail/saved_tensor_hooks.h"
#include "tower/errors.h"

namespace tower {

bool (*detail::may_pass_over_hooks)(const c10::SafePyObject& pack) = nullptr;

namespace {

// LibTorch's state of this thread, whose address costs a call.
const at::impl::SavedTensorDefaultHooksTLS& saved_tensor_hooks() {
  static thread_local const at::impl::SavedTensorDefaultHooksTLS* state = &at::SavedTensorDefaultHooks::get_tls_state();
  return *state;
}

[[gnu::noinline]] void check_hooks(const std::string& label, const Operator& op) {
  const auto& pack = saved_tensor_hooks().stack.top().first;
  if (detail::may_pass_over_hooks && detail::may_pass_over_hooks(pack)) return;
  throw UnsupportedError(
      label + ": " + op.name() +
      " was called while hooks for saved tensors are active "
      "(torch.autograd.graph.saved_tensors_hooks, save_on_cpu). The transforms of reverse mode don't "
      "yet support saved tensor hooks: what a tape keeps does not go through them. Leave their "
      "context before.");
}

template <class F>
void for_each_kept(const Node& node, F&& f) {
  for (const auto& v : node.kept) {
    if (v.isTensor()) {
      if (v.toTensor().defined()) f(v.toTensor());
    } else if (v.isList()) {
      for (const auto& e : v.toListRef())
        if (e.isTensor() && e.toTensor().defined()) f(e.toTensor());
    }
  }
}

// NOTE [Gradients of parts]
// The gradient of a part of a tensor is zero but for the part. It is added there to what has come together for the
// tensor already, in place if that is nobody else's: a thousand rows that are read cost a thousand rows.
void add_to_shown(const Node& node, const Operator& scatter, const Tensor& g, Tensor& sum) {
  const bool in_place = is_own(sum) && is_plain(g);
  const auto args = c10::ArrayRef<IValue>(node.kept).slice(0, node.op->num_args());
  Stack part = call_on_part(sum, args);
  bind_call(*node.op, part);
  if (in_place) {
    part[0].toTensor().add_(g);
    return;
  }
  Stack call = call_on_part(Tensor(), at::add(part[0].toTensor(), g), args);
  part.clear();
  call[0] = std::move(sum);
  sum = call_overwriting(scatter, std::move(call));
}

// What a tensor is read by, and what adds to it there: the same arguments with the source at the end, and some more.
struct Adder {
  const Operator* scatter;
  std::optional<IValue> last;
};
const Adder* adder_of(const Operator& op) {
  static const auto find = [](const char* name, const char* overload) { return Operator::find(name, overload); };
  static const std::pair<const Operator*, Adder> known[] = {
      {find("aten::index", "Tensor"), {find("aten::index_put", ""), true}},
      {find("aten::index_select", ""), {find("aten::index_add", ""), 1}},
      {find("aten::gather", ""), {find("aten::scatter_add", ""), std::nullopt}}};
  for (const auto& [read, adder] : known)
    if (read == &op) return &adder;
  return nullptr;
}

void add_by_index(const Node& node, const Adder& adder, const Tensor& g, Tensor& sum) {
  Stack call{IValue()};
  for (size_t i = 1; i < adder.scatter->num_args() - (adder.last ? 2 : 1); ++i) call.push_back(node.kept[i]);
  call.emplace_back(g);
  if (adder.last) call.push_back(*adder.last);
  call[0] = std::move(sum);
  sum = call_overwriting(*adder.scatter, std::move(call));
}

// Whether it was done.
bool add_to_part(const Node& node, const Tensor& g, Tensor& sum) {
  const Operator& op = *node.op;
  if (!sum.defined() || !g.defined() || sum.numel() < kSmall * g.numel() || sum.scalar_type() != g.scalar_type() ||
      op.custom)
    return false;
  if (const Operator* scatter = op.is_view() ? scatter_of(op) : nullptr) {
    add_to_shown(node, *scatter, g, sum);
    return true;
  }
  const Adder* adder = adder_of(op);
  if (adder) add_by_index(node, *adder, g, sum);
  return adder != nullptr;
}

// What one reverse pass needs for every slot. The thread keeps the memory: allocations of this size, made once a pass,
// would make malloc tidy up all the small ones each time. A pass inside a pass (a rule that differentiates) finds it
// taken, and allocates.
struct Cotangent {
  Tensor sum;
  bool is_input = false;
};
struct KeptCotangents {
  std::vector<Cotangent> by_slot;
};

class Cotangents {
 public:
  explicit Cotangents(size_t slots) : by_slot_(std::move(of_thread<KeptCotangents>().by_slot)) {
    by_slot_.resize(slots);
  }
  ~Cotangents() {
    constexpr size_t kMost = 1 << 16;
    by_slot_.clear();
    if (by_slot_.capacity() <= kMost) of_thread<KeptCotangents>().by_slot = std::move(by_slot_);
  }
  Cotangents(const Cotangents&) = delete;
  Cotangents& operator=(const Cotangents&) = delete;
  Cotangent& operator[](int64_t slot) { return by_slot_[static_cast<size_t>(slot)]; }

 private:
  std::vector<Cotangent> by_slot_;
};

void keep_shapes(Node& node, const IValue& v) {
  if (!node.shapes) node.shapes = std::make_unique<std::vector<Meta>>();
  if (v.isTensor()) node.shapes->emplace_back(v.toTensor().defined() ? Meta(v.toTensor()) : Meta());
  else if (v.isList()) {
    for (const auto& e : v.toListRef()) node.shapes->emplace_back(e.toTensor());
  } else node.shapes->emplace_back();
}

// `v` with each tensor, alone or in a list, put through `f`.
template <class F>
IValue with_tensors(const IValue& v, F&& f) {
  if (v.isTensor()) return v.toTensor().defined() ? IValue(f(v.toTensor())) : v;
  if (!v.isTensorList() && !v.isOptionalTensorList()) return v;
  IValue list = v;
  const auto of_element = [&](const Tensor& t, LeafRef) { return f(t); };
  replace_tensors_in_list(list, 0, of_element);
  return list;
}

}  // namespace

Tensor as_held(const Tensor& t) {
  const Wrapper* w = as_wrapper(t);
  return w && is_visible(&w->level()) ? frontend::as_it_is(t) : t;
}

int64_t Tape::add_input(const Tensor& value) {
  slots_.emplace_back(value);
  return static_cast<int64_t>(slots_.size()) - 1;
}

Node& Tape::record(const Operator& op, c10::ArrayRef<IValue> args, Node::Inputs&& inputs, Mask tracked, Mask held) {
  if (refuses_hooks_ && !saved_tensor_hooks().stack.empty()) check_hooks(label_, op);
  const bool reverse = purpose_ == Purpose::pullback;
  const Served served = reverse ? served_vjp(op, tracked) : served_jvp(op, tracked);
  const Keeps keeps = reverse ? keeps_for_vjp(op, tracked, served) : keeps_for_jvp(op, tracked, served);
  Node& node = nodes_.emplace_back(op, std::move(inputs), tracked, served, keeps);
  node.kept.reserve(args.size() + op.num_outs());
  for (size_t i = 0; i < args.size(); ++i) {
    const IValue& v = args[i];
    if (op.kind(i) == ArgKind::other) node.kept.push_back(v);
    else if (keeps.args >> i & 1) node.kept.push_back(held >> i & 1 ? with_tensors(v, as_held) : v);
    else if (v.isList()) node.kept.emplace_back(static_cast<int64_t>(v.toListRef().size()));  // its length
    else node.kept.emplace_back();
    if (keeps.shapes >> i & 1) keep_shapes(node, v);
  }
  return node;
}

int64_t Tape::complete(Node& node, c10::ArrayRef<IValue> outs, Operator::Values saved) {
  node.first_slot = static_cast<int64_t>(slots_.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    const IValue& v = outs[i];
    if (node.keeps.outs >> i & 1) node.kept.push_back(v);
    else node.kept.emplace_back();
    if (v.isTensor()) {
      slots_.emplace_back(meta_of_output(v.toTensor()));
    } else if (v.isTensorList()) {
      for (const auto& e : v.toListRef()) slots_.emplace_back(meta_of_output(e.toTensor()));
    }
  }
  for (IValue& v : saved) node.kept.push_back(std::move(v));
  node.num_outs = static_cast<uint32_t>(slots_.size() - static_cast<size_t>(node.first_slot));
  for_each_kept(node, [&](const Tensor& t) {
    node.versions += write_count(t);
    plain_ = plain_ && is_plain(t);
  });
  return node.first_slot;
}

void Tape::check_unchanged(const Node& node) const {
  uint64_t now = 0;
  for_each_kept(node, [&](const Tensor& t) { now += write_count(t); });
  if (now != node.versions)
    throw DerivativeError(label_ + ": a tensor that the derivative of " + node.op->name() +
                          " needs was modified by an in-place operation after the function had run. Clone it before "
                          "writing to it.");
}

Frame Tape::frame_of(const Node& node) {
  const IValue *args = node.kept.begin(), *outs = args + node.op->num_args(), *saved = outs + node.op->num_outs();
  using Values = c10::ArrayRef<IValue>;
  return {*node.op,          Values(args, outs), Values(outs, saved),
          node.shapes.get(), node.keeps.shapes,  Values(saved, node.kept.end())};
}

void Tape::prune(c10::ArrayRef<int64_t> outputs) {
  std::vector<bool> needed(slots_.size(), false);
  for (int64_t slot : outputs)
    if (slot >= 0) needed[static_cast<size_t>(slot)] = true;
  for (size_t n = nodes_.size(); n-- > 0;) {
    Node* node = &nodes_[n];
    if (node->empty()) continue;
    bool reached = false;
    for (uint32_t k = 0; k < node->num_outs; ++k)
      reached = reached || needed[static_cast<size_t>(node->first_slot) + k];
    if (!reached) {
      node->release();
      continue;
    }
    for (const auto& input : node->inputs) needed[static_cast<size_t>(input.slot)] = true;
  }
}

std::vector<Tensor> Tape::pull_back(c10::ArrayRef<int64_t> outputs, c10::ArrayRef<Tensor> cotangents,
                                    c10::ArrayRef<int64_t> inputs, bool consume) {
  if (consumed_)
    throw ConsumedError(label_ +
                        ": this pullback freed what it had recorded when it was called the first time. Ask for "
                        "a pullback that can be called again.");
  consumed_ = consume;
  Cotangents by_slot(slots_.size());
  bool plain = plain_;
  const auto accumulate = [&](int64_t slot, Tensor&& g) {
    if (!g.defined()) return;
    // That of a number of the CPU comes from the device of what it was used with.
    if (g.dim() == 0 && g.device() != meta(slot).device) g = g.to(meta(slot).device);
    Tensor& sum = by_slot[slot].sum;
    sum = sum.defined() ? add_overwriting(std::move(sum), std::move(g)) : std::move(g);
  };
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!cotangents[k].defined() || outputs[k] < 0) continue;
    plain = plain && is_plain(cotangents[k]);
    accumulate(outputs[k], Tensor(cotangents[k]));
  }

  DispatchGuard keys;
  keys.see_every_operator(false);
  keys.skip_autocast();
  if (plain) keys.skip_libtorch_autograd();
  for (int64_t slot : inputs)
    if (slot >= 0) by_slot[slot].is_input = true;

  PendingGradients pending(plain && !top());
  c10::SmallVector<Tensor, 2> of_outputs;
  c10::SmallVector<LeafRef, 4> wanted;
  c10::SmallVector<const Meta*, 4> wanted_meta;
  for (size_t n = nodes_.size(); n-- > 0;) {
    Node& node = nodes_[n];
    if (node.empty()) continue;
    of_outputs.clear();
    bool any = false;
    if (!pending.empty()) pending.settle(node.first_slot, node.num_outs, accumulate);
    for (uint32_t k = 0; k < node.num_outs; ++k) {
      Cotangent& at = by_slot[node.first_slot + k];
      any = any || at.sum.defined();
      of_outputs.push_back(at.is_input ? at.sum : std::move(at.sum));
    }
    const auto goes_to_part = [&] {
      if (node.inputs.size() != 1) return false;
      return add_to_part(node, of_outputs[0], by_slot[node.inputs[0].slot].sum);
    };
    if (any) check_unchanged(node);
    if (any && !goes_to_part()) {
      wanted.clear();
      wanted_meta.clear();
      for (const auto& input : node.inputs) {
        wanted.push_back(input.leaf);
        wanted_meta.push_back(&meta(input.slot));
      }
      VjpFrame frame{frame_of(node), of_outputs, wanted, wanted_meta, {}, node.tracked};
      frame.gradients.resize(wanted.size());
      pending.before(frame);
      run_vjp(frame, node.served);
      pending.after(node.inputs);
      for (size_t k = 0; k < node.inputs.size(); ++k) accumulate(node.inputs[k].slot, std::move(frame.gradients[k]));
    }
    if (consume) node.release();
  }
  if (!pending.empty()) pending.settle(0, static_cast<int64_t>(slots_.size()), accumulate);
  std::vector<Tensor> result;
  result.reserve(inputs.size());
  for (int64_t slot : inputs) result.push_back(slot >= 0 ? by_slot[slot].sum : Tensor());
  return result;
}

std::vector<Tensor> Tape::push_forward(c10::ArrayRef<int64_t> inputs, c10::ArrayRef<Tensor> tangents,
                                       c10::ArrayRef<int64_t> outputs) {
  std::vector<Tensor> by_slot(slots_.size());
  // Where a slot is read for the last time, counted over all nodes' inputs: its tangent goes with that reading, and the
  // operator may overwrite it. Outputs are read at the end.
  constexpr size_t kNever = 0, kAtTheEnd = ~size_t{0};
  std::vector<size_t> last_read(slots_.size(), kNever);
  size_t reading = 0;
  for (size_t n = 0; n < nodes_.size(); ++n)
    for (const auto& input : nodes_[n].inputs) last_read[static_cast<size_t>(input.slot)] = ++reading;
  for (int64_t slot : outputs)
    if (slot >= 0) last_read[static_cast<size_t>(slot)] = kAtTheEnd;
  reading = 0;
  bool plain = plain_;
  for (size_t k = 0; k < inputs.size(); ++k) {
    by_slot[static_cast<size_t>(inputs[k])] = tangents[k];
    if (tangents[k].defined()) plain = plain && is_plain(tangents[k]);
  }
  DispatchGuard keys;
  keys.see_every_operator(false);
  keys.skip_autocast();
  if (plain) keys.skip_libtorch_autograd();
  c10::SmallVector<Tensor, 4> leaves;
  c10::SmallVector<const Meta*, 2> outs_meta;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    if (node.empty()) continue;
    bool any = false;
    for (const auto& input : node.inputs) any = any || by_slot[static_cast<size_t>(input.slot)].defined();
    const size_t first_reading = reading;
    reading += node.inputs.size();
    if (!any) continue;
    check_unchanged(node);
    const auto kept = c10::ArrayRef<IValue>(node.kept);
    leaves.clear();
    size_t next = 0;
    Mask moving = 0;  // the arguments with a tangent: rules for others are not to be asked
    for (uint8_t i : node.op->tensor_args()) {
      const size_t count = kept[i].isInt()    ? static_cast<size_t>(kept[i].toInt())
                           : kept[i].isList() ? kept[i].toListRef().size()
                                              : 1;
      for (size_t e = 0; e < count; ++e) {
        const bool tracked =
            next < node.inputs.size() && node.inputs[next].leaf.arg == i && node.inputs[next].leaf.element == e;
        leaves.emplace_back();
        if (tracked) {
          const auto slot = static_cast<size_t>(node.inputs[next++].slot);
          if (last_read[slot] == first_reading + next) leaves.back() = std::move(by_slot[slot]);
          else leaves.back() = by_slot[slot];
        }
        if (leaves.back().defined()) moving |= Mask{1} << i;
      }
    }
    outs_meta.clear();
    for (uint32_t k = 0; k < node.num_outs; ++k) outs_meta.push_back(&meta(node.first_slot + k));
    JvpFrame frame{frame_of(node), leaves, {}, outs_meta};
    frame.tangents.resize(node.num_outs);
    run_jvp(frame, moving, node.served);
    for (uint32_t k = 0; k < node.num_outs; ++k) {
      const size_t slot = static_cast<size_t>(node.first_slot) + k;
      if (last_read[slot] != kNever) by_slot[slot] = std::move(frame.tangents[k]);
    }
  }
  std::vector<Tensor> result;
  for (int64_t slot : outputs) result.push_back(slot >= 0 ? by_slot[static_cast<size_t>(slot)] : Tensor());
  return result;
}

namespace {

// Whether a write to `original` would change `t`.
bool shares_memory(const Tensor& t, const Tensor& original) {
  Wrapper* w = as_wrapper(t);
  Wrapper* o = as_wrapper(original);
  if (w && o) return &w->root() == &o->root();
  return !w && !o && t.is_alias_of(original);
}

}  // namespace

void Tape::preserve(const Tensor& original) {
  uint64_t change = 0;
  const Tensor written = strip_constants(original);
  const auto own = [&](const Tensor& kept) {
    const Tensor t = strip_constants(kept);
    if (!shares_memory(t, written)) return kept;
    const Tensor copy = as_wrapper(t) ? frontend::as_it_is(t) : t.clone();
    change += write_count(copy) - write_count(kept);
    return copy;
  };
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    if (node.empty()) continue;
    for (IValue& v : node.kept) v = with_tensors(v, own);
    node.versions += std::exchange(change, uint64_t{0});
  }
}

}  // namespace tower
