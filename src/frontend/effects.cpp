#include "frontend/effects.h"

#include "core/wrapper.h"
#include "frontend/arguments.h"
#include "frontend/substitution.h"
#include "tower/errors.h"

namespace tower::frontend {

constinit thread_local NoEffects* NoEffects::innermost_ = nullptr;

NoEffects::NoEffects(const std::vector<Tensor>& operands, std::function<Why()> why)
    : operands_(operands), why_(std::move(why)), outer_(innermost_) {
  for (const Tensor& t : operands) counts_.push_back(t.defined() ? write_count(t) : 0);
  innermost_ = this;
}

NoEffects::~NoEffects() { innermost_ = outer_; }

// A plain tensor is old: what user code makes inside of a level is wrapped. Outside of all levels there is no telling.
// A tensor of the function's own that is turned into a view in place is no other for that.
bool NoEffects::is_old(const Tensor& target, bool in_place_view) {
  Wrapper* w = as_wrapper(target);
  return w ? !made_.contains(in_place_view ? *w : w->root()) : top() != nullptr;
}

void NoEffects::check_all(const Operator& writer, const Tensor& target) {
  for (NoEffects* here = innermost_; here; here = here->outer_)
    if (here->is_old(target, writer.inplace_view())) here->refuse(writer.name(), target);
}

void NoEffects::check_operands() const {
  for (size_t i = 0; i < operands_.size(); ++i)
    if (operands_[i].defined() && write_count(operands_[i]) != counts_[i]) refuse("", operands_[i]);
}

void NoEffects::refuse(const std::string& writer, const Tensor& target) const {
  std::string what = "a captured tensor";
  for (size_t i = 0; i < operands_.size(); ++i)
    if (operands_[i].defined() && may_overlap(operands_[i], target) && replaced_by(operands_[i]).empty())
      what = "operand " + std::to_string(i);
  const Wrapper* w = as_wrapper(target);
  const Level* level = w ? &const_cast<Wrapper*>(w)->level() : top();
  const Why why = why_();
  throw MutationError((level ? level->describe() + ": " : "") + why.who + " writes" +
                      (writer.empty() ? "" : " by " + writer) + " to " + what + ", " + describe(target) + ", " +
                      why.reason + " Clone the tensor first, and return what the write was for.");
}

}  // namespace tower::frontend
