// Functions that write to nothing but what they make. A branch that is run for examples that do not take it, and a
// function that a pullback evaluates again, must not be seen to run.
#pragma once

#include <functional>
#include <string>

#include "core/made_since.h"
#include "core/operator.h"

namespace tower::frontend {

/// While it is alive, a write to a tensor that was made before throws MutationError, before anything is written.
class NoEffects {
 public:
  /// What a message says: "cond: true_branch" writes …, "but …"; the remedy follows.
  struct Why {
    std::string who, reason;
  };
  NoEffects(const std::vector<Tensor>& operands, std::function<Why()> why);
  ~NoEffects();
  NoEffects(const NoEffects&) = delete;
  NoEffects& operator=(const NoEffects&) = delete;

  /// Throws where an operand was written to all the same. Outside of all levels no write to a plain tensor is seen.
  void check_operands() const;

  /// Before `target` is written to.
  static void check_write(const Operator& writer, const Tensor& target) {
    if (innermost_ && target.defined()) check_all(writer, target);
  }

 private:
  static void check_all(const Operator& writer, const Tensor& target);
  bool is_old(const Tensor& target, bool in_place_view);
  [[noreturn]] void refuse(const std::string& writer, const Tensor& target) const;

  const std::vector<Tensor>& operands_;
  std::vector<uint64_t> counts_;  // of writes to them
  std::function<Why()> why_;
  MadeSince made_;
  NoEffects* outer_;
  static constinit thread_local NoEffects* innermost_ __attribute__((tls_model("initial-exec")));
};

}  // namespace tower::frontend
