// Custom operators in the interpreters: NOTE [Custom rules] in core/operator.h says what they must be spared.
#pragma once

#include "core/bind.h"
#include "core/level.h"

namespace tower {

/// Makes a level the thread's top for a while.
class Topped {
 public:
  explicit Topped(Level* level) : previous_(thread_state.top) { thread_state.top = level; }
  ~Topped() { thread_state.top = previous_; }
  Topped(const Topped&) = delete;
  Topped& operator=(const Topped&) = delete;

 private:
  Level* previous_;
};

/// An operator that Tower makes.
class MadeOperator : public Operator {
 public:
  using Operator::Operator;
  /// Whether `call_and_save` passes over no rule, of any level: it calls operators that have them all.
  virtual bool saves_at_every_level() const { return false; }
  /// Whether a trace is to record what the operator's rule for vmap is made of, in place of its image.
  virtual bool opens_under_trace() const { return false; }
};
bool opens_under_trace(const Operator& op);

/// A derivative rule of `op` could be asked for by a level at or below `from`, or by LibTorch's autograd.
bool derivative_may_be_wanted(const Level* from, const Operator& op, c10::ArrayRef<IValue> args);

/// Runs `op` under a vjp or jvp level's rules one level down: leaves its outputs on the stack and returns what its
/// derivative rules need. In one evaluation where the operator has a way and no rule of it is passed over.
Operator::Values call_and_save(const Operator& op, Stack& stack);

/// Runs the implementation of `op` on tensors of `level`, a vmap level, as if it were written in the mapped function.
/// False, with nothing changed, if there is none that could: it reads memory or values of single examples.
bool run_implementation(Level& level, const Operator& op, Stack& stack);

}  // namespace tower
