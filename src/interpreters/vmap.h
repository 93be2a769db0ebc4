// vmap: every value may carry a batch dimension that the user's function does not see.
#pragma once

#include "core/level.h"
#include "core/operator.h"
#include "core/wrapper.h"
#include "tower/dynamic.h"

namespace tower {

class Vmap final : public Level {
 public:
  Vmap(int64_t batch_size, Randomness randomness, const char* label)
      : Level(Kind::vmap, label), batch_size_(batch_size), randomness_(randomness) {}

  int64_t batch_size() const { return batch_size_; }
  Randomness randomness() const { return randomness_; }

  void process(const Operator& op, Stack& stack) override;
  /// The same by the operator's rule, its implementation or a loop, whether or not levels below may differentiate it.
  void evaluate(const Operator& op, Stack& stack);

 private:
  bool process_aligned(const Operator& op, Stack& stack);
  int64_t batch_size_;
  Randomness randomness_;
};

/// Runs `op` once for each example and stacks the results: the slow way, for operators without a rule.
/// Throws UnsupportedError where the results' shapes differ between examples or cannot be stacked.
void run_loop(const Level& level, VmapFrame& frame, bool announce);

/// Runs a random operator as the level's randomness says.
void run_random(Vmap& level, const Operator& op, VmapFrame& frame);

/// Makes the loop fallback an error instead of a warning (for tests and for programs that must be fast).
/// Returns what was set before.
bool fallback_is_error(bool yes);

}  // namespace tower
