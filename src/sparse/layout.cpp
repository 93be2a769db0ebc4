#include "sparse/layout.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "sparse/beta_warning.h"
#include "tower/errors.h"

namespace tower::sparse {

namespace {

std::vector<int64_t> rows_of_entries(const Sparsity& pattern) {
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(pattern.num_entries()));
  for (int64_t r = 0; r < pattern.num_rows(); ++r)
    rows.insert(rows.end(), static_cast<size_t>(pattern.starts()[size_t(r) + 1] - pattern.starts()[size_t(r)]), r);
  return rows;
}

// The pattern of blocks that have an entry.
Sparsity blocks_of(const Sparsity& pattern, const std::array<int64_t, 2>& block) {
  const auto [height, width] = block;
  if (height <= 0 || width <= 0 || pattern.num_rows() % height != 0 || pattern.num_columns() % width != 0)
    throw ArgumentError("sparse matrices: blocks of " + std::to_string(height) + " × " + std::to_string(width) +
                        " do not make up a matrix of " + std::to_string(pattern.num_rows()) + " × " +
                        std::to_string(pattern.num_columns()) + ". The sizes of blocks are divisors of these.");
  std::vector<int64_t> starts{0}, columns;
  for (int64_t r = 0; r < pattern.num_rows(); r += height) {
    const auto first = static_cast<std::ptrdiff_t>(columns.size());
    for (int64_t k = pattern.starts()[size_t(r)]; k < pattern.starts()[size_t(r + height)]; ++k)
      columns.push_back(pattern.columns()[size_t(k)] / width);
    std::sort(columns.begin() + first, columns.end());
    columns.erase(std::unique(columns.begin() + first, columns.end()), columns.end());
    starts.push_back(static_cast<int64_t>(columns.size()));
  }
  return {pattern.num_columns() / width, std::move(starts), std::move(columns)};
}

}  // namespace

at::Tensor as_tensor(const std::vector<int64_t>& numbers) { return at::tensor(numbers, at::kLong); }

MatrixLayout::MatrixLayout(const Sparsity& pattern, const SparseOptions& options)
    : layout_(options.layout), sizes_{pattern.num_rows(), pattern.num_columns()}, block_(options.block) {
  const std::vector<int64_t>& starts = pattern.starts();
  const std::vector<int64_t>& columns = pattern.columns();
  if (layout_ == at::kSparseCsr) {
    compressed_ = as_tensor(starts), plain_ = as_tensor(columns);
  } else if (layout_ == at::kSparse) {
    plain_ = at::stack({as_tensor(rows_of_entries(pattern)), as_tensor(columns)});
  } else if (layout_ == at::kSparseCsc) {
    const Sparsity by_columns = pattern.transposed();
    std::vector<int64_t> next = by_columns.starts(), order(columns.size());
    for (size_t k = 0; k < columns.size(); ++k) order[size_t(next[size_t(columns[k])]++)] = static_cast<int64_t>(k);
    compressed_ = as_tensor(by_columns.starts()), plain_ = as_tensor(by_columns.columns()), order_ = as_tensor(order);
  } else if (layout_ == at::kSparseBsr) {
    const auto [height, width] = block_;
    const Sparsity blocks = blocks_of(pattern, block_);
    std::vector<int64_t> order;
    for (int64_t r = 0; r < pattern.num_rows(); ++r) {
      const auto first = blocks.columns().begin() + blocks.starts()[size_t(r / height)],
                 last = blocks.columns().begin() + blocks.starts()[size_t(r / height) + 1];
      for (int64_t k = starts[size_t(r)]; k < starts[size_t(r) + 1]; ++k) {
        const int64_t c = columns[size_t(k)];
        const int64_t number = std::lower_bound(first, last, c / width) - blocks.columns().begin();
        order.push_back((number * height + r % height) * width + c % width);
      }
    }
    compressed_ = as_tensor(blocks.starts()), plain_ = as_tensor(blocks.columns()), order_ = as_tensor(order);
  } else {
    throw ArgumentError("sparse matrices: the layout is " + (std::ostringstream() << layout_).str() +
                        ". Those that are made are SparseCsr, SparseCsc, Sparse (COO) and SparseBsr.");
  }
}

at::Tensor MatrixLayout::matrix(const at::Tensor& values) const {
  const auto options = values.options().layout(layout_);
  const auto there = [&](const at::Tensor& t) { return t.defined() ? t.to(values.device()) : t; };
  const at::Tensor compressed = there(compressed_), plain = there(plain_), order = there(order_);
  const NoBetaWarning quiet;
  switch (layout_) {
    case at::kSparse:
      return at::_sparse_coo_tensor_unsafe(plain, values, sizes_, options, /*is_coalesced=*/true);
    case at::kSparseCsc:
      return at::_sparse_csc_tensor_unsafe(compressed, plain, values.index_select(0, order), sizes_, options);
    case at::kSparseBsr: {
      const int64_t blocks = plain.numel();
      const at::Tensor all = at::zeros({blocks * block_[0] * block_[1]}, values.options()).index_copy(0, order, values);
      return at::_sparse_bsr_tensor_unsafe(compressed, plain, all.view({blocks, block_[0], block_[1]}), sizes_,
                                           options);
    }
    default:
      return at::_sparse_csr_tensor_unsafe(compressed, plain, values, sizes_, options);
  }
}

}  // namespace tower::sparse
