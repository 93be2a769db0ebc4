// Running an operator once for each example: the fallback for operators without a batching rule, and the way random
// operators draw for each example.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <set>

#include "core/bind.h"
#include "interpreters/generators.h"
#include "interpreters/vmap.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower {
namespace {

std::atomic<bool> loop_is_error{false};

void announce_loop(const Level& level, const Operator& op) {
  if (loop_is_error)
    throw UnsupportedError(level.describe() + ": " + op.name() +
                           " has no batching rule, and falling back to a loop over the batch was made an error.");
  static std::mutex mutex;
  static auto* announced = new std::set<std::string>;
  {
    std::lock_guard lock(mutex);
    if (!announced->insert(op.name()).second) return;
  }
  TORCH_WARN(level.describe(), ": ", op.name(),
             " has no batching rule; it runs once for each example of the batch, which is slow.");
}

// The arguments of one example; `b` < 0 makes an example of zeros, to learn shapes from when the batch is empty. Zeros
// that follow from the argument, as what is computed of them does: a process without examples has the derivatives that
// others have, and sums them with these.
Stack example(const VmapFrame& frame, int64_t b) {
  Stack stack(frame.stack.begin(), frame.stack.end());
  replace_tensors(frame.op, stack, [&](const Tensor& t, LeafRef leaf) {
    const int64_t dim =
        frame.op.kind(leaf.arg) == ArgKind::tensor ? frame.in_dims[leaf.arg] : frame.list_dims[leaf.arg][leaf.element];
    if (dim == VmapFrame::kUnbatched) return t;
    if (b >= 0) return t.select(dim, b);
    if (t.is_floating_point() || t.is_complex()) return t.sum(dim);
    Sizes sizes(t.sizes());
    sizes.erase(sizes.begin() + dim);
    return at::zeros(sizes, t.options());
  });
  return stack;
}

[[noreturn]] void refuse_data_dependent(const Level& level, const Operator& op, const std::string& found) {
  throw UnsupportedError(
      level.describe() + ": " + op.name() + " gives " + found +
      ", so its results cannot be stacked to a batch. Use an operator whose result has one shape, such "
      "as where().");
}

template <class CallOne>
void loop(const Level& level, VmapFrame& frame, CallOne&& call_one) {
  std::vector<std::vector<Tensor>> collected;  // by output, by example
  std::vector<bool> is_list;
  std::vector<size_t> list_sizes;
  const int64_t examples = std::max<int64_t>(frame.batch_size, 1);
  for (int64_t b = 0; b < examples; ++b) {
    Stack stack = example(frame, frame.batch_size == 0 ? -1 : b);
    call_one(stack);
    size_t leaf = 0;
    for (size_t i = 0; i < stack.size(); ++i) {
      if (!stack[i].isTensor() && !stack[i].isTensorList())
        refuse_data_dependent(level, frame.op, "a result that is not a tensor and may differ between examples");
      if (b == 0) {
        is_list.push_back(stack[i].isTensorList());
        list_sizes.push_back(stack[i].isTensorList() ? stack[i].toListRef().size() : 1);
      } else if (stack[i].isTensorList() && stack[i].toListRef().size() != list_sizes[i]) {
        refuse_data_dependent(level, frame.op, "lists of different lengths for different examples");
      }
    }
    for (const Tensor& t : flatten_outputs(stack)) {
      if (b == 0) collected.emplace_back();
      if (b > 0 && t.defined() && !t.sizes().equals(collected[leaf][0].sizes()))
        refuse_data_dependent(level, frame.op,
                              "results of different shapes for different examples, " + describe(collected[leaf][0]) +
                                  " and " + describe(t));
      collected[leaf++].push_back(t);
    }
  }
  auto stacked = [&](const std::vector<Tensor>& parts) {
    if (!parts[0].defined()) return Tensor();
    Tensor all = at::stack(parts, 0);
    return frame.batch_size == 0 ? all.narrow(0, 0, 0) : all;
  };
  frame.stack.clear();
  size_t leaf = 0;
  for (size_t i = 0; i < is_list.size(); ++i) {
    if (!is_list[i]) {
      frame.stack.emplace_back(stacked(collected[leaf++]));
      continue;
    }
    c10::List<Tensor> list;
    for (size_t e = 0; e < list_sizes[i]; ++e) list.push_back(stacked(collected[leaf++]));
    frame.stack.emplace_back(std::move(list));
  }
  frame.out_dims.assign(leaf, 0);
}

// The position of an int[] argument that gives the shape of the result; num_args() if there is none.
size_t size_argument(const Operator& op) {
  for (size_t i = 0; i < op.num_args(); ++i)
    if (op.schema().arguments()[i].name() == "size") return i;
  return op.num_args();
}

// False for a layer such as dropout that is told that this is not training.
bool draws(const Operator& op, const Stack& stack) {
  for (size_t i = 0; i < op.num_args(); ++i) {
    const std::string& name = op.schema().arguments()[i].name();
    if ((name == "train" || name == "training") && stack[i].isBool()) return stack[i].toBool();
  }
  return true;
}

}  // namespace

at::Generator generator_of(const Stack& stack) {
  at::Device device = at::kCPU;
  for (const auto& v : stack) {
    if (v.isGenerator()) return v.toGenerator();
    if (v.isTensor() && v.toTensor().defined()) device = v.toTensor().device();
    if (v.isDevice()) device = v.toDevice();
  }
  return at::globalContext().defaultGenerator(device);
}

