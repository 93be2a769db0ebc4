// What becomes of a call that user code makes before a transform sees it: what others stand for is replaced, what was
// written to an argument is looked for, autocast casts, a write and a view become functional, a composite is opened.
#pragma once

#include "core/operator.h"

namespace tower {

/// A call as user code makes it, of an operator from LibTorch's dispatcher or one that Tower made.
void enter(const Operator& op, Stack& stack);

}  // namespace tower
