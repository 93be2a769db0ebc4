#include "operators/differentiate.h"

#include "core/memory.h"
#include "interpreters/surface.h"

namespace tower {

using dynamic::Tensors;

Tensors pull_back_through(const dynamic::Function& f, const Tensors& operands, const Tensors& cotangents,
                          const std::vector<bool>& needs) {
  const memory::InTransform here;
  std::vector<int64_t> argnums;
  for (size_t i = 0; i < operands.size(); ++i)
    if (needs[i]) argnums.push_back(static_cast<int64_t>(i));
  Evaluated e = evaluate(without_aux(f), operands, argnums, "vjp", /*forward=*/false);
  e.outs.clear();
  Tensors found = pull_back(e, cotangents, "vjp", /*consume=*/true);
  Tensors gradients(operands.size());
  for (size_t k = 0; k < argnums.size(); ++k) gradients[static_cast<size_t>(argnums[k])] = std::move(found[k]);
  return gradients;
}

}  // namespace tower
