// How messages spell what a user would write. The words are those of C++ unless another surface, such as a binding for
// another language, says what its users write. A text that reads the same everywhere needs none of this.
#pragma once

namespace tower::detail {

/// Literals, which stay.
struct Spellings {
  const char* absent_dim = "empty";         ///< "its in_dim must be …": not mapped
  const char* absent_tensor = "undefined";  ///< "the cotangent must be …": zero
  const char* different_draws = "{.randomness = Randomness::different}";
  const char* same_draws = "{.randomness = Randomness::same}";
  const char* scope = "::";  ///< between a class and its function
  const char* grad = "tower::grad";
  const char* vjp = "tower::vjp";
  const char* jvp = "tower::jvp";
  const char* cond = "tower::cond";
  const char* while_loop = "tower::while_loop";
  const char* printed = "tower::to_string(x) prints it";  ///< what shows a tensor that a transform tracks
  const char* kernel_cache = "CompileOptions.cache";      ///< the folder for machine code
  const char* autograd_grad = "torch::autograd::grad";
  const char* no_grad = "NoGradGuard";
  const char* new_operator = "tower/custom_op.h";                  ///< where an operator gets what it lacks
  const char* changed_gradient = "custom_vjp (tower/function.h)";  ///< what changes a gradient on its way
  /// What to do with a function whose backward only LibTorch's autograd sees.
  const char* visible_function =
      "Derive it from tower::Function (tower/function.h), which understands the same forward and backward";
};

const Spellings& spellings();
/// For the whole process; before any transform runs.
void set_spellings(const Spellings& spellings);

}  // namespace tower::detail
