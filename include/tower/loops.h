// Loops over a state, a tree: while_loop, fori_loop, scan, associative_scan. Under vmap each example makes its own
// number of steps; every transform of a loop holds, reverse mode of an unbounded while_loop too, and how much of a long
// loop is kept for the backward pass is an option.
//
//   auto x = tower::while_loop([=](const State& s) { return s.error > tolerance; }, newton_step, start);
//   auto [last, trajectory] = tower::scan(step, start, inputs);
//   auto y = tower::fori_loop(0, n, [=](int64_t i, const Tensor& s) { return s + i * h; }, start);
//   auto sums = tower::associative_scan([](const Tensor& a, const Tensor& b) { return a + b; }, elements);
//
// A step gives a state of the same shapes, dtypes and static parts, and writes to nothing. What a function captures is
// captured by value: steps are kept, and run again in the backward pass, where examples end at different steps or
// checkpoints are asked for. docs/control_flow.md.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tower/axes.h"
#include "tower/detail/flat.h"
#include "tower/dynamic.h"
#include "tower/errors.h"
#include "tower/tree.h"

namespace tower {

/// The predicate of a while_loop still held after `max_steps` steps.
class MaxStepsError : public Error {
 public:
  using Error::Error;
};

/// Of how many steps a loop keeps the state for the backward pass. Between them steps are computed again.
class Checkpoints {
 public:
  /// `{}` is all().
  constexpr Checkpoints() : Checkpoints(kAll) {}
  /// No state: the loop is recorded as the steps that it is made of. The fastest, and the memory of all steps.
  static constexpr Checkpoints all() { return Checkpoints(kAll); }
  /// As few as let each step be computed again no more than four times: about 1.8 n^(1/3) for n steps.
  static constexpr Checkpoints automatic() { return Checkpoints(kAutomatic); }
  /// This `number` of states, at least one.
  constexpr Checkpoints(int64_t number) : number_(number) {}  // NOLINT: `.checkpoints = 32`

  /// Whether this is all().
  constexpr bool is_all() const { return number_ == kAll; }
  /// The number of states for a loop of `steps` steps. Throws ArgumentError where it is not positive.
  int64_t number_for(int64_t steps) const;

