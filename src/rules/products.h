// What matrix products share: their gradients, and what their kernels demand.
//
// NOTE [Gradients lie as their operands]
// Of the two ways to compute a gradient, aᴴ·ct and (ctᵀ·conj(a))ᵀ, the one is taken whose result lies in memory as the
// operand does. A linear layer multiplies by weight.t(): so the weight's gradient comes out as the weight lies, and an
// optimizer, a reshape or an update finds no strides of its own. LibTorch's formulas do the same.
#pragma once

#include <ATen/Functions.h>

#include <algorithm>

#include "core/bind.h"
#include "core/followed.h"
#include "core/reuse.h"
#include "records/demands.h"
#include "records/op.h"
#include "rules/shared_operand.h"

namespace tower::rules {

inline Tensor adjoint_of(const Tensor& m) { return conjugate(m.mT()); }

/// Of a·b with respect to `a`, for matrices or batches of them.
inline Tensor left_gradient(const Tensor& ct, const Tensor& b, const Meta& a) {
  const auto product = [](const Tensor& x, const Tensor& y) { return x.dim() == 2 ? at::mm(x, y) : at::bmm(x, y); };
  return a.by_columns ? product(conjugate(b), ct.mT()).mT() : product(ct, adjoint_of(b));
}

/// With respect to `b`.
inline Tensor right_gradient(const Tensor& ct, const Tensor& a, const Meta& b) {
  const auto product = [](const Tensor& x, const Tensor& y) { return x.dim() == 2 ? at::mm(x, y) : at::bmm(x, y); };
  return b.by_columns ? product(ct.mT(), conjugate(a)).mT() : product(adjoint_of(a), ct);
}

// NOTE [A column is multiplied as a row]
// LibTorch's batched kernels take five to fifteen times as long for matrices times columns as for rows times matrices.

/// a·b for batches of matrices, at least one of which has a dimension of examples.
inline Tensor product_of_batches(const Tensor& a, const Tensor& b) {
  if (b.size(-1) != 1 || a.dim() < 3 || b.dim() < 3) return at::matmul(a, b);
  return at::matmul(b.mT(), a.mT()).squeeze(-2).unsqueeze(-1);
}

/// The same of arguments `a` and `b` of a call, which are batches for each example and have the examples in front, if
/// they have any (see NOTE [A shared operand is not copied]).
inline Tensor product_of_examples(const VmapFrame& f, size_t a, size_t b) {
  const Tensor x = f.tensor(a), y = f.tensor(b);
  if (!f.batched(a)) return from_side_by_side(at::bmm(x, side_by_side(y)), f.batch_size, y.size(-1));
  if (!f.batched(b)) return from_stacked_up(at::bmm(stacked_up(x), y), f.batch_size, x.size(-2));
  return product_of_batches(x, y);
}

/// One matrix on the left of many: the results lie by rows, as a product of matrices does. Kernels do badly at rows of
/// few elements (measured on a CPU: 2 to 4 times as slow below 16), and AB = (Bᵀ Aᵀ)ᵀ has long ones instead, for the
/// price of a copy. The gradient of an expanded matrix would be a matrix for each example (see NOTE [A shared operand
/// is not copied]).
inline Tensor one_by_many(const Tensor& a, const Tensor& b) {
  constexpr int64_t few = 16;
  if (b.size(-1) < std::min(few, a.size(0))) return at::matmul(b.mT(), a.t()).mT().contiguous();
  if (is_differentiated(a)) return from_side_by_side(at::mm(a, side_by_side(b)), b.size(0), b.size(-1));
  return at::bmm(a.expand({b.size(0), a.size(0), a.size(1)}), b);
}

/// A product of batches with something added, for batches of three dimensions.
inline Tensor add_product_of_batches(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                                     const Scalar& alpha) {
  if (b.size(-1) != 1) return at::baddbmm(self, a, b, beta, alpha);
  const Tensor row = self.dim() < 2 ? self : self.mT();
  return at::baddbmm(row, b.mT(), a.mT(), beta, alpha).squeeze(-2).unsqueeze(-1);
}

/// sum + a·b for matrices or batches of them, in the memory of `sum` where nobody else sees that.
inline Tensor add_product(Tensor sum, const Tensor& a, const Tensor& b) {
  const bool batches = a.dim() == 3;
  if (a.layout() != at::kStrided || b.layout() != at::kStrided) return at::add(sum, at::matmul(a, b));
  if (is_own(sum) && is_plain(a) && is_plain(b)) return batches ? sum.baddbmm_(a, b) : sum.addmm_(a, b);
  return batches ? at::baddbmm(sum, a, b) : at::addmm(sum, a, b);
}

inline void demand_batches(const Example& e, size_t a, size_t b) {
  TORCH_CHECK(e.dim(a) == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(e.dim(b) == 3, "batch2 must be a 3D tensor");
  TORCH_CHECK(e.size(a, 0) == e.size(b, 0) && e.size(a, 2) == e.size(b, 1),
              "Expected size for first two dimensions of batch2 tensor to be: [", e.size(a, 0), ", ", e.size(a, 2),
              "] but got: [", e.size(b, 0), ", ", e.size(b, 1), "].");
  demand_same_dtype(e, {a, b});
}

inline void demand_matrix_and_vector(const Example& e, size_t m, size_t v) {
  TORCH_CHECK(e.dim(m) == 2 && e.dim(v) == 1, "vector + matrix @ vector expected, got ", e.dim(m), " and ", e.dim(v),
              " dimensions");
  TORCH_CHECK(e.size(m, 1) == e.size(v, 0), "size mismatch, got mat (", e.size(m, 0), "x", e.size(m, 1), "), vec (",
              e.size(v, 0), ")");
  demand_same_dtype(e, {m, v});
}

}  // namespace tower::rules
