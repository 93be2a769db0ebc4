// NOTE [Loops in a kernel]
// A loop of numbers (numbers/expression.h) is a loop of basic blocks within that over lanes: `head` computes the
// condition, and while it holds for a lane, `body` computes the next carries, which the lanes that it holds for take.
// Those that have ended go along, and keep theirs.
#include <algorithm>

#include "kernels/printer.h"
#include "numbers/thresholds.h"

namespace tower::compiler {

// Which loop each node is in, and the nodes of each, in order.
void Printer::place_nodes() {
  inside_.resize(graph_.loops().size() + 1);
  depth_.assign(inside_.size(), 0);
  ById<Id, LoopId> loop_of(graph_.size(), kOutsideOfLoops);
  for (const LoopId l : graph_.loops().ids()) depth_[place(l)] = depth_[place(graph_.loop(l).parent)] + 1;
  for (const Id id : graph_.ids()) {
    if (!live_[id]) continue;
    const Node& n = graph_[id];
    LoopId& in = loop_of[id];
    if (n.op == Op::carry || n.op == Op::kept || n.op == Op::element) {
      in = Expressions::loop_of(n);
    } else if (n.op == Op::leave || n.op == Op::in_step) {
      in = graph_.loop(Expressions::loop_of(n)).parent;
    } else {
      const auto needs = [&](Id a) {
        if (a != kNone && depth_[place(loop_of[a])] > depth_[place(in)]) in = loop_of[a];
      };
      if (n.op == Op::quotient || n.op == Op::rest) in = Expressions::loop_of_fault(n);
      std::for_each(n.args.begin(), n.args.end(), needs);
      if (n.op == Op::solve) std::for_each(graph_.system(n).operands.begin(), graph_.system(n).operands.end(), needs);
    }
    inside_[place(in)].push_back(id);
  }
}

int64_t Printer::work() const {
  double all = 0;
  std::vector<double> times(inside_.size(), 1);
  for (const LoopId l : graph_.loops().ids()) {
    const LoopOfNumbers* loop = &graph_.loop(l);
    double& n = times[place(l)];
    n = times[place(loop->parent)];
    if (loop->forwards != kOutsideOfLoops) loop = &graph_.loop(loop->forwards);
    if (loop->condition != kNone && graph_.value(loop->condition) == 1) n *= static_cast<double>(*loop->max_steps);
  }
  for (size_t l = 0; l < inside_.size(); ++l) all += times[l] * static_cast<double>(inside_[l].size());
  return static_cast<int64_t>(std::min(all, 1e12)) + static_cast<int64_t>(region_.outputs.size());
}

void Printer::begin_block(const std::string& name) {
  print(Type::b1, R"(
  br label %{name}
{name}:
)",
        {{"name", name}});
  block_ = name;
  block_at_ = body_.size();
}

// NOTE [Short blocks]
// LLVM's schedulers look for the best of all instructions of a block that could be next: of thousands without a branch
// that is half of its time. So a branch that is never taken, as there are always pointers to outputs, ends a block
// which has become long. (In passes over rows, and over stretches of lanes, blocks are named where they are branched
// from.)
void Printer::keep_block_short() {
  if (region_.has_rows() || !stretches_.empty() ||
      body_.size() - block_at_ < static_cast<size_t>(thresholds().longest_block))
    return;
  const std::string never = line("icmp eq ptr %outputs, null"), rest = "rest" + never.substr(1);
  print(Type::b1, R"(
  br i1 {never}, label %enter1, label %{rest}
{rest}:
)",
        {{"never", never}, {"rest", rest}});
  block_ = rest;
  block_at_ = body_.size();
}

// What the condition needs comes first.
std::set<Id> Printer::of_condition(LoopId number) const {
  const std::vector<Id>& nodes = inside_[place(number)];
  std::set<Id> needed{graph_.loop(number).condition};
  for (size_t k = nodes.size(); k-- > 0;) {
    if (needed.count(nodes[k]) == 0) continue;
    const Node& n = graph_[nodes[k]];
    if (n.op == Op::carry) continue;
    for (const Id a : n.args) needed.insert(a);
    if (n.op == Op::solve)
      for (const Id a : graph_.system(n).operands) needed.insert(a);
    if (n.op == Op::leave)  // a loop inside, and all that goes into it
      for (const Id id : nodes)
        if (id < nodes[k]) needed.insert(id);
  }
  return needed;
}

