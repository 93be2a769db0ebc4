// Products of matrices in programs, by the kernel of kernels/product_kernel.h, for C and C++ alike: NOTE [One text for
// the process and for C] in kernels/by_pointers.h.
//
// A C library whose text is compiled with the header of a BLAS's C interface named, -DTOWER_CBLAS='<cblas.h>', has that
// BLAS make its larger products.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/lane_code.h"

#ifdef TOWER_CBLAS
#include TOWER_CBLAS
#endif

#ifdef __cplusplus
namespace tower::compiler {
#endif

// Of C = S + A B: how many columns of the result and terms of each sum, and how far elements are apart, in bytes, along
// rows, terms and columns.
typedef struct ProductNumbers {
  int64_t columns, terms, row_of_a, term_of_a, term_of_b, column_of_b, row_of_s, column_of_s, row_of_c, column_of_c;
} ProductNumbers;

#ifdef TOWER_CBLAS
enum { kFewestForBlas = 32768 };  // multiplications of a product

// How many elements the rows of a matrix are apart, whose columns follow each other; 0 where they do not, or that is
// more than an int.
static inline int elements_of_row(int64_t rows, int64_t columns, int64_t row, int64_t column, int64_t bytes) {
  const int64_t apart = rows > 1 ? row / bytes : columns;
  if ((columns > 1 && column != bytes) || (rows > 1 && row % bytes != 0)) return 0;
  return columns <= apart && apart <= INT32_MAX && rows <= INT32_MAX ? (int)apart : 0;
}

// C = S + sign A B by BLAS, where S may be C; zero where the matrices do not lie as that takes them, or are small.
static inline int multiply_by_blas(const ProductNumbers* numbers, int64_t rows, int64_t bytes, int sign, const void* a,
                                   const void* b, const void* s, void* c) {
  const int64_t columns = numbers->columns, terms = numbers->terms;
  const int a_by_rows = elements_of_row(rows, terms, numbers->row_of_a, numbers->term_of_a, bytes);
  const int a_by_terms = elements_of_row(terms, rows, numbers->term_of_a, numbers->row_of_a, bytes);
  const int b_by_terms = elements_of_row(terms, columns, numbers->term_of_b, numbers->column_of_b, bytes);
  const int b_by_columns = elements_of_row(columns, terms, numbers->column_of_b, numbers->term_of_b, bytes);
  const int of_c = elements_of_row(rows, columns, numbers->row_of_c, numbers->column_of_c, bytes);
  const int of_a = a_by_rows ? a_by_rows : a_by_terms, of_b = b_by_terms ? b_by_terms : b_by_columns;
  int64_t i, j;
  if ((double)rows * (double)columns * (double)terms < kFewestForBlas || !of_a || !of_b || !of_c) return 0;
  for (i = 0; s && s != c && i < rows; ++i)
    for (j = 0; j < columns; ++j)
      memcpy((char*)c + i * numbers->row_of_c + j * numbers->column_of_c,
             (const char*)s + i * numbers->row_of_s + j * numbers->column_of_s, (size_t)bytes);
  if (bytes == 8)
    cblas_dgemm(CblasRowMajor, a_by_rows ? CblasNoTrans : CblasTrans, b_by_terms ? CblasNoTrans : CblasTrans, (int)rows,
                (int)columns, (int)terms, sign, (const double*)a, of_a, (const double*)b, of_b, s ? 1 : 0, (double*)c,
                of_c);
  else
    cblas_sgemm(CblasRowMajor, a_by_rows ? CblasNoTrans : CblasTrans, b_by_terms ? CblasNoTrans : CblasTrans, (int)rows,
                (int)columns, (int)terms, (float)sign, (const float*)a, of_a, (const float*)b, of_b, s ? 1 : 0,
                (float*)c, of_c);
  return 1;
}
#endif

// Has dimension `d` of products in that of their rows (`into`), which all have one B, or of their columns, which have
// one A (`shared` is its number), where these follow each other: all of them are one product. Zero if they do not.
static inline int join_products(int64_t dims, int64_t* sizes, int64_t* strides, int64_t d, int64_t into,
                                int64_t shared) {
  int64_t k;
  if (sizes[d] == 1) return 1;
  if (strides[shared * dims + d] != 0) return 0;
  for (k = 0; k < 4 && sizes[into] != 1; ++k)
    if (strides[k * dims + d] != sizes[into] * strides[k * dims + into]) return 0;
  for (k = 0; k < 4 && sizes[into] == 1; ++k) strides[k * dims + into] = strides[k * dims + d];
  sizes[into] *= sizes[d];
  return 1;
}

// Products of the matrices at a, b, s (null: there is none) and c. `sizes`: of dimensions, the last of which are rows,
// columns, and terms; `strides`: of a, b, s and c along each of them, in bytes: both are used up. `place`: a number for
// each dimension.
static inline void run_products(const LaneCode* code, int64_t dims, int64_t* sizes, int64_t* strides,
                                const void* const* operands, void* c, int64_t* place, uint8_t* fault) {
  const int64_t row = dims - 3, column = dims - 2, term = dims - 1;
  const int64_t *const of_a = strides, *const of_b = of_a + dims, *const of_s = of_b + dims, *const of_c = of_s + dims;
  const void* inputs[4];
  void* output = c;
  int64_t d, rows, outer = row, count = 1, first = 0;
  ProductNumbers numbers;
  while (outer > 0 && (join_products(dims, sizes, strides, outer - 1, row, 1) ||
                       join_products(dims, sizes, strides, outer - 1, column, 0)))
    --outer;
  // Several rows are computed at a time, and columns where they follow each other: else more rows are better.
  if (sizes[column] > sizes[row] &&
      (of_b[column] != code->elements[0].bytes || of_c[column] != code->elements[0].bytes))
    first = 1;
  rows = sizes[first ? column : row];
  numbers.columns = sizes[first ? row : column];
  numbers.terms = sizes[term];
  numbers.row_of_a = first ? of_b[column] : of_a[row];
  numbers.term_of_a = first ? of_b[term] : of_a[term];
  numbers.term_of_b = first ? of_a[term] : of_b[term];
  numbers.column_of_b = first ? of_a[row] : of_b[column];
  numbers.row_of_s = of_s[first ? column : row];
  numbers.column_of_s = of_s[first ? row : column];
  numbers.row_of_c = of_c[first ? column : row];
  numbers.column_of_c = of_c[first ? row : column];
  inputs[first] = operands[0];
  inputs[1 - first] = operands[1];
  inputs[2] = operands[2];
  inputs[3] = &numbers;
  for (d = 0; d < outer; ++d) {
    place[d] = 0;
    count *= sizes[d];
  }
  for (; count > 0; --count) {
#ifdef TOWER_CBLAS
    if (!multiply_by_blas(&numbers, rows, code->elements[0].bytes, 1, inputs[0], inputs[1], inputs[2], output))
#endif
      code->function(0, rows, inputs, &output, fault);
    for (d = outer; d-- > 0;) {
      const int64_t by = ++place[d] < sizes[d] ? 1 : 1 - sizes[d];
      inputs[first] = (const char*)inputs[first] + by * of_a[d];
      inputs[1 - first] = (const char*)inputs[1 - first] + by * of_b[d];
      if (inputs[2]) inputs[2] = (const char*)inputs[2] + by * of_s[d];
      output = (char*)output + by * of_c[d];
      if (by == 1) break;
      place[d] = 0;
    }
  }
}

#ifdef __cplusplus
}  // namespace tower::compiler
#endif
