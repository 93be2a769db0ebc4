#include "numbers/reports.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace tower::compiler {

bool may_divide_by_zero(const Expressions& expressions, Id id) {
  const Node& n = expressions[id];
  return (n.op == Op::quotient || n.op == Op::rest) && expressions.value(n.args[1]).value_or(0) == 0;
}

std::vector<Id> lost_reports(const Expressions& expressions, const std::vector<bool>& live, int loop) {
  std::vector<Id> lost;
  // By loop: what it leaves, and whether divisions stand in it. To make all of these it makes all of its numbers; that
  // it ends is known with any of them.
  const auto loops = static_cast<size_t>(expressions.loops());
  std::vector<std::vector<Id>> left(loops);
  std::vector<bool> divides(loops), must_end(loops);
  const auto is_live = [&](Id id) { return live[static_cast<size_t>(id)]; };
  for (Id id = 0; id < expressions.size(); ++id) {
    const Node& n = expressions[id];
    if (n.op == Op::leave) left[static_cast<size_t>(Expressions::loop_of(n))].push_back(id);
    // A check is outside of all loops, and a division knows its own: NOTE [Failures], NOTE [What may fault].
    const bool division = may_divide_by_zero(expressions, id);
    if (!division && n.op != Op::check) continue;
    const int own = division ? static_cast<int>(n.bits) - 1 : kOutsideOfLoops;
    if (own == loop && !is_live(id)) lost.push_back(id);
    if (own != kOutsideOfLoops) divides[static_cast<size_t>(own)] = true;
  }
  // A loop has a larger number than those around it.
  for (size_t l = loops; l-- > 0;) {
    const LoopOfNumbers& inner = expressions.loop(static_cast<int>(l));
    must_end[l] = must_end[l] || (inner.must_end && inner.max_steps);
    if (inner.parent != kOutsideOfLoops) {
      const auto parent = static_cast<size_t>(inner.parent);
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
