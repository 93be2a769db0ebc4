// What the steps of a loop each have of their own, of inputs and outputs: NOTE [Stacked numbers] in
// numbers/expression.h. A step takes the pointers of its own from the arrays that the kernel is given, by its number.
#include <c10/util/Exception.h>

#include <algorithm>

#include "kernels/printer.h"

namespace tower::compiler {

void Printer::plan_stacks() {
  for (size_t i = 0; i < region_.outputs.size(); ++i) {
    Id id = region_.outputs[i];
    while (graph_[id].op == Op::after) id = graph_[id].args[0];
    const Node& n = graph_[id];
    if (n.op != Op::in_step) continue;
    in_steps_.insert(i);
    const uint64_t step = n.bits & 0xffffffff;
    // The same may be wanted more than once, each time of all steps.
    const auto found = std::find_if(of_steps_.begin(), of_steps_.end(), [&](const OutputsOfSteps& known) {
      return known.loop == Expressions::loop_of(n) && known.value == n.args[1] &&
             (known.outputs.size() <= step || known.outputs[step] == kNoOutput);
    });
    OutputsOfSteps& of = found != of_steps_.end()
                             ? *found
                             : of_steps_.emplace_back(OutputsOfSteps{Expressions::loop_of(n), n.args[1], {}});
    of.outputs.resize(std::max<size_t>(of.outputs.size(), step + 1), kNoOutput);
    of.outputs[step] = i;
  }
  const auto& loops = graph_.loops();
  if (std::all_of(loops.begin(), loops.end(), [](const LoopOfNumbers& l) { return l.stacks.empty(); })) return;

  ById<Id, bool> read(graph_.size());
  const auto note = [&](Id a) {
    if (a != kNone) read[a] = true;
  };
  for (const Id id : graph_.ids()) {
    if (!live_[id]) continue;
    for (const Id a : graph_[id].args) note(a);
    if (graph_[id].op == Op::solve)
      for (const Id a : graph_.system(graph_[id]).operands) note(a);
  }
  for (const LoopOfNumbers& l : loops) {
    note(l.condition);
    for (const Id a : l.next) note(a);
  }
  for (const Id a : region_.outputs) note(a);
  for (const Id id : graph_.ids()) live_[id] = live_[id] && (graph_[id].op != Op::input || read[id]);
}

// The pointer that the present step has in an array of them; `of_steps`: its place there, by step.
std::string Printer::pointer_in_step(LoopId number, const char* array, const std::vector<uint64_t>& of_steps) {
  const auto place = [&](size_t s) { return static_cast<int64_t>(of_steps[s]); };
  const int64_t apart = of_steps.size() > 1 ? place(1) - place(0) : 0;
  for (size_t s = 1; s < of_steps.size(); ++s)
    TORCH_INTERNAL_ASSERT(place(s) == place(s - 1) + apart, "the steps' places among pointers grow unevenly");
  const bool backwards = graph_.loop(number).forwards != kOutsideOfLoops;
  const std::string from_first = line("mul i64 " + std::string(backwards ? "%at.step" : "%steps") + label_of(number) +
                                      ", " + std::to_string(apart));
  const std::string at = line("add i64 " + from_first + ", " + std::to_string(place(0)));
  return line("load ptr, ptr " + line("getelementptr ptr, ptr " + std::string(array) + ", i64 " + at));
}

void Printer::print_element(Id id, const std::string& begin) {
  const Node& n = graph_[id];
  const LoopId number = Expressions::loop_of(n);
  std::vector<uint64_t> of_steps;
  for (const Id input : graph_.loop(number).stacks[n.bits & 0xffffffff]) {
    TORCH_INTERNAL_ASSERT(graph_[input].op == Op::input);
    of_steps.push_back(graph_[input].bits);
  }
  const std::string pointer = pointer_in_step(number, "%inputs", of_steps);
  if (region_.inputs[of_steps[0]].repeated) load_for_all(n.type, pointer, value(id, 0));
  else load(n.type, pointer, begin, 0, value(id, 0));
}

void Printer::print_outputs_of_step(LoopId number, const std::string& begin) {
  for (const OutputsOfSteps& of : of_steps_)
    if (of.loop == number)
      store(graph_[of.value].type, value(of.value, 0), pointer_in_step(number, "%outputs", of.outputs), begin, 0);
}

}  // namespace tower::compiler
