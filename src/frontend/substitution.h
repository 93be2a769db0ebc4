// While a Substitution (tower/substitution.h) is alive, operators that meet one of its originals get the replacement.
#pragma once

#include "core/operator.h"

namespace tower::frontend {

/// Replaces substituted tensors among the arguments. Costs one thread-local read when there are none.
inline void substitute(const Operator& op, Stack& stack) {
  void substitute_in(const Operator& op, Stack& stack);
  if (thread_state.substitutions) substitute_in(op, stack);
}

/// The tensors that it stands for at present.
std::vector<Tensor> replaced_by(const Tensor& replacement);

}  // namespace tower::frontend
