// What calls are linear in, and the same calls for one of the examples that share what they read: tools of
// fuse/scaled_products.h and fuse/weighted_sums.h.
#pragma once

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "numbers/expression.h"

namespace tower::compiler {

class LinearCalls {
 public:
  explicit LinearCalls(Graph& graph) : graph_(graph) {}

  /// Remembers what repeats a value in the place of dimensions of one element.
  void note(const Call& call);
  /// What that was before; none of other values.
  std::optional<ValueId> before_expanding(ValueId id) const;

  /// Whether it computes one result of float32 or float64 on the CPU, and nothing but that.
  bool fits(const Call& call) const;
  /// Whether an element of the result is `op` of those of the two operands.
  bool is_of(Op op, const Call& call) const;
  /// Whether the result has the operand's sizes, and each element is linear in the operand's: what is multiplied there
  /// may as well be multiplied afterwards, but for rounding.
  bool is_linear(const Call& call, size_t k) const;
  /// Whether the operand has all dimensions of vmaps in front, and those that are `shared` are of vmaps that map
  /// nothing else.
  bool alone_has(const Call& call, size_t k, const std::vector<size_t>& shared) const;
  /// Adds the call for one example in the `shared` dimensions, `one` in the place of operand `k`: its result, which has
  /// the sizes of the call's otherwise, or of `like`.
  ValueId add_for_one(const Call& call, size_t k, ValueId one, const std::vector<size_t>& shared,
                      std::optional<ValueId> like = std::nullopt);

  /// A product by elements of a scale that has one element in some dimensions, and a base that has one in those that
  /// are `shared`; both have as many dimensions as the product.
  struct Scaled {
    ValueId scale, base;
    std::vector<size_t> shared;
  };
  /// `accepts`: which dimensions may be shared.
  std::optional<Scaled> scaled(const Call& call, const std::function<bool(const std::vector<size_t>&)>& accepts);

  /// Adds `a op b` by elements, which broadcast, as plain tensors: its result, which is `result` if that is given.
  ValueId add_by_elements(Op op, ValueId a, ValueId b, std::optional<ValueId> result = std::nullopt);
  /// Adds a value of these sizes, in one piece, that is like another one.
  ValueId add_value(ValueId like, Sizes sizes);

 private:
  const Sizes& sizes(ValueId id) const { return graph_.values[id].sizes; }
  std::optional<Scaled> scaled_by(const Call& call, size_t k,
                                  const std::function<bool(const std::vector<size_t>&)>& accepts);

  Graph& graph_;
  std::unordered_map<ValueId, ValueId> before_expanding_;
};

/// Whether matrices are multiplied under a vmap, and nothing is written to: a product may be made elsewhere.
bool multiplies_for_examples(const Graph& graph);

}  // namespace tower::compiler
