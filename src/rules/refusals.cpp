// Operators that read a value out of a tensor, which a batch of examples does not have.
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void refusals() {
  const std::string one_value =
      "it reads one number out of a tensor (item(), a conversion to bool in `if`, a tensor used as a size), but the "
      "value "
      "differs between the examples of the batch. Use where() to choose between values, and keep numbers as tensors.";
  op<at::_ops::_local_scalar_dense>().unsupported(Kind::vmap, one_value).no_derivative();
  op<at::_ops::is_nonzero>().unsupported(Kind::vmap, one_value).no_derivative();
  op<at::_ops::equal>()
      .unsupported(Kind::vmap,
                   "it gives one bool for whole tensors, which may differ between examples. Use eq().all().")
      .no_derivative();
}

}  // namespace tower::rules
