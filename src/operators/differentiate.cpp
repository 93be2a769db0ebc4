#include "operators/differentiate.h"

namespace tower {

using dynamic::Tensors;

Tensors pull_back_through(const dynamic::Function& f, const Tensors& operands, const Tensors& cotangents,
                          const std::vector<bool>& needs) {
  Tensors some;
  for (size_t i = 0; i < operands.size(); ++i)
    if (needs[i]) some.push_back(operands[i]);
  auto [outs, pullback] = dynamic::vjp(
      [&](const Tensors& given) {
        Tensors all = operands;
        size_t next = 0;
        for (size_t i = 0; i < all.size(); ++i)
          if (needs[i]) all[i] = given[next++];
        return f(all);
      },
      some, {.consume = true});
  const Tensors found = pullback(cotangents);
  Tensors gradients(operands.size());
  size_t next = 0;
  for (size_t i = 0; i < operands.size(); ++i)
    if (needs[i]) gradients[i] = found[next++];
  return gradients;
}

}  // namespace tower
