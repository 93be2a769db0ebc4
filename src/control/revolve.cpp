// NOTE [Checkpoints of a loop]
// Griewank and Walther's revolve. Of n steps with c states to keep, the first m are a checkpoint, which keeps the state
// before them; the other n - m have c - 1 states. The pullback comes to those first, and then to the m steps, with c
// states, for by then the others are free. With m chosen by binomial coefficients no step is evaluated more often than
// it must be: n <= (c + r over c) steps, r times.
//
// The parts of the first evaluation are operators, each with the state that it keeps, so that a tape lets go of a state
// when it has come past. The pullback of a part is a loop of its own, over states that it keeps and a cotangent.
#include "control/revolve.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "control/checkpoint.h"
#include "core/reuse.h"
#include "operators/differentiate.h"
#include "operators/lifting.h"
#include "tower/errors.h"

namespace tower {

using dynamic::Tensors;

namespace {

constexpr int64_t kMany = int64_t{1} << 40;  // more steps than any loop has

// The most steps that `states` kept states let pass if none may be evaluated again more than `times` times.
int64_t longest(int64_t states, int64_t times) {
  double result = 1;
  for (int64_t k = 1; k <= times && result < kMany; ++k)
    result *= static_cast<double>(states + k) / static_cast<double>(k);
  return result < kMany ? std::llround(result) : kMany;
}

// How many of `steps` steps come before the next state that is kept, if `states` are to be kept after this one.
int64_t first_part(int64_t steps, int64_t states) {
  if (states == 0) return steps - 1;
  int64_t times = 1;
  while (longest(states, times) < steps) ++times;
  return std::clamp<int64_t>(std::min(longest(states, times - 1), steps - longest(states - 1, times - 1)), 1,
                             steps - 1);
}

}  // namespace

int64_t Checkpoints::number_for(int64_t steps) const {
  if (number_ == kAutomatic) {
    constexpr int64_t kTimes = 3;  // and once more for the last of them, which is recorded
    int64_t states = 1;
    while (longest(states, kTimes) < steps) ++states;
    return states;
  }
  if (number_ < 1)
    throw ArgumentError("checkpoints: " + std::to_string(number_) +
                        " states are to be kept for the backward pass; at least one must be.");
  return number_;
}

StateLike::StateLike(const char* loop, const Tensors& start, detail::NameTensor name)
    : loop_(loop), name_(std::move(name)) {
  for (size_t k = 0; k < start.size(); ++k) {
    if (!start[k].defined()) throw ArgumentError(std::string(loop) + ": " + name_(k) + " is an undefined tensor.");
    metas_.emplace_back(start[k]);
  }
}

void StateLike::check(c10::ArrayRef<Tensor> next) const {
  if (next.size() != metas_.size())
    throw ArgumentError(std::string(loop_) + ": a step returned " + std::to_string(next.size()) +
                        " tensors where there were " + std::to_string(metas_.size()) +
                        ". All steps return as many, and as many states as they are given.");
  for (size_t k = 0; k < metas_.size(); ++k) {
    if (next[k].defined() && metas_[k].matches(next[k])) continue;
    throw ArgumentError(std::string(loop_) + ": " + name_(k) + " is " + metas_[k].describe() +
                        " at the start, but a step made it " +
                        (next[k].defined() ? describe(next[k]) : "an undefined tensor") +
                        ". A step keeps shapes and dtypes: begin with a state as the step returns it, or convert what "
                        "it returns.");
  }
}

Tensors KnownSteps::run_steps(int64_t first, int64_t count, const Tensors& operands, Tensors& captured,
                              bool with_outputs) const {
  const auto split = operands.begin() + static_cast<std::ptrdiff_t>(states);
  Tensors state(operands.begin(), split);
  std::vector<Tensors> elements, outputs;
  for (auto input = split; input != operands.end(); ++input) elements.push_back(at::unbind(*input, 0));
  for (int64_t k = 0; k < count; ++k) {
    const auto place = static_cast<size_t>(reverse ? count - 1 - k : k);
    for (const Tensors& input : elements) state.push_back(input[place]);
    Tensors results = step(first + k, state, captured);
    const size_t made = with_outputs ? results.size() - states : 0;
    if (k == 0) outputs.assign(made, Tensors(static_cast<size_t>(count)));
    for (size_t i = 0; i < made; ++i) outputs[i][place] = std::move(results[states + i]);
    results.resize(states);
    state = std::move(results);
  }
  for (const Tensors& output : outputs) state.push_back(at::stack(output, 0));
  return state;
}

namespace {

// The way back through some steps of a range.
class Reverse {
 public:
  Reverse(const KnownSteps& range, int64_t first, int64_t count, int64_t checkpoints, const Tensors& captured,
          const Tensors& operands, const std::vector<bool>& needs)
      : range_(range),
        first_(first),
        count_(count),
        checkpoints_(checkpoints),
        captured_(captured),
        operands_(operands),
        needs_(needs),
        inputs_(operands.size() - captured.size() - range.states),
        rows_(inputs_, Tensors(static_cast<size_t>(count))),
        gradients_(operands.size()) {}

