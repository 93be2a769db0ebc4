#include "compile/traced_loop.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>

#include "compile/compiled_graph.h"
#include "compile/loop_rules.h"
#include "compile/traced_checkpoint.h"
#include "compile/traced_choice.h"
#include "compile/traced_function.h"
#include "control/loops.h"
#include "control/repeated_draws.h"
#include "control/revolve.h"
#include "control/traced.h"
#include "core/bind.h"
#include "core/level.h"
#include "core/tensor_lists.h"
#include "core/wrapper.h"
#include "fuse/fused_plan.h"
#include "graph/operand_dims.h"
#include "graph/trace.h"
#include "numbers/thresholds.h"
#include "operators/differentiate.h"
#include "tower/errors.h"

namespace tower::compiler {

using dynamic::Function;
using dynamic::Tensors;

Loop::Loop(Graph predicate, Graph step, size_t states, const WhileOptions& options, bool must_end)
    : predicate_(std::move(predicate)),
      step_(std::move(step)),
      states_(states),
      options_(options),
      must_end_(must_end) {
  raises = must_end && options.max_steps;
  note_calls(*this, predicate_->graph());
  note_calls(*this, step_.graph());
}

Loop::Loop(Graph step, size_t states, const Steps& steps)
    : step_(std::move(step)), states_(states), steps_(steps), must_end_(false) {
  note_calls(*this, step_.graph());
}

Loop::~Loop() = default;

const CompiledGraph& Loop::compiled(bool step) const {
  const auto make = [this] {
    const auto kernels = std::make_shared<Kernels>();
    return std::array{predicate_ ? std::make_unique<const CompiledGraph>(predicate_->graph(), kernels) : nullptr,
                      std::make_unique<const CompiledGraph>(step_.graph(), kernels)};
  };
  return *compiled_.get(make)[step];
}

Tensors Loop::repeat(const Function& predicate, const Function& step, const Tensors& start,
                     const Tensors& fixed) const {
  const auto holds = [predicate](const Tensors& all) { return predicate(all)[0]; };
  if (tracing())
    return run_while([holds, fixed](const Tensors& state) { return holds(joined(state, fixed)); },
                     [step, fixed](const Tensors& state) { return step(joined(state, fixed)); }, start, options_,
                     must_end_);
  const auto with_fixed = [step, states = start.size()](const Tensors& all) {
    return joined(step(all), Tensors(all.begin() + static_cast<std::ptrdiff_t>(states), all.end()));
  };
  Tensors last = run_while(holds, with_fixed, joined(start, fixed), options_, must_end_);
  last.resize(start.size());
  return last;
}

Tensors Loop::repeat(const Function& step, size_t states, const Tensors& operands, const Tensors& fixed) const {
  const auto one = [step, fixed](int64_t, const Tensors& own, Tensors&) { return step(joined(own, fixed)); };
  const KnownSteps steps{name(), one, states, steps_->reverse};
  if (tracing())
    if (auto results = tower::traced.known_steps(steps, 0, steps_->count, operands)) return *std::move(results);
  Tensors captured;
  return steps.run_steps(0, steps_->count, operands, captured);
}

bool Loop::may_be_in_tiles() const {
  const Graph& step = step_.graph();
  const auto is_large = [&](ValueId id) { return count(step.values[id].sizes) > thresholds().most_of_lane; };
  return steps_ && !has_stacked() && !random && !foreign && !raises &&
         std::any_of(step.results.begin(), step.results.end(), is_large);
}

const TiledLoop* Loop::in_tiles() const {
  if (!may_be_in_tiles()) return nullptr;
  const auto make = [this]() -> std::unique_ptr<const TiledLoop> {
    Kernels kernels;
    try {
      return TiledLoop::of(step_.graph(), states_, steps_->count, kernels);
    } catch (const CompileError&) {
      return nullptr;
    }
  };
  return in_tiles_.get(make).get();
}

Tensors Loop::run_written_out(const Tensors& operands) const {
  Tensors all = operands;
  for (int64_t k = 0; k < steps_->count; ++k) {
    const Tensors next = step_.run(all);
    std::copy(next.begin(), next.end(), all.begin());
  }
  all.resize(states_);
  return all;
}

namespace {

// NOTE [One trajectory]
// Rounding may decide what a loop's next state is: an integrator chooses a step's length by an error that is hardly
// more. Rules make the loop's steps again, under a level for derivatives, where operators may be others (a solve is
// opened into triangular ones), and derivatives along other states than those that the loop gave would be wrong. So
// values are those of the step as the loop makes it, below the level, and of what the level makes only derivatives are
// taken.
Tensors along_values_below(const Function& step, const Tensors& all) {
  const Level* level = top();
  if (!level || (level->kind() != Kind::vjp && level->kind() != Kind::jvp)) return step(all);
  Tensors outs = step(all);
  Tensors below = all;
  for (Tensor& t : below)
    if (Wrapper* w = as_wrapper_of(t, *level)) t = Tensor(w->payload().value);
  const Tensors values = [&] {
    const Below only_those(*level);
    return along_values_below(step, below);
  }();
  for (size_t k = 0; k < outs.size(); ++k) {
    Wrapper* w = as_wrapper_of(outs[k], *level);
    if (!w || !has_derivative(outs[k])) {
      outs[k] = values[k];
      continue;
    }
    // A difference of zero, which leaves the sign of a zero, and what levels below make of both.
    const Tensor made(w->payload().value), value = values[k] - (made - outs[k]);
    outs[k] = at::where(at::isfinite(made), value, outs[k]);
  }
  return outs;
}

}  // namespace

Tensors Loop::run(const Tensors& operands) const {
  if (const TiledLoop* tiled = is_plain(operands) ? in_tiles() : nullptr; tiled && tiled->takes(operands))
    return tiled->run(operands);
  const auto split = operands.begin() + static_cast<std::ptrdiff_t>(states_ + stacked());
  const auto part = [self = shared_from_this()](bool step) -> Function {
    const Function once = [self, step](const Tensors& all) {
      return self->compiles_ ? self->compiled(step).run(all) : (step ? self->step_ : *self->predicate_).run(all);
    };
    if (!step || self->random || self->foreign) return once;
    return [once](const Tensors& all) { return along_values_below(once, all); };
  };
  if (steps_) return repeat(part(true), states_, Tensors(operands.begin(), split), Tensors(split, operands.end()));
  return repeat(part(false), part(true), Tensors(operands.begin(), split), Tensors(split, operands.end()));
}

// State: that of the loop, and the tangents of what has some; stacked: the same, and fixed: what was captured, and its
// tangents. Outputs are those of the tangents alone.
Tensors Loop::push_forward(const Tensors& operands, const Tensors& tangents) const {
  const auto part = [](const Tensors& of, size_t first, size_t last) {
    return Tensors(of.begin() + static_cast<std::ptrdiff_t>(first), of.begin() + static_cast<std::ptrdiff_t>(last));
  };
  const size_t own = states_ + stacked();
  std::vector<bool> moves;
  Tensors given = part(operands, 0, states_);
  for (size_t k = 0; k < states_; ++k) {
    moves.push_back(has_derivative(operands[k]));
    if (moves[k]) given.push_back(or_zeros(tangents[k], operands[k]));
  }
  const size_t states = given.size();
  const Tensors of_stacked = part(tangents, states_, own), of_fixed = part(tangents, own, tangents.size());
  const std::vector<bool> stacked_move = are_defined(of_stacked), fixed_moves = are_defined(of_fixed);
  given = joined(given, joined(part(operands, states_, own), only_defined(of_stacked)));
  const Tensors fixed = joined(part(operands, own, operands.size()), only_defined(of_fixed));
  const size_t elements = states + stacked(), first_fixed = given.size(), last_fixed = first_fixed + fixed_moves.size();
  const auto primal = [=, primals = states_](const Tensors& all) {
    return joined(joined(part(all, 0, primals), part(all, states, elements)), part(all, first_fixed, last_fixed));
  };
  const auto predicate = [self = shared_from_this(), primal](const Tensors& all) {
    return self->predicate_->run(primal(all));
  };
  const auto step = [=, self = shared_from_this()](const Tensors& all) {
    const auto from = [&](size_t k) { return all.begin() + static_cast<std::ptrdiff_t>(k); };
    const Tensors along = joined(joined(in_places(moves, from(self->states_)), in_places(stacked_move, from(elements))),
                                 in_places(fixed_moves, from(last_fixed)));
    const Function once = [self](const Tensors& x) { return self->step_.run(x); };
    const Tensors found = dynamic::jvp(once, primal(all), along).second;
    const Tensors outs = once(primal(all));  // NOTE [One trajectory]
    Tensors next = part(outs, 0, self->states_);
    for (size_t k = 0; k < outs.size(); ++k)
      if (has_derivative(outs[k])) next.push_back(or_zeros(found[k], outs[k]));
    return next;
  };
  const Tensors last = steps_ ? repeat(step, states, given, fixed) : repeat(predicate, step, given, fixed);
  for (size_t k = states_; k < results(); ++k)
    moves.push_back(has_derivative(step_.graph().values[step_.graph().results[k]].dtype));
  return in_places(moves, last.begin() + static_cast<std::ptrdiff_t>(states_));
}

namespace {

bool same_value(const Value& a, const Value& b) {
  if (a.origin != b.origin || a.sizes != b.sizes || a.dtype != b.dtype || a.device != b.device ||
      a.number != b.number || a.tensor.defined() != b.tensor.defined())
    return false;
  return !a.tensor.defined() || same_bits(a.tensor, b.tensor);
}

// `axes`: for each vmap of the one graph, which vmap of the other stands for it.
bool same_call(const Call& a, const Call& b, std::map<uint64_t, uint64_t>& axes) {
  const auto same_place = [](LeafRef p, LeafRef q) { return p.arg == q.arg && p.element == q.element; };
  const auto same_vmap = [&](const Mapped& m, const Mapped& n) {
    return m.dims == n.dims && m.batch_size == n.batch_size && axes.emplace(m.axis, n.axis).first->second == n.axis;
  };
  if (!do_the_same(*a.op, *b.op) || a.operands != b.operands || a.results != b.results || a.records != b.records ||
      a.effect != b.effect ||
      !std::equal(a.places.begin(), a.places.end(), b.places.begin(), b.places.end(), same_place) ||
      !std::equal(a.vmaps.begin(), a.vmaps.end(), b.vmaps.begin(), b.vmaps.end(), same_vmap))
    return false;
  for (size_t i = 0; i < a.args.size(); ++i)
    if (a.op->kind(i) == ArgKind::other && exact_text(a.args[i]) != exact_text(b.args[i])) return false;
  return true;
}

// Whether the graphs' constants were made by the same calls, of the same numbers.
bool same_makers(const Graph& a, const Graph& b, std::map<uint64_t, uint64_t>& axes) {
  const auto same_constant = [](const Constant& x, const Constant& y) {
    return x.sizes == y.sizes && x.tensor.defined() == y.tensor.defined() &&
           (!x.tensor.defined() || same_bits(x.tensor, y.tensor));
  };
  return std::equal(a.makers.begin(), a.makers.end(), b.makers.begin(), b.makers.end(),
                    [&](const Call& x, const Call& y) { return same_call(x, y, axes); }) &&
         std::equal(a.constants.begin(), a.constants.end(), b.constants.begin(), b.constants.end(), same_constant);
}

}  // namespace

bool same_graph(const Graph& a, const Graph& b) {
  DispatchGuard keys;
  keys.see_no_operator();
  std::map<uint64_t, uint64_t> axes;
  return a.arguments == b.arguments && a.results == b.results && same_makers(a, b, axes) &&
         std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(), same_value) &&
         std::equal(a.calls.begin(), a.calls.end(), b.calls.begin(), b.calls.end(),
                    [&](const Call& x, const Call& y) { return same_call(x, y, axes); });
}

