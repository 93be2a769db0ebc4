// A graph as an operator with an image under each transform: the graph of the transformed graph, traced where it is
// first asked for, and compiled. So a compiled function stays compiled under vmap, grad, jvp and LibTorch's autograd,
// to any order: images are compiled graphs, and have images.
//
//   vmap       of the graph, over the dimensions that are mapped
//   vjp, jvp   y = f(x) and its derivative, linear in t, are one graph of x and t at first. It is split: what does not
//              depend on t computes y and what the other half reads. From then on, a call that is recorded runs the
//              first half, and its pullback (or its tangents) the second.
#pragma once

#include <list>
#include <mutex>

#include "fuse/fused_plan.h"
#include "graph/call_kind.h"
#include "tower/compile.h"
#include "tower/higher_order.h"

namespace tower::compiler {

class GraphOperator {
 public:
  /// `graph` only computes (graph/split.h).
  GraphOperator(Graph graph, const std::shared_ptr<Kernels>& kernels);

  dynamic::Tensors operator()(const dynamic::Tensors& operands) const { return op_(operands); }
  /// The kernels of the images that there are.
  Report report() const;

 private:
  class Images;

  std::shared_ptr<Images> images_;
  HigherOrderOperator op_;
};

}  // namespace tower::compiler
