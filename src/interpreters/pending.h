// Gradients that a rule has begun and that come later, while a tape's backward pass goes on: sums over processes.
#pragma once

#include <memory>

#include "core/operator.h"

namespace tower {

/// Tensors that are being computed elsewhere.
class Unfinished {
 public:
  virtual ~Unfinished() = default;
  /// Waits for them. Called once at most; not at all where nobody wants them.
  virtual std::vector<Tensor> wait() = 0;
};

// A tape's pull_back gives rules the occasion, where nothing else follows the values: no level, no autograd of
// LibTorch. What a rule leaves here is given to its slot when that is read, which for most is at the end.
class PendingGradients {
 public:
  explicit PendingGradients(bool allowed) : previous_(current_) { current_ = allowed ? this : nullptr; }
  ~PendingGradients() { current_ = previous_; }
  PendingGradients(const PendingGradients&) = delete;
  PendingGradients& operator=(const PendingGradients&) = delete;

  /// Where the rule that was given `frame` may leave its gradients; null: nowhere.
  static PendingGradients* of(const VjpFrame& frame) {
    return current_ && current_->frame_ == &frame ? current_ : nullptr;
  }
  /// By the rule: the gradients of these leaves.
  void expect(std::unique_ptr<Unfinished> gradients, c10::ArrayRef<LeafRef> leaves) {
    const auto group = std::make_shared<Group>(Group{std::move(gradients)});
    for (size_t k = 0; k < leaves.size(); ++k) entries_.push_back({group, k, leaves[k]});
  }

  /// By the tape, around a rule.
  void before(const VjpFrame& frame) { frame_ = &frame; }
  template <class Inputs>
  void after(const Inputs& inputs) {
    frame_ = nullptr;
    for (; placed_ < entries_.size(); ++placed_)
      for (const auto& input : inputs)
        if (input.leaf.arg == entries_[placed_].leaf.arg && input.leaf.element == entries_[placed_].leaf.element)
          entries_[placed_].slot = input.slot;
  }
  /// Before slots are read, [first, first + count): what they wait for.
  template <class Give>
  void settle(int64_t first, int64_t count, Give&& give) {
    for (Entry& e : entries_) {
      if (e.slot < first || e.slot >= first + count) continue;
      if (e.group->values.empty()) e.group->values = e.group->work->wait();
      give(e.slot, std::move(e.group->values[e.index]));
      e.slot = kGiven;
    }
  }
  bool empty() const { return entries_.empty(); }

 private:
  struct Group {
    std::unique_ptr<Unfinished> work;
    std::vector<Tensor> values = {};
  };
  static constexpr int64_t kGiven = -1;
  struct Entry {
    std::shared_ptr<Group> group;
    size_t index;
    LeafRef leaf;
    int64_t slot = kGiven;
  };

  static inline thread_local PendingGradients* current_ = nullptr;
  PendingGradients* previous_;
  const VjpFrame* frame_ = nullptr;
  std::vector<Entry> entries_;
  size_t placed_ = 0;
};

}  // namespace tower
