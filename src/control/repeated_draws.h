// Random numbers of a function that is evaluated again: the derivative of what it drew then, not of what it would draw
// now.
#pragma once

#include <optional>

#include "core/in_force.h"
#include "interpreters/vmap.h"

namespace tower {

/// The draws, from the default generators, of one call of a function.
class Draws {
 public:
  /// Evaluates the call. Throws RandomnessError where that happens a second time (a vmap that loops over the examples
  /// does it) and random numbers are drawn: there are no such draws of all examples then.
  template <class F>
  auto first(const char* who, const dynamic::Tensors& operands, F&& f) {
    SharedDraws before = here(operands);
    try {
      auto result = f();
      const bool drew = before.moved();
      if (before_ && (drew || drew_)) refuse(who);
      drew_ = drew;
      before_ = std::move(before);
      return result;
    } catch (...) {
      before.rewind();
      throw;
    }
  }

  /// Whether something is evaluated again.
  static bool repeating() { return Repeating::now(); }

  /// As if it had drawn nothing.
  void take_back() { before_->rewind(); }

  /// Evaluates it again, with the same numbers, which takes none from those to come.
  template <class F>
  auto again(const dynamic::Tensors& operands, F&& f) {
    const Repeating now_again;
    if (!drew_) return f();
    const PutBack now{here(operands)};
    before_->rewind();
    return f();
  }

 private:
  struct Repeating : InForce<Repeating> {};
  struct PutBack {
    SharedDraws draws;
    ~PutBack() { SharedDraws(draws).rewind(); }
  };
  static SharedDraws here(const dynamic::Tensors& operands);
  [[noreturn]] static void refuse(const char* who);

  std::optional<SharedDraws> before_;
  bool drew_ = false;
};

}  // namespace tower
