// Operators that read a value out of a tensor, which a batch of examples does not have.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "core/wrapper.h"
#include "records/dims.h"
#include "records/op.h"
#include "rules/registry.h"
#include "tower/errors.h"

namespace tower::rules {
namespace {

// One bool for all examples, if it is the same for each. LibTorch and users check values by such operators, and checks
// usually have one answer: then it is right for every example.
void common_answer(VmapFrame& f, const Tensor& of_each, const char* instead) {
  const bool all = at::equal(of_each, at::ones_like(of_each));
  if (!all && !at::equal(of_each, at::zeros_like(of_each)))
    throw UnsupportedError(f.level.describe() + ": " + f.op.name() +
                           " gives one bool, but its value differs between the examples of the batch. " + instead);
  f.stack.assign(1, IValue(all));
}

void equal_vmap(VmapFrame& f) {
  TORCH_CHECK(f.tensor(0).scalar_type() == f.tensor(1).scalar_type(),
              "equal(): the dtypes differ: ", f.tensor(0).scalar_type(), " and ", f.tensor(1).scalar_type());
  if (logical_sizes(f, 0) != logical_sizes(f, 1)) {
    f.stack.assign(1, IValue(false));
    return;
  }
  common_answer(f, batch_of_rows(f, 0).eq(batch_of_rows(f, 1)).all(1), "Use eq().all().");
}

void allclose_vmap(VmapFrame& f) {
  const int64_t rank = std::max(f.logical_dim(0), f.logical_dim(1));
  for (const size_t arg : {0, 1}) {
    f.to_front(arg, true);
    while (f.tensor(arg).dim() <= rank) f.stack[arg] = f.tensor(arg).unsqueeze(1);
  }
  const Tensor close =
      at::isclose(f.tensor(0), f.tensor(1), f.stack[2].toDouble(), f.stack[3].toDouble(), f.stack[4].toBool());
  common_answer(f, close.unsqueeze(-1).flatten(1).all(1), "Use isclose().all().");
}

void is_nonzero_vmap(VmapFrame& f) {
  TORCH_CHECK(product(logical_sizes(f, 0)) == 1, "Boolean value of Tensor with more than one value is ambiguous");
  common_answer(f, batch_of_rows(f, 0).ne(0).select(1, 0), "Use where() to choose between values.");
}

}  // namespace

void refusals() {
  const std::string one_value =
      "it reads one number out of a tensor (item(), a conversion to bool in `if`, a tensor used as a size), but the "
      "value "
      "differs between the examples of the batch. Use where() to choose between values, and keep numbers as tensors; "
      "to index with it, use narrow(dim, i, 1) or i.unsqueeze(0), and squeeze(dim).";
  op<at::_ops::_local_scalar_dense>().unsupported(Kind::vmap, one_value).no_derivative();
  // x.set_data(y) asks it first; then x itself says what it thinks of y.
  op<at::_ops::_has_compatible_shallow_copy_type>()
      .vmap([](VmapFrame& f) { f.stack.assign(1, IValue(true)); })
      .no_derivative();
  op<at::_ops::is_nonzero>().vmap(is_nonzero_vmap).no_derivative();
  op<at::_ops::equal>().vmap(equal_vmap).no_derivative();
  op<at::_ops::allclose>().vmap(allclose_vmap).no_derivative();
}

}  // namespace tower::rules
