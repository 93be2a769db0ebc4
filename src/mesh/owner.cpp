#include "mesh/owner.h"

#include "tower/mesh.h"

namespace tower::mesh {

bool Owner::take() {
  const std::lock_guard lock(mutex_);
  const auto thread = std::this_thread::get_id();
  if (times_ > 0 && thread_ != thread) {
    disputed_ = true;
    return false;
  }
  thread_ = thread;
  ++times_;
  return true;
}

void Owner::leave() {
  const std::lock_guard lock(mutex_);
  --times_;
}

bool Owner::disputed() const {
  const std::lock_guard lock(mutex_);
  return disputed_;
}

namespace {

[[noreturn]] void refuse(const Group& group, const char* name) {
  throw MeshError(
      group.where(name) +
      ": two threads use the mesh at the same time, and their collectives would go in another order in each "
      "process. Give each thread a mesh of its own, or let them take turns.");
}

}  // namespace

Use::Use(Group& group, const char* name) : group_(group), name_(name) {
  if (!group.owner().take()) refuse(group, name);
}

void Use::check() const {
  if (group_.owner().disputed()) refuse(group_, name_);
}

}  // namespace tower::mesh
