// A loop in a kernel: NOTE [Loops of numbers] in numbers/expression.h.
#include <algorithm>

#include "compile/traced_loop.h"
#include "fuse/small_graph.h"

namespace tower::compiler {

std::optional<Loop::InNumbers> Loop::steps_in_numbers(const SmallCall& call, bool counted) const {
  Expressions& g = call.graph;
  std::vector<Id> start;
  for (size_t k = 0; k < states_; ++k)
    start.insert(start.end(), call.operands[k]->ids.begin(), call.operands[k]->ids.end());
  if (counted) start.push_back(g.constant(Type::i32, int64_t{0}));
  const LoopId loop = g.open_loop(start);
  const std::vector<Id> carries = g.loop(loop).carries;
  SmallResults state;
  std::vector<const Small*> all;
  for (size_t k = 0, next = 0; k < states_; ++k) {
    state.push_back(*call.operands[k]);
    for (Id& id : state.back().ids) id = carries[next++];
  }
  for (const Small& t : state) all.push_back(&t);
  all.insert(all.end(), call.operands.begin() + static_cast<std::ptrdiff_t>(states_),
             call.operands.begin() + static_cast<std::ptrdiff_t>(operands()));
  const auto condition = results_of_graph(g, predicate_.graph(), all);
  const Id undecided = g.failed_in_step();
  const auto made = condition ? results_of_graph(g, step_.graph(), all) : std::nullopt;
  if (!made) return std::nullopt;
  std::vector<Id> next;
  for (const Small& t : *made) next.insert(next.end(), t.ids.begin(), t.ids.end());
  if (counted) next.push_back(g.make(Op::add, carries.back(), g.constant(Type::i32, int64_t{1})));
  // Where the condition itself has failed, another step says so.
  Id holds = (*condition)[0].ids[0];
  if (undecided != kNone) holds = g.make(Op::bit_or, holds, undecided);
  const std::vector<Id> left = g.close_loop(holds, next, options_.max_steps, must_end_);
  auto id = left.begin();
  for (Small& t : state) {
    std::copy_n(id, t.ids.size(), t.ids.begin());
    id += static_cast<std::ptrdiff_t>(t.ids.size());
    t.number = false;
  }
  return InNumbers{loop, std::move(state), counted ? *id : kNone};
}

SmallResults Loop::in_numbers(const SmallCall& call) const {
  auto loop = steps_in_numbers(call, false);
  return loop ? std::move(loop->last) : SmallResults{};
}

}  // namespace tower::compiler
