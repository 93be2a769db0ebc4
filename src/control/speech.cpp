#include "control/speech.h"

#include <utility>

#include "core/wrapper.h"
#include "interpreters/vmap.h"

namespace tower::speech {

namespace {

thread_local Listener* innermost = nullptr;

// A vmap whose examples have a name; null: the level is none.
Vmap* named(Level& level) {
  if (level.kind() != Kind::vmap) return nullptr;
  auto& vmap = static_cast<Vmap&>(level);
  return vmap.named() ? &vmap : nullptr;
}

// The levels with named examples that `t` is mapped over, the highest first.
std::vector<Vmap*> named_levels_of(Tensor t) {
  std::vector<Vmap*> found;
  while (Wrapper* w = as_wrapper(t)) {
    Vmap* level = named(w->level());
    if (level && w->payload().tracked()) found.push_back(level);
    Tensor value = w->payload().value;
    t = std::move(value);
  }
  return found;
}

// Calls `f` with the levels in sight whose examples have a name, the highest first.
template <class F>
void for_each_named(F&& f) {
  for (Level* level = top(); level; level = level->below())
    if (Vmap* vmap = named(*level)) f(*vmap);
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
  for (Vmap* level : named_levels_of(condition))
    if (axes.count(level->axis())) result = level->named()->holds_for_any(result);
  return result;
}

bool may_speak() {
  bool found = false;
  for_each_named([&](Vmap&) { found = true; });
  return found;
}

std::vector<int64_t> in_all_processes(const Tensor& of, std::vector<int64_t> counts) {
  DispatchGuard keys;
  keys.see_no_operator();
  for (Vmap* level : named_levels_of(of)) counts = level->named()->in_all_processes(std::move(counts));
  return counts;
}

Tensor sum_of_all_heard(const Tensor& t, const Axes& axes) {
  Tensor result = t;
  for_each_named([&](Vmap& level) {
    if (axes.count(level.axis())) result = level.named()->sum(result);
  });
  return result;
}

int64_t number_heard(const Axes& axes) {
  int64_t number = 1;
  for_each_named([&](Vmap& level) {
    if (axes.count(level.axis())) number *= level.named()->number();
  });
  return number;
}

}  // namespace tower::speech
