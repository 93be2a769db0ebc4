#include "mesh/speech.h"

#include <utility>
#include <vector>

#include "mesh/axis.h"

namespace tower::mesh {

namespace {

thread_local Listener* innermost = nullptr;
thread_local int leaving_out = 0;

// The levels with named axes that `t` is mapped over, the highest first.
std::vector<AxisVmap*> named_levels_of(Tensor t) {
  std::vector<AxisVmap*> found;
  while (Wrapper* w = as_wrapper(t)) {
    auto* level = dynamic_cast<AxisVmap*>(&w->level());
    if (level && w->payload().tracked()) found.push_back(level);
    Tensor value = w->payload().value;
    t = std::move(value);
  }
  return found;
}

}  // namespace

Listener::Listener() : around_(std::exchange(innermost, this)) {}
Listener::~Listener() { innermost = around_; }

void Listener::note_collective(uint64_t axis) {
  for (Listener* l = innermost; l; l = l->around_) l->axes_.insert(axis);
  note_asked();
}

void Listener::note_asked() {
  for (Listener* l = innermost; l; l = l->around_) l->asked_ = true;
}

bool differs_along_a_named_axis(const Tensor& t) { return !named_levels_of(t).empty(); }

Tensor holds_for_one_heard(const Tensor& condition, const Axes& axes) {
  Tensor result = condition;
  for (AxisVmap* level : named_levels_of(condition))
    if (axes.count(level->axis())) result = holds_for_any(result, *level);
  return result;
}

LeavingOut::LeavingOut() { ++leaving_out; }
LeavingOut::~LeavingOut() { --leaving_out; }
bool LeavingOut::now() { return leaving_out > 0; }

}  // namespace tower::mesh
