// Sums of products of tensors, by matrix products: what fuse/sums_as_products.h puts into a graph.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "fuse/kernel_calls.h"
#include "graph/operand_dims.h"

namespace tower::compiler {

// What a dimension of a product runs over has a label: equal ones go together. Dimensions of one element have none.
using Labels = std::vector<int>;

// A tensor as it is read.
struct Factor {
  ValueId value;
  Labels labels;         // of each dimension; −1: none
  bool squared = false;  // each element
};

// A value that is a sum of products: over the labels that none of its dimensions has.
struct Product {
  std::vector<Factor> factors;
  std::vector<int64_t> sizes;                // of labels
  std::vector<Labels> dims;                  // of the value; several labels: one after the other, the last one fastest
  size_t first;                              // the call whose result has all the terms
  std::optional<size_t> sum = std::nullopt;  // the last call that summed
  bool root = false;                         // the value is the square root of that
};

inline bool has(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

/// The operator that computes it, from the operands that the factors are.
c10::intrusive_ptr<KernelOperator> contraction(Product product, std::vector<size_t> operands, const Value& result,
                                               const Places& order);

}  // namespace tower::compiler
