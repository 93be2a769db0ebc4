// What an operator does with whole matrices, for programs without LibTorch, where these are too large to be written out
// as numbers (fuse/systems_in_memory.h). It follows the record of which it is a fact.
//
//   op<at::_ops::linalg_inv_ex>().small(small::inverse)…;
//   on_matrices<at::_ops::linalg_inv_ex>(
//       [](const MatrixArguments&) { return OnMatrices{.given = OnMatrices::to_lu, .solution = 0, .info = 1}; });
#pragma once

#include <functional>
#include <optional>

#include "core/operator.h"
#include "records/families.h"

namespace tower::rules {

struct OnMatrices {
  static constexpr int kNone = -1;
  /// What the matrix is: one to be factored with exchanges of rows, or by Cholesky; what such factors are packed in; or
  /// a triangle of it.
  enum Given : uint8_t { to_lu, to_cholesky, lu, cholesky, triangle } given;
  bool upper = false, unit = false;  // which triangle of it is read and given; whether its diagonal is ones
  bool left = true;                  // A X = B, or X A = B
  bool transposed = false;           // Aᵀ in the place of A
  bool vectors = false;              // B, and X, are vectors
  // Which operands.
  int matrix = 0, pivots = kNone, sides = kNone;  // without B, it is the identity
  // Which results; P L U is the matrix.
  int solution = kNone, factor = kNone, exchanges = kNone, info = kNone;
  int permutation = kNone, lower_factor = kNone, upper_factor = kNone;
  int determinant = kNone, sign = kNone, logarithm = kNone;
};

/// A call for one example.
struct MatrixArguments {
  c10::ArrayRef<IValue> args;     // by schema position
  c10::ArrayRef<Sizes> operands;  // of each tensor among them
};
/// None where it does something else.
using MatrixRule = std::function<std::optional<OnMatrices>(const MatrixArguments&)>;

/// Null where the operator has none.
const MatrixRule* matrix_rule(const Operator& op);
void set_matrix_rule(const Operator& op, MatrixRule rule);

template <class Op>
void on_matrices(MatrixRule rule) {
  set_matrix_rule(record_of(Op::name, Op::overload_name), std::move(rule));
}

}  // namespace tower::rules
