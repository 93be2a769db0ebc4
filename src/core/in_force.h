// What holds on a thread for as long as a scope lasts:
//
//   class LeavingOut : public InForce<LeavingOut> {};
//   const LeavingOut here;   // LeavingOut::now() holds, in scopes inside of this one, too
#pragma once

#include <cstdint>

namespace tower {

template <class Scope>
class InForce {
 public:
  InForce() { ++depth_; }
  ~InForce() { --depth_; }
  InForce(const InForce&) = delete;
  InForce& operator=(const InForce&) = delete;

  static bool now() { return depth_ > 0; }
  /// How many there are, one inside of another.
  static int64_t depth() { return depth_; }

 private:
  static inline thread_local int64_t depth_ = 0;
};

}  // namespace tower