  // Gradients of the operands.
  Tensors run(Draws& draws, const Tensors& cotangents) {
    const auto split = cotangents.begin() + static_cast<std::ptrdiff_t>(range_.states);
    cotangent_.assign(cotangents.begin(), split);
    of_outputs_.assign(split, cotangents.end());
    kept_.push_back({0, Tensors(operands_.begin(), operands_.begin() + static_cast<std::ptrdiff_t>(range_.states))});
    for (int64_t end = count_; end > 0; --end) {
      while (kept_.back().place == end) kept_.pop_back();
      State at = kept_.back();
      (at.draws ? *at.draws : draws).again(operands_, [&] {
        come_to(end, at);
        return true;
      });
    }
    for (size_t k = 0; k < range_.states; ++k) gradients_[k] = std::move(cotangent_[k]);
    for (size_t i = 0; i < inputs_; ++i) gradients_[range_.states + i] = stacked(rows_[i]);
    return std::move(gradients_);
  }

 private:
  struct State {
    int64_t place;  // the number of steps before it
    Tensors tensors;
    std::shared_ptr<Draws> draws = nullptr;  // of the steps behind it; of the first, those of the whole
  };

  // From a state that is kept to the last step before `end`, which is pulled back. States between are kept while there
  // is room.
  void come_to(int64_t end, State& at) {
    go_on(end, at);
    while (at.place < end) {
      at.draws = std::make_shared<Draws>();
      if (at.place < end - 1) kept_.push_back(at);
      at.draws->first(range_.loop, operands_, [&] {
        go_on(end, at);
        return true;
      });
    }
  }

  void go_on(int64_t end, State& at) {
    if (at.place == end - 1) {
      pull_back(at);
      at.place = end;
      return;
    }
    const auto room = checkpoints_ + 1 - static_cast<int64_t>(kept_.size());
    const int64_t steps = first_part(end - at.place, std::max<int64_t>(room, 0));
    at.tensors = after(at, steps);
    at.place += steps;
  }

  Tensors after(const State& at, int64_t steps) const {
    Tensors given = at.tensors;
    for (size_t i = 0; i < inputs_; ++i) given.push_back(input(i).narrow(0, row(at.place, steps), steps));
    given.insert(given.end(), operands_.end() - static_cast<std::ptrdiff_t>(captured_.size()), operands_.end());
    const auto evaluate = evaluated_often(
        range_.loop,
        with_captured(
            [range = range_, first = first_ + at.place, steps, captured = captured_](const Tensors& operands) {
              Tensors known = captured;
              return range.run_steps(first, steps, operands, known, /*with_outputs=*/false);
            },
            captured_));
    Tensors none;
    return evaluate_without_record(
        range_.loop, [evaluate](const Tensors& operands, Tensors&) { return evaluate(operands); }, given, none);
  }