bool Loop::does_the_same(const KnownCode& code) const {
  const auto* loop = dynamic_cast<const Loop*>(&code);
  if (!loop || loop == this) return loop;
  const Loop& other = *loop;
  if (states_ != other.states_ || steps_ != other.steps_ || !same_graph(step_.graph(), other.step_.graph()))
    return false;
  return steps_ || (must_end_ == other.must_end_ && options_.max_steps == other.options_.max_steps &&
                    same_graph(predicate_->graph(), other.predicate_->graph()));
}

// ---- tracing -------------------------------------------------------------------------------------------------------

namespace {

bool kernels_know(const Operator& op) { return is_known_in_numbers(op); }

// In force while a step is traced, of which a kernel may be made: there is no memory in it for what steps of another
// loop have of their own.
struct InStep : InForce<InStep> {
  const Trying tried;
};

}  // namespace

Graph traced_step(const Function& f, const Tensors& state) {
  const InStep here;
  Draws draws;
  Graph graph = draws.first("while_loop", state, [&] { return trace(f, state, "while_loop", kernels_know).graph; });
  draws.take_back();
  graph.simplify();
  for (const Call& call : graph.calls)
    if (call.effect)
      throw UnsupportedError(
          "while_loop: a step of a loop in a compiled function writes to its state, or to a tensor that it captured. "
          "Return what the write was for, as part of the state.");
  return graph;
}