template <class F>
void Printer::for_carries(LoopId number, F&& f) const {
  const std::vector<Id>& carries = graph_.loop(number).carries;
  for (size_t k = 0; k < carries.size(); ++k)
    if (const Id id = carries[k]; id != kNone && live_[id]) f(id, k);
}

void Printer::print_carries(LoopId number, const std::string& before) {
  for_carries(number, [&](Id id, size_t) {
    print(graph_[id].type, "  {carry} = phi {V} [ {first}, %{before} ], [ %after{id}_{l}, %done{l} ]\n",
          {{"carry", value(id, 0)},
           {"first", value(graph_[id].args[0], 0)},
           {"before", before},
           {"id", to_string(id)},
           {"l", label_of(number)}});
  });
}

// The carries after a step, of the lanes that it counts for.
void Printer::print_next(LoopId number) {
  begin_block("done" + label_of(number));
  for_carries(number, [&](Id id, size_t k) {
    print(graph_[id].type, "  %after{id}_{l} = select {B} {counts}, {V} {next}, {V} {carry}\n",
          {{"carry", value(id, 0)},
           {"next", value(graph_.loop(number).next[k], 0)},
           {"counts", mask_.empty() ? splat("i1 true", lanes_) : mask_},
           {"id", to_string(id)},
           {"l", label_of(number)}});
  });
}

// Prints a loop where the first number that it leaves is asked for; what it leaves are its carries.
void Printer::print_loop_of_numbers(LoopId number, const std::string& begin) {
  const LoopOfNumbers& loop = graph_.loop(number);
  const std::string l = label_of(number);
  if (!printed_.insert(l).second) return;
  if (loop.forwards != kOutsideOfLoops) return print_loop_backwards(number, begin);
  const std::vector<Id>& nodes = inside_[place(number)];
  const std::set<Id> of_condition = this->of_condition(number);
  const std::string before = block_, outer = mask_;
  const bool keeps = keeps_.count(number), counts = keeps || loop.max_steps;
  begin_block("head" + l);
  print_carries(number, before);
  if (counts)
    print(Type::b1, "  %steps{l} = phi i64 [ 0, %{before} ], [ %stepped{l}, %done{l} ]\n",
          {{"before", before}, {"l", l}});
  for (const Id id : nodes)
    if (of_condition.count(id)) print_node(id, begin, 0);
  const bool always = graph_.value(loop.condition) == 1;
  std::string holds = value(loop.condition, 0), go = "true", some;
  if (!always) {
    if (!outer.empty()) holds = line("and " + type(Type::b1) + " " + outer + ", " + holds);
    go = some = any(holds);
    mask_ = holds;
  }
  if (loop.max_steps) {
    const std::string left = line("icmp slt i64 %steps" + l + ", " + std::to_string(*loop.max_steps));
    go = always ? left : line("and i1 " + go + ", " + left);
  }
  print(Type::b1, R"(
  br i1 {go}, label %body{l}, label %left{l}
body{l}:
)",
        {{"go", go}, {"l", l}});
  block_ = "body" + l;
  if (keeps) print_keep(number);
  for (const Id id : nodes)
    if (!of_condition.count(id)) print_node(id, begin, 0);
  print_outputs_of_step(number, begin);
  print_next(number);
  if (counts) print(Type::b1, "  %stepped{l} = add i64 %steps{l}, 1\n", {{"l", l}});
  print(Type::b1, R"(
  br label %head{l}
left{l}:
)",
        {{"l", l}});
  block_ = "left" + l;
  mask_ = outer;
  if (loop.max_steps && loop.must_end && !always) report(some, kNotEnded);
}

}  // namespace tower::compiler
