// The rules of the interpreter, by what the operators' records say of elements (core/facts.h). A rule that finds a call
// to be more than it knows of returns nothing: then all depends on all.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>

#include <string_view>

#include "core/operator.h"
#include "sparse/dependence.h"
#include "sparse/ids.h"
#include "sparse/products.h"
#include "sparse/scatters.h"
#include "sparse/windows.h"

namespace tower::sparse {

namespace {

using Tensors = std::vector<Tensor>;
using Id = Sets::Id;

bool is_complex(const CallWithIds& call) {
  bool any = false;
  for_each_tensor(call.op, call.args, [&](const Tensor& t, LeafRef) { any = any || t.is_complex(); });
  return any;
}

Tensors pointwise(const CallWithIds& call) {
  Tensors result;
  for (const Tensor& out : call.outputs()) {
    Tensor ids;
    for (const auto& [leaf, of_one] : call.tracked) {
      if (!at::is_expandable_to(of_one.sizes(), out.sizes())) return {};
      ids = ids.defined() ? united(call.sets, ids, of_one, out.sizes()) : of_one.expand(out.sizes());
    }
    result.push_back(ids);
  }
  return result;
}

// The operator itself. What it fills with depends on nothing.
Tensors moved(const CallWithIds& call) {
  if (is_complex(call) || call.points_by_x()) return {};
  Stack stack(call.args.begin(), call.args.end());
  replace_tensors(call.op, stack, [&](const Tensor& t, LeafRef leaf) {
    const Tensor known = call.known_ids(leaf.arg, leaf.element);
    return known.defined() ? known : t.is_floating_point() ? at::zeros_like(t, at::kDouble) : t;
  });
  if (const size_t value = call.argument("value"); value < stack.size() && stack[value].isScalar())
    stack[value] = at::Scalar(0.0);
  call.op.call(stack);
  Tensors result;
  for (const IValue& v : stack) {
    if (v.isTensor()) result.push_back(v.toTensor());
    else if (v.isTensorList())
      for (const auto& e : v.toListRef()) result.push_back(e.toTensor());
  }
  const Tensors outs = call.outputs();
  if (result.size() != outs.size()) return {};
  for (size_t k = 0; k < result.size(); ++k) {
    if (!result[k].is_floating_point()) result[k] = Tensor();
    if (result[k].defined() && !result[k].sizes().equals(outs[k].sizes())) return {};
  }
  return result;
}

// Where the mask depends on x, both what it hides and what it shows.
Tensors masked(const CallWithIds& call) { return call.points_by_x() ? pointwise(call) : moved(call); }

// The first argument, whatever becomes of its dtype and layout.
Tensors kept(const CallWithIds& call) { return {call.known_ids(0)}; }

// The same elements in the same order, however they lie in memory.
Tensors reshaped(const CallWithIds& call) {
  const Tensor ids = call.known_ids(0), out = call.outputs()[0];
  if (ids.numel() != out.numel()) return {};
  return {ids.reshape(out.sizes())};
}

// The first two arguments are what is written to and what is written.
Tensors written(const CallWithIds& call) { return {call.ids(1).expand(call.outputs()[0].sizes())}; }

std::vector<int64_t> dims_of(const CallWithIds& call) {
  const size_t arg = call.argument("dim");
  if (arg == call.op.num_args() || call.args[arg].isNone()) return {};
  if (call.args[arg].isInt()) return {call.args[arg].toInt()};
  if (!call.args[arg].isIntList()) return {};
  return call.args[arg].toIntVector();
}

// One argument with elements, some dimensions of which are gone.
Tensors reduced(const CallWithIds& call) {
  if (call.tracked.size() != 1 || call.tracked[0].first.arg != 0) return {};
  const Tensor ids = united_over(call.sets, call.tracked[0].second, dims_of(call));
  Tensors result;
  for (const Tensor& out : call.outputs()) {
    if (out.numel() != ids.numel()) return {};
    result.push_back(ids.reshape(out.sizes()));
  }
  return result;
}

// Along a dimension all depends on all.
Tensors mixed(const CallWithIds& call) {
  if (call.tracked.size() != 1 || call.tracked[0].first.arg != 0 || call.argument("dim") == call.op.num_args())
    return {};
  const Tensor& given = call.tracked[0].second;
  if (given.dim() == 0) return {given, given};
  const Tensor ids = united_over(call.sets, given, dims_of(call)).expand(given.sizes());
  Tensors result;
  for (const Tensor& out : call.outputs()) {
    if (!at::is_expandable_to(ids.sizes(), out.sizes())) return {};
    result.push_back(ids.expand(out.sizes()));
  }
  return result;
}

// Each component is made of the two others.
Tensors crossed(const CallWithIds& call) {
  const Tensor out = call.outputs()[0];
  const size_t dim = call.argument("dim");
  if (dim == call.op.num_args() || !call.args[dim].isInt()) return {};
  Tensor result;
  for (const auto& [leaf, ids] : call.tracked) {
    const Tensor whole = ids.expand(out.sizes());
    const int64_t d = call.args[dim].toInt();
    const Tensor others = united(call.sets, at::roll(whole, 1, d), at::roll(whole, 2, d), out.sizes());
    result = result.defined() ? united(call.sets, result, others, out.sizes()) : others;
  }
  return {result};
}

// The first half along a dimension, by the second.
Tensors gated(const CallWithIds& call) {
  const std::vector<int64_t> dims = dims_of(call);
  const Tensor out = call.outputs()[0];
  if (dims.size() != 1) return {};
  const auto halves = call.ids(0).chunk(2, dims[0]);
  return {united(call.sets, halves[0], halves[1], out.sizes())};
}

// Rows that begin at some dimension; weight and bias are those of a row.
Tensors normalized(const CallWithIds& call) {
  const Tensor input = call.ids(0);
  const int64_t rows = input.dim() - static_cast<int64_t>(call.args[1].toIntVector().size());
  std::vector<int64_t> dims;
  for (int64_t d = rows; d < input.dim(); ++d) dims.push_back(d);
  if (dims.empty()) return {};
  const Tensor of_row = united_over(call.sets, input, dims);
  Tensor out = of_row.expand(input.sizes());
  for (const size_t arg : {2, 3})
    if (const Tensor ids = call.known_ids(arg); ids.defined()) out = united(call.sets, out, ids, input.sizes());
  return {out, of_row, of_row};
}

// Each image of a batch, and each of its channels, by itself.
Tensors by_planes(const CallWithIds& call) {
  if (call.tracked.size() != 1 || call.tracked[0].first.arg != 0) return {};
  const Tensor& given = call.tracked[0].second;
  const Tensor out = call.outputs()[0];
  if (given.dim() < 3 || given.dim() != out.dim()) return {};
  // A single image lacks the batch's dimension: `int[2] output_size` says what a plane has.
  const size_t arg = call.argument("output_size");
  const auto named = arg == call.op.num_args() ? std::nullopt : call.op.schema().arguments()[arg].N();
  std::vector<int64_t> dims;
  for (int64_t d = named ? given.dim() - *named : 2; d < given.dim(); ++d) dims.push_back(d);
  return {united_over(call.sets, given, dims).expand(out.sizes())};
}

// Functions of matrices in a batch: those of an example depend on those of that example.
Tensors by_matrices(const CallWithIds& call) {
  int64_t batch_dims = -1;
  std::vector<int64_t> batch;
  for_each_tensor(call.op, call.args, [&](const Tensor& t, LeafRef leaf) {
    if (leaf.arg != 0 || t.dim() < 2) return;
    batch_dims = t.dim() - 2;
    batch = t.sizes().slice(0, static_cast<size_t>(batch_dims)).vec();
  });
  if (batch_dims < 0) return {};
  const auto begins_with_batch = [&](const Tensor& t) {
    return t.dim() >= batch_dims && t.sizes().slice(0, batch.size()).equals(batch);
  };
  Tensor of_example;
  for (const auto& [leaf, ids] : call.tracked) {
    // What has as many dimensions as the batch, or fewer, may be meant for all examples.
    if (ids.dim() <= batch_dims || !begins_with_batch(ids)) return {};
    std::vector<int64_t> dims;
    for (int64_t d = batch_dims; d < ids.dim(); ++d) dims.push_back(d);
    const Tensor one = united_over(call.sets, ids, dims).reshape(batch);
    of_example = of_example.defined() ? united(call.sets, of_example, one, batch) : one;
  }
  Tensors result;
  for (const Tensor& out : call.outputs()) {
    if (!begins_with_batch(out)) return {};
    std::vector<int64_t> sizes(batch);
    sizes.resize(static_cast<size_t>(out.dim()), 1);
    result.push_back(of_example.reshape(sizes).expand(out.sizes()));
  }
  return result;
}

Rule rule_of(Depends depends) {
  switch (depends) {
    case Depends::unsaid:
    case Depends::on_all:
      return nullptr;
    case Depends::on_its_place:
      return kept;
    case Depends::on_second:
      return written;
    case Depends::on_moved:
      return moved;
    case Depends::on_shown:
      return masked;
    case Depends::on_reduced:
      return reduced;
    case Depends::on_dim:
      return mixed;
    case Depends::on_other_two:
      return crossed;
    case Depends::on_halves:
      return gated;
    case Depends::on_last_dims:
      return normalized;
    case Depends::on_plane:
      return by_planes;
    case Depends::on_matrices:
      return by_matrices;
    case Depends::by_indices:
      return put_by_indices;
    case Depends::by_scatter:
      return scattered;
    case Depends::by_index_along:
      return added_at_index;
    case Depends::on_window:
      return convolved;
    case Depends::on_pooled_window:
      return pooled;
  }
  return nullptr;
}

Rule rule_of(Moves moves) {
  switch (moves) {
    case Moves::no:
      return nullptr;
    case Moves::elements:
    case Moves::broadcast:
    case Moves::elements_or_zero:
    case Moves::elements_or_value:
      return moved;
    case Moves::in_order:
      return reshaped;
    case Moves::nothing:
      return kept;
  }
  return nullptr;
}

}  // namespace

Tensor CallWithIds::known_ids(size_t arg, size_t element) const {
  for (const auto& [leaf, ids] : tracked)
    if (leaf.arg == arg && leaf.element == element) return ids;
  return {};
}

Tensor CallWithIds::ids(size_t arg) const {
  const Tensor known = known_ids(arg);
  return known.defined() ? known : at::zeros(args[arg].toTensor().sizes(), at::kDouble);
}

bool CallWithIds::is_constant(size_t arg) const { return !(varying >> arg & 1); }

bool CallWithIds::points_by_x() const {
  bool any = false;
  for_each_tensor(op, args, [&](const Tensor& t, LeafRef leaf) {
    any = any || (!is_constant(leaf.arg) && c10::isIntegralType(t.scalar_type(), /*includeBool=*/true));
  });
  return any;
}

std::vector<Tensor> CallWithIds::outputs() const {
  std::vector<Tensor> result;
  for (const IValue& v : outs) {
    if (v.isTensor()) result.push_back(v.toTensor());
    else if (v.isTensorList())
      for (const auto& e : v.toListRef()) result.push_back(e.toTensor());
  }
  return result;
}

size_t CallWithIds::argument(const char* name) const {
  const auto found = op.schema().argumentIndexWithName(name);
  return found ? static_cast<size_t>(*found) : op.num_args();
}

Rule rule_of(const Operator& op) {
  if (op.depends == Depends::on_all) return nullptr;
  if (const Rule stated = rule_of(op.depends)) return stated;
  if (const Rule moving = rule_of(op.moves)) return moving;
  if (op.contraction) return contracted;
  if (op.handle() && !op.foreign() && op.is_view()) return moved;
  return op.vmap_is_pointwise || op.pointwise_tag() ? pointwise : nullptr;
}

std::vector<Tensor> dense(const CallWithIds& call) {
  std::vector<Id> all;
  for (const auto& [leaf, ids] : call.tracked) {
    const Tensor list = ids.contiguous();
    const auto* from = list.const_data_ptr<double>();
    for (int64_t k = 0; k < list.numel(); ++k) all.push_back(id_of(from[k]));
  }
  const auto id = static_cast<double>(call.sets.unite_all(all));
  Tensors result;
  for (const Tensor& out : call.outputs()) result.push_back(at::full({}, id, at::kDouble).expand(out.sizes()));
  return result;
}

}  // namespace tower::sparse
