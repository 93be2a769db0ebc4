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

void Listener::note_tangents(uint64_t axis) {
  for (Listener* l = innermost; l; l = l->around_) l->axes_of_tangents_.insert(axis);
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

namespace {

// The levels in sight that map over these axes, the highest first.
template <class F>
void for_each_level(F&& f) {
  for (Level* level = top(); level; level = level->below())
    if (auto* named = dynamic_cast<AxisVmap*>(level)) f(*named);
}

}  // namespace

bool may_speak() {
  bool found = false;
  for_each_level([&](AxisVmap&) { found = true; });
  return found;
}

Tensor sum_of_all_heard(const Tensor& t, const Axes& axes) {
  Tensor result = t;
  for_each_level([&](AxisVmap& level) {
    if (axes.count(level.axis())) result = sum_along(result, level);
  });
  return result;
}

int64_t number_heard(const Axes& axes) {
  int64_t number = 1;
  for_each_level([&](AxisVmap& level) {
    if (axes.count(level.axis())) number *= level.examples()->size();
  });
  return number;
}

LeavingOut::LeavingOut() { ++leaving_out; }
LeavingOut::~LeavingOut() { --leaving_out; }
bool LeavingOut::now() { return leaving_out > 0; }

}  // namespace tower::mesh
