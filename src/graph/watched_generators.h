// Where random number generators stand while a function is traced.
//
// A graph draws from a generator as it stands at each run. That is what the function does if nothing but its draws
// moves the generator. A function that seeds one, puts a state back, draws from it otherwise than by an operator, or
// makes one is another program, which a trace must refuse.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "interpreters/generators.h"

namespace tower::compiler {

class WatchedGenerators {
 public:
  /// Begins with those that are known to be the function's, and the CPU's.
  WatchedGenerators();
  /// Those from which operators of this tensor draw, too.
  void note(const Tensor& argument);

  /// Before a call of `op` that may draw, with these arguments, and after it.
  void before(const Level& level, const Operator& op, const Stack& args);
  void after();
  /// When the function has ended; `holders`: how many hold a generator that is `of`, because calls of it are recorded.
  template <class Holders>
  void check_at_end(const Level& level, Holders&& holders) {
    check_unmoved(level);
    for (const auto& [generator, state] : states_)
      if (is_held_by(generator, holders(generator))) refuse_made(level, "the function");
  }

 private:
  void note(const at::Generator& generator);
  void check_unmoved(const Level& level) const;
  bool is_held_by(const at::Generator& generator, size_t holders) const;
  [[noreturn]] static void refuse_made(const Level& level, const std::string& who);

  std::vector<std::pair<at::Generator, Tensor>> states_;  // as the last draw left them
};

}  // namespace tower::compiler
