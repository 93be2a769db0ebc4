#include "numbers/reports.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace tower::compiler {

bool may_divide_by_zero(const Expressions& expressions, Id id) {
  const Node& n = expressions[id];
  return (n.op == Op::quotient || n.op == Op::rest) && expressions.value(n.args[1]).value_or(0) == 0;
}

std::vector<Id> lost_reports(const Expressions& expressions, const ById<Id, bool>& live, LoopId loop) {
  std::vector<Id> lost;
  // By loop: what it leaves, and whether divisions stand in it. To make all of these it makes all of its numbers; that
  // it ends is known with any of them.
  const auto& loops = expressions.loops();
  ById<LoopId, std::vector<Id>> left(loops.size());
  ById<LoopId, bool> divides(loops.size()), must_end(loops.size());
  const auto is_live = [&](Id id) { return live[id]; };
  for (const Id id : expressions.ids()) {
    const Node& n = expressions[id];
    if (n.op == Op::leave) left[Expressions::loop_of(n)].push_back(id);
    // A check is outside of all loops, and a division knows its own: NOTE [Failures], NOTE [What may fault].
    const bool division = may_divide_by_zero(expressions, id);
    if (!division && n.op != Op::check) continue;
    const LoopId own = division ? Expressions::loop_of_fault(n) : kOutsideOfLoops;
    if (own == loop && !is_live(id)) lost.push_back(id);
    if (own != kOutsideOfLoops) divides[own] = true;
  }
  // A loop has a larger number than those around it.
  for (const LoopId l : loops.ids_backwards()) {
    const LoopOfNumbers& inner = loops[l];
    must_end[l] = must_end[l] || (inner.must_end && inner.max_steps);
    if (const LoopId parent = inner.parent; parent != kOutsideOfLoops) {
      divides[parent] = divides[parent] || divides[l];
      must_end[parent] = must_end[parent] || must_end[l];
    }
    if (inner.parent != loop || left[l].empty()) continue;
    if (divides[l]) std::copy_if(left[l].begin(), left[l].end(), std::back_inserter(lost), std::not_fn(is_live));
    else if (must_end[l] && std::none_of(left[l].begin(), left[l].end(), is_live)) lost.push_back(left[l][0]);
  }
  return lost;
}

void keep_reports(Expressions& expressions, std::vector<Id>& outputs) {
  if (outputs.empty()) return;
  for (const Id report : lost_reports(expressions, expressions.needed(outputs), kOutsideOfLoops))
    outputs[0] = expressions.make(Op::after, outputs[0], report);
}

}  // namespace tower::compiler
