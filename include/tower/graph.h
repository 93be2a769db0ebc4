// What a function computes, as data: the operator calls that it makes, which tensors they read, what they give.
//
//   std::cout << tower::graph(tower::vmap(tower::jacfwd(residual)))(x, load);
//
//   argument %0 : Double [8, 7]
//   %1 = aten::select.int<0|a8>(%0; dim=0, index=6) : Double [8]
//   %2 = aten::mul.Tensor<0,0|a8;0,-|b7>(%1, %1) : Double [8, 7]
//   return %2
//
// A call is the operator as the function called it, for one example; between < and > stands, for each vmap around it,
// which dimension of each operand holds the examples (-: none), a letter for the vmap, and its batch size. To make the
// graph the function is run once: what it does besides, such as writing to tensors, is done.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tower/detail/flat.h"

namespace tower {

/// Where a value of a graph comes from.
enum class ValueOrigin : uint8_t {
  argument,  ///< given at each run
  captured,  ///< a tensor from outside that the function read: read again at each run
  constant,  ///< the same at each run: what is made from nothing, and what is made of that
  result,    ///< of a call
};

/// One vmap around a call.
struct MappedOver {
  /// The dimension of an operand that the vmap does not map.
  static constexpr int64_t kUnmapped = -1;

  uint64_t axis;              ///< which vmap: equal numbers are the same examples, also where sizes are equal by chance
  int64_t batch_size;         ///< how many examples
  std::vector<int64_t> dims;  ///< of each operand, in what the vmaps before this one left of it; kUnmapped

  /// Whether all of it is equal.
  bool operator==(const MappedOver&) const = default;
};

/// One tensor. Its sizes are those of all examples.
struct GraphValue {
  ValueOrigin origin;          ///< where it comes from
  std::vector<int64_t> sizes;  ///< of all examples
  at::ScalarType dtype;        ///< of its elements
  at::Device device;           ///< where it lies
  at::Tensor tensor;           ///< captured: the tensor; constant: its value; else undefined
};

/// One operator call.
struct GraphCall {
  std::string op;                 ///< "aten::mul.Tensor"
  std::string attributes;         ///< arguments that are no tensors: "dim=0, index=6"
  std::vector<int64_t> operands;  ///< values that it reads
  std::vector<int64_t> results;   ///< values that it gives; -1: undefined
  std::vector<MappedOver> vmaps;  ///< around it, outermost first
  bool writes = false;            ///< writes to its first operand, a captured tensor or an argument
};

/// What a function computed when it was run: values are named by their places in `values`, %0, %1, …
struct Graph {
  std::vector<GraphValue> values;  ///< all tensors that have a part in it
  std::vector<int64_t> arguments;  ///< the value of each tensor of the arguments; -1: undefined
  std::vector<GraphCall> calls;    ///< in the order in which they were made
  std::vector<int64_t> results;    ///< the value of each tensor of the result
  std::string text;                ///< one line for each value and call
};

/// Writes the text of `graph` to `out`.
inline std::ostream& operator<<(std::ostream& out, const Graph& graph) { return out << graph.text; }

namespace dynamic {
/// A function of the arguments of `f` that gives the graph of what `f` computes of them.
std::function<Graph(const Tensors&)> graph(Function f);
}  // namespace dynamic

/// A function of the arguments of `f`, trees, that gives the graph of what `f` computes of them.
template <class F>
auto graph(F f) {
  return [f = detail::Held<F>{std::move(f)}](const auto&... args) {
    return [&](const auto&... arg) {
      auto flat = detail::flat_call(f.function, arg...);
      return dynamic::graph([&](const dynamic::Tensors& tensors) { return flat(tensors).first; })(flat.leaves());
    }(detail::decayed(args)...);
  };
}

}  // namespace tower
