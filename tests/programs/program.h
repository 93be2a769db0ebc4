// Random programs of tensor operators: small functions that mix functional operators, in-place writes, views and
// factories, for comparing what they compute under transforms with what they compute plainly.
//
//   r0, r1 = inputs
//   r2 = r0.transpose(0, 1)
//   r3 = zeros({3})
//   r3.add_(r2.select(0, 1))
//
// A program is data: a list of steps, each an action (actions.cpp) on registers. So it can be printed, and made smaller
// when it has shown a disagreement.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "support/seeds.h"

namespace programs {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// Thrown while a step is drawn where no operands fit; another action is tried then.
struct NoSuchOperands {};

struct Action;

struct Step {
  const Action* action;
  std::vector<size_t> operands;  // registers; the first one is what is written to or viewed
  std::vector<int64_t> numbers;  // dimensions, indices, sizes
};

/// What an action is given when it runs.
struct Call {
  const Tensors& registers;
  const Step& step;
  const Tensor& operator[](size_t k) const { return registers[step.operands[k]]; }
  int64_t number(size_t k) const { return step.numbers[k]; }
};

/// Draws the operands of a step among the registers of the program so far, which hold their values.
class Draw {
 public:
  Draw(std::mt19937_64& random, const Tensors& registers, const std::vector<bool>& writable)
      : random_(random), registers_(registers), writable_(writable) {}

  using Predicate = std::function<bool(const Tensor&)>;
  /// An operand that fits; returns its value.
  const Tensor& any(const Predicate& fits = [](const Tensor&) { return true; });
  /// An operand to be written to: no element of it is seen twice.
  const Tensor& target(const Predicate& fits = [](const Tensor&) { return true; });
  /// An operand that shares no memory with the first one: LibTorch refuses, or leaves open, what happens otherwise.
  const Tensor& apart(const Predicate& fits = [](const Tensor&) { return true; });
  /// A number in [low, high].
  int64_t number(int64_t low, int64_t high);
  /// A dimension of `t`, which must have one.
  int64_t dim_of(const Tensor& t);

  const Step& step() const { return step_; }

 private:
  const Tensor& choose(const std::function<bool(size_t)>& fits);

  std::mt19937_64& random_;
  const Tensors& registers_;
  const std::vector<bool>& writable_;
  Step step_{};
};

enum class Kind {
  makes,   // a new tensor
  views,   // a new register that shares memory with operand 0, and can be written to if that can
  shows,   // the same, but some element is seen twice: not to be written to
  writes,  // operand 0, in place
};

struct Action {
  Kind kind;
  std::string text;  // $k is operand k, #k number k
  std::function<void(Draw&)> draw;
  std::function<Tensor(const Call&)> run;
  // A stand-in of like size while a program is drawn, where `run` speaks of a vmap around it.
  std::function<Tensor(const Call&)> alone = {};
};

/// The actions that ordinary programs are made of.
const std::vector<Action>& actions();
/// Those that write nothing, and more that kernels of small examples compute.
const std::vector<Action>& small_actions();

struct Program {
  std::vector<std::vector<int64_t>> inputs;  // shapes
  std::vector<Step> steps;

  /// What a caller of it sees: its inputs, which it may have written to, and its newest registers.
  Tensors operator()(const Tensors& inputs) const;
  std::string text() const;
  /// Without step `k` and the steps that need what it made.
  Program without(size_t k) const;
};

/// Whether the device under test has the program's views. One that it lacks is a copy there, through which no writes
/// go.
bool has_its_views(const Program& program);

/// The program of a seed, made of actions that outlive it.
Program generate(uint64_t seed, const std::vector<Action>& from = actions(), size_t inputs = 2);

/// A batch of two different examples, which differ with `phase`; in columns, all inputs but the first lie so in memory.
Tensors examples_for(const Program& program, double phase = 0, bool in_columns = false);

/// The smallest program found by leaving out steps for which `fails` still holds.
Program shrunk(Program program, const std::function<bool(const Program&)>& fails);

/// A failure for each program of which `disagreement` says something: the smallest that still has one, and what it is.
/// Programs with views that the device lacks are left out.
void expect_none(const support::Seeds& seeds, const std::function<std::string(const Program&)>& disagreement,
                 const std::vector<Action>& from = actions());

}  // namespace programs
