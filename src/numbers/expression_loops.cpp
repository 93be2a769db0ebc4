// Loops of numbers as they are opened and closed: NOTE [Loops of numbers], [Loops backwards], [Stacked numbers].
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "numbers/expression.h"
#include "numbers/reports.h"

namespace tower::compiler {

LoopId Expressions::open_loop(const std::vector<Id>& start) {
  LoopOfNumbers loop;
  loop.parent = std::exchange(open_, loops_.next_id());
  failed_.push_back(kNone);
  for (size_t k = 0; k < start.size(); ++k)
    loop.carries.push_back(
        shared({Op::carry, (*this)[start[k]].type, {start[k], kNone, kNone}, uint64_t(plain(open_)) << 32 | k}));
  return loops_.add(std::move(loop));
}

std::vector<Id> Expressions::close_loop(Id condition, const std::vector<Id>& next, std::optional<int64_t> max_steps,
                                        bool must_end) {
  LoopOfNumbers& loop = loops_[open_];
  loop.condition = condition;
  loop.next = next;
  loop.max_steps = max_steps;
  loop.must_end = must_end;
  const bool fails = carry_failures();
  // An example that has failed ends.
  if (fails)
    loop.condition =
        make(Op::bit_and, condition, make(Op::bit_xor, loop.carries.back(), constant(Type::b1, int64_t{1})));
  return leave_loop(fails);
}

LoopId Expressions::open_loop_backwards(LoopId forwards, Id steps, const std::vector<Id>& start) {
  TORCH_INTERNAL_ASSERT(loops_[forwards].parent == open_ && (*this)[steps].type == Type::i32);
  const LoopId id = open_loop(start);
  loops_[id].forwards = forwards;
  loops_[id].condition = steps;
  return id;
}

Id Expressions::element(const std::vector<Id>& of_steps) {
  const Id first = of_steps[0];
  const bool same = std::all_of(of_steps.begin(), of_steps.end(), [&](Id id) { return id == first; });
  if (same) return first;
  auto& stacks = loops_[open_].stacks;
  const auto found = std::find(stacks.begin(), stacks.end(), of_steps);
  const auto k = static_cast<uint64_t>(found - stacks.begin());
  if (found == stacks.end()) stacks.push_back(of_steps);
  return shared({Op::element, (*this)[first].type, {kNone, kNone, kNone}, uint64_t(plain(open_)) << 32 | k});
}

std::vector<Id> Expressions::in_steps(LoopId loop, Id value, Id left, int64_t steps) {
  std::vector<Id> of_steps;
  for (int64_t s = 0; s < steps; ++s)
    of_steps.push_back(shared({Op::in_step,
                               (*this)[value].type,
                               {left, value, kNone},
                               uint64_t(plain(loop)) << 32 | static_cast<uint64_t>(s)}));
  return of_steps;
}

Id Expressions::kept(size_t k) {
  const Id left = leave(loops_[loops_[open_].forwards].carries[k]);
  return shared({Op::kept, (*this)[left].type, {left, kNone, kNone}, uint64_t(plain(open_)) << 32 | k});
}

std::vector<Id> Expressions::close_loop_backwards(const std::vector<Id>& next) {
  loops_[open_].next = next;
  return leave_loop(carry_failures());
}

// Makes a last carry of the open loop of whether a step of it has failed, if one can.
bool Expressions::carry_failures() {
  LoopOfNumbers& loop = loops_[open_];
  const Id fails = failed_.back();
  failed_.pop_back();
  if (fails == kNone) return false;
  const auto place = static_cast<uint64_t>(loop.carries.size());
  const Id no = constant(Type::b1, int64_t{0});
  const Id failed = shared({Op::carry, Type::b1, {no, kNone, kNone}, uint64_t(plain(open_)) << 32 | place});
  loop.carries.push_back(failed);
  loop.next.push_back(make(Op::bit_or, failed, fails));
  return true;
}

std::vector<Id> Expressions::leave_loop(bool fails) {
  LoopOfNumbers& loop = loops_[open_];
  // What a step reports it reports whoever goes on with its numbers.
  std::vector<Id> of_step = loop.next;
  of_step.push_back(loop.condition);
  for (const Id report : lost_reports(*this, needed(of_step), open_))
    for (Id& id : loop.next) id = make(Op::after, id, report);
  open_ = loop.parent;
  std::vector<Id> left;
  for (const Id carry : loop.carries) left.push_back(leave(carry));
  if (!fails) return left;
  const Id failed = left.back();
  left.pop_back();
  return checked(failed, std::move(left));
}

Id Expressions::leave(Id carry) {
  const Node& n = (*this)[carry];
  return shared({Op::leave, n.type, {carry, kNone, kNone}, n.bits});
}

}  // namespace tower::compiler
