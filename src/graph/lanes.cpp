#include "graph/lanes.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <map>

#include "core/bind.h"
#include "graph/operand_dims.h"
#include "interpreters/mapped.h"
#include "operators/known_code.h"

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

// The number of examples that strides go by: they are the same for none as for one.
int64_t for_strides(int64_t n) { return std::max<int64_t>(n, 1); }

bool all_but_sizes(const TensorKind& a, const TensorKind& b) {
  return a.defined == b.defined && a.requires_grad == b.requires_grad && a.leaf == b.leaf && a.number == b.number &&
         a.dtype == b.dtype && a.device == b.device && a.sizes.size() == b.sizes.size();
}

// Whether all elements of both constants, whose sizes differ, are one number.
bool same_number(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const Tensor number = a.flatten()[0];
  return same_bits(a, number.expand_as(a)) && same_bits(b, number.expand_as(b));
}

// A tensor full of `number`, of these sizes and strides, of which some may be zero.
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

bool same_value(const Lanes& lanes, const Value& a, const Value& b, bool makers_known) {
  if (a.origin != b.origin || a.made_as != b.made_as || a.dtype != b.dtype || a.device != b.device ||
      a.number != b.number || a.tensor.defined() != b.tensor.defined() || !agree(lanes, a.sizes, b.sizes) ||
      !agree(lanes, a.strides, b.strides))
    return false;
  // Sizes of captured tensors do not follow, nor those of constants that no call made, but C++ numbers.
  const bool given =
      a.origin == Origin::captured || (a.origin == Origin::constant && makers_known && !is_constant(a.made_as));
  if (given && a.sizes != b.sizes) return false;
  if (!a.tensor.defined()) return true;
  return a.origin == Origin::captured ? a.tensor.is_same(b.tensor) : same_constant(a, b);
}

// A call's operands and results for one example. Sizes of what is mapped have the examples' dimensions in front.
struct OfExample {
  std::vector<Sizes> operands, results;

  OfExample(const Graph& graph, const Call& call) {
    for (size_t k = 0; k < call.operands.size(); ++k) {
      Sizes sizes = sizes_of(graph, call.operands[k]);
      for (const Mapped& vmap : call.vmaps)
        if (vmap.dims[k] != Mapped::kUnmapped) sizes.erase(sizes.begin() + vmap.dims[k]);
      operands.push_back(std::move(sizes));
    }
    for (const ValueId id : call.results) {
      const Sizes& sizes = id == kNoValue ? Sizes() : sizes_of(graph, id);
      const auto depth = std::min(sizes.size(), call.vmaps.size());
      results.emplace_back(sizes.begin() + static_cast<std::ptrdiff_t>(depth), sizes.end());
    }
  }
  bool operator==(const OfExample&) const = default;

  static const Sizes& sizes_of(const Graph& graph, ValueId id) {
    return is_constant(id) ? graph.constants[place_of_constant(id)].sizes : graph.values[id].sizes;
  }
};

// Whether the results have the sizes that the operands broadcast to.
bool are_broadcast(const OfExample& e) {
  std::vector<int64_t> sizes;
  for (const Sizes& operand : e.operands) {
    sizes.insert(sizes.begin(), std::max(operand.size(), sizes.size()) - sizes.size(), 1);
    for (size_t d = 1; d <= operand.size(); ++d)
      if (int64_t& size = sizes[sizes.size() - d]; size == 1) size = operand[operand.size() - d];
  }
  return std::all_of(e.results.begin(), e.results.end(), [&](const Sizes& s) { return at::IntArrayRef(s) == sizes; });
}

class Comparison {
 public:
  Comparison(const Graph& a, const Graph& b, Lanes lanes, bool makers_known = true)
      : a_(a), b_(b), lanes_(lanes), makers_known_(makers_known) {}