 private:
  static constexpr int64_t kAll = -1, kAutomatic = -2;
  int64_t number_;
};

/// How a while_loop runs.
struct WhileOptions {
  /// The most steps of an example. If more are needed, while_loop throws MaxStepsError.
  std::optional<int64_t> max_steps = std::nullopt;
  /// Of how many steps the state is kept for the backward pass.
  Checkpoints checkpoints = Checkpoints::all();
  /// Where at most this part of a batch goes on, the others are left out of the step: it is made for those that go on,
  /// and written back. 0: never; `true`: from the first example that has ended. Worth it where steps are many or
  /// expensive, and their numbers differ much.
  double compact = 0;
};

/// How a fori_loop runs.
struct ForiOptions {
  /// Of how many steps the state is kept for the backward pass.
  Checkpoints checkpoints = Checkpoints::all();
};

/// How a scan runs.
struct ScanOptions {
  /// The number of steps. Needed where there are no inputs.
  std::optional<int64_t> length = std::nullopt;
  /// From the last input to the first. Outputs have the places of their inputs.
  bool reverse = false;
  /// Of how many steps the carry is kept for the backward pass.
  Checkpoints checkpoints = Checkpoints::all();
};

/// Along what an associative_scan goes.
struct AssociativeScanOptions {
  /// The dimension that the elements lie along, in every tensor.
  int64_t dim = 0;
  /// From the last element to the first.
  bool reverse = false;
};

/// What try_while_loop returns.
template <class State>
struct LoopResult {
  State state;          ///< the last one
  at::Tensor finished;  ///< bool: the loop ended by its predicate, not by max_steps
  at::Tensor steps;     ///< int64: how many there were
};
/// A result is a tree.
template <class State>
constexpr auto tower_fields(const LoopResult<State>&) {
  return std::tuple(&LoopResult<State>::state, &LoopResult<State>::finished, &LoopResult<State>::steps);
}

namespace dynamic {

/// Whether a loop goes on: a bool of one element.
using Predicate = std::function<at::Tensor(const Tensors& state)>;
/// The next state, from the step's index and the state.
using ForiStep = std::function<Tensors(int64_t index, const Tensors& state)>;
/// The next carry, and the step's outputs.
using ScanStep = std::function<std::pair<Tensors, Tensors>(const Tensors& carry, const Tensors& inputs)>;
/// What two elements are together; associative.
using Combine = std::function<Tensors(const Tensors& a, const Tensors& b)>;

/// The first state, in start, body(start), body(body(start)), …, for which `predicate` is false.
///
/// Where the predicate is the same for all examples of every surrounding vmap, and outside of transforms, this is the
/// loop it looks like. Where it differs, steps are run while there is an example that goes on; the others keep their
/// state, and nothing of the step gets into their values or derivatives, whatever it would have been. Throws
/// ArgumentError where a step changes shapes or dtypes, or the predicate is no bool of one element, and MaxStepsError.
Tensors while_loop(const Predicate& predicate, const Function& body, const Tensors& start, WhileOptions options = {});
/// The while_loop of `predicate` and `body` from `start`, and instead of an exception at max_steps two more tensors:
/// whether the loop had ended, a bool, and its steps, int64.
Tensors try_while_loop(const Predicate& predicate, const Function& body, const Tensors& start,
                       WhileOptions options = {});

/// body(upper - 1, … body(lower, start)); `start` where `upper` is not above `lower`.
Tensors fori_loop(int64_t lower, int64_t upper, const ForiStep& body, const Tensors& start, ForiOptions options = {});

/// The last carry, of which `start` is the first, and the steps' outputs, each stacked along a new first dimension.
/// Step k is given element k of each of `inputs` along its first dimension. (A scan of no steps calls `step` once with
/// zeros, to know the outputs' shapes.) Throws ArgumentError where the inputs are of different lengths, or there are
/// none and no
/// `.length`.
std::pair<Tensors, Tensors> scan(const ScanStep& step, const Tensors& start, const Tensors& inputs,
                                 ScanOptions options = {});

/// All prefixes e0, e0∘e1, (e0∘e1)∘e2, … of the `elements` of tensors along a dimension, of the same shapes, by O(log
/// n) calls of `combine`, an associative function of two elements that is mapped over them.
Tensors associative_scan(const Combine& combine, const Tensors& elements, AssociativeScanOptions options = {});

}  // namespace dynamic

namespace detail {

// The dynamic functions with names for the leaves of a state.
Tensors run_while(const dynamic::Predicate& predicate, const dynamic::Function& body, const Tensors& start,
                  const WhileOptions& options, bool report, const NameTensor& name);
Tensors run_fori(int64_t lower, int64_t upper, const dynamic::ForiStep& body, const Tensors& start,
                 const ForiOptions& options, const NameTensor& name);
std::pair<Tensors, Tensors> run_scan(const dynamic::ScanStep& step, const Tensors& start, const Tensors& inputs,
                                     const ScanOptions& options, const NameTensor& name);

/// "state[1]" and so on, for the tensors of a tree of that shape.
NameTensor names_of_leaves(const char* what, TreeShape shape);
at::Tensor as_predicate(bool value);
inline at::Tensor as_predicate(at::Tensor value) { return value; }
[[noreturn]] void refuse_static_change(const char* loop, const char* what);

/// Throws ArgumentError unless the trees differ in their tensors at most.
template <class T>
void check_static_parts(const char* loop, const char* what, const T& found, const T& expected) {
  if (!same_static_parts(expected, found)) refuse_static_change(loop, what);
}

/// The tensors of a state that a step gave, after a look at its static parts.
template <class State>
Tensors checked_leaves(const char* loop, const State& next, const State& like) {
  check_static_parts(loop, "state", next, like);
  return leaves_of(next);
}

template <class Predicate, class Body, class State>
Tensors while_leaves(Predicate predicate, Body body, const State& start, const WhileOptions& options, bool report) {
  static_assert(TensorTree<State>, "tower: the state of a loop is a tree that holds tensors (tower/tree.h).");
  static_assert(std::is_invocable_r_v<State, Body&, State>,
                "tower: the body of while_loop takes a state and returns one of the same type.");
  const State like = static_parts(start);
  auto holds = [predicate = std::move(predicate), like](const Tensors& leaves) mutable {
    return as_predicate(predicate(with_leaves(like, leaves)));
  };
  auto step = [body = std::move(body), like](const Tensors& leaves) mutable {
    return checked_leaves<State>("while_loop", body(with_leaves(like, leaves)), like);
  };
  return run_while(holds, step, leaves_of(start), options, report, names_of_leaves("state", shape_of(start)));
}

}  // namespace detail

/// dynamic::while_loop for a state that is a tree. The `predicate` returns a tensor, or a bool where that can be known.
template <class Predicate, class Body, class State>
State while_loop(Predicate predicate, Body body, const State& start, WhileOptions options = {}) {
  return with_leaves(start,
                     detail::while_leaves(std::move(predicate), std::move(body), start, options, /*report=*/false));
}

/// dynamic::try_while_loop for a state that is a tree.
template <class Predicate, class Body, class State>
LoopResult<State> try_while_loop(Predicate predicate, Body body, const State& start, WhileOptions options = {}) {
  auto leaves = detail::while_leaves(std::move(predicate), std::move(body), start, options, /*report=*/true);
  LoopResult<State> result{start, detail::placeholder(), detail::placeholder()};
  return with_leaves(std::move(result), leaves);
}

/// dynamic::fori_loop for a state that is a tree.
template <class Body, class State>
State fori_loop(int64_t lower, int64_t upper, Body body, const State& start, ForiOptions options = {}) {
  static_assert(TensorTree<State>, "tower: the state of a loop is a tree that holds tensors (tower/tree.h).");
  static_assert(std::is_invocable_r_v<State, Body&, int64_t, State>,
                "tower: the body of fori_loop takes an index and a state and returns a state of the same type.");
  auto step = [body = std::move(body), like = detail::static_parts(start)](int64_t index,
                                                                           const dynamic::Tensors& leaves) mutable {
    return detail::checked_leaves<State>("fori_loop", body(index, with_leaves(like, leaves)), like);
  };
  return with_leaves(start, detail::run_fori(lower, upper, step, leaves_of(start), options,
                                             detail::names_of_leaves("state", detail::shape_of(start))));
}

namespace detail {

template <class Carry, class Step, class... Inputs>
auto scan_trees(Step step, const Carry& start, const ScanOptions& options, const Inputs&... inputs) {
  static_assert(TensorTree<Carry>, "tower: the carry of scan is a tree that holds tensors (tower/tree.h).");
  using Pair = typename ResultOf<Step, Carry, Inputs...>::type;
  static_assert(is_pair<Pair>, "tower: the step of scan returns a pair: {the next carry, what is stacked}.");
  static_assert(std::is_same_v<std::tuple_element_t<0, Pair>, Carry>,
                "tower: the step of scan returns a carry of the type that it was given.");
  using Out = std::tuple_element_t<1, Pair>;
  static_assert(IsTree<Out>, "tower: what scan stacks is not a tree (tower/tree.h).");
  auto first = std::make_shared<std::optional<Out>>();  // the static parts of what the first step gave
  auto flat = [step = std::move(step), carry_like = static_parts(start),
               input_like = static_parts(std::tuple<Inputs...>(inputs...)),
               first](const Tensors& carry, const Tensors& elements) mutable {
    auto [next, out] = std::apply(
        [&](auto&&... element) {
          return step(with_leaves(carry_like, carry), std::forward<decltype(element)>(element)...);
        },
        with_leaves(input_like, elements));
    check_static_parts("scan", "carry", next, carry_like);
    std::pair<Tensors, Tensors> leaves{leaves_of(next), leaves_of(out)};
    if (*first) check_static_parts("scan", "output", out, **first);
    else *first = static_parts(std::move(out));
    return leaves;
  };
  Tensors elements;
  (append_leaves(inputs, elements), ...);
  auto [last, stacked] = run_scan(flat, leaves_of(start), elements, options, names_of_leaves("carry", shape_of(start)));
  return std::pair<Carry, Out>(with_leaves(start, last), with_leaves(**first, stacked));
}

}  // namespace detail

/// dynamic::scan for trees: `step(carry, element)` returns {carry, output}; `start` is the first carry.
template <class Step, class Carry, class Inputs>
requires TensorTree<Inputs>
auto scan(Step step, const Carry& start, const Inputs& inputs, ScanOptions options = {}) {
  return detail::scan_trees(std::move(step), start, options, inputs);
}
/// dynamic::scan for trees without inputs, `.length` steps: `step(carry)`.
template <class Step, class Carry>
auto scan(Step step, const Carry& start, ScanOptions options) {
  return detail::scan_trees(std::move(step), start, options);
}

/// dynamic::associative_scan for trees: `combine(a, b)` of two elements.
template <class Combine, class Elements>
Elements associative_scan(Combine combine, const Elements& elements, AssociativeScanOptions options = {}) {
  static_assert(TensorTree<Elements>, "tower: the elements of associative_scan are not a tree (tower/tree.h).");
  auto flat = [combine = std::move(combine), like = detail::static_parts(elements)](const dynamic::Tensors& a,
                                                                                    const dynamic::Tensors& b) mutable {
    const Elements both = combine(with_leaves(like, a), with_leaves(like, b));
    detail::check_static_parts("associative_scan", "combined element", both, like);
    return leaves_of(both);
  };
  return with_leaves(elements, dynamic::associative_scan(flat, leaves_of(elements), options));
}

}  // namespace tower
