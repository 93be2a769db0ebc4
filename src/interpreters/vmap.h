// vmap: every value may carry a batch dimension that the user's function does not see.
#pragma once

#include <functional>

#include "core/level.h"
#include "core/operator.h"
#include "core/wrapper.h"
#include "interpreters/history.h"
#include "tower/dynamic.h"

namespace tower {

/// Where random number generators stood before draws that are to be repeated, such as the first in a batch for the
/// chunks of it that share one draw.
class SharedDraws {
 public:
  /// All that a call with these may draw from: of tensors on a device, its generator and the CPU's, as a device may
  /// lack a kernel and run the CPU's.
  void note(const Stack& arguments);
  void note(at::ArrayRef<Tensor> arguments);
  /// Puts the generators back there.
  void rewind();
  /// Whether one of them has been drawn from since.
  bool moved() const;

 private:
  void note(const at::Generator& generator);
  void note(at::Device device);

  std::vector<std::pair<at::Generator, Tensor>> states_;
};

/// The examples of a vmap that has a name, by which they speak to each other; they may be spread over processes.
class SpeakingExamples {
 public:
  virtual ~SpeakingExamples() = default;
  /// How many they are.
  virtual int64_t number() = 0;
  virtual Tensor sum(const Tensor& t) = 0;
  /// Whether a bool holds for any of them.
  virtual Tensor holds_for_any(const Tensor& condition) = 0;
  /// Numbers that were counted in this process, of all processes.
  virtual std::vector<int64_t> in_all_processes(std::vector<int64_t> counts) = 0;
};

class Vmap : public Level {
 public:
  Vmap(int64_t batch_size, Randomness randomness, const char* label, SharedDraws* shared_draws = nullptr)
      : Level(Kind::vmap, label),
        batch_size_(batch_size),
        randomness_(randomness),
        shared_draws_(shared_draws),
        axis_(id()) {}
  /// A level in which the image of an operator is evaluated: it maps over the examples that `axis` numbers.
  Vmap(int64_t batch_size, Randomness randomness, const char* label, uint64_t axis)
      : Vmap(batch_size, randomness, label) {
    axis_ = axis;
  }

  int64_t batch_size() const { return batch_size_; }
  Randomness randomness() const { return randomness_; }
  /// Which examples it maps over: those that a user's vmap gave this number.
  uint64_t axis() const { return axis_; }
  /// Null unless this is a chunk of a batch whose examples share their draws.
  SharedDraws* shared_draws() const { return shared_draws_; }

  /// What is the same for all examples, as it takes part in what differs between them.
  virtual Tensor varying(const Tensor& shared) { return shared; }
  /// Makes levels in which images of custom operators are evaluated, whose code may ask for the examples. Empty: these
  /// are as ordinary as this one.
  using MakeLevel = std::function<c10::intrusive_ptr<Vmap>(int64_t batch_size)>;
  virtual MakeLevel images() const { return {}; }

  /// Null unless its examples have a name.
  virtual SpeakingExamples* named() { return nullptr; }

  void process(const Operator& op, Stack& stack) override;
  bool draws_for_each(const Operator& op) const override;
  void took(Wrapper& w) override { History::show_untracked(w); }
  /// The same by the operator's rule, its implementation or a loop, whether or not levels below may differentiate it.
  void evaluate(const Operator& op, Stack& stack);

 private:
  bool process_aligned(const Operator& op, Stack& stack);
  int64_t batch_size_;
  Randomness randomness_;
  SharedDraws* shared_draws_;
  uint64_t axis_;
};

/// Runs `op` once for each example and stacks the results: the slow way, for operators without a rule.
/// Throws UnsupportedError where the results' shapes differ between examples or cannot be stacked.
void run_loop(const Level& level, VmapFrame& frame, bool announce);

/// The same for an operator that is not LibTorch's and may draw random numbers without saying so: they are drawn as the
/// level's randomness says. And a single call for all examples, where no argument is mapped: it may draw for `same`
/// only.
void run_foreign_loop(Vmap& level, VmapFrame& frame);
void run_foreign_once(Vmap& level, VmapFrame& frame);

/// Throws RandomnessError: the level was not told what random numbers mean.
[[noreturn]] void refuse_random(const Vmap& level, const Operator& op);

/// Runs a random operator as the level's randomness says.
void run_random(Vmap& level, const Operator& op, VmapFrame& frame);

/// Makes the loop fallback an error instead of a warning (for tests and for programs that must be fast).
/// Returns what was set before.
bool fallback_is_error(bool yes);

}  // namespace tower