  bool holds() {
    const auto alike = [&](const Call& x, const Call& y) { return same_call(x, y, /*makes_constant=*/false); };
    const auto make_alike = [&](const Call& x, const Call& y) { return same_call(x, y, /*makes_constant=*/true); };
    return a_.arguments == b_.arguments && a_.results == b_.results &&
           std::equal(a_.values.begin(), a_.values.end(), b_.values.begin(), b_.values.end(),
                      [&](const Value& x, const Value& y) { return same_value(lanes_, x, y, makers_known_); }) &&
           same_constants() && std::equal(a_.calls.begin(), a_.calls.end(), b_.calls.begin(), b_.calls.end(), alike) &&
           std::equal(a_.makers.begin(), a_.makers.end(), b_.makers.begin(), b_.makers.end(), make_alike);
  }
  /// The fewest examples for which the comparison tells that the graph is right.
  int64_t fewest() const { return fewest_; }

 private:
  // A constant that no call made, but C++ numbers, has the same sizes in both.
  bool same_constants() const {
    std::vector<bool> made(a_.constants.size());
    for (const Call& maker : a_.makers)
      for (const ValueId id : maker.results)
        if (is_constant(id)) made[place_of_constant(id)] = true;
    DispatchGuard keys;
    keys.see_no_operator();
    if (a_.constants.size() != b_.constants.size()) return false;
    for (size_t k = 0; k < a_.constants.size(); ++k) {
      const Constant &x = a_.constants[k], &y = b_.constants[k];
      if (made[k] ? !agree(lanes_, x.sizes, y.sizes) : x.sizes != y.sizes) return false;
      if (x.tensor.defined() != y.tensor.defined()) return false;
      if (x.tensor.defined() && (x.tensor.scalar_type() != y.tensor.scalar_type() || !x.tensor.equal(y.tensor)))
        return false;
    }
    return true;
  }

  bool same_call(const Call& x, const Call& y, bool makes_constant) {
    if (!do_the_same(*x.op, *y.op) || x.operands != y.operands || x.results != y.results || x.records != y.records ||
        x.effect != y.effect || x.vmaps.size() != y.vmaps.size() ||
        !std::equal(x.places.begin(), x.places.end(), y.places.begin(), y.places.end(),
                    [](LeafRef p, LeafRef q) { return p.arg == q.arg && p.element == q.element; }))
      return false;
    for (size_t v = 0; v < x.vmaps.size(); ++v) {
      const Mapped &m = x.vmaps[v], &n = y.vmaps[v];
      if (m.dims != n.dims || !lanes_.agree(m.batch_size, n.batch_size) ||
          axes_.emplace(m.axis, n.axis).first->second != n.axis)
        return false;
    }
    const std::optional<std::vector<size_t>> differ = differing_lists(x, y);
    if (!differ) return false;
    const OfExample of_x(a_, x), of_y(b_, y);
    if (of_x == of_y) return differ->empty();
    // A mapped call's attributes stand in its image, too, which is made anew for other batch sizes alone.
    if (!differ->empty() && !x.vmaps.empty()) return false;
    if (x.op->vmap_is_pointwise) return differ->empty() && are_broadcast(of_x) && are_broadcast(of_y);
    if (x.op->view_keeps && !of_x.operands.empty()) return view_follows(x, y, of_x, of_y, *differ, makes_constant);
    return makes_constant && (x.op->reads_shapes_alone || x.operands.empty()) && follows_as_told(x, y, of_x, of_y);
  }

  // Which attributes are lists of sizes that follow; none if another one differs.
  std::optional<std::vector<size_t>> differing_lists(const Call& x, const Call& y) const {
    std::vector<size_t> lists;
    for (size_t i = 0; i < x.args.size(); ++i) {
      const IValue &v = x.args[i], &w = y.args[i];
      if (x.op->kind(i) != ArgKind::other || exact_text(v) == exact_text(w)) continue;
      if (!v.isIntList() || !w.isIntList()) return std::nullopt;
      const auto p = v.toIntVector(), q = w.toIntVector();
      if (!agree(lanes_, Sizes(p), Sizes(q))) return std::nullopt;
      lists.push_back(i);
    }
    return lists;
  }

