#include "fuse/kernel_calls.h"

#include <unordered_map>

#include "graph/operand_dims.h"

namespace tower::compiler {

Readers::Readers(const Graph& graph) : graph_(graph), uses_(graph.values.size()) {
  for (const Call& call : graph.calls)
    for (const ValueId id : call.operands) ++uses_[id];
  for (const ValueId id : graph.results)
    if (id != kNoValue) ++uses_[id];
}

std::vector<ValueId> Readers::elsewhere(const std::vector<size_t>& calls) const {
  std::unordered_map<ValueId, size_t> here;
  for (const size_t n : calls)
    for (const ValueId id : graph_.calls[n].operands) ++here[id];
  std::vector<ValueId> ids;
  for (const size_t n : calls)
    for (const ValueId id : graph_.calls[n].results)
      if (id != kNoValue && uses_[id] > here[id]) ids.push_back(id);
  // Nobody reads anything: what is computed last stands for it.
  if (ids.empty()) ids.push_back(first_result(graph_.calls[calls.back()]));
  return ids;
}

}  // namespace tower::compiler
