// The workloads are written once, over flat lists of tensors, and run on either engine: Tower's, and the internals of
// LibTorch's functorch as its Python front end drives them.
#pragma once

#include <tower/dynamic.h>

#include <functional>
#include <string>
#include <vector>

#include "support/device.h"
#include "support/libtorch_peers.h"

namespace workloads {

using bench::here;
using tower::dynamic::Dims;
using tower::dynamic::Function;
using tower::dynamic::Tensors;

/// The transforms of one library. Functions that are mapped return tensors mapped in front.
struct Engine {
  std::string name;
  std::function<Function(Function, Dims in_dims)> vmap;
  std::function<Function(Function, std::vector<int64_t> argnums)> grad;
  /// Of functions with one output, by the first argument.
  std::function<Function(Function)> jacrev, jacfwd;
  /// The derivative along `tangents` of the first arguments.
  std::function<Function(Function, Tensors tangents)> jvp;
  /// The Hessian by the first arguments times `tangents`, the fastest way that works with every operator.
  std::function<Function(Function, Tensors tangents)> hvp;
};

inline std::vector<int64_t> first_arguments(int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

inline Engine tower_engine() {
  namespace td = tower::dynamic;
  const auto jvp = [](Function f, Tensors tangents) {
    return Function([f = std::move(f), tangents = std::move(tangents)](const Tensors& arguments) {
      Tensors all = tangents;
      all.resize(arguments.size());
      return td::jvp(f, arguments, all).second;
    });
  };
  return {"tower",
          [](Function f, Dims in_dims) { return td::vmap(std::move(f), std::move(in_dims), {0}); },
          [](Function f, std::vector<int64_t> argnums) { return td::grad(std::move(f), std::move(argnums)); },
          [](Function f) { return td::jacrev(std::move(f), {0}); },
          [](Function f) { return td::jacfwd(std::move(f), {0}); },
          jvp,
          [jvp](Function f, Tensors tangents) {
            const auto arguments = static_cast<int64_t>(tangents.size());
            return td::grad(jvp(std::move(f), std::move(tangents)), first_arguments(arguments));
          }};
}

#if TOWER_BENCH_FUNCTORCH
inline Engine functorch_engine() {
  namespace ft = peer::functorch;
  return {"functorch", [](Function f, Dims in_dims) { return ft::vmap(std::move(f), std::move(in_dims)); },
          [](Function f, std::vector<int64_t> argnums) { return ft::grad(std::move(f), std::move(argnums)); },
          [](Function f) { return ft::jacrev(std::move(f)); }, [](Function f) { return ft::jacfwd(std::move(f)); },
          [](Function f, Tensors tangents) { return ft::jvp(std::move(f), std::move(tangents)); },
          // Forward mode lacks the backward kernel of layer norm there: reverse mode twice.
          [](Function f, Tensors tangents) {
            const auto wanted = first_arguments(static_cast<int64_t>(tangents.size()));
            const Function along = [gradient = ft::grad(std::move(f), wanted), tangents](const Tensors& arguments) {
              const Tensors gradients = gradient(arguments);
              at::Tensor sum;
              for (size_t i = 0; i < gradients.size(); ++i) {
                const at::Tensor term = at::mul(gradients[i], tangents[i]).sum();
                sum = sum.defined() ? sum + term : term;
              }
              return Tensors{sum};
            };
            return ft::grad(along, wanted);
          }};
}
#endif

using Work = std::function<Tensors()>;

/// One row of the table.
struct Workload {
  std::string name;
  std::function<Work(const Engine&)> with;
  Work by_hand = {};  // batched by hand on LibTorch's operators; empty: nobody would
  double budget = 0;  // what Tower's time may be, as a multiple of
  enum Beside { functorch, hand } beside = functorch;
  double tolerance = 1e-3;  // relative, between the engines
};

}  // namespace workloads
