// A tensor as the database spells it, T{2,3}:pos:t, and how it is filled.
//
// Domain (the last one given counts):
//   (none)      uniform in (-1.5, 1.5)         pos     (0.3, 2)             unit      (-0.85, 0.85)
//   prob        (0.1, 0.9)                     gt1     (1.2, 3)             away      ±(0.3, 2): away from zero
//   frac        away from every half-integer   distinct  pairwise different by at least 0.2
//   ints        small integers                 nan     as distinct, every third element NaN
//   well        matrices, well conditioned     spd     matrices, Hermitian positive definite
//   tril, triu  well, then that triangle       herm    Hermitian with separated eigenvalues
//   a..b        uniform in that range; for I: integers from a up to but not including b (default 0..2)
//   perm        I only: a permutation along the last dimension
//   sorted      ascending along the last dimension
// Layout:
//   t    the last two dimensions transposed in memory       rev   all dimensions reversed in memory
//   nc   every second element of a larger tensor            cl    channels-last
// Role:
//   within  the operator sees the projection onto the domain (lower triangle for tril, …), so that perturbed values
//   stay
//           in it; spd and herm always do
//   const   not differentiated                              nomap   never batched
//   f32, f64, i32   of that dtype whatever is under test
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace op_db {

struct TensorSpec {
  char kind = 'T';
  std::vector<int64_t> sizes;
  std::string domain;
  std::optional<std::pair<double, double>> range;
  std::string layout;
  bool constant = false;
  bool unmapped = false;
  bool within = false;
  std::optional<at::ScalarType> dtype;

  at::ScalarType dtype_under(at::ScalarType tested) const;
  /// Whether derivatives are taken with respect to it.
  bool differentiable() const { return (kind == 'T' || kind == 'C' || kind == 'R') && !constant; }
};

/// Parses `text`; throws std::runtime_error that quotes what it does not understand.
TensorSpec parse_tensor_spec(const std::string& text);

/// A tensor as specified; the same `seed` gives the same numbers in every dtype.
at::Tensor make_tensor(const TensorSpec& spec, at::ScalarType tested, uint64_t seed);

/// `value` projected onto the domain of `spec`, where that is asked for.
at::Tensor projected(const TensorSpec& spec, const at::Tensor& value);

/// The examples along a new dimension `dim`. At dimension 0 every example keeps the strides it has on its own (so a
/// transposed example stays transposed); elsewhere the result is contiguous and the examples are strided.
at::Tensor batch_of(const std::vector<at::Tensor>& examples, int64_t dim);

}  // namespace op_db
