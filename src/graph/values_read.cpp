// What a function reads of values while it is traced (graph/trace.h).
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

#include "core/bind.h"
#include "graph/split.h"
#include "graph/trace.h"
#include "interpreters/mapped.h"

namespace tower::compiler {

// NOTE [Values that were read]
// A function that reads a value (a check of its arguments, `if x.any():`) does what it does because of that value, and
// its graph is right where the value is the same. So what was read is a graph of its own, of the same arguments, which
// is run before: with other values there, the function is traced again, and raises what it raises or has another graph.
// Only bools of what is computed are read so, as numbers hardly come again; a captured tensor is compared whole, and
// any number in it may be read. What is read may neither be drawn nor come after a write, which has not happened by
// then.
bool Trace::decide(const Tensor& answer, bool& value) {
  Wrapper* w = as_wrapper_of(answer, *this);
  const Tensor below = w ? Tensor(w->payload().value) : answer;
  const ValueId id = w && w->payload().tracked() ? ValueId{w->payload().index} : kNoValue;
  if (id != kNoValue) {
    Graph part = graph_;
    part.results.assign(1, id);
    part = without_results(part, 0);
    const auto differs = [](const Call& call) { return call.random() || call.opaque() || call.effect; };
    if (std::any_of(part.calls.begin(), part.calls.end(), differs)) return false;
  }
  {
    const Below here(*this);
    value = at::is_nonzero(below);
  }
  if (id != kNoValue) reads_.emplace_back(id, value);
  return true;
}

// Whether the operands are captured tensors and constants. Then the graph is for their values.
bool Trace::know_values(const Operator& op, Stack& stack) {
  if (!may_read_ || op.random() || image_of(op) || innermost(op).foreign()) return false;
  bool known = true;
  std::vector<std::pair<Tensor, Tensor>> outside;
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper_of(t, *this);
    const Tensor value = w ? Tensor(w->payload().value) : t;
    const Tensor memory = memory_outside(t);
    known = known && (memory.defined() || is_constant(value)) && !as_wrapper(value);
    if (memory.defined()) outside.emplace_back(t, value);
    return t;
  });
  if (!known) return false;
  const auto writes = [](const Call& call) { return call.effect || call.opaque(); };
  if (!outside.empty() && std::any_of(graph_.calls.begin(), graph_.calls.end(), writes)) return false;
  for (const auto& [t, value] : outside) {
    Tensor now;
    {
      const Below here(*this);
      DispatchGuard keys;
      keys.see_no_operator();
      now = value.detach().clone();
    }
    know_constant(now);
    const AsUserCode user;
    const Tensor same = t.eq(now).logical_or(t.ne(t).logical_and(now.ne(now))).all();
    bool is_same = false;
    if (!decide(same, is_same) || !is_same) return false;
  }
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper_of(t, *this);
    return w ? Tensor(w->payload().value) : t;
  });
  {
    const Below here(*this);
    DispatchGuard keys;
    keys.see_no_operator();
    op.call(stack);
  }
  replace_outputs(stack, [&](Tensor&& made, size_t) {
    if (made.has_storage()) know_constant(made);
    return wrap_constant(*this, std::move(made));
  });
  return true;
}

bool Trace::read(const Operator& op, Stack& stack) {
  if (know_values(op, stack)) return true;
  const auto writes = [](const Call& call) { return call.effect || call.opaque(); };
  if (!may_read_ || std::any_of(graph_.calls.begin(), graph_.calls.end(), writes)) return false;
  static const Operator &item = *Operator::find("aten::_local_scalar_dense", ""),
                        &is_nonzero = *Operator::find("aten::is_nonzero", ""),
                        &equal = *Operator::find("aten::equal", "");
  Tensor answer;
  {
    const AsUserCode user;
    const Tensor t = stack[0].toTensor();
    if (&op == &item && t.scalar_type() == at::kBool) answer = t;
    else if (&op == &is_nonzero && t.numel() == 1) answer = t.ne(0);
    else if (&op == &equal && t.sizes().equals(stack[1].toTensor().sizes())) answer = t.eq(stack[1].toTensor()).all();
    else if (&op == &equal) {
      assume([] { return true; });  // with other sizes it might be otherwise: no graph follows from this one
      return stack.assign(1, IValue(false)), true;
    } else return false;
  }
  bool value = false;
  if (!decide(answer, value)) return false;
  if (&op == &item) stack.assign(1, IValue(at::Scalar(value)));
  else stack.assign(1, IValue(value));
  return true;
}

// What a mask picks has a shape that depends on its values: those of a captured or constant one are known.
bool Trace::pick_by_known_mask(const Operator& op, Stack& stack) {
  static const Operator &index = *Operator::find("aten::index", "Tensor"),
                        &masked = *Operator::find("aten::masked_select", "");
  if (&op != &index && &op != &masked) return false;
  const auto is_mask = [](const Tensor& t) {
    return t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
  };
  const auto may_be_known = [&](const Tensor& t) {
    Wrapper* w = as_wrapper_of(t, *this);
    return memory_outside(t).defined() || is_constant(w ? Tensor(w->payload().value) : t);
  };
  const AsUserCode user;
  const Tensor x = stack[0].toTensor();
  if (&op == &masked) {
    if (!may_read_ || !may_be_known(stack[1].toTensor())) return false;
    const auto both = at::broadcast_tensors({stack[1].toTensor(), x});
    stack.assign(1, at::index(both[1], {std::optional<Tensor>(both[0])}));
    return true;
  }
  bool any = false;
  c10::List<std::optional<Tensor>> places;
  for (const auto& e : stack[1].toListRef()) {
    const Tensor t = e.isTensor() ? e.toTensor() : Tensor();
    if (!is_mask(t)) {
      places.push_back(t.defined() ? std::optional(t) : std::nullopt);
      continue;
    }
    if (!may_read_ || !may_be_known(t)) return false;
    const auto first = static_cast<int64_t>(places.size());
    for (int64_t d = 0; d < t.dim(); ++d)
      if (first + d >= x.dim() || t.size(d) != x.size(first + d)) return false;  // LibTorch's error
    if (t.dim() == 0) return false;
    any = true;
    for (const Tensor& place : at::nonzero(t).unbind(1)) places.push_back(place);
  }
  if (!any) return false;
  stack.assign(1, at::index(x, places));
  return true;
}

}  // namespace tower::compiler
