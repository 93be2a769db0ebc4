// What control flow has of a trace that runs. Compiled functions are known above: they fill this in when the library is
// loaded.
#pragma once

#include "tower/loops.h"

namespace tower {

struct Branches;
struct KnownSteps;

// NOTE [What is captured on ways not taken]
// An operator that lifts what its function captures finds that out by evaluating it. In a compiled function that is
// done once, but each run goes its own way: another branch, a loop that makes steps where it had made none. And the
// pullback is traced, with every loop's step in it. So what lies on all ways is met at the first evaluation already, by
// a trace of the function that is for nobody: of each branch, each loop's step.
struct Traced {
  /// The loop as one call. Tensors that the functions capture become operands.
  dynamic::Tensors (*loop)(const dynamic::Predicate& predicate, const dynamic::Function& step,
                           const dynamic::Tensors& start, const WhileOptions& options, bool must_end);
  /// Steps whose number is known as one call, where a kernel can make them all (KnownSteps::run); none: they are traced
  /// one by one.
  std::optional<dynamic::Tensors> (*known_steps)(const KnownSteps& steps, int64_t first, int64_t count,
                                                 const dynamic::Tensors& operands);
  /// The choice as one call, whose branches are graphs; none: a branch does more than to compute what it returns.
  std::optional<dynamic::Tensors> (*choice)(const Branches& branches, const at::Tensor& predicate,
                                            const dynamic::Tensors& operands);
  /// The checkpoint, of which nothing is kept, as one call, whose function is a graph; none: that does more than to
  /// compute what it returns.
  std::optional<dynamic::Tensors> (*checkpoint)(const dynamic::Function& f, const dynamic::Tensors& operands);
  /// Throws InvisibleTensorError where `f` meets a tensor that cannot be seen. Whatever else goes wrong on such a way,
  /// it may never be gone, and raises where it is.
  void (*meet_captured)(const dynamic::Function& f, const dynamic::Tensors& operands);
};
extern Traced traced;

/// Meets what an operator's ways that are not taken capture, at its first evaluations in a compiled function: each of
/// them ends with one captured tensor more, which becomes an operand, until nothing is met.
class WaysNotTaken {
 public:
  void meet(const dynamic::Function& f, const dynamic::Tensors& operands) {
    if (left_ == 0) return;
    --left_;
    traced.meet_captured(f, operands);
    left_ = 0;
  }

 private:
  int left_ = 8;  // what cannot be made an operand is not met forever
};

}  // namespace tower
