// Matrices in numbers: what the rules for small factorizations (rules/small_factorizations.h), for what is solved with
// them (rules/small_solves.h), and for eigenvalues and the like (rules/small_spectra.h) are written with.
//
// A tensor of an example is a batch of matrices, of which each is factored for itself: numbers that two of them have in
// common are one node anyway. Rows are exchanged by each lane for itself: where one may go to several places, each of
// these chooses.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

using compiler::E;
using compiler::Small;
using compiler::SmallCall;
using compiler::SmallResults;

/// Row by row.
using Grid = std::vector<std::vector<E>>;

/// Matrices of one size, and the dimensions in front of theirs.
struct Batch {
  Sizes sizes;
  std::vector<Grid> grids;
};
Batch matrices_of(const SmallCall& c, const Small& t);
/// Of vectors: each is a column.
Batch columns_of(const SmallCall& c, const Small& t);
/// Those that are read for `sizes`, broadcast.
Batch expanded(const Batch& batch, const Sizes& sizes);

Grid transposed(const Grid& a);
Grid filled(size_t rows, size_t columns, const E& number);
Grid identity(size_t rows, size_t columns, const E& of_type);
/// Puts further elements behind those of `t`.
void append(Small& t, const Grid& grid);
void append(Small& t, const std::vector<E>& elements);

/// Of a call whose first operand is matrices of floats, as the first result is.
bool fits(const SmallCall& c, const Small& a);
bool is_square(const Small& a);

/// a − b c, rounded once.
inline E less(const E& a, const E& b, const E& c) { return fma(-b, c, a); }
void exchange(const E& swaps, E& a, E& b);

// ---- LU ----

/// LU by columns, as LAPACK has it: of pivots of one size the first is taken, and a column of zeros is passed over.
struct Factored {
  Grid lu;
  std::vector<E> inverse;                // of the pivots
  std::vector<std::vector<E>> is_pivot;  // of column k: whether row i is exchanged with row k, for i > k
  E info;                                // the first pivot that is zero, from 1
};
/// What else goes through the exchanges and eliminations are the rows of `with`.
Factored factor(const SmallCall& c, Grid a, Grid& with);
inline Factored factor(const SmallCall& c, Grid a) {
  Grid nothing(a.size());
  return factor(c, std::move(a), nothing);
}
/// As LAPACK numbers them: the row that row k was exchanged with, from 1.
std::vector<E> pivots(const SmallCall& c, const Factored& f);
/// Whether there is an odd number of exchanges.
E is_odd(const SmallCall& c, const Factored& f);
/// Exchanges row k of `a` with the row that has the number `row`, from 1.
void exchange_rows(const SmallCall& c, Grid& a, size_t k, const E& row);
/// P of A = P L U, by the rows that were exchanged.
Grid permutation(const SmallCall& c, size_t rows, const std::vector<E>& pivots, const E& of_type);

/// Where the call is told to check for errors, its results come after a check that every matrix could be factored.
/// `info`: of each matrix, in integers.
SmallResults checked(const SmallCall& c, const Small& info, SmallResults results);

// ---- triangles ----

/// U x = b, of the upper triangle of `a`, for all columns of `b`. `inverse`: of the diagonal; null: it is ones.
void solve_upper(const Grid& a, const std::vector<E>* inverse, Grid& b);
void solve_lower(const Grid& a, const std::vector<E>* inverse, Grid& b);
std::vector<E> inverse_diagonal(const Grid& a);

// ---- sums of squares ----

/// A power of two by which to multiply numbers of which `largest` is the largest, so that the squares of those that
/// count are in range, and its inverse.
struct Scale {
  E by, back;
};
Scale scale_of(const E& largest);
/// The larger one; not NaN, unless `a` is.
inline E larger(const E& a, const E& b) { return where(b > a, b, a); }

}  // namespace tower::rules::small
