#include "frontend/mutation.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <mutex>
#include <unordered_map>

#include "core/bind.h"
#include "core/wrapper.h"
#include "frontend/views.h"
#include "tower/errors.h"

namespace tower::frontend {
namespace {

bool writes_to(const Operator& op, size_t arg) {
  const auto* alias = op.schema().arguments()[arg].alias_info();
  return alias && alias->isWrite();
}

bool is_out_argument(const Operator& op, size_t arg) { return op.schema().arguments()[arg].is_out(); }

// `candidate` takes what `op` takes, without out= arguments, and returns as many tensors as `op` writes.
bool fits(const Operator& op, const c10::FunctionSchema& candidate) {
  size_t at = 0, written = 0;
  for (size_t i = 0; i < op.num_args(); ++i) {
    written += writes_to(op, i);
    if (is_out_argument(op, i)) continue;
    if (at >= candidate.arguments().size()) return false;
    const auto& mine = op.schema().arguments()[i];
    const auto& its = candidate.arguments()[at++];
    if (mine.name() != its.name() || *mine.type() != *its.type()) return false;
    if (its.alias_info() && its.alias_info()->isWrite()) return false;
  }
  return at == candidate.arguments().size() && candidate.returns().size() == written;
}

std::string base_name(const Operator& op) {
  std::string name = op.schema().name();
  if (!name.empty() && name.back() == '_' && !name.ends_with("__")) name.pop_back();
  // __iand__ and its kin are the in-place forms of __and__ …
  if (name.starts_with("aten::__i") && name.ends_with("__")) name = "aten::__" + name.substr(9);
  return name;
}

const Operator* find_twin(const Operator& op) {
  const std::string base = base_name(op);
  for (const std::string& name : {base, base + "_functional"})
    for (const auto& candidate : c10::Dispatcher::singleton().getAllOpNames())
      if (candidate.name == name) {
        auto handle = c10::Dispatcher::singleton().findSchema(candidate);
        if (handle && fits(op, handle->schema())) return &Operator::of(*handle);
      }
  return nullptr;
}

[[noreturn]] void refuse(const Operator& op, const Level& level, const Tensor& target, const std::string& why) {
  throw MutationError(level.describe() + ": " + op.name() + " would write into a tensor of " + describe(target) + " " +
                      why);
}

int depth_of(const Tensor& t) {
  Wrapper* w = as_wrapper(t);
  return w ? w->level().depth() : 0;
}

// The written tensors, in order, with their argument positions.
std::vector<std::pair<size_t, Tensor>> targets_of(const Operator& op, const Stack& stack) {
  std::vector<std::pair<size_t, Tensor>> targets;
  for (size_t i = 0; i < op.num_args(); ++i) {
    if (!writes_to(op, i)) continue;
    if (!stack[i].isTensor())
      throw MutationError(
          op.name() +
          " writes to a list of tensors, which transforms do not support. Write to the tensors one by one.");
    targets.emplace_back(i, stack[i].toTensor());
  }
  return targets;
}

// A random number generator under vmap may owe each example its own draw, which a tensor from outside cannot hold.
void write_plain(const Operator& op, Stack& stack, const Tensor& target) {
  if (op.random())
    if (Level* mapped = nearest_vmap(top()))
      refuse(op, *mapped, target,
             "that was made outside of the mapped function, and random numbers may differ between examples. "
             "Make the tensor inside the function.");
  bind_call(op, stack);
}

void assign(const Operator& op, const Tensor& target, Tensor value, bool changes_shape) {
  Wrapper& w = *as_wrapper(target);
  Level& level = w.level();
  if (!changes_shape && !value.sizes().equals(target.sizes()))
    throw MutationError(level.describe() + ": " + op.name() + " gives " + describe(value) +
                        ", which does not fit the tensor it writes to, " + describe(target) +
                        ". An in-place operator cannot change a shape.");
  if (value.scalar_type() != target.scalar_type()) {
    // Pointwise operators cast their result to the written tensor where that loses no kind of number; others demand its
    // dtype. abs_ of complex numbers is LibTorch's one exception.
    if (!c10::canCast(value.scalar_type(), target.scalar_type()) || !op.pointwise_tag() || op.name() == "aten::abs_")
      throw MutationError(level.describe() + ": " + op.name() + ": result type " + c10::toString(value.scalar_type()) +
                          " can't be cast to the written tensor's type " + c10::toString(target.scalar_type()) + ".");
    value = at::_to_copy(value, target.scalar_type());
  }
  value = strip_constants(value, level.depth());
  if (depth_of(value) > level.depth())
    refuse(op, as_wrapper(value)->level(), target,
           "that was made outside of the " + std::string(as_wrapper(value)->level().label()) +
               "ped function, but the value differs with what the transform tracks. Make the tensor inside the "
               "function, or pass it in as an argument.");
  Payload payload{value, {}, -1};
  if (Wrapper* v = as_wrapper_of(value, level)) payload = v->payload();
  // As in LibTorch, a write under no_grad changes the value and leaves the history as it was.
  if (level.kind() == Kind::vjp && !c10::GradMode::is_enabled()) payload.index = w.payload().index;
  if (level.kind() == Kind::vmap && payload.tracked() && payload.index != 0) {
    payload.value = payload.value.movedim(payload.index, 0);
    payload.index = 0;
  }
  if (changes_shape && w.has_views())
    refuse(op, level, target, "whose shape it changes in place, while views of it exist. Use the functional operator.");
  if (changes_shape && w.view())
    refuse(op, level, target, "that is a view, and would change its shape in place. Use the functional operator.");
  write_through(w, std::move(payload), op);
}

}  // namespace

const Operator* functional_twin(const Operator& op) {
  static std::mutex mutex;
  static std::unordered_map<const Operator*, const Operator*> twins;
  std::lock_guard lock(mutex);
  auto [it, fresh] = twins.try_emplace(&op, nullptr);
  if (fresh) it->second = find_twin(op);
  return it->second;
}

void write(const Operator& op, Stack& stack) {
  auto targets = targets_of(op, stack);
  if (!highest_level(op, stack)) return write_plain(op, stack, targets.empty() ? Tensor() : targets[0].second);
  // Composite in-place operators know their own checks; composite out= operators write through memory of their own.
  const Operator* twin = functional_twin(op);
  const bool into_out = is_out_argument(op, targets.at(0).first);
  if ((!twin || !into_out) && decompose(op, stack)) return;
  for (const auto& [arg, target] : targets) {
    if (as_wrapper(target)) continue;
    // A tensor from outside: only values that no transform tracks may go in.
    replace_tensors(op, stack, [](const Tensor& t, LeafRef) { return strip_constants(t); });
    Level* tracking = nullptr;
    for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) {
      if (Wrapper* w = as_wrapper(t)) tracking = &w->level();
    });
    if (!tracking) return write_plain(op, stack, target);
    refuse(
        op, *tracking, target,
        "that was made outside of the transformed function, but the value differs with what the transform tracks "
        "(the example, the tangent or the tape). Make the tensor inside the function, or pass it in as an argument.");
  }
  if (!twin) {
    Level* level = as_wrapper(targets.at(0).second) ? &as_wrapper(targets[0].second)->level() : top();
    refuse(op, *level, targets[0].second,
           "and has no functional form that could stand for it. Use a functional operator.");
  }
  Stack call;
  call.reserve(twin->num_args());
  for (size_t i = 0; i < op.num_args(); ++i)
    if (!is_out_argument(op, i)) call.push_back(stack[i]);
  if (twin->composite()) decompose(*twin, call);
  else bind_call(*twin, call);
  auto values = flatten_outputs(call);
  stack.clear();
  for (size_t k = 0; k < targets.size(); ++k) {
    const Tensor& target = targets[k].second;
    // LibTorch gives an empty out= tensor the shape of the result.
    const bool grows = into_out && target.numel() == 0 && !values[k].sizes().equals(target.sizes());
    assign(op, target, values[k], op.inplace_view() || grows);
    if (k < op.num_outs()) stack.emplace_back(targets[k].second);
  }
}

}  // namespace tower::frontend
