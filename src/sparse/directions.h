// Directions along which derivatives give a sparse matrix, and how its entries come out of these derivatives.
#pragma once

#include <optional>
#include <vector>

#include "sparse/colouring.h"

namespace tower::sparse {

using at::Tensor;

/// Derivatives along all directions of one tensor: in parts, one after the other, of some directions each.
using InParts = std::vector<Tensor>;

/// The sums of the unit vectors of each colour, in tensors of one shape.
class Directions {
 public:
  /// `colours` of the elements of a list of tensors, one after the other. `others_move_nothing`: what is read of the
  /// derivatives does not depend on the elements without a colour, which may move or not.
  Directions(Colouring colours, bool others_move_nothing);

  int64_t count() const { return colouring_.count; }
  /// For the tensor `like`, whose elements are those from `start` on: one direction after the other.
  Tensor of(const Tensor& like, int64_t start) const;

  /// Directions, one after the other, along which the same tensors of a list move. Along the others they do not: these
  /// have no tangent, and what depends on them alone is not computed.
  struct Part {
    int64_t begin, end;
    std::vector<bool> moves;  // of each tensor
  };
  std::vector<Part> parts(const std::vector<Tensor>& like) const;

 private:
  Colouring colouring_;
  bool others_move_nothing_;
  Tensor group_;  // of each element; the one after the last colour where it has none
};

/// The entries of a matrix in the derivatives along groups of its columns, where rows, one after the other, have the
/// same colours in the same order, or every second, third, … has, as those of a function that is mapped over examples:
/// these are taken whole.
class Runs {
 public:
  /// `places` of entries among the derivatives (sparse/groups.h), which all are by columns. None where there are too
  /// many runs.
  static std::optional<Runs> of(const Sparsity& pattern, const std::vector<int64_t>& places);
  /// `found`: of each output.
  Tensor entries(const std::vector<InParts>& found) const;

 private:
  struct Run {
    int64_t blocks;
    std::vector<std::vector<int64_t>> colours;  // of each row of a block
  };
  std::vector<Run> runs_;
};

}  // namespace tower::sparse