Tensor state_of(at::Generator& generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const Tensor& state) {
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

void SharedDraws::note(const at::Generator& generator) {
  for (const auto& [known, state] : states_)
    if (known == generator) return;
  at::Generator g = generator;
  states_.emplace_back(g, state_of(g));
}

void SharedDraws::note(at::Device device) {
  // Others, such as meta, have none.
  if (device.is_cpu() || at::isAccelerator(device.type())) note(at::globalContext().defaultGenerator(device));
}

void SharedDraws::note(at::ArrayRef<Tensor> arguments) {
  note(at::Device(at::kCPU));
  for (const Tensor& t : arguments)
    if (t.defined()) note(t.device());
}

void SharedDraws::note(const Stack& arguments) {
  note(at::Device(at::kCPU));
  for (const auto& v : arguments) {
    if (v.isGenerator()) note(v.toGenerator());
    if (v.isDevice()) note(v.toDevice());
    if (v.isTensor()) note(at::ArrayRef<Tensor>(v.toTensor()));
    if (v.isTensorList()) note(at::ArrayRef<Tensor>(v.toTensorVector()));
  }
}

void SharedDraws::rewind() {
  for (auto& [generator, state] : states_) set_state(generator, state);
}

bool SharedDraws::moved() const {
  DispatchGuard keys;
  keys.see_no_operator();  // a trace does not record it
  for (auto [generator, state] : states_)
    if (!at::equal(state_of(generator), state)) return true;
  return false;
}

bool fallback_is_error(bool yes) { return loop_is_error.exchange(yes); }

void run_loop(const Level& level, VmapFrame& frame, bool announce) {
  if (announce) announce_loop(level, frame.op);
  loop(level, frame, [&](Stack& stack) { bind_call(frame.op, stack); });
}

namespace {

// Tells whether an operator whose code is not known draws random numbers, and lets each call draw the same ones.
class Draws {
 public:
  Draws(Vmap& level, const VmapFrame& frame) : level_(level) {
    if (level.randomness() == Randomness::same && level.shared_draws()) level.shared_draws()->note(frame.stack);
    before_.note(frame.stack);
  }
  void rewind() {
    if (level_.randomness() == Randomness::same) before_.rewind();
  }
  bool happened() {
    DispatchGuard keys;
    keys.see_no_operator();
    return before_.moved();
  }

 private:
  Vmap& level_;
  SharedDraws before_;
};

}  // namespace

void run_foreign_loop(Vmap& level, VmapFrame& frame) {
  announce_loop(level, frame.op);
  Draws draws(level, frame);
  loop(level, frame, [&](Stack& stack) {
    draws.rewind();
    bind_call(frame.op, stack);
    if (level.randomness() == Randomness::error && draws.happened()) refuse_random(level, frame.op);
  });
}

void run_foreign_once(Vmap& level, VmapFrame& frame) {
  Draws draws(level, frame);
  bind_call(frame.op, frame.stack);
  if (level.randomness() == Randomness::same || !draws.happened()) return;
  if (level.randomness() == Randomness::error) refuse_random(level, frame.op);
  throw RandomnessError(level.describe() + ": " + frame.op.name() +
                        " draws random numbers, but none of its arguments is mapped, so it ran once for all examples. "
                        "Pass it a tensor that is mapped, or use " +
                        detail::spellings().same_draws + ".");
}

bool Vmap::draws_for_each(const Operator& op) const {
  if (randomness_ == Randomness::error) refuse_random(*this, op);
  return randomness_ == Randomness::different;
}

void refuse_random(const Vmap& level, const Operator& op) {
  throw RandomnessError(
      level.describe() + ": " + op.name() +
      " draws random numbers. Say what that means for a batch: " + detail::spellings().different_draws +
      " draws for each example, " + detail::spellings().same_draws + " shares one draw.");
}

void run_random(Vmap& level, const Operator& op, VmapFrame& frame) {
  bool any_batched = false;
  for (int64_t dim : frame.in_dims) any_batched = any_batched || dim >= 0;
  for (const auto& dims : frame.list_dims)
    for (int64_t dim : dims) any_batched = any_batched || dim >= 0;
  if (!draws(op, frame.stack)) {
    if (op.vmap) return op.vmap(frame);
    return loop(level, frame, [&](Stack& stack) { bind_call(op, stack); });
  }
  switch (level.randomness()) {
    case Randomness::error:
      refuse_random(level, op);
    case Randomness::same: {
      if (level.shared_draws()) level.shared_draws()->note(frame.stack);
      if (!any_batched) {
        bind_call(op, frame.stack);
        frame.out_dims.assign(flatten_outputs(frame.stack).size(), VmapFrame::kUnbatched);
        return;
      }
      SharedDraws first;
      first.note(frame.stack);
      return loop(level, frame, [&](Stack& stack) {
        first.rewind();
        bind_call(op, stack);
      });
    }
    case Randomness::different: {
      if (op.vmap) return op.vmap(frame);
      const size_t size = size_argument(op);
      if (!any_batched && size < op.num_args()) {
        std::vector<int64_t> sizes = frame.stack[size].toIntVector();
        sizes.insert(sizes.begin(), frame.batch_size);
        frame.stack[size] = sizes;
        return bind_call(op, frame.stack);
      }
      return loop(level, frame, [&](Stack& stack) { bind_call(op, stack); });
    }
  }
}

}  // namespace tower
