// What loops have in common with cond: an idle example takes the branch that leaves its state alone.
#pragma once

#include "control/speech.h"
#include "tower/higher_order.h"

namespace tower {

class Wrapper;

struct Branches {
  dynamic::Function when_true, when_false;
  const char* op = "cond";  // names for messages
  const char* true_name = "true_branch";
  const char* false_name = "false_branch";
  /// Where at most this part of a batch takes when_true, that is run for these examples alone.
  double compact = 0;
  /// They are pullbacks, NOTE [Branches in which examples speak]: what others heard of an example in a branch that it
  /// did not take is added to its results.
  bool adds_what_was_heard = false;
};

/// The named axes along which each branch spoke.
struct SpokenInBranches {
  speech::Axes when_true, when_false;
};

/// At this level or one below, examples have different values.
bool differs_between_examples(at::Tensor t);

/// While it lives, what goes by a tensor of which `undecided` is true is not decided: what is looked for is to hold for
/// any value. Both branches are run, and their results chosen from element by element; a loop is what `any_steps`
/// gives.
class ForAnyValue {
 public:
  using Undecided = bool (*)(Wrapper&);
  /// The states after any number of steps, none too; no tensors where that is not known.
  using AnySteps = dynamic::Tensors (*)(const dynamic::Function& step, const dynamic::Tensors& start);
  ForAnyValue(Undecided undecided, AnySteps any_steps);
  ~ForAnyValue();
  ForAnyValue(const ForAnyValue&) = delete;
  ForAnyValue& operator=(const ForAnyValue&) = delete;

 private:
  Undecided undecided_before_;
  AnySteps any_steps_before_;
};
bool is_undecided(at::Tensor t);
dynamic::Tensors any_number_of_steps(const dynamic::Function& step, const dynamic::Tensors& start);

/// Both branches, and for each example the results of its own. Right for values and tangents; a cotangent that is not a
/// number where the branch was not taken would get through, so reverse mode needs the operator below. What was spoken
/// is added to `spoken`, where somebody wants to know.
dynamic::Tensors choose(const Branches& branches, const at::Tensor& predicate, const dynamic::Tensors& operands,
                        SpokenInBranches* spoken = nullptr);

/// The same as an operator. Operand 0 is the predicate, the last ones stand for the `captured` tensors. Each call has
/// attributes of its own.
HigherOrderRules branch_rules(const Branches& branches, const dynamic::Tensors& captured = {});
Attributes branch_attributes();

}  // namespace tower