  void pull_back(const State& at) {
    Tensors cotangents = std::move(cotangent_), operands = at.tensors;
    for (const Tensor& t : of_outputs_) cotangents.push_back(t.defined() ? t.select(0, row(at.place, 1)) : t);
    for (size_t i = 0; i < inputs_; ++i) operands.push_back(input(i).select(0, row(at.place, 1)));
    operands.insert(operands.end(), operands_.end() - static_cast<std::ptrdiff_t>(captured_.size()), operands_.end());
    std::vector<bool> needs = needs_;
    for (size_t k = 0; k < range_.states && at.place > 0; ++k)
      needs[k] = operands[k].is_floating_point() || operands[k].is_complex();
    const auto step = evaluated_often(range_.loop, with_captured(
                                                       [&](const Tensors& given) {
                                                         Tensors known = captured_;
                                                         return range_.step(first_ + at.place, given, known);
                                                       },
                                                       captured_));
    const bool any = std::any_of(cotangents.begin(), cotangents.end(), [](const Tensor& t) { return t.defined(); });
    Tensors found = any ? pull_back_through(step, operands, cotangents, needs) : Tensors(operands.size());
    cotangent_.assign(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(range_.states));
    for (size_t i = 0; i < inputs_; ++i)
      rows_[i][static_cast<size_t>(row(at.place, 1))] = std::move(found[range_.states + i]);
    for (size_t k = range_.states + inputs_; k < found.size(); ++k) {
      Tensor& sum = gradients_[k];
      if (found[k].defined()) sum = sum.defined() ? add_overwriting(std::move(sum), std::move(found[k])) : found[k];
    }
  }

  const Tensor& input(size_t i) const { return operands_[range_.states + i]; }
  // Where the elements of these steps begin.
  int64_t row(int64_t place, int64_t steps) const { return range_.reverse ? count_ - place - steps : place; }

  static Tensor stacked(Tensors rows) {
    const auto some = std::find_if(rows.begin(), rows.end(), [](const Tensor& t) { return t.defined(); });
    if (some == rows.end()) return {};
    const Tensor zero = at::zeros_like(*some);
    for (Tensor& t : rows)
      if (!t.defined()) t = zero;
    return at::stack(rows, 0);
  }

  const KnownSteps& range_;
  const int64_t first_, count_, checkpoints_;
  const Tensors &captured_, &operands_;
  const std::vector<bool>& needs_;
  const size_t inputs_;
  std::vector<State> kept_;
  Tensors cotangent_, of_outputs_;
  std::vector<Tensors> rows_;  // gradients of the inputs' elements
  Tensors gradients_;
};

}  // namespace

Tensors KnownSteps::run(int64_t first, int64_t count, std::optional<int64_t> checkpoints, const Tensors& operands,
                        Tensors& captured) const {
  if (!checkpoints || count == 1) return run_steps(first, count, operands, captured);
  struct Segment {
    int64_t steps, states;
  };
  std::vector<Segment> parts;
  int64_t left = count;
  for (int64_t states = *checkpoints; left > 1; states = std::max<int64_t>(states - 1, 0)) {
    parts.push_back({first_part(left, states), states});
    left -= parts.back().steps;
  }
  parts.push_back({1, 0});  // which is recorded
  std::vector<int64_t> sizes;
  for (const Segment& part : parts) sizes.push_back(part.steps);
  if (reverse) std::reverse(sizes.begin(), sizes.end());

  const auto split = operands.begin() + static_cast<std::ptrdiff_t>(states);
  Tensors state(operands.begin(), split);
  std::vector<Tensors> inputs, outputs;
  for (auto input = split; input != operands.end(); ++input) inputs.push_back(at::split_with_sizes(*input, sizes, 0));
  for (size_t p = 0; p < parts.size(); ++p) {
    const size_t place = reverse ? parts.size() - 1 - p : p;
    for (const Tensors& input : inputs) state.push_back(input[place]);
    const auto evaluate = [self = *this, first, part = parts[p]](const Tensors& given, Tensors& known) {
      const auto kept = may_be_recorded(given) ? std::optional(part.states) : std::nullopt;
      return self.run(first, part.steps, kept, given, known);
    };
    const auto pull_back = [self = *this, first, part = parts[p]](Draws& draws, const Tensors& known,
                                                                  const Tensors& given, const Tensors& cotangents,
                                                                  const std::vector<bool>& needs) {
      return Reverse(self, first, part.steps, part.states, known, given, needs).run(draws, cotangents);
    };
    Tensors results = p + 1 == parts.size() ? evaluate(state, captured)
                                            : evaluate_without_record(loop, evaluate, state, captured, pull_back);
    const size_t made = results.size() - states;
    if (p == 0) outputs.assign(made, Tensors(parts.size()));
    for (size_t i = 0; i < made; ++i) outputs[i][place] = std::move(results[states + i]);
    results.resize(states);
    state = std::move(results);
    first += parts[p].steps;
  }
  for (const Tensors& output : outputs) state.push_back(at::cat(output, 0));
  return state;
}

}  // namespace tower
