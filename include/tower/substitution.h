// Running code that holds its own tensors (a torch::nn::Module, say) with other tensors in their place.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace tower {

/// While alive on this thread, every operator call that meets an `original` (by identity) uses its replacement.
/// Nothing is modified. Substitutions nest; the innermost wins.
///
///   tower::Substitution stand_in({{module->weight, w}});
///   auto y = module->forward(x);
class Substitution {
 public:
  /// Begins, with these `originals_and_replacements`. Nothing looks at the shapes: the code that runs meanwhile does.
  explicit Substitution(const std::vector<std::pair<at::Tensor, at::Tensor>>& originals_and_replacements);
  ~Substitution();
  Substitution(const Substitution&) = delete;
  Substitution& operator=(const Substitution&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tower
