// Which calls of a graph a kernel can compute element by element, and these elements.
#pragma once

#include "graph/operand_dims.h"
#include "numbers/element.h"

namespace tower::compiler {

/// Calls whose results a kernel can compute element by element.
struct Pointwise {
  const Graph& graph;

  const Value& value(ValueId id) const { return graph.values[id]; }
  const Sizes& lanes(const Call& call) const { return value(call.results[0]).sizes; }

  bool fits(const Value& v) const { return v.device.is_cpu() && type_of(v.dtype).has_value(); }

  /// Whether there are numbers of the types of all that the call reads and gives.
  bool is_of_numbers(const Call& call) const {
    for (const auto* values : {&call.operands, &call.results})
      for (const ValueId id : *values)
        if (id == kNoValue || !type_of(value(id).dtype)) return false;
    return true;
  }

  /// Whether a kernel can compute the call.
  bool serves(const Call& call) const { return operations(call) > 0; }
  /// How many numbers an element of the call is made of, itself and its operands included; none where no kernel can
  /// compute it.
  size_t operations(const Call& call) const {
    if (call.effect || call.opaque() || call.random() || !element_rule(*call.op) || call.results.empty()) return 0;
    for (const ValueId id : call.results)
      if (id == kNoValue || !fits(value(id)) || value(id).sizes != lanes(call) || !order_in_memory(value(id))) return 0;
    for (const ValueId id : call.operands)
      if (!fits(value(id))) return 0;
    // The rule may have something against the attributes.
    Expressions trial;
    const auto ids =
        elements_of(trial, call, [&](size_t k) { return trial.input(*type_of(value(call.operands[k]).dtype), k); });
    return ids.empty() ? 0 : trial.size();
  }

  /// The elements of a call's results; `element(k)`: that of operand k.
  template <class F>
  std::vector<Id> elements_of(Expressions& expressions, const Call& call, F element) const {
    std::vector<ElementArgument> arguments(call.args.size());
    for (size_t k = 0; k < call.operands.size(); ++k) {
      const Value& v = value(call.operands[k]);
      int64_t dims = static_cast<int64_t>(v.sizes.size());
      for (const Mapped& vmap : call.vmaps) dims -= vmap.dims[k] != Mapped::kUnmapped;
      arguments[call.places[k].arg] = {element(k), v.dtype, dims == 0, v.number};
    }
    std::vector<at::ScalarType> results;
    for (const ValueId id : call.results) results.push_back(value(id).dtype);
    return elements(expressions, *call.op, call.args, arguments, results);
  }

  Places places(const Call& call, size_t k) const {
    return places_of(call, k, static_cast<int64_t>(value(call.operands[k]).sizes.size()),
                     static_cast<int64_t>(lanes(call).size()));
  }
  bool reads_lane_by_lane(const Call& call, size_t k) const {
    return one_for_one(places(call, k), value(call.operands[k]).sizes, lanes(call));
  }
};

}  // namespace tower::compiler
