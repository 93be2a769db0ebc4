// Making tensors: from a shape, or like another tensor. What is made does not depend on the example, so that under vmap
// a constant of one example's shape is enough; it becomes batched when something batched is written to it.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/dims.h"
#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

// A stand-in with shape, dtype and device of one example, but without its memory.
void like_vmap(VmapFrame& f) {
  const auto sizes = logical_sizes(f, 0);
  f.stack[0] = at::empty(Ints(sizes.size(), 1), f.tensor(0).options()).expand(sizes);
  f.call();
  f.out_dims.assign(1, VmapFrame::kUnbatched);
}

template <class... Op>
void makes_constant() {
  (op<Op>().vmap(like_vmap).no_derivative(), ...);
}

}  // namespace

void factories() {
  makes_constant<at::_ops::zeros_like, at::_ops::ones_like, at::_ops::full_like, at::_ops::empty_like,
                 at::_ops::new_zeros, at::_ops::new_ones, at::_ops::new_full, at::_ops::new_empty,
                 at::_ops::new_empty_strided>();
}

}  // namespace tower::rules
