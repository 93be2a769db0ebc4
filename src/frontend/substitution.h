// While a Substitution (tower/substitution.h) is alive, operators that meet one of its originals get the replacement.
#pragma once

#include <memory>

#include "core/level.h"
#include "core/operator.h"

namespace tower::frontend {

/// Replaces substituted tensors among the arguments. Costs one thread-local read when there are none.
inline void substitute(const Operator& op, Stack& stack) {
  void substitute_in(const Operator& op, Stack& stack);
  if (thread_state.substitutions) substitute_in(op, stack);
}

/// What stands for the tensors now: for those that come to their place by no operator, such as the arguments of a
/// transform, which are wrapped as they are, and what a function returns that it had captured.
std::vector<Tensor> stand_ins(std::vector<Tensor> tensors);

/// The tensors that it stands for at present.
std::vector<Tensor> replaced_by(const Tensor& replacement);

/// All tensors for which another stands now.
std::vector<Tensor> replaced();

/// All that is substituted, for who runs code that was written here when the Substitution has ended: a pullback that
/// evaluates a function again. Null where nothing is.
struct Substituted;
std::shared_ptr<const Substituted> substituted();
/// The same tensors, each for itself: nothing is replaced, but it is known what will be. Null where nothing is.
std::shared_ptr<const Substituted> substituted_by_themselves();

/// While alive, what is substituted is that and nothing else.
class SubstitutedAs {
 public:
  explicit SubstitutedAs(std::shared_ptr<const Substituted> then);
  ~SubstitutedAs();
  SubstitutedAs(const SubstitutedAs&) = delete;
  SubstitutedAs& operator=(const SubstitutedAs&) = delete;

 private:
  std::shared_ptr<const Substituted> then_;
  const void* now_;
  DispatchGuard keys_;
};

}  // namespace tower::frontend
