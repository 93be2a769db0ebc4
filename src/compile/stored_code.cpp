#include "compile/stored_code.h"

#include <algorithm>
#include <bit>

#include "compile/loop_backwards.h"
#include "compile/loop_rules.h"
#include "compile/traced_checkpoint.h"
#include "compile/traced_choice.h"
#include "graph/effects.h"

namespace tower::compiler {

KnownCode::Kind kind_of(const Graph& graph, ValueId id) {
  if (id == kNoValue) ByteReader::fail();
  const Value& v = graph.values[id];
  return {{v.sizes.begin(), v.sizes.end()}, v.dtype};
}
std::vector<KnownCode::Kind> kinds_of(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<KnownCode::Kind> kinds;
  for (const ValueId id : ids) kinds.push_back(kind_of(graph, id));
  return kinds;
}

// What code captures is an argument of it, and it writes to nothing.
void check_is_function(const Graph& graph) {
  const auto is_captured = [](const Value& v) { return v.origin == Origin::captured && v.tensor.defined(); };
  if (std::any_of(graph.values.begin(), graph.values.end(), is_captured) || has_effects(graph)) ByteReader::fail();
}

namespace {

// Either graph may leave an argument out that only the other reads; the state and elements are the step's.
void check_loop(const Graph* predicate, const Graph& step, size_t states, size_t stacked) {
  check_is_function(step);
  const size_t own = states + stacked;
  if (states > step.results.size() || own < states || own > step.arguments.size()) ByteReader::fail();
  for (size_t k = 0; k < step.arguments.size(); ++k) {
    const bool step_reads = step.arguments[k] != kNoValue;
    if (!step_reads && (k < own || !predicate)) ByteReader::fail();
    if (k < states && kind_of(step, step.arguments[k]) != kind_of(step, step.results[k])) ByteReader::fail();
  }
  if (!predicate) return;
  check_is_function(*predicate);
  if (stacked > 0 || step.results.size() != states || predicate->arguments.size() != step.arguments.size() ||
      predicate->results.size() != 1)
    ByteReader::fail();
  const KnownCode::Kind holds = kind_of(*predicate, predicate->results[0]);
  if (holds.dtype != at::kBool || std::any_of(holds.sizes.begin(), holds.sizes.end(), [](int64_t n) { return n != 1; }))
    ByteReader::fail();
  for (size_t k = 0; k < step.arguments.size(); ++k) {
    const ValueId here = predicate->arguments[k], there = step.arguments[k];
    if (here == kNoValue ? there == kNoValue : there != kNoValue && kind_of(*predicate, here) != kind_of(step, there))
      ByteReader::fail();
  }
}

void write_flags(ByteWriter& out, const std::vector<bool>& flags) {
  out.list(flags, [&](bool flag) { out.number(flag); });
}
std::vector<bool> read_flags(ByteReader& in, size_t expected) {
  if (in.count() != expected) ByteReader::fail();
  std::vector<bool> flags;
  while (flags.size() < expected) flags.push_back(in.number() != 0);
  return flags;
}

}  // namespace

bool Loop::store(GraphWriter& graphs) const {
  ByteWriter& out = graphs.out();
  out.number(static_cast<int64_t>(StoredCode::loop));
  out.number(static_cast<int64_t>(states_));
  out.number(steps_.has_value());
  if (steps_) {
    out.number(steps_->count);
    out.number(static_cast<int64_t>(steps_->stacked));
    out.number(steps_->reverse);
  } else {
    out.number(options_.max_steps.has_value());
    out.number(options_.max_steps.value_or(0));
    out.number(std::bit_cast<int64_t>(options_.checkpoints));
    out.number(std::bit_cast<int64_t>(options_.compact));
    out.number(must_end_);
    graphs.write(predicate_->graph());
  }
  graphs.write(step_.graph());
  return true;
}

std::shared_ptr<const Loop> Loop::read(GraphReader& graphs, ByteReader& in) {
  const auto states = static_cast<size_t>(in.number());
  if (in.number()) {
    const int64_t count = in.number(), stacked = in.number();
    const bool reverse = in.number() != 0;
    if (count < 1 || stacked < 0) ByteReader::fail();
    const Steps steps{.count = count, .stacked = static_cast<size_t>(stacked), .reverse = reverse};
    Graph step = graphs.read(in);
    check_loop(nullptr, step, states, steps.stacked);
    return std::make_shared<const Loop>(std::move(step), states, steps);
  }
  WhileOptions options;
  const bool bounded = in.number() != 0;
  const int64_t most = in.number(), checkpoints = in.number();
  if (bounded) options.max_steps = most;
  options.checkpoints = Checkpoints(checkpoints);
  options.compact = std::bit_cast<double>(in.number());
  const bool must_end = in.number() != 0;
  Graph predicate = graphs.read(in), step = graphs.read(in);
  check_loop(&predicate, step, states, 0);
  return std::make_shared<const Loop>(std::move(predicate), std::move(step), states, options, must_end);
}

bool LoopBackwards::store(GraphWriter& graphs) const {
  ByteWriter& out = graphs.out();
  out.number(static_cast<int64_t>(StoredCode::pullback));
  loop_->store(graphs);
  write_flags(out, cotangents_);
  write_flags(out, needs_);
  out.number(step_.has_value());
  if (step_) graphs.write(*step_);
  return true;
}

c10::intrusive_ptr<const Operator> LoopBackwards::read(GraphReader& graphs, ByteReader& in) {
  if (static_cast<StoredCode>(in.number()) != StoredCode::loop) ByteReader::fail();
  const auto loop = Loop::read(graphs, in);
  const auto cotangents = read_flags(in, loop->results()), needs = read_flags(in, loop->operands());
  const std::shared_ptr<LoopBackwards> code(new LoopBackwards(loop, cotangents, needs));
  if (in.number()) {
    Graph step = graphs.read(in);
    check_is_function(step);
    const Kinds kinds = code->kinds_of_step();
    if (kinds_of(step, step.arguments) != kinds.operands || kinds_of(step, step.results) != kinds.results)
      ByteReader::fail();
    code->step_ = std::move(step);
  }
  return known_operator(rules_of_pullback(code, loop, cotangents, needs), code);
}

c10::intrusive_ptr<const Operator> read_code(GraphReader& graphs, ByteReader& in) {
  switch (static_cast<StoredCode>(in.index(static_cast<size_t>(StoredCode::end)))) {
    case StoredCode::loop: {
      const auto loop = Loop::read(graphs, in);
      return known_operator(rules_of(loop), loop);
    }
    case StoredCode::pullback:
      return LoopBackwards::read(graphs, in);
    case StoredCode::choice: {
      const auto choice = Choice::read(graphs, in);
      return known_operator(choice->rules(), choice);
    }
    case StoredCode::checkpoint: {
      const auto checkpointed = Checkpointed::read(graphs, in);
      return known_operator(checkpointed->rules(), checkpointed);
    }
    case StoredCode::end:
      break;
  }
  ByteReader::fail();
}

}  // namespace tower::compiler
