#include "operators/lifting.h"

#include "core/bind.h"
#include "core/wrapper.h"
#include "frontend/substitution.h"
#include "tower/detail/foreign_frame.h"
#include "tower/substitution.h"

namespace tower {

using dynamic::Tensors;

dynamic::Function with_captured(dynamic::Function f, const Tensors& captured) {
  if (captured.empty()) return f;
  return [f = std::move(f), captured](const Tensors& operands) {
    const auto first = operands.end() - static_cast<std::ptrdiff_t>(captured.size());
    std::vector<std::pair<Tensor, Tensor>> pairs;
    for (size_t i = 0; i < captured.size(); ++i) pairs.emplace_back(captured[i], first[static_cast<std::ptrdiff_t>(i)]);
    const Substitution stand_in(pairs);
    return frontend::stand_ins(f(Tensors(operands.begin(), first)));
  };
}

void check_visible(const char* op, const Tensors& operands) {
  for (const Tensor& t : frontend::stand_ins(operands)) {
    const Wrapper* w = t.defined() ? as_wrapper(strip_constants(t)) : nullptr;
    if (!w || is_visible(&w->level()) || w->level().ended() || w->level().thread() != this_thread()) continue;
    detail::ForeignFrame::raise(InvisibleTensorError(
        w->level().describe() + ": " + op + " was given a tensor of this transform inside one of the transform's own " +
            "rules or below it, where it cannot be seen.",
        t));
  }
}

Tensor value_under_all_levels(Tensor t) {
  while (Wrapper* w = as_wrapper(t)) {
    Tensor value = w->payload().value;  // a copy: the wrapper may go with `t`
    t = std::move(value);
  }
  return t;
}

}  // namespace tower
