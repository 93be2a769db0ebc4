#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>

#include "core/memory.h"
#include "sparse/dependence.h"
#include "tower/errors.h"
#include "tower/sparse.h"
#include "transforms/surface.h"

namespace tower {

Sparsity::Sparsity(int64_t num_columns, std::vector<int64_t> starts, std::vector<int64_t> columns,
                   std::vector<std::string> taken_for_dense)
    : num_columns_(num_columns),
      starts_(std::move(starts)),
      columns_(std::move(columns)),
      taken_for_dense_(std::move(taken_for_dense)) {
  const auto refuse = [](const std::string& what) { throw ArgumentError("Sparsity: " + what); };
  if (starts_.empty() || starts_[0] != 0 || starts_.back() != static_cast<int64_t>(columns_.size()))
    refuse("the rows' starts begin with 0 and end with the number of columns given.");
  for (size_t r = 0; r + 1 < starts_.size(); ++r) {
    if (starts_[r] > starts_[r + 1]) refuse("row " + std::to_string(r) + " ends before it starts.");
    for (int64_t k = starts_[r]; k < starts_[r + 1]; ++k) {
      const int64_t column = columns_[size_t(k)];
      if (column < 0 || column >= num_columns_ || (k > starts_[r] && columns_[size_t(k - 1)] >= column))
        refuse("the columns of row " + std::to_string(r) + " are not ascending numbers below " +
               std::to_string(num_columns_) + ".");
    }
  }
}

Sparsity Sparsity::of(const Tensor& matrix) {
  if (!matrix.defined() || matrix.dim() != 2)
    throw ArgumentError("Sparsity: " + (matrix.defined() ? describe(matrix) : std::string("an undefined tensor")) +
                        " is not a matrix.");
  const Tensor entries = (matrix.layout() == at::kStrided ? matrix : matrix.to_dense()).ne(0).to_sparse_csr();
  const auto list = [](const Tensor& t) {
    const Tensor numbers = t.to(at::kLong).contiguous();
    const auto* first = numbers.const_data_ptr<int64_t>();
    return std::vector<int64_t>(first, first + numbers.numel());
  };
  return {matrix.size(1), list(entries.crow_indices()), list(entries.col_indices())};
}

Tensor Sparsity::mask() const {
  Tensor result = at::zeros({num_rows(), num_columns()}, at::kBool);
  auto* to = result.mutable_data_ptr<bool>();
  for (int64_t r = 0; r < num_rows(); ++r)
    for (int64_t k = starts_[size_t(r)]; k < starts_[size_t(r) + 1]; ++k)
      to[r * num_columns() + columns_[size_t(k)]] = true;
  return result;
}

Sparsity Sparsity::transposed() const {
  std::vector<int64_t> starts(size_t(num_columns_) + 1, 0), rows(columns_.size());
  for (const int64_t c : columns_) ++starts[size_t(c) + 1];
  for (size_t c = 0; c + 1 < starts.size(); ++c) starts[c + 1] += starts[c];
  std::vector<int64_t> next(starts.begin(), starts.end() - 1);
  for (int64_t r = 0; r < num_rows(); ++r)
    for (int64_t k = starts_[size_t(r)]; k < starts_[size_t(r) + 1]; ++k)
      rows[size_t(next[size_t(columns_[size_t(k)])]++)] = r;
  return {num_rows(), std::move(starts), std::move(rows), taken_for_dense_};
}

namespace {

Sparsity sparsity_of(const char* label, const TensorFunction& f, const Tensor& x) {
  const memory::InTransform here;
  if (top())
    throw UnsupportedError(top()->describe() + ": " + label +
                           " was called inside of a transform. Patterns do not depend on values: find them outside.");
  check_supported(x, label, "its argument");
  if (!x.is_floating_point())
    throw ArgumentError(std::string(label) + ": the argument is " + describe(x) +
                        ", but patterns are those of functions of real numbers. Use view_as_real for complex ones.");
  if (x.numel() > std::numeric_limits<int32_t>::max())
    throw ArgumentError(std::string(label) + ": the argument has more elements than are supported.");
  auto level = c10::make_intrusive<sparse::Dependence>(label);
  std::vector<int64_t> starts{0}, columns;
  {
    Tensor ids = at::empty(x.sizes(), at::kDouble);
    for (int64_t k = 0; k < x.numel(); ++k)
      ids.mutable_data_ptr<double>()[k] = static_cast<double>(level->sets().single(static_cast<int32_t>(k)));
    const Scope scope(level);
    // A copy, for the function may write to it.
    const Tensor out = f(wrap(*level, Payload{x.detach().clone(), ids, -1}));
    check_outputs({out}, label);
    Wrapper* w = as_wrapper_of(out, *level);
    if (w) w->payload();
    DispatchGuard keys;
    keys.see_every_operator(false);
    const Tensor found =
        w && w->payload().tracked() ? w->payload().tangent.contiguous() : at::zeros(out.sizes(), at::kDouble);
    const auto* of_rows = found.const_data_ptr<double>();
    for (int64_t r = 0; r < found.numel(); ++r) {
      const auto elements = level->sets().elements(static_cast<sparse::Sets::Id>(of_rows[r]));
      columns.insert(columns.end(), elements.begin(), elements.end());
      starts.push_back(static_cast<int64_t>(columns.size()));
    }
  }
  const auto& dense = level->taken_for_dense();
  return {x.numel(), std::move(starts), std::move(columns), {dense.begin(), dense.end()}};
}

}  // namespace

Sparsity jacobian_sparsity(const TensorFunction& f, const Tensor& x) { return sparsity_of("jacobian_sparsity", f, x); }

Sparsity hessian_sparsity(const TensorFunction& f, const Tensor& x) {
  return sparsity_of("hessian_sparsity", grad(f), x);
}

}  // namespace tower
