// What a thread keeps for itself, also for those who ask late.
#pragma once

#include <utility>

namespace tower {

/// The thread's own T: made where it is first asked for, freed when the thread ends. Who asks after that, such as a
/// static object's destructor in the main thread, gets another, which stays. T says whose it is: two users have two
/// types.
template <class T>
T& of_thread() {
  static constinit thread_local T* made = nullptr;
  struct Owner {
    ~Owner() { delete std::exchange(made, nullptr); }
  };
  if (!made) {
    static thread_local const Owner owner;
    static_cast<void>(&owner);
    made = new T;
  }
  return *made;
}

}  // namespace tower
