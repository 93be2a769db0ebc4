// Padding by reflection and replication: linear, and the same for every channel of every item. (Padding by a constant
// stands with the shapes.)
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "records/op.h"
#include "rules/registry.h"
#include "rules/small_windows.h"

namespace tower::rules {
namespace {

// Op and its backward operator are each other's transposes up to the dimensions they name.
template <class Op, class Backward>
void pad(int64_t rank) {
  op<Op>()
      .moves(Moves::elements)
      .folds_into_items(rank)
      .template linear<0>([](Ct<0> ct, const Tensor& x, const Ints& padding) {
        return Backward::call(*ct, x, c10::fromIntArrayRefSlow(padding));
      });
  op<Backward>()
      .small(small::sums)
      .folds_into_items(rank)
      .template linear<0>(
          [](Ct<0> ct, Skip, Skip, const Ints& padding) { return Op::call(*ct, c10::fromIntArrayRefSlow(padding)); })
      .template inactive<1>();
}

}  // namespace

void padding() {
  pad<at::_ops::reflection_pad1d, at::_ops::reflection_pad1d_backward>(3);
  pad<at::_ops::reflection_pad2d, at::_ops::reflection_pad2d_backward>(4);
  pad<at::_ops::reflection_pad3d, at::_ops::reflection_pad3d_backward>(5);
  pad<at::_ops::replication_pad1d, at::_ops::replication_pad1d_backward>(3);
  pad<at::_ops::replication_pad2d, at::_ops::replication_pad2d_backward>(4);
  pad<at::_ops::replication_pad3d, at::_ops::replication_pad3d_backward>(5);
}

}  // namespace tower::rules
