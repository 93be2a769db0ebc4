// Products of matrices in tiles of the result that stay in registers: those that kernels/gemm.h does not leave to
// LibTorch.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>

#include "kernels/gemm.h"

namespace tower::compiler {

/// Terms of a block: sums are added up block by block, and S is added to the first.
constexpr int64_t kTerms = 256;
/// Rows, up to twice as many, of which a block of terms stays in the cache of a core while it meets all columns.
constexpr int64_t kRowsOfBlock = 96;
/// Fewer reads of B than a copy of it is worth.
constexpr int64_t kFewRows = 16;
/// Rows of the highest tile.
constexpr int kMostRows = 8;

/// One product of matrices, in memory; for tests and measurements.
template <class T>
struct Matrices {
  const T *a, *b, *s;  // s: null where there is none
  T* c;
  GemmAxis rows, columns, inner;
  GemmAxis outer{1, 0, 0, 0, 0};  // of the columns, which need not follow each other along both
  void multiply() const;
};
extern template struct Matrices<float>;
extern template struct Matrices<double>;

/// Products with one B, of which each is a block of rows: a block of B's terms is copied once for all of them. Their
/// terms and columns are the same, and `outer` is not there.
template <class T>
void multiply_by_one(c10::ArrayRef<Matrices<T>> blocks);
extern template void multiply_by_one(c10::ArrayRef<Matrices<float>> blocks);
extern template void multiply_by_one(c10::ArrayRef<Matrices<double>> blocks);

/// Bytes of the vectors that products of so many columns are computed in, of elements of `element` bytes.
int vector_bytes(int64_t columns, int64_t element);

/// Whether B's columns are read where they are, by vectors of so many bytes.
template <class T>
bool reads_in_place(const Matrices<T>& m, int bytes);
extern template bool reads_in_place(const Matrices<float>& m, int bytes);
extern template bool reads_in_place(const Matrices<double>& m, int bytes);

}  // namespace tower::compiler
