#include "operators/lifting.h"

#include "core/wrapper.h"
#include "frontend/substitution.h"
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

Tensor value_under_all_levels(Tensor t) {
  while (Wrapper* w = as_wrapper(t)) {
    Tensor value = w->payload().value;  // a copy: the wrapper may go with `t`
    t = std::move(value);
  }
  return t;
}

}  // namespace tower
