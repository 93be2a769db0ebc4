// Custom operators for tests, of every kind of schema, kernel and rule. custom_ops.ops has their samples: they run
// through the same matrix as LibTorch's operators.
#pragma once

namespace custom_ops {

/// Defines all operators of the namespace "lab", for the life of the process.
void define();

}  // namespace custom_ops
