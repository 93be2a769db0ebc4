// Which tensors were made while somebody was listening: what a function made itself, and may write to.
#pragma once

#include <unordered_set>
#include <vector>

namespace tower {

class Wrapper;

/// Notes each wrapper that this thread makes while it is alive. It tells new tensors from old ones: one that has the
/// address of another that is gone was made later still.
class MadeSince {
 public:
  MadeSince() : outer_(newest_) { newest_ = this; }
  ~MadeSince();
  MadeSince(const MadeSince&) = delete;
  MadeSince& operator=(const MadeSince&) = delete;

  bool contains(const Wrapper& w);

  static void note(const Wrapper& w) {
    if (newest_) newest_->made_.push_back(&w);
  }

 private:
  std::vector<const Wrapper*> made_;  // since the last question
  std::unordered_set<const Wrapper*> known_;
  MadeSince* outer_;  // for which what is made here is new, too
  static constinit thread_local MadeSince* newest_ __attribute__((tls_model("initial-exec")));
};

}  // namespace tower
