// Sparse matrices of LibTorch from the entries of a pattern: what does not depend on values is made once.
#pragma once

#include "tower/sparse.h"

namespace tower::sparse {

at::Tensor as_tensor(const std::vector<int64_t>& numbers);

class MatrixLayout {
 public:
  MatrixLayout(const Sparsity& pattern, const SparseOptions& options);

  /// The matrix whose entries, in the pattern's order, are these.
  at::Tensor matrix(const at::Tensor& values) const;

 private:
  at::Layout layout_;
  std::array<int64_t, 2> sizes_, block_;
  at::Tensor compressed_, plain_;  // indices as the layout has them; of COO both are in `plain_`
  at::Tensor order_;               // CSC: where its entries are in the pattern. BSR: where the pattern's are in it
};

}  // namespace tower::sparse
