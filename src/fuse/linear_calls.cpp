#include "fuse/linear_calls.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <utility>

#include "fuse/plain_views.h"
#include "fuse/vmaps_of_one.h"
#include "graph/effects.h"
#include "graph/pointwise.h"
#include "interpreters/mapped.h"

namespace tower::compiler {
namespace {

// The numbers that an element of a call's result is made of, if there is a rule for it; each operand is an input.
struct ElementOfCall {
  ElementOfCall(const Graph& graph, const Call& call) {
    const Pointwise pointwise{graph};
    if (!element_rule(*call.op) || !pointwise.is_of_numbers(call)) return;
    for (const ValueId id : call.operands)
      inputs.push_back(numbers.input(*type_of(graph.values[id].dtype), inputs.size()));
    const auto ids = pointwise.elements_of(numbers, call, [&](size_t k) { return inputs[k]; });
    if (ids.size() == 1) result = ids[0];
  }

  Expressions numbers;
  std::vector<Id> inputs;
  Id result = kNone;
};

// The value's dimensions, all of them, come in their order.
bool is_in_order(const Places& places, size_t dims) {
  int64_t next = 0;
  for (const int64_t d : places)
    if (d >= 0 && d != next++) return false;
  return next == static_cast<int64_t>(dims);
}

// A view that has dimensions of one element where there are none.
ValueId with_all_dimensions(Graph& graph, ValueId id, const Places& places) {
  if (std::none_of(places.begin(), places.end(), [](int64_t d) { return d < 0; })) return id;
  const Value& of = graph.values[id];
  Sizes shape, strides;
  for (const int64_t d : places) {
    shape.push_back(d < 0 ? 1 : along(of.sizes, d));
    strides.push_back(d < 0 ? 1 : along(of.strides, d));
  }
  graph.calls.push_back(view_of(graph, id, std::move(shape), std::move(strides)));
  return graph.calls.back().results[0];
}

}  // namespace

void LinearCalls::note(const Call& call) {
  if (call.op->moves != Moves::broadcast || call.operands.size() != 1 || call.results.size() != 1) return;
  const ValueId from = call.operands[0];
  if (sizes(from).size() != sizes(call.results[0]).size()) return;
  const Places at = Pointwise{graph_}.places(call, 0);
  for (size_t d = 0; d < at.size(); ++d)
    if (at[d] != static_cast<int64_t>(d)) return;
  before_expanding_[call.results[0]] = before_expanding(from).value_or(from);
}

std::optional<ValueId> LinearCalls::before_expanding(ValueId id) const {
  const auto found = before_expanding_.find(id);
  return found == before_expanding_.end() ? std::nullopt : std::optional(found->second);
}

bool LinearCalls::fits(const Call& call) const {
  if (!may_lack_vmaps(call) || call.results.size() != 1 || call.results[0] == kNoValue ||
      std::find(call.operands.begin(), call.operands.end(), kNoValue) != call.operands.end())
    return false;
  const Value& v = graph_.values[call.results[0]];
  return (v.dtype == at::kFloat || v.dtype == at::kDouble) && v.device.is_cpu();
}

bool LinearCalls::is_of(Op op, const Call& call) const {
  if (call.operands.size() != 2) return false;
  for (const ValueId id : call.operands)
    if (graph_.values[id].dtype != graph_.values[call.results[0]].dtype) return false;
  const ElementOfCall element(graph_, call);
  if (element.result == kNone || element.numbers[element.result].op != op) return false;
  const auto& [a, b, none] = element.numbers[element.result].args;
  const Id x = element.inputs[0], y = element.inputs[1];
  return (a == x && b == y) || (a == y && b == x);
}

bool LinearCalls::is_linear(const Call& call, size_t k) const {
  const ValueId id = call.operands[k];
  if (sizes(id) != sizes(call.results[0]) || graph_.values[id].dtype != graph_.values[call.results[0]].dtype)
    return false;
  const ElementOfCall element(graph_, call);
  if (element.result == kNone) return false;
  const Id in = element.inputs[k];
  ById<Id, bool> linear(element.numbers.size()), free(element.numbers.size());
  for (const Id n : linear.ids()) {
    const Node& node = element.numbers[n];
    const auto& [a, b, c] = node.args;
    const auto is_free = [&](Id arg) { return arg == kNone || free[arg]; };
    free[n] = n != in && is_free(a) && is_free(b) && is_free(c);
    switch (node.op) {
      case Op::input:
        linear[n] = n == in;
        break;
      case Op::neg:
        linear[n] = linear[a];
        break;
      case Op::mul:
        linear[n] = (linear[a] && free[b]) || (free[a] && linear[b]);
        break;
      case Op::div:
        linear[n] = linear[a] && free[b];
        break;
      case Op::add:
      case Op::sub:
        linear[n] = linear[a] && linear[b];
        break;
      // Not where one of them is zero: an infinite scale, or one that is no number, would no more be left out there.
      case Op::select:
        linear[n] = free[a] && linear[b] && linear[c];
        break;
      default:
        break;
    }
  }
  return linear[element.result];
}

bool LinearCalls::alone_has(const Call& call, size_t k, const std::vector<size_t>& shared) const {
  for (const size_t d : shared) {
    if (d >= call.vmaps.size()) return false;
    for (size_t other = 0; other < call.operands.size(); ++other)
      if ((call.vmaps[d].dims[other] == Mapped::kUnmapped) == (other == k)) return false;
  }
  const Seen s = seen(call, k, sizes(call.operands[k]).size(), kNoAxis);
  int64_t next = 0;
  for (const auto* dims : {&s.of_vmaps, &s.of_example})
    for (const int64_t d : *dims)
      if (d != next++) return false;
  return true;
}

ValueId LinearCalls::add_for_one(const Call& call, size_t k, ValueId one, const std::vector<size_t>& shared,
                                 std::optional<ValueId> like) {
  Call for_one = call;
  for_one.operands[k] = one;
  Sizes sizes_of_one = sizes(like.value_or(call.results[0]));
  for (const size_t d : shared) for_one.vmaps[d].batch_size = sizes_of_one[d] = 1;
  std::vector<int64_t> examples;
  for (const Mapped& vmap : for_one.vmaps) examples.push_back(vmap.batch_size);
  for_one.owner = mapped_over(*call.bound, examples);
  for_one.bound = for_one.owner.get();
  for_one.results = {add_value(call.results[0], std::move(sizes_of_one))};
  graph_.calls.push_back(std::move(for_one));
  return graph_.calls.back().results[0];
}

std::optional<LinearCalls::Scaled> LinearCalls::scaled(const Call& call,
                                                       const std::function<bool(const std::vector<size_t>&)>& accepts) {
  if (!fits(call) || !is_of(Op::mul, call)) return std::nullopt;
  for (const size_t k : {0, 1})
    if (auto found = scaled_by(call, k, accepts)) return found;
  return std::nullopt;
}

std::optional<LinearCalls::Scaled> LinearCalls::scaled_by(
    const Call& call, size_t k, const std::function<bool(const std::vector<size_t>&)>& accepts) {
  const Sizes& all = sizes(call.results[0]);
  const ValueId scale = before_expanding(call.operands[k]).value_or(call.operands[k]), base = call.operands[1 - k];
  const Pointwise pointwise{graph_};
  const Places of_scale = pointwise.places(call, k), of_base = pointwise.places(call, 1 - k);
  const auto has = [&](ValueId id, const Places& at, size_t d) {
    return at[d] >= 0 && along(sizes(id), at[d]) == all[d];
  };
  std::vector<size_t> shared;
  bool repeats = false;
  for (size_t d = 0; d < all.size(); ++d) {
    if (all[d] == 1) continue;
    if (has(base, of_base, d)) repeats = repeats || !has(scale, of_scale, d);
    else if (has(scale, of_scale, d)) shared.push_back(d);
    else return std::nullopt;
  }
  if (!repeats || shared.empty() || !accepts(shared) || !is_in_order(of_scale, sizes(scale).size()) ||
      !is_in_order(of_base, sizes(base).size()))
    return std::nullopt;
  return Scaled{with_all_dimensions(graph_, scale, of_scale), with_all_dimensions(graph_, base, of_base),
                std::move(shared)};
}

ValueId LinearCalls::add_by_elements(Op op, ValueId a, ValueId b, std::optional<ValueId> result) {
  static const Operator &mul = *Operator::find("aten::mul", "Tensor"), &add = *Operator::find("aten::add", "Tensor");
  Call call;
  call.op = call.bound = op == Op::mul ? &mul : &add;
  const Tensor hole = at::detail::empty_cpu({0}, graph_.values[a].dtype);
  call.args = {IValue(hole), IValue(hole)};
  if (op == Op::add) call.args.emplace_back(1);
  call.places = {{0, 0}, {1, 0}};
  call.operands = {a, b};
  Sizes of_both = sizes(a);
  for (size_t d = 0; d < of_both.size(); ++d) of_both[d] = of_both[d] == 1 ? sizes(b)[d] : of_both[d];
  call.results = {result ? *result : add_value(a, std::move(of_both))};
  graph_.calls.push_back(std::move(call));
  return graph_.calls.back().results[0];
}

ValueId LinearCalls::add_value(ValueId like, Sizes sizes_of_new) {
  Value v;
  v.dtype = graph_.values[like].dtype;
  v.device = graph_.values[like].device;
  Places order;
  for (size_t d = 0; d < sizes_of_new.size(); ++d) order.push_back(static_cast<int64_t>(d));
  v.sizes = std::move(sizes_of_new);
  v.strides = strides_in_order(v.sizes, order);
  return graph_.values.add(std::move(v));
}

bool multiplies_for_examples(const Graph& graph) {
  const auto multiplies = [](const Call& call) { return call.op->contraction && !call.vmaps.empty(); };
  return std::any_of(graph.calls.begin(), graph.calls.end(), multiplies) && !has_effects(graph);
}

}  // namespace tower::compiler
