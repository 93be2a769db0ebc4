#include "fuse/small_graph.h"

#include <ATen/Functions.h>

namespace tower::compiler {
namespace {

constexpr size_t kMostNumbers = 60000;  // in a loop, of which the state alone is in memory

}  // namespace

int64_t lane_of_results(const Call& call, uint64_t axis) {
  for (size_t v = 0; v < call.vmaps.size(); ++v)
    if (call.vmaps[v].axis == axis) return static_cast<int64_t>(v);
  return kNoLane;
}

Sizes without(const Sizes& sizes, int64_t lane) {
  Sizes result = sizes;
  if (lane != kNoLane) result.erase(result.begin() + lane);
  return result;
}

bool fits_lane(const Value& v, int64_t lane, int64_t most) {
  const int64_t elements = count(without(v.sizes, lane));
  return v.device.is_cpu() && type_of(v.dtype) && elements > 0 && elements <= most;
}

bool add_constant(Expressions& expressions, const Value& v, int64_t lane, Small& t) {
  const Type type = *type_of(v.dtype);
  if (const auto number = same_everywhere(v)) {
    const Id element = number->isFloatingPoint() ? expressions.constant(type, number->toDouble())
                                                 : expressions.constant(type, number->toLong());
    t.ids.assign(static_cast<size_t>(count(t.sizes)), element);
    return true;
  }
  if (!is_constant_of_lanes(v, lane)) return false;
  const Tensor of_lane = lane == kNoLane ? v.constant() : v.constant().select(lane, 0);
  const Tensor values = of_lane.to(is_float(type) ? at::kDouble : at::kLong).contiguous();
  for (int64_t i = 0; i < values.numel(); ++i)
    t.ids.push_back(is_float(type) ? expressions.constant(type, values.const_data_ptr<double>()[i])
                                   : expressions.constant(type, values.const_data_ptr<int64_t>()[i]));
  return true;
}

bool is_constant_of_lanes(const Value& v, int64_t lane) {
  const Tensor& t = v.constant();
  return t.defined() && (lane == kNoLane || (t.size(lane) > 0 && (t.size(lane) == 1 || t.stride(lane) == 0)));
}

SmallResults known_results(Expressions& expressions, const Graph& graph, const Call& call, uint64_t axis) {
  SmallResults results;
  const int64_t lane = lane_of_results(call, axis);
  for (const ValueId id : call.results) {
    if (id == kNoValue || !graph.values[id].known.defined()) return {};
    const Value& v = graph.values[id];
    if (!add_constant(expressions, v, lane, results.emplace_back(Small{without(v.sizes, lane), {}, v.dtype})))
      return {};
  }
  return results;
}

namespace {

// One example's part of a tensor that has the examples of other vmaps.
Small part(const Small& t, const Seen& s, c10::ArrayRef<int64_t> example) {
  if (is_table(t)) {
    // In front are the examples that have a table each.
    const auto dims = t.sizes.size() - s.of_example.size();
    size_t which = 0;
    for (size_t d = 0; d < dims; ++d)
      for (size_t v = 0; v < example.size(); ++v)
        if (s.of_vmaps[v] == static_cast<int64_t>(d)) which = which * t.size(d) + static_cast<size_t>(example[v]);
    return {
        Sizes(t.sizes.begin() + static_cast<std::ptrdiff_t>(dims), t.sizes.end()), {t.ids[which]}, t.dtype, t.number};
  }
  std::vector<int64_t> strides(t.sizes.size(), 1);
  for (size_t d = t.sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * t.sizes[d];
  int64_t first = 0;
  for (size_t v = 0; v < example.size(); ++v)
    if (s.of_vmaps[v] >= 0) first += example[v] * along(strides, s.of_vmaps[v]);
  std::vector<int64_t> numbers{first};
  Small result{{}, {}, t.dtype, t.number};
  for (const int64_t d : s.of_example) {
    const int64_t n = along(t.sizes, d);
    result.sizes.push_back(n);
    std::vector<int64_t> next;
    for (const int64_t number : numbers)
      for (int64_t i = 0; i < n; ++i) next.push_back(number + i * along(strides, d));
    numbers = std::move(next);
  }
  for (const int64_t number : numbers) result.ids.push_back(t.ids[static_cast<size_t>(number)]);
  return result;
}

}  // namespace

SmallResults results_of_lane(Expressions& expressions, const Graph& graph, const Call& call, uint64_t axis,
                             c10::ArrayRef<const Small*> operands) {
  std::vector<at::ScalarType> dtypes;
  for (const ValueId id : call.results)
    dtypes.push_back(id == kNoValue ? at::ScalarType::Undefined : graph.values[id].dtype);
  Sizes vmaps;
  int64_t examples = 1;
  for (const Mapped& vmap : call.vmaps) {
    if (vmap.axis == axis) continue;
    vmaps.push_back(vmap.batch_size);
    examples *= vmap.batch_size;
  }
  const auto results_of = [&](c10::ArrayRef<const Small*> of) {
    return small_results({expressions, *call.op, call.args, call.places, of, dtypes, call.checks()});
  };
  if (vmaps.empty()) return results_of(operands);

  std::vector<Seen> how;
  for (size_t k = 0; k < operands.size(); ++k)
    how.push_back(seen(call, k, graph.values[call.operands[k]].sizes.size(), axis));
  SmallResults all;
  Sizes example(vmaps.size(), 0);
  for (int64_t e = 0; e < examples; ++e) {
    int64_t left = e;
    for (size_t v = vmaps.size(); v-- > 0; left /= vmaps[v]) example[v] = left % vmaps[v];
    std::vector<Small> parts;
    for (size_t k = 0; k < operands.size(); ++k) parts.push_back(part(*operands[k], how[k], example));
    std::vector<const Small*> one;
    for (const Small& t : parts) one.push_back(&t);
    const SmallResults results = results_of(one);
    if (results.empty()) return {};
    if (e == 0)
      for (const Small& r : results) {
        Sizes sizes = vmaps;
        sizes.append(r.sizes.begin(), r.sizes.end());
        all.push_back({sizes, {}, r.dtype});
      }
    for (size_t k = 0; k < results.size(); ++k)
      all[k].ids.insert(all[k].ids.end(), results[k].ids.begin(), results[k].ids.end());
  }
  return all;
}

std::optional<SmallResults> results_of_graph(Expressions& expressions, const Graph& graph,
                                             c10::ArrayRef<const Small*> arguments) {
  ById<ValueId, Small> values(graph.values.size());
  for (size_t i = 0; i < arguments.size(); ++i)
    if (graph.arguments[i] != kNoValue) values[graph.arguments[i]] = *arguments[i];
  for (const ValueId id : values.ids()) {
    const Value& v = graph.values[id];
    if (v.origin != Origin::constant || !v.tensor.defined()) continue;
    if (!fits_lane(v, kNoLane, kMostOfLoop)) return std::nullopt;
    values[id] = {v.sizes, {}, v.dtype, v.number};
    add_constant(expressions, v, kNoLane, values[id]);
  }
  for (const Call& call : graph.calls) {
    if (call.effect || call.opaque() || call.random() || call.operands.empty() || call.results.empty())
      return std::nullopt;
    std::vector<const Small*> operands;
    for (const ValueId id : call.operands) {
      if (values[id].ids.empty()) return std::nullopt;
      operands.push_back(&values[id]);
    }
    for (const ValueId id : call.results)
      if (id != kNoValue && count(graph.values[id].sizes) > 0 && !fits_lane(graph.values[id], kNoLane, kMostOfLoop))
        return std::nullopt;
    SmallResults results = results_of_lane(expressions, graph, call, kNoAxis, operands);
    if (results.size() != call.results.size()) return std::nullopt;
    if (expressions.size() > kMostNumbers) return std::nullopt;
    for (size_t k = 0; k < results.size(); ++k)
      if (call.results[k] != kNoValue) values[call.results[k]] = std::move(results[k]);
  }
  SmallResults results;
  for (const ValueId id : graph.results) {
    if (values[id].ids.empty()) return std::nullopt;
    results.push_back(values[id]);
  }
  return results;
}

}  // namespace tower::compiler
