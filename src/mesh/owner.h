// Which thread uses a mesh.
#pragma once

#include <mutex>
#include <thread>

#include "mesh/group.h"

namespace tower::mesh {

// NOTE [One thread at a time]
// The processes call the collectives of a mesh in one order. Two threads at the same time would call theirs in another
// order in each process: they would wait for each other, or take one's numbers for the other's. So a mesh belongs to a
// thread while one of its vmaps runs, and while a collective is on its way; a thread that comes meanwhile is refused.
// This process is then out of step, and in others the threads may have come the other way round. So the one that has
// the mesh gives it up, at its next step, and is told as well. Threads that take turns have one order, and are right.
class Owner {
 public:
  /// Whether it is this thread's now: nobody had it, or this thread did.
  bool take();
  /// As often as it was taken.
  void leave();
  /// Whether a thread has been refused.
  bool disputed() const;

 private:
  mutable std::mutex mutex_;
  std::thread::id thread_;
  int64_t times_ = 0;
  bool disputed_ = false;
};

/// While it lives, the mesh of the group is this thread's. `name`: of a collective, for messages; a literal.
class Use {
 public:
  /// Throws MeshError where another thread has it.
  Use(Group& group, const char* name);
  ~Use() { group_.owner().leave(); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  /// Throws MeshError where another thread came meanwhile.
  void check() const;

 private:
  Group& group_;
  const char* name_;
};

}  // namespace tower::mesh
