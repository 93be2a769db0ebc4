// Factorizations of matrices and solves with them in programs, block by block, by the kernel of
// kernels/elimination_kernel.h, for C and C++ alike: NOTE [One text for the process and for C] in
// kernels/by_pointers.h.
//
// A matrix is copied into memory of its own, column by column, and so are right-hand sides. There a factor's lower and
// upper triangle are in the places of the matrix. What is no multiplication of blocks is the kernel's; blocks are
// multiplied by its product, or by a BLAS that is named (kernels/products_by_pointers.h).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/lane_code.h"
#include "kernels/lanes_by_pointers.h"
#include "kernels/products_by_pointers.h"

#ifdef __cplusplus
namespace tower::compiler {
#endif

// What the kernel does in one call, with columns of a block that begins at row and column `first`.
enum {
  kOfProducts,  // C = S − A B
  kOfLu,
  kOfCholesky,
  kOfLower,  // a triangular solve
  kOfUpper,
  kOfDeterminant
};

// How far columns are apart, in bytes.
typedef struct EliminationNumbers {
  int64_t first, rows, columns, matrix_column, sides_column, unit;
} EliminationNumbers;

// What a step does: bits, in the order in which it is done.
enum {
  kFactorsLu = 1,
  kFactorsCholesky = 2,
  kMirrorsLower = 4,       // the upper triangle is the transposed lower one
  kSolvesForIdentity = 8,  // right-hand sides are the identity's columns
  kExchangesRows = 16,
  kSolvesLower = 32,
  kLowerIsUnit = 64,
  kSolvesUpper = 128,
  kUpperIsUnit = 256,
  kExchangesBack = 512,
  kMustFactor = 1024  // that a matrix cannot be factored is a fault
};

enum { kMatrixIsSingular = 4, kRowIsOutOfRange = 8 };  // of faults

// The operands of a step, outputs behind inputs. Those that are its own are in the workspace.
enum {
  kSystemMatrix,
  kSystemGivenPivots,
  kSystemSides,
  kSystemOwnMatrix,
  kSystemOwnSides,
  kSystemOwnPivots,
  kSystemSolution,
  kSystemFactor,
  kSystemPivots,
  kSystemInfo,
  kSystemLower,
  kSystemUpper,
  kSystemDeterminant,
  kSystemSign,      // of the determinant; and its size, as …
  kSystemMantissa,  // … a number from one to two, or one that is zero, infinite or NaN, times two to the …
  kSystemExponent,
  kSystemOperands
};

enum {
  kBytesOfBlock = 256,  // of a column, which vectors of any size fill, and tiles of a product
  kSidesAtATime = 8     // of a block, that are in the cache
};

// Of a matrix's column, or that of right-hand sides, in memory of its own.
static inline int64_t bytes_of_system_column(int64_t rows, int64_t bytes) {
  const int64_t blocks = (rows * bytes + kBytesOfBlock - 1) / kBytesOfBlock;
  // Or elements of a row would have few places in the cache.
  return (blocks + (blocks > 0 && blocks % 4 == 0)) * kBytesOfBlock;
}

// ---- memory ----

// A matrix that lies in any way becomes columns; what is behind their last rows is zero.
static inline void load_columns(const char* from, int64_t from_row, int64_t from_column, char* to, int64_t to_column,
                                int64_t bytes, int64_t rows, int64_t columns) {
  int64_t j;
  for (j = 0; j < columns; ++j) memset(to + j * to_column + rows * bytes, 0, (size_t)(to_column - rows * bytes));
  if (from_row != bytes && from_column == bytes) {
    transpose_elements(from, from_row, to, to_column, bytes, rows, columns);
    return;
  }
  for (j = 0; j < columns; ++j) {
    if (from_row == bytes) memcpy(to + j * to_column, from + j * from_column, (size_t)(rows * bytes));
    else copy_lanes(from + j * from_column, from_row / bytes, to + j * to_column, 1, bytes, rows);
  }
}

// The other way round.
static inline void store_columns(const char* from, int64_t from_column, char* to, int64_t to_row, int64_t to_column,
                                 int64_t bytes, int64_t rows, int64_t columns) {
  int64_t j;
  if (to_row != bytes && to_column == bytes) {
    transpose_elements(from, from_column, to, to_row, bytes, columns, rows);
    return;
  }
  for (j = 0; j < columns; ++j) {
    if (to_row == bytes) memcpy(to + j * to_column, from + j * from_column, (size_t)(rows * bytes));
    else copy_lanes(from + j * from_column, 1, to + j * to_column, to_row / bytes, bytes, rows);
  }
}

static inline void set_one(char* to, int64_t bytes) {
  const double one = 1;
  const float short_one = 1;
  memcpy(to, bytes == 8 ? (const void*)&one : (const void*)&short_one, (size_t)bytes);
}

static inline void set_identity(char* to, int64_t to_column, int64_t bytes, int64_t rows, int64_t columns) {
  int64_t j;
  for (j = 0; j < columns; ++j) {
    memset(to + j * to_column, 0, (size_t)to_column);
    if (j < rows) set_one(to + j * to_column + j * bytes, bytes);
  }
}

// Exchanges two elements of a column.
static inline void exchange_elements(char* a, char* b, int64_t bytes) {
  if (bytes == 8) {
    uint64_t x, y;
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    memcpy(a, &y, 8);
    memcpy(b, &x, 8);
  } else {
    uint32_t x, y;
    memcpy(&x, a, 4);
    memcpy(&y, b, 4);
    memcpy(a, &y, 4);
    memcpy(b, &x, 4);
  }
}

// Exchanges rows `first` to before `end` with those that pivots name, from one, in this order.
static inline void exchange_rows(char* x, int64_t x_column, int64_t columns, int64_t bytes, const int32_t* pivots,
                                 int64_t first, int64_t end) {
  int64_t j, k;
  for (j = 0; j < columns; ++j, x += x_column)
    for (k = first; k < end; ++k)
      if (pivots[k] - 1 != k) exchange_elements(x + k * bytes, x + (pivots[k] - 1) * bytes, bytes);
}
// The same from the last one to the first.
static inline void exchange_rows_back(char* x, int64_t x_column, int64_t columns, int64_t bytes, const int32_t* pivots,
                                      int64_t count) {
  int64_t j, k;
  for (j = 0; j < columns; ++j, x += x_column)
    for (k = count; k-- > 0;)
      if (pivots[k] - 1 != k) exchange_elements(x + k * bytes, x + (pivots[k] - 1) * bytes, bytes);
}

// ---- blocks ----

static inline void eliminate(const LaneCode* code, int64_t task, int64_t count, const EliminationNumbers* numbers,
                             const char* matrix, char* changed, int32_t* pivots, int32_t* info) {
  const void* const inputs[4] = {matrix, 0, 0, numbers};
  void* const outputs[3] = {changed, pivots, info};
  uint8_t fault = 0;
  code->function(task, count, inputs, outputs, &fault);
}

// Takes T X from rows `begin` to before `end` of right-hand sides, of X and T the rows and columns of a block.
static inline void subtract_product(const LaneCode* code, int64_t bytes, const char* of_t, int64_t t_term,
                                    const char* of_x, int64_t x_side, int64_t x_term, char* changed, int64_t side,
                                    int64_t begin, int64_t end, int64_t terms, int64_t sides) {
  const ProductNumbers numbers = {end - begin, terms, x_side, x_term, t_term, bytes, side, bytes, side, bytes};
  void* output = changed + begin * bytes;
  const void* const inputs[4] = {of_x, of_t + begin * bytes, output, &numbers};
  uint8_t fault = 0;
#ifdef TOWER_CBLAS
  if (multiply_by_blas(&numbers, sides, bytes, -1, inputs[0], inputs[1], output, output)) return;
#endif
  code->function(kOfProducts, sides, inputs, &output, &fault);
}

// A block's triangle, for all right-hand sides.
static inline void solve_block(const LaneCode* code, int64_t task, int64_t count, EliminationNumbers numbers,
                               const char* matrix, char* x, int64_t sides) {
  const char* const columns = matrix + numbers.first * numbers.matrix_column;
  int64_t side;
  for (side = 0; side < sides; side += kSidesAtATime) {
    numbers.columns = sides - side < kSidesAtATime ? sides - side : kSidesAtATime;
    eliminate(code, task, count, &numbers, columns, x + side * numbers.sides_column, 0, 0);
  }
}

// ---- matrices, of columns that are `column` bytes apart, as those of right-hand sides are ----

static inline void solve_lower(const LaneCode* code, int64_t bytes, const char* matrix, int64_t column, int64_t rows,
                               char* x, int64_t sides, int64_t unit) {
  const int64_t block = kBytesOfBlock / bytes;
  int64_t first;
  for (first = 0; first < rows; first += block) {
    const int64_t count = rows - first < block ? rows - first : block;
    const EliminationNumbers numbers = {first, rows, 0, column, column, unit};
    solve_block(code, kOfLower, count, numbers, matrix, x, sides);
    if (first + block < rows)
      subtract_product(code, bytes, matrix + first * column, column, x + first * bytes, column, bytes, x, column,
                       first + block, column / bytes, count, sides);
  }
}

static inline void solve_upper(const LaneCode* code, int64_t bytes, const char* matrix, int64_t column, int64_t rows,
                               char* x, int64_t sides, int64_t unit) {
  const int64_t block = kBytesOfBlock / bytes;
  int64_t first;
  for (first = rows > 0 ? (rows - 1) / block * block : -1; first >= 0; first -= block) {
    const int64_t count = rows - first < block ? rows - first : block;
    const EliminationNumbers numbers = {first, rows, 0, column, column, unit};
    solve_block(code, kOfUpper, count, numbers, matrix, x, sides);
    if (first > 0)
      subtract_product(code, bytes, matrix + first * column, column, x + first * bytes, column, bytes, x, column, 0,
                       first, count, sides);
  }
}

static inline void factor_lu(const LaneCode* code, int64_t bytes, char* matrix, int64_t column, int64_t rows,
                             int64_t columns, int32_t* pivots, int32_t* info) {
  const int64_t block = kBytesOfBlock / bytes, least = rows < columns ? rows : columns;
  int64_t first;
  for (first = 0; first < least; first += block) {
    const int64_t count = least - first < block ? least - first : block, right = columns - first - count;
    const EliminationNumbers numbers = {first, rows, 0, column, column, 1};
    char* const of_block = matrix + first * column;
    char* const behind = of_block + count * column;
    eliminate(code, kOfLu, count, &numbers, 0, of_block, pivots + first, info);
    exchange_rows(matrix, column, first, bytes, pivots, first, first + count);
    if (right <= 0) continue;
    exchange_rows(behind, column, right, bytes, pivots, first, first + count);
    solve_block(code, kOfLower, count, numbers, matrix, behind, right);
    if (first + block < rows)
      subtract_product(code, bytes, of_block, column, behind + first * bytes, column, bytes, behind, column,
                       first + block, column / bytes, count, right);
  }
}

// Of the lower triangle; what is above is no number of it.
static inline void factor_cholesky(const LaneCode* code, int64_t bytes, char* matrix, int64_t column, int64_t rows,
                                   int32_t* info) {
  const int64_t block = kBytesOfBlock / bytes;
  int64_t first, next;
  for (first = 0; first < rows; first += block) {
    const int64_t count = rows - first < block ? rows - first : block;
    const EliminationNumbers numbers = {first, rows, 0, column, column, 0};
    char* const of_block = matrix + first * column;
    eliminate(code, kOfCholesky, count, &numbers, 0, of_block, 0, info);
    for (next = first + block; next < rows; next += block)
      subtract_product(code, bytes, of_block, column, of_block + next * bytes, bytes, column, matrix + next * column,
                       column, next, column / bytes, count, rows - next < block ? rows - next : block);
  }
}

// ---- steps ----

typedef struct SystemsStep {
  const LaneCode* code;
  int64_t tasks, systems, dims;  // of the dimensions, so many count systems
  const int64_t *sizes, *strides;
  char* const* memory;  // of the operands; null: there is none
} SystemsStep;

static inline int64_t stride_of_system(const SystemsStep* step, int64_t operand, int64_t dim) {
  return step->strides[operand * step->dims + dim];
}

static inline uint8_t load_pivots(const char* from, int64_t stride, int32_t* pivots, int64_t count, int64_t rows) {
  int64_t k;
  for (k = 0; k < count; ++k) {
    memcpy(&pivots[k], from + k * stride, sizeof *pivots);
    if (pivots[k] < 1 || pivots[k] > rows) return kRowIsOutOfRange;
  }
  return 0;
}

// L of L U, with its ones.
static inline void store_lower(const SystemsStep* step, char* to, int64_t bytes, int64_t column, int64_t rows,
                               int64_t columns) {
  const char* from = step->memory[kSystemOwnMatrix];
  const int64_t row = step->dims - 3, to_row = stride_of_system(step, kSystemLower, row),
                to_column = stride_of_system(step, kSystemLower, row + 1);
  const int64_t zero = 0;
  int64_t j;
  for (j = 0; j < columns; ++j, from += column, to += to_column) {
    copy_lanes((const char*)&zero, 0, to, to_row / bytes, bytes, j);
    set_one(to + j * to_row, bytes);
    copy_lanes(from + (j + 1) * bytes, 1, to + (j + 1) * to_row, to_row / bytes, bytes, rows - j - 1);
  }
}
// U of it.
static inline void store_upper(const SystemsStep* step, char* to, int64_t bytes, int64_t column, int64_t rows,
                               int64_t columns) {
  const char* from = step->memory[kSystemOwnMatrix];
  const int64_t row = step->dims - 3, to_row = stride_of_system(step, kSystemUpper, row),
                to_column = stride_of_system(step, kSystemUpper, row + 1);
  const int64_t zero = 0;
  int64_t j;
  for (j = 0; j < columns; ++j, from += column, to += to_column) {
    const int64_t above = j + 1 < rows ? j + 1 : rows;
    copy_lanes(from, 1, to, to_row / bytes, bytes, above);
    copy_lanes((const char*)&zero, 0, to + above * to_row, to_row / bytes, bytes, rows - above);
  }
}

// What is given of a matrix that was factored, or not. Of a Cholesky factor, there is nothing above the diagonal.
static inline void store_factor(const SystemsStep* step, char* const* to, int64_t bytes, int64_t column, int32_t info) {
  const int64_t row = step->dims - 3, rows = step->sizes[row], columns = step->sizes[row + 1];
  const int64_t least = rows < columns ? rows : columns;
  char* const matrix = step->memory[kSystemOwnMatrix];
  const char* const pivots = step->memory[kSystemOwnPivots];
  int64_t k;
  if (to[kSystemFactor]) {
    for (k = 1; (step->tasks & kFactorsCholesky) && k < columns; ++k)
      memset(matrix + k * column, 0, (size_t)(k * bytes));
    store_columns(matrix, column, to[kSystemFactor], stride_of_system(step, kSystemFactor, row),
                  stride_of_system(step, kSystemFactor, row + 1), bytes, rows, columns);
  }
  for (k = 0; to[kSystemPivots] && k < least; ++k)
    memcpy(to[kSystemPivots] + k * stride_of_system(step, kSystemPivots, row), pivots + k * (int64_t)sizeof(int32_t),
           sizeof(int32_t));
  if (to[kSystemInfo]) memcpy(to[kSystemInfo], &info, sizeof info);
  if (to[kSystemLower]) store_lower(step, to[kSystemLower], bytes, column, rows, least);
  if (to[kSystemUpper]) store_upper(step, to[kSystemUpper], bytes, column, least, columns);
  if (to[kSystemDeterminant]) {
    const EliminationNumbers numbers = {0, least, 0, column, 0, 0};
    const void* const inputs[4] = {matrix, 0, 0, &numbers};
    void* const outputs[5] = {to[kSystemDeterminant], (void*)(uintptr_t)pivots, to[kSystemSign], to[kSystemMantissa],
                              to[kSystemExponent]};
    uint8_t fault = 0;
    step->code->function(kOfDeterminant, least, inputs, outputs, &fault);
  }
}

// Moves `at` to the next place in the dimensions `begin` to before `end`.
static inline void next_system(const SystemsStep* step, int64_t begin, int64_t end, int64_t* place, char** at) {
  int64_t d, k;
  for (d = end; d-- > begin;) {
    const int64_t by = ++place[d] < step->sizes[d] ? 1 : 1 - step->sizes[d];
    for (k = 0; k < kSystemOperands; ++k)
      if (at[k]) at[k] += by * stride_of_system(step, k, d);
    if (by == 1) return;
    place[d] = 0;
  }
}

// Solves for all right-hand sides of the system at `at`, which have dimensions of their own.
static inline void solve_system(const SystemsStep* step, char** at, int64_t* place, int64_t bytes, int64_t column) {
  const int64_t row = step->dims - 3, rows = step->sizes[row], columns = step->sizes[row + 1];
  const int64_t sides = step->sizes[row + 2], tasks = step->tasks;
  const LaneCode* const code = step->code;
  const char* const matrix = step->memory[kSystemOwnMatrix];
  const int32_t* const pivots = (const int32_t*)(const void*)step->memory[kSystemOwnPivots];
  char* const x = step->memory[kSystemOwnSides];
  int64_t d, k, count = 1;
  for (d = step->systems; d < row; ++d) {
    place[d] = 0;
    count *= step->sizes[d];
  }
  for (k = 0; k < count; ++k) {
    char* const to = x + k * sides * column;
    if (tasks & kSolvesForIdentity) set_identity(to, column, bytes, rows, sides);
    else
      load_columns(at[kSystemSides], stride_of_system(step, kSystemSides, row),
                   stride_of_system(step, kSystemSides, row + 2), to, column, bytes, rows, sides);
    next_system(step, step->systems, row, place, at);
  }
  if (tasks & kExchangesRows) exchange_rows(x, column, count * sides, bytes, pivots, 0, rows);
  if (tasks & kSolvesLower) solve_lower(code, bytes, matrix, column, rows, x, count * sides, tasks & kLowerIsUnit);
  if (tasks & kSolvesUpper) solve_upper(code, bytes, matrix, column, rows, x, count * sides, tasks & kUpperIsUnit);
  if (tasks & kExchangesBack)
    exchange_rows_back(x, column, count * sides, bytes, pivots, rows < columns ? rows : columns);
  for (k = 0; k < count; ++k) {
    store_columns(x + k * sides * column, column, at[kSystemSolution], stride_of_system(step, kSystemSolution, row),
                  stride_of_system(step, kSystemSolution, row + 2), bytes, rows, sides);
    next_system(step, step->systems, row, place, at);
  }
}

// Systems one after the other. Of the dimensions, the first ones count systems, and others right-hand sides of each,
// before those of rows, columns and right-hand sides of one matrix. `place`: a number for each dimension.
static inline uint8_t run_systems(const SystemsStep* step, int64_t* place) {
  const int64_t row = step->dims - 3, rows = step->sizes[row], columns = step->sizes[row + 1];
  const int64_t bytes = step->code->elements[0].bytes, column = bytes_of_system_column(rows, bytes);
  char* const matrix = step->memory[kSystemOwnMatrix];
  int32_t* const pivots = (int32_t*)(void*)step->memory[kSystemOwnPivots];
  char* at[kSystemOperands];
  int64_t d, k, count = 1;
  uint8_t fault = 0;
  for (d = 0; d < row; ++d) count *= step->sizes[d];
  if (count == 0) return 0;
  for (d = 0, count = 1; d < step->systems; ++d) {
    place[d] = 0;
    count *= step->sizes[d];
  }
  memcpy(at, step->memory, sizeof at);
  for (k = 0; k < count && !(fault & kRowIsOutOfRange); ++k) {
    int32_t info = 0;
    if (at[kSystemMatrix])
      load_columns(at[kSystemMatrix], stride_of_system(step, kSystemMatrix, row),
                   stride_of_system(step, kSystemMatrix, row + 1), matrix, column, bytes, rows, columns);
    if (at[kSystemGivenPivots])
      fault |= load_pivots(at[kSystemGivenPivots], stride_of_system(step, kSystemGivenPivots, row), pivots,
                           rows < columns ? rows : columns, rows);
    if (fault & kRowIsOutOfRange) break;
    if (step->tasks & kFactorsLu) factor_lu(step->code, bytes, matrix, column, rows, columns, pivots, &info);
    if (step->tasks & kFactorsCholesky) factor_cholesky(step->code, bytes, matrix, column, rows, &info);
    if (info != 0 && (step->tasks & kMustFactor)) fault |= kMatrixIsSingular;
    store_factor(step, at, bytes, column, info);
    for (d = 1; (step->tasks & kMirrorsLower) && d < columns; ++d)
      copy_lanes(matrix + (d - 1) * column + d * bytes, 1, matrix + d * column + (d - 1) * bytes, column / bytes, bytes,
                 rows - d);
    if (at[kSystemSolution]) solve_system(step, at, place, bytes, column);
    next_system(step, 0, step->systems, place, at);
  }
  return fault;
}

#ifdef __cplusplus
}  // namespace tower::compiler
#endif
