#include "compile/lanes.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <map>

#include "compile/loop.h"
#include "core/bind.h"
#include "operators/mapped.h"

namespace tower::compiler {
namespace {

bool agree(const Lanes& lanes, const Sizes& a, const Sizes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](int64_t x, int64_t y) { return lanes.agree(x, y); });
}

Sizes follow(const Lanes& lanes, const Sizes& a, const Sizes& b, int64_t n) {
  Sizes result;
  for (size_t d = 0; d < a.size(); ++d) result.push_back(*lanes.follow(a[d], b[d], n));
  return result;
}

// Strides of tensors without elements are those of tensors with one.
int64_t for_strides(int64_t n) { return std::max<int64_t>(n, 1); }

bool all_but_sizes(const TensorKind& a, const TensorKind& b) {
  return a.defined == b.defined && a.requires_grad == b.requires_grad && a.leaf == b.leaf && a.number == b.number &&
         a.dtype == b.dtype && a.device == b.device && a.sizes.size() == b.sizes.size();
}

// Of constants whose sizes differ: each is one number, the same in both.
bool same_number(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const Tensor number = a.flatten()[0];
  return same_bits(a, number.expand_as(a)) && same_bits(b, number.expand_as(b));
}

// With strides that may be zero.
Tensor filled(const Sizes& sizes, const Sizes& strides, const Tensor& number) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) last += std::max<int64_t>(sizes[d] - 1, 0) * strides[d];
  return number.expand({last + 1}).clone().as_strided(sizes, strides);
}

bool same_constant(const Value& a, const Value& b) {
  DispatchGuard keys;
  keys.see_no_operator();
  return a.sizes == b.sizes ? same_bits(a.tensor, b.tensor) : same_number(a.tensor, b.tensor);
}

bool same_value(const Lanes& lanes, const Value& a, const Value& b) {
  if (a.origin != b.origin || a.dtype != b.dtype || a.device != b.device || a.number != b.number ||
      a.tensor.defined() != b.tensor.defined() || !agree(lanes, a.sizes, b.sizes) ||
      !agree(lanes, a.strides, b.strides))
    return false;
  if (!a.tensor.defined()) return true;
  return a.origin == Origin::captured ? a.tensor.is_same(b.tensor) : same_constant(a, b);
}

class Comparison {
 public:
  Comparison(const Graph& a, const Graph& b, Lanes lanes) : a_(a), b_(b), lanes_(lanes) {}

  bool holds() {
    return a_.arguments == b_.arguments && a_.results == b_.results &&
           std::equal(a_.values.begin(), a_.values.end(), b_.values.begin(), b_.values.end(),
                      [&](const Value& x, const Value& y) { return same_value(lanes_, x, y); }) &&
           std::equal(a_.calls.begin(), a_.calls.end(), b_.calls.begin(), b_.calls.end(),
                      [&](const Call& x, const Call& y) { return same_call(x, y); });
  }

 private:
  bool has_lanes(ValueId id) const {
    return id != kNoValue && a_.values[static_cast<size_t>(id)].sizes != b_.values[static_cast<size_t>(id)].sizes;
  }

  bool same_call(const Call& x, const Call& y) {
    if (!do_the_same(*x.op, *y.op) || x.operands != y.operands || x.results != y.results || x.records != y.records ||
        x.effect != y.effect || x.vmaps.size() != y.vmaps.size() ||
        !std::equal(x.places.begin(), x.places.end(), y.places.begin(), y.places.end(),
                    [](LeafRef p, LeafRef q) { return p.arg == q.arg && p.element == q.element; }))
      return false;
    bool mapped = false;
    for (size_t v = 0; v < x.vmaps.size(); ++v) {
      const Mapped &m = x.vmaps[v], &n = y.vmaps[v];
      if (m.dims != n.dims || !lanes_.agree(m.batch_size, n.batch_size) ||
          axes_.emplace(m.axis, n.axis).first->second != n.axis)
        return false;
      mapped = mapped || m.batch_size != n.batch_size;
    }
    if (same_attributes(x, y)) {
      bool lanes = false;
      for (const ValueId id : x.operands) lanes = lanes || has_lanes(id);
      for (const ValueId id : x.results) lanes = lanes || has_lanes(id);
      return !lanes || (mapped && same_examples(x, y)) || x.op->vmap_is_pointwise || is_any_view(x);
    }
    return x.vmaps.empty() && is_any_view(x) && attributes_agree(x, y);
  }

  // Whether what a call is for one example has no lanes: all of them are mapped.
  bool same_examples(const Call& x, const Call& y) const {
    for (size_t k = 0; k < x.operands.size(); ++k)
      if (example(a_, x, k) != example(b_, y, k)) return false;
    const auto depth = static_cast<std::ptrdiff_t>(x.vmaps.size());
    for (const ValueId id : x.results) {
      if (id == kNoValue) continue;
      const Sizes &p = a_.values[static_cast<size_t>(id)].sizes, &q = b_.values[static_cast<size_t>(id)].sizes;
      if (!std::equal(p.begin() + depth, p.end(), q.begin() + depth, q.end())) return false;
    }
    return true;
  }

