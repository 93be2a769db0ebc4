// vjp (and grad): records what is needed for the pullback on a tape.
#pragma once

#include "core/level.h"
#include "core/wrapper.h"
#include "interpreters/history.h"
#include "interpreters/tape.h"

namespace tower {

class Vjp : public Level {
 public:
  explicit Vjp(const char* label, Tape::Purpose purpose = Tape::Purpose::pullback);

  Tape::Purpose purpose() const { return purpose_; }
  Tape& tape() { return *tape_; }
  const c10::intrusive_ptr<Tape>& tape_ptr() const { return tape_; }
  /// Once the level has ended: functions that the tape keeps may have captured the level's tensors, which keep the
  /// level.
  void let_go_of_tape() { tape_.reset(); }
  /// Wraps a value as an input of the differentiated function.
  Tensor track(const Tensor& value);

  void process(const Operator& op, Stack& stack) override;
  void took(Wrapper& w) override;
  bool heeds_no_grad() const override { return purpose_ == Tape::Purpose::pullback; }

  const History& history() const { return history_; }

 protected:
  /// Results of the next operator that need not be computed, for they are known: a checkpoint kept them.
  const Stack* known_ = nullptr;

 private:
  void compute(const Operator& op, Stack& stack, bool wrapped) const;
  Operator::Values compute_and_save(const Operator& op, Stack& stack) const;

  Tape::Purpose purpose_;
  c10::intrusive_ptr<Tape> tape_;
  History history_;
  int64_t num_inputs_ = 0;
  bool outer_grad_mode_;
};

}  // namespace tower
