// What stands for an operator where its code is not followed, in sparsity patterns: code that is made of operators,
// whose outputs depend on all that the operator's depend on, and have their shapes.
#pragma once

#include "core/operator.h"

namespace tower {

/// An operator that Tower makes and that may have such code.
class StoodInFor {
 public:
  virtual ~StoodInFor() = default;
  /// Replaces the arguments by the outputs; false, with nothing changed, where there is none.
  virtual bool stand_in(Stack& stack) const = 0;
};

/// The same for any operator.
bool stand_in(const Operator& op, Stack& stack);

}  // namespace tower