namespace {

void meet_captured(const Function& f, const Tensors& operands) {
  // Branches inside of branches. A function may call itself in one, and end by a branch that is taken.
  constexpr int kDeepest = 4;
  thread_local int depth = 0;
  if (depth == kDeepest) return;
  struct Deeper {
    Deeper() { ++depth; }
    ~Deeper() { --depth; }
  } deeper;
  Draws draws;
  const InStep here;
  try {
    draws.first("compile", operands, [&] { return trace(f, operands, "while_loop", kernels_know).results; });
    draws.take_back();
  } catch (const InvisibleTensorError&) {
    throw;
  } catch (const std::exception&) {
  }
}

Tensors traced_loop(const dynamic::Predicate& predicate, const Function& step, const Tensors& start,
                    const WhileOptions& options, bool must_end) {
  Graph condition = traced_step([&](const Tensors& state) { return Tensors{predicate(state)}; }, start);
  Graph body = traced_step(step, start);
  const Tensors captured = pass_captured(condition, body);
  const auto loop =
      std::make_shared<const Loop>(std::move(condition), std::move(body), start.size(), options, must_end);
  return call_known(rules_of(loop), loop, joined(start, captured));
}

// Whether a loop in a kernel is better than its steps, written out. Under a vmap the examples are lanes. Without one
// there is one lane, of which all elements are numbers for themselves, whereas those of steps that are written out are
// lanes: that is better, but where elements are few, or steps too many to be compiled one by one.
bool is_worth_a_loop(const Tensors& of_step, int64_t count) {
  constexpr int64_t kFewElements = 4, kFewestSteps = 64, kManySteps = 512;
  const auto have_at_most = [&](int64_t most) {
    return std::all_of(of_step.begin(), of_step.end(), [=](const Tensor& t) { return t.numel() <= most; });
  };
  if (count < thresholds().fewest_steps || !have_at_most(thresholds().most_of_lane)) return false;
  for (const Level* level = top(); level; level = level->below())
    if (level->kind() == Kind::vmap && level->is_traced()) return true;
  return count >= kManySteps || (count >= kFewestSteps && have_at_most(kFewElements));
}

// Whether a loop may be one over large tensors. Under a vmap, examples are the lanes, if any are.
bool may_be_in_tiles(const Tensors& state, int64_t count) {
  const auto is_large = [](const Tensor& t) { return t.numel() > thresholds().most_of_lane; };
  if (count < thresholds().fewest_steps || InStep::now() || std::none_of(state.begin(), state.end(), is_large))
    return false;
  for (const Level* level = top(); level; level = level->below())
    if (level->kind() == Kind::vmap) return false;
  return true;
}

// Whether all calls are such as tiles can have, but for where they read elements.
bool has_elements_alone(const Graph& step) {
  return std::all_of(step.calls.begin(), step.calls.end(), [](const Call& call) {
    return call.vmaps.empty() && (element_rule(*call.op) || call.op->moves != Moves::no);
  });
}

// Where a step writes, draws random numbers, or does what no kernel can, there is no loop, nor where steps differ. In
// the step of another loop there is no memory for what steps have of their own.
std::optional<Tensors> traced_steps(const KnownSteps& steps, int64_t first, int64_t count, const Tensors& operands) {
  if (InStep::now() && operands.size() > steps.states) return std::nullopt;
  Tensors one(operands.begin(), operands.begin() + static_cast<std::ptrdiff_t>(steps.states));
  for (size_t i = steps.states; i < operands.size(); ++i)
    one.push_back(operands[i].select(0, steps.reverse ? count - 1 : 0));
  const bool in_lane = is_worth_a_loop(one, count);
  if (!in_lane && (operands.size() > steps.states || !may_be_in_tiles(one, count))) return std::nullopt;
  struct Body {
    Graph graph;
    Tensors captured;
  };
  const auto trace_one = [&](int64_t index) {
    const auto step = [&](const Tensors& own) {
      Tensors none;
      return steps.step(index, own, none);
    };
    const InStep here;
    Body body{trace_without_effects(step, one, steps.loop, kernels_know).graph, {}};
    body.graph.simplify();
    body.captured = pass_captured(body.graph);
    return body;
  };
  Body body;
  try {
    body = trace_one(first);
    if (!in_lane && (body.graph.results.size() > steps.states || !has_elements_alone(body.graph))) return std::nullopt;
    for (int64_t k = 1; steps.by_index && k < count; ++k) {
      const Body other = trace_one(first + k);
      const auto same = [](const Tensor& a, const Tensor& b) { return a.is_same(b); };
      if (!std::equal(body.captured.begin(), body.captured.end(), other.captured.begin(), other.captured.end(), same) ||
          !same_graph(body.graph, other.graph))
        return std::nullopt;
    }
  } catch (const std::exception&) {
    return std::nullopt;  // made one by one, the steps say what is wrong
  }
  if (InStep::now() && body.graph.results.size() > steps.states) return std::nullopt;
  const auto loop = std::make_shared<const Loop>(
      std::move(body.graph), steps.states,
      Loop::Steps{.count = count, .stacked = operands.size() - steps.states, .reverse = steps.reverse});
  const Tensors all = joined(operands, body.captured);
  if (in_lane ? !loop->fits_kernel(all) : !loop->in_tiles()) return std::nullopt;
  return call_known(rules_of(loop), loop, all);
}

[[maybe_unused]] const bool is_known =
    (tower::traced = {traced_loop, traced_steps, traced_choice, traced_checkpoint, meet_captured}, true);

}  // namespace

}  // namespace tower::compiler
