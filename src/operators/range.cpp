// NOTE [Checkpoints of a loop]
// Griewank and Walther's revolve, made of checkpoints that nest. Of n steps with c states to keep, the first m are a
// checkpoint, which keeps the state before them; the other n - m have c - 1 states. The pullback comes to those first,
// and then evaluates the m steps again, as a range of m steps with c states, for by then the others are free. With m
// chosen by binomial coefficients no step is evaluated more often than it must be: n <= (c + r over c) steps, r times.
#include "operators/range.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "operators/checkpoint.h"
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

Tensors Range::run_steps(int64_t first, int64_t count, const Tensors& operands, Tensors& captured) const {
  const auto split = operands.begin() + static_cast<std::ptrdiff_t>(states);
  Tensors state(operands.begin(), split);
  std::vector<Tensors> elements, outputs;
  for (auto input = split; input != operands.end(); ++input) elements.push_back(at::unbind(*input, 0));
  for (int64_t k = 0; k < count; ++k) {
    const auto place = static_cast<size_t>(reverse ? count - 1 - k : k);
    for (const Tensors& input : elements) state.push_back(input[place]);
    Tensors results = step(first + k, state, captured);
    const size_t made = results.size() - states;
    if (k == 0) outputs.assign(made, Tensors(static_cast<size_t>(count)));
    for (size_t i = 0; i < made; ++i) outputs[i][place] = std::move(results[states + i]);
    results.resize(states);
    state = std::move(results);
  }
  for (const Tensors& output : outputs) state.push_back(at::stack(output, 0));
  return state;
}

Tensors Range::run(int64_t first, int64_t count, std::optional<int64_t> checkpoints, const Tensors& operands,
                   Tensors& captured) const {
  if (!checkpoints || count == 1) return run_steps(first, count, operands, captured);
  struct Part {
    int64_t steps, states;
  };
  std::vector<Part> parts;
  int64_t left = count;
  for (int64_t states = *checkpoints; left > 1; states = std::max<int64_t>(states - 1, 0)) {
    parts.push_back({first_part(left, states), states});
    left -= parts.back().steps;
  }
  parts.push_back({1, 0});  // which is recorded
  std::vector<int64_t> sizes;
  for (const Part& part : parts) sizes.push_back(part.steps);
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
    Tensors results =
        p + 1 == parts.size() ? evaluate(state, captured) : evaluate_without_record(loop, evaluate, state, captured);
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
