// NOTE [Kept in memory]
// A loop that another one goes back through (NOTE [Loops backwards] in numbers/expression.h) puts the carries that are
// asked for into memory at the beginning of each step, a vector after the other. How many steps it will make nobody
// knows, so it looks at each whether there is room, and has the memory grow where there is none
// (kernels/loop_memory.h). The memory is used again by each vector of lanes.
//
// All lanes go back together, from the last step that any of them made: one that had made fewer waits for its own last.
// So what was kept is read a vector at a time, as it was written.
#include <algorithm>

#include "kernels/printer.h"

namespace tower::compiler {

void Printer::plan_kept() {
  // Of some only the number of steps is asked for.
  for (const Id id : graph_.ids())
    if (const Node& n = graph_[id]; live_[id] && n.op == Op::carry)
      if (const LoopId of = graph_.loop(Expressions::loop_of(n)).forwards; of != kOutsideOfLoops) keeps_[of];
  for (const Id id : graph_.ids()) {
    const Node& n = graph_[id];
    if (live_[id] && n.op == Op::kept)
      keeps_[graph_.loop(Expressions::loop_of(n)).forwards].places.push_back(n.bits & 0xffffffff);
  }
  for (auto& [loop, kept] : keeps_) {
    const auto size = [&, loop = loop](uint64_t k) { return size_of(graph_[graph_.loop(loop).carries[k]].type); };
    std::sort(kept.places.begin(), kept.places.end());
    kept.places.erase(std::unique(kept.places.begin(), kept.places.end()), kept.places.end());
    // So each is where its type may be.
    std::stable_sort(kept.places.begin(), kept.places.end(), [&](uint64_t a, uint64_t b) { return size(a) > size(b); });
    for (const uint64_t k : kept.places) {
      kept.offsets.push_back(kept.bytes);
      kept.bytes += lanes_ * size(k);
    }
    kept.bytes = (kept.bytes + 7) / 8 * 8;
  }
}

// Of each such loop, behind the outputs.
void Printer::print_memory_of_loops() {
  size_t at = region_.outputs.size() + kept_.size();
  for (const auto& [loop, kept] : keeps_)
    print(Type::b1, R"(
  %memory.p{loop} = getelementptr ptr, ptr %outputs, i64 {at}
  %memory{loop} = load ptr, ptr %memory.p{loop}
)",
          {{"loop", std::to_string(plain(loop))}, {"at", std::to_string(at++)}});
}

// Of the step that a loop makes, what the carry that is the i-th to be kept was.
std::string Printer::place_of_kept(LoopId number, const KeptCarries& kept, size_t i) {
  return line("getelementptr i8, ptr %step" + label_of(number) + ", i64 " + std::to_string(kept.offsets[i]));
}

// At the beginning of a step. Where there is no memory left, the loop ends here, and whoever called says why.
void Printer::print_keep(LoopId number) {
  const KeptCarries& kept = keeps_.at(number);
  if (kept.places.empty()) return;
  print(Type::b1, R"(
  %at{l} = mul i64 %steps{l}, {bytes}
  %end{l} = add i64 %at{l}, {bytes}
  %size.p{l} = getelementptr i64, ptr %memory{loop}, i64 1
  %size{l} = load i64, ptr %size.p{l}
  %fits{l} = icmp ule i64 %end{l}, %size{l}
  br i1 %fits{l}, label %keep{l}, label %grow{l}
grow{l}:
  %grow.p{l} = getelementptr i64, ptr %memory{loop}, i64 2
  %grow.f{l} = load ptr, ptr %grow.p{l}
  %grown{l} = call i64 %grow.f{l}(ptr %memory{loop}, i64 %end{l})
  %has.grown{l} = icmp ne i64 %grown{l}, 0
  br i1 %has.grown{l}, label %keep{l}, label %left{l}
keep{l}:
  %base{l} = load ptr, ptr %memory{loop}
  %step{l} = getelementptr i8, ptr %base{l}, i64 %at{l}
)",
        {{"l", label_of(number)}, {"loop", std::to_string(plain(number))}, {"bytes", std::to_string(kept.bytes)}});
  block_ = "keep" + label_of(number);
  for (size_t i = 0; i < kept.places.size(); ++i) {
    const Id carry = graph_.loop(number).carries[kept.places[i]];
    store(graph_[carry].type, value(carry, 0), place_of_kept(number, kept, i), "0", 0);
  }
}

void Printer::print_kept(Id id) {
  const Node& n = graph_[id];
  const LoopId number = Expressions::loop_of(n);
  const KeptCarries& kept = keeps_.at(graph_.loop(number).forwards);
  const auto i =
      static_cast<size_t>(std::find(kept.places.begin(), kept.places.end(), n.bits & 0xffffffff) - kept.places.begin());
  load(n.type, place_of_kept(number, kept, i), "0", 0, value(id, 0));
}

void Printer::print_loop_backwards(LoopId number, const std::string& begin) {
  const LoopOfNumbers& loop = graph_.loop(number);
  const std::string l = label_of(number), before = block_, outer = mask_;
  Holes holes = {{"l", l},
                 {"forwards", label_of(loop.forwards)},
                 {"loop", std::to_string(plain(loop.forwards))},
                 {"before", before},
                 {"steps", value(loop.condition, 0)}};
  const KeptCarries& kept = keeps_.at(loop.forwards);
  holes.emplace_back("bytes", std::to_string(kept.bytes));
  begin_block("head" + l);
  print_carries(number, before);
  print(Type::i32, R"(
  %left.steps{l} = phi i64 [ %steps{forwards}, %{before} ], [ %at.step{l}, %done{l} ]
  %go{l} = icmp sgt i64 %left.steps{l}, 0
  br i1 %go{l}, label %body{l}, label %left{l}
body{l}:
  %at.step{l} = sub i64 %left.steps{l}, 1
)",
        holes);
  block_ = "body" + l;
  holes.emplace_back("at", in_all_lanes(Type::i32, line("trunc i64 %at.step" + l + " to i32")));
  print(Type::i32, "  %made{l} = icmp slt {V} {at}, {steps}\n", holes);
  mask_ = "%made" + l;
  if (!outer.empty()) mask_ = line("and " + type(Type::b1) + " " + outer + ", " + mask_);
  if (!kept.places.empty())
    print(Type::b1, R"(
  %at{l} = mul i64 %at.step{l}, {bytes}
  %base{l} = load ptr, ptr %memory{loop}
  %step{l} = getelementptr i8, ptr %base{l}, i64 %at{l}
)",
          holes);
  for (const Id id : inside_[place(number)]) print_node(id, begin, 0);
  print_outputs_of_step(number, begin);
  print_next(number);
  print(Type::b1, R"(
  br label %head{l}
left{l}:
)",
        holes);
  block_ = "left" + l;
  mask_ = outer;
}

}  // namespace tower::compiler
