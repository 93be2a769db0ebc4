// A function followed in a level of Taylor mode, and the sums of its derivatives along directions, of which linear
// differential operators are made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "interpreters/surface.h"
#include "taylor/series.h"

namespace tower::taylor {

/// What a function's results carry when it has run in a level of Taylor mode.
struct Followed {
  Tensors outs;
  std::vector<Derivatives> derivatives;  // of each; empty: a constant
  std::vector<Outline> metas;

  /// That derivative of each result, zeros materialised.
  Tensors of_order(size_t order) const;
};

/// Runs `f` in `level` on `primals` with what `derivatives` has for each.
Followed follow(const c10::intrusive_ptr<Level>& level, const dynamic::Function& f, const Tensors& primals,
                const std::vector<Derivatives>& derivatives);

/// Throws unless it is a tensor that transforms can carry.
void check_primal(const Tensor& primal, const char* label, const std::string& what);

/// The arguments by which a differential operator differentiates: checked, and negative numbers resolved.
std::vector<int64_t> check_real_arguments(const Tensors& primals, std::vector<int64_t> argnums, const char* label);
void check_chunk_size(std::optional<int64_t> chunk_size, const char* label);
/// Tensors of directions in front, one for each of the arguments `argnums`: as what stands for them, checked.
Tensors check_directions(const Tensors& directions, const Tensors& primals, const std::vector<int64_t>& argnums,
                         const char* label);
/// Rows of numbers, one for each element of all the arguments in turn, as such directions.
Tensors as_directions(const Tensor& rows, const Tensors& primals, const std::vector<int64_t>& argnums);

/// A sum of the derivatives of one order, two or more, along directions.
struct Along {
  size_t order;
  Tensors directions;                                // for each argument, with as many in front
  Tensor weights = {};                               // a number for each direction; undefined: ones
  Tensors drift = {};                                // one more direction, along which the first derivative is added
  std::optional<int64_t> chunk_size = std::nullopt;  // directions followed at once
};

/// {the results of `f`, of each that sum}.
std::pair<Tensors, Tensors> sum_along(const dynamic::Function& f, const Tensors& primals,
                                      const std::vector<int64_t>& argnums, const Along& along, const char* label);

}  // namespace tower::taylor
