// The operator calls that a compiled function leaves to LibTorch.
#pragma once

#include <functional>
#include <string>

namespace gradbench {

/// How often `compute` calls which of LibTorch's operators, and how long they take, those that they call not counted: a
/// line for each, the longest first.
std::string calls_left(const std::function<void()>& compute);

}  // namespace gradbench
