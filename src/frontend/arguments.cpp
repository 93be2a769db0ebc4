#include "frontend/arguments.h"

#include <ATen/MemoryOverlap.h>

#include "tower/errors.h"

namespace tower::frontend {

namespace {

// What lies below all levels.
Tensor plain_value(Tensor t) {
  while (Wrapper* w = as_wrapper(t)) t = Tensor(w->payload().value);
  return t;
}

bool plain_overlap(const Tensor& a, const Tensor& b) {
  return a.is_alias_of(b) && at::get_overlap_status(a, b) != at::MemOverlapStatus::No;
}

}  // namespace

Arguments::Arguments(const Level& level, const std::vector<Tensor>& given, const std::vector<Tensor>& callers)
    : level_(level), given_(given), callers_(callers), outer_(thread_state.arguments) {
  if (thread_state.written_arguments != 0)
    for (const Tensor& t : callers)
      if (t.defined()) check_read(level.label(), t);
  thread_state.arguments = this;
}

Arguments::~Arguments() {
  thread_state.written_arguments -= static_cast<uint32_t>(written_.size());
  thread_state.arguments = outer_;
}

bool Arguments::made_inside(const Wrapper& root) {
  bool runs = false;
  for (const Arguments* a = thread_state.arguments; a != nullptr; a = a->outer_) {
    runs = runs || &a->level_ == &root.level();
    for (const Tensor& t : a->given_)
      if (t.unsafeGetTensorImpl() == &root) return false;
  }
  return runs;
}

void Arguments::note_write(const Wrapper& root) {
  for (Arguments* a = thread_state.arguments; a != nullptr; a = a->outer_)
    for (size_t i = 0; i < a->given_.size(); ++i)
      if (a->given_[i].unsafeGetTensorImpl() == &root && !a->callers_[i].is_same(a->given_[i])) {
        a->written_.push_back(i);
        ++thread_state.written_arguments;
      }
}

void Arguments::check_read(const std::string& reader, const Tensor& t) {
  const Wrapper* w = as_wrapper(t);
  const int depth = w ? const_cast<Wrapper*>(w)->level().depth() : 0;
  for (const Arguments* a = thread_state.arguments; a != nullptr; a = a->outer_)
    for (size_t i : a->written_)
      // Rules run below the level whose function runs; what they start is not above it.
      if (depth < a->level_.depth() && is_visible(&a->level_) &&
          plain_overlap(plain_value(t), plain_value(a->callers_[i])))
        throw MutationError(a->level_.describe() + ": " + reader + " was given a captured tensor, " + describe(t) +
                            ", that shares memory with argument " + std::to_string(i) +
                            ". The function has written to that argument, which the caller's tensor sees only when " +
                            a->level_.label() + " returns. Use the argument in place of the captured tensor.");
}

bool may_overlap(const Tensor& one, const Tensor& other) {
  const Tensor a = strip_constants(one), b = strip_constants(other);
  Wrapper *v = as_wrapper(a), *w = as_wrapper(b);
  if (v || w) return v && w && &v->root() == &w->root();
  return plain_overlap(a, b);
}

}  // namespace tower::frontend