  // The attribute that tells the sizes of a result.
  static std::optional<size_t> sizes_told(const Call& call, const Sizes& result) {
    for (size_t i = 0; i < call.args.size(); ++i) {
      if (call.op->kind(i) != ArgKind::other || !call.args[i].isIntList()) continue;
      const auto told = call.args[i].toIntVector();
      if (std::equal(told.begin(), told.end(), result.begin(), result.end(),
                     [](int64_t n, int64_t size) { return n == size || n == -1; }))
        return i;
    }
    return std::nullopt;
  }

  bool view_follows(const Call& x, const Call& y, const OfExample& of_x, const OfExample& of_y,
                    const std::vector<size_t>& differ, bool shape_alone) {
    const Sizes &base = of_x.operands[0], &other = of_y.operands[0];
    for (size_t out = 0; out < x.results.size(); ++out) {
      const Sizes &p = of_x.results[out], &q = of_y.results[out];
      const auto told = sizes_told(x, p);
      const bool is_told = told && told == sizes_told(y, q);
      if (!differ.empty() && (!is_told || differ != std::vector<size_t>{*told})) return false;
      if (is_told && !x.op->view_repeats && !differ.empty()) fewest_ = 1;
      if (is_told && count(p) == count(base) && count(q) == count(other)) continue;
      const Sizes kept = x.op->view_keeps(base, x.args, out);
      if (kept != y.op->view_keeps(other, y.args, out) || kept.size() != p.size()) return false;
      std::vector<bool> whole(base.size());
      for (size_t d = 0; d < p.size(); ++d) {
        if (kept[d] < 0 && p[d] != q[d] && !is_told) return false;
        if (kept[d] < 0) continue;
        const auto from = static_cast<size_t>(kept[d]);
        if (p[d] != base[from] || q[d] != other[from]) return false;
        whole[from] = true;
      }
      // Of what only the shape is read, it does not matter which element of another dimension it is (vmap asks the
      // first example for it).
      const bool all_whole = std::all_of(kept.begin(), kept.end(), [](int64_t d) { return d >= 0; });
      for (size_t d = 0; d < base.size(); ++d)
        if (base[d] != other[d] && !whole[d] && !(shape_alone && all_whole)) return false;
    }
    return true;
  }

  // Calls that make constants of one number: these have sizes that the call is told, or those of its first operand.
  static bool follows_as_told(const Call& x, const Call& y, const OfExample& of_x, const OfExample& of_y) {
    for (size_t out = 0; out < x.results.size(); ++out) {
      const auto told = sizes_told(x, of_x.results[out]);
      if (told && told == sizes_told(y, of_y.results[out])) continue;
      if (of_x.operands.empty() || of_x.results[out] != of_x.operands[0] || of_y.results[out] != of_y.operands[0])
        return false;
    }
    return true;
  }

  const Graph &a_, &b_;
  const Lanes lanes_;
  const bool makers_known_;
  std::map<uint64_t, uint64_t> axes_;
  int64_t fewest_ = 0;
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
  Comparison comparison(a, b, lanes);
  if (!comparison.holds()) return std::nullopt;
  return LaneGraph(a, b, lanes, comparison.fewest());
}

std::optional<LaneGraph> LaneGraph::from_file(const Graph& a, const Graph& b, Lanes lanes, int64_t fewest) {
  if (!Comparison(a, b, lanes, /*makers_known=*/false).holds()) return std::nullopt;
  return LaneGraph(a, b, lanes, fewest);
}

LaneGraph::LaneGraph(Graph a, Graph b, Lanes lanes, int64_t fewest)
    : first_(std::move(a)), second_(std::move(b)), lanes_(lanes), fewest_(fewest) {
  for (Graph* graph : {&first_, &second_}) {
    graph->constants.clear();
    graph->makers.clear();
  }
}

Graph LaneGraph::with(int64_t n) const {
  Graph graph = first_;
  for (const ValueId id : graph.values.ids()) {
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
