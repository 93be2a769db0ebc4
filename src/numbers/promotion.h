// The type in which arguments of several dtypes meet.
#pragma once

#include "numbers/element.h"

namespace tower::compiler {

/// The type to which arguments are promoted, as LibTorch does it; none where kernels do not compute in it. Both stand
/// by schema position.
std::optional<Type> promoted(c10::ArrayRef<IValue> args, c10::ArrayRef<ElementArgument> elements);

}  // namespace tower::compiler
