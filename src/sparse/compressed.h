// A sparse Jacobian before its entries are taken out: the derivatives along the directions of a colouring.
#pragma once

#include "sparse/directions.h"
#include "sparse/groups.h"
#include "tower/dynamic.h"

namespace tower::sparse {

class Compressed {
 public:
  /// Colours the pattern. `symmetric`: the matrix is.
  Compressed(const Sparsity& pattern, bool symmetric);

  struct Derivatives {
    std::vector<InParts> by_columns;  // of each result of the function, along groups of columns
    std::vector<InParts> by_rows;     // of each argument, along groups of rows
  };
  /// Of `f` at `x`. Throws ArgumentError where the numbers of elements are others than the pattern's.
  Derivatives derivatives(const dynamic::Function& f, const dynamic::Tensors& x,
                          std::optional<int64_t> chunk_size) const;

  /// How many groups there are.
  int64_t columns() const { return columns_.count(); }
  int64_t rows() const { return rows_.count(); }
  /// Of each entry in the pattern's order: its place in the derivatives by columns, one direction after the other, each
  /// of all results, and then those by rows (sparse/groups.h).
  const std::vector<int64_t>& places() const { return places_; }

 private:
  Compressed(const Sparsity& pattern, Groups groups);

  int64_t num_rows_, num_columns_;
  std::vector<int64_t> places_;
  Directions columns_, rows_;
};

}  // namespace tower::sparse