  // The sizes of an operand for one example.
  static Sizes example(const Graph& graph, const Call& call, size_t operand) {
    Sizes sizes = graph.values[static_cast<size_t>(call.operands[operand])].sizes;
    for (const Mapped& vmap : call.vmaps)
      if (vmap.dims[operand] != Mapped::kUnmapped) sizes.erase(sizes.begin() + vmap.dims[operand]);
    return sizes;
  }

  // A view that shows the same whatever the sizes.
  static bool is_any_view(const Call& call) {
    return call.op->is_view() && call.op->schema().name() != "aten::squeeze";
  }

  static bool same_attributes(const Call& x, const Call& y) {
    for (size_t i = 0; i < x.args.size(); ++i)
      if (x.op->kind(i) == ArgKind::other && exact_text(x.args[i]) != exact_text(y.args[i])) return false;
    return true;
  }

  bool attributes_agree(const Call& x, const Call& y) const {
    for (size_t i = 0; i < x.args.size(); ++i) {
      const IValue &v = x.args[i], &w = y.args[i];
      if (x.op->kind(i) != ArgKind::other || exact_text(v) == exact_text(w)) continue;
      if (!v.isIntList() || !w.isIntList()) return false;
      const auto p = v.toIntVector(), q = w.toIntVector();
      if (!agree(lanes_, Sizes(p), Sizes(q))) return false;
    }
    return true;
  }

  const Graph &a_, &b_;
  const Lanes lanes_;
  std::map<uint64_t, uint64_t> axes_;
};

}  // namespace

std::optional<LaneKinds> LaneKinds::of(const std::vector<TensorKind>& a, const std::vector<TensorKind>& b) {
  LaneKinds kinds;
  kinds.first_ = a;
  kinds.second_ = b;
  if (a.size() != b.size()) return std::nullopt;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!all_but_sizes(a[i], b[i])) return std::nullopt;
    for (size_t d = 0; d < a[i].sizes.size() && kinds.lanes_.first == kinds.lanes_.second; ++d)
      kinds.lanes_ = {a[i].sizes[d], b[i].sizes[d]};
  }
  if (kinds.lanes_.first == kinds.lanes_.second || kinds.lanes_.first < 2 || kinds.lanes_.second < 2)
    return std::nullopt;
  for (size_t i = 0; i < a.size(); ++i)
    if (!agree(kinds.lanes_, a[i].sizes, b[i].sizes) || !agree(kinds.lanes_, a[i].strides, b[i].strides))
      return std::nullopt;
  return kinds;
}

std::optional<int64_t> LaneKinds::count(const std::vector<TensorKind>& c) const {
  if (c.size() != first_.size()) return std::nullopt;
  std::optional<int64_t> n;
  for (size_t i = 0; i < c.size(); ++i) {
    const TensorKind &a = first_[i], &b = second_[i];
    if (!all_but_sizes(a, c[i])) return std::nullopt;
    for (size_t d = 0; d < a.sizes.size() && !n; ++d)
      if (a.sizes[d] == lanes_.first && b.sizes[d] == lanes_.second) n = c[i].sizes[d];
  }
  if (!n) return std::nullopt;
  for (size_t i = 0; i < c.size(); ++i)
    if (follow(lanes_, first_[i].sizes, second_[i].sizes, *n) != c[i].sizes ||
        follow(lanes_, first_[i].strides, second_[i].strides, for_strides(*n)) != c[i].strides)
      return std::nullopt;
  return n;
}

std::optional<LaneGraph> LaneGraph::of(const Graph& a, const Graph& b, Lanes lanes) {
  if (!Comparison(a, b, lanes).holds()) return std::nullopt;
  return LaneGraph(a, b, lanes);
}

Graph LaneGraph::with(int64_t n) const {
  Graph graph = first_;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const Value& other = second_.values[id];
    Value& value = graph.values[id];
    const bool differs = value.sizes != other.sizes;
    value.sizes = follow(lanes_, value.sizes, other.sizes, n);
    value.strides = follow(lanes_, value.strides, other.strides, for_strides(n));
    if (!differs || !value.tensor.defined()) continue;
    DispatchGuard keys;
    keys.see_no_operator();
    const Tensor number = value.tensor.flatten()[0];
    value.tensor = filled(value.sizes, value.strides, number);
  }
  for (size_t k = 0; k < graph.calls.size(); ++k) {
    const Call& other = second_.calls[k];
    Call& call = graph.calls[k];
    for (size_t i = 0; i < call.args.size(); ++i) {
      if (call.op->kind(i) != ArgKind::other || !call.args[i].isIntList()) continue;
      const auto a = call.args[i].toIntVector(), b = other.args[i].toIntVector();
      if (a == b) continue;
      const Sizes ints = follow(lanes_, Sizes(a), Sizes(b), n);
      call.args[i] = IValue(std::vector<int64_t>(ints.begin(), ints.end()));
    }
    bool mapped = false;
    for (size_t v = 0; v < call.vmaps.size(); ++v) {
      const int64_t size = *lanes_.follow(call.vmaps[v].batch_size, other.vmaps[v].batch_size, n);
      mapped = mapped || size != call.vmaps[v].batch_size;
      call.vmaps[v].batch_size = size;
    }
    if (!mapped) continue;
    std::vector<int64_t> sizes;
    for (const Mapped& m : call.vmaps) sizes.push_back(m.batch_size);
    call.owner = mapped_over(*call.bound, sizes);
    call.bound = call.owner.get();
  }
  return graph;
}

}  // namespace tower::compiler
