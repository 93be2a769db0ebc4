#include "core/made_since.h"

namespace tower {

constinit thread_local MadeSince* MadeSince::newest_ = nullptr;

MadeSince::~MadeSince() {
  newest_ = outer_;
  if (!outer_) return;
  outer_->made_.insert(outer_->made_.end(), made_.begin(), made_.end());
  outer_->made_.insert(outer_->made_.end(), known_.begin(), known_.end());
}

bool MadeSince::contains(const Wrapper& w) {
  for (MadeSince* inner = newest_; inner != this; inner = inner->outer_)
    if (inner->contains(w)) return true;
  known_.insert(made_.begin(), made_.end());
  made_.clear();
  return known_.contains(&w);
}

}  // namespace tower
