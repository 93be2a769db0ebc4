#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <numeric>

#include "control/cond.h"
#include "core/memory.h"
#include "interpreters/surface.h"
#include "sparse/any_steps.h"
#include "sparse/beta_warning.h"
#include "sparse/dependence.h"
#include "tower/errors.h"
#include "tower/sparse.h"

namespace tower {

Sparsity::Sparsity(int64_t num_columns, std::vector<int64_t> starts, std::vector<int64_t> columns,
                   std::vector<std::string> taken_for_dense, bool is_whole)
    : num_columns_(num_columns),
      starts_(std::move(starts)),
      columns_(std::move(columns)),
      taken_for_dense_(std::move(taken_for_dense)),
      is_whole_(is_whole) {
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
  const sparse::NoBetaWarning quiet;
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
  return {num_rows(), std::move(starts), std::move(rows), taken_for_dense_, is_whole_};
}

namespace {

using dynamic::Function;
using dynamic::Tensors;

// Before there is room for them.
void check_entries(const char* label, const sparse::Dependence& level, const Tensors& outs, int64_t num_columns) {
  int64_t entries = 0, rows = 0;
  for (const Tensor& out : outs) {
    rows += out.numel();
    Wrapper* w = as_wrapper_of(out, level);
    if (!w || !w->payload().tracked()) continue;
    const Tensor ids = w->payload().tangent.contiguous();
    const auto* of_rows = ids.const_data_ptr<double>();
    for (int64_t r = 0; r < ids.numel(); ++r)
      entries += static_cast<int64_t>(level.sets().elements(static_cast<sparse::Sets::Id>(of_rows[r])).size());
  }
  if (entries <= level.most_entries()) return;
  throw UnsupportedError(std::string(label) + ": the pattern would have " + std::to_string(entries) + " entries in " +
                         std::to_string(rows) + " rows of " + std::to_string(num_columns) + ", more than " +
                         std::to_string(level.most_entries()) + " (most_entries)" + level.why_and_what_to_do());
}

// The sets of all elements of a list, one tensor after the other, or of one that depends on nothing.
void append_rows(const sparse::Dependence& level, const Tensor& out, std::vector<int64_t>& starts,
                 std::vector<int64_t>& columns) {
  Wrapper* w = as_wrapper_of(out, level);
  if (!w || !w->payload().tracked()) {
    starts.insert(starts.end(), static_cast<size_t>(out.numel()), static_cast<int64_t>(columns.size()));
    return;
  }
  const Tensor ids = w->payload().tangent.contiguous();
  const auto* of_rows = ids.const_data_ptr<double>();
  for (int64_t r = 0; r < ids.numel(); ++r) {
    const auto elements = level.sets().elements(static_cast<sparse::Sets::Id>(of_rows[r]));
    columns.insert(columns.end(), elements.begin(), elements.end());
    starts.push_back(static_cast<int64_t>(columns.size()));
  }
}

Sparsity sparsity_of(const char* label, const Function& f, const Tensors& x, const SparsityOptions& options) {
  const memory::InTransform here;
  if (top())
    throw UnsupportedError(top()->describe() + ": " + label +
                           " was called inside of a transform. Patterns do not depend on values: find them outside.");
  auto level = c10::make_intrusive<sparse::Dependence>(label, options);
  if (options.most_entries < 0)
    throw ArgumentError(std::string(label) + ": most_entries is " + std::to_string(options.most_entries) +
                        ". It is a number of entries, zero or more.");
  int64_t size = 0;
  Tensors ids;
  for (const Tensor& t : x) {
    check_supported(t, label, "its argument");
    if (!t.is_floating_point())
      throw ArgumentError(std::string(label) + ": the argument is " + describe(t) +
                          ", but patterns are those of functions of real numbers. Use view_as_real for complex ones.");
    const int32_t first = level->new_elements(t.numel());
    Tensor& of_one = ids.emplace_back(at::empty(t.sizes(), at::kDouble));
    auto* to = of_one.mutable_data_ptr<double>();
    for (int64_t k = 0; k < t.numel(); ++k)
      to[k] = static_cast<double>(level->sets().single(first + static_cast<int32_t>(k)));
    size += t.numel();
  }
  std::vector<int64_t> starts{0}, columns;
  {
    const Scope scope(level);
    const ForAnyValue undecided(&sparse::Dependence::is_from_x, &sparse::any_number_of_steps);
    Tensors args;
    // Copies, for the function may write to them.
    for (size_t k = 0; k < x.size(); ++k)
      args.push_back(wrap(*level, Payload{x[k].detach().clone(), ids[k], sparse::Dependence::kFromX}));
    const Tensors outs = f(args);
    check_outputs(outs, label);
    DispatchGuard keys;
    keys.see_every_operator(false);
    check_entries(label, *level, outs, size);
    for (const Tensor& out : outs) append_rows(*level, out, starts, columns);
  }
  const auto& dense = level->taken_for_dense();
  return {size, std::move(starts), std::move(columns), {dense.begin(), dense.end()}, !options.values_decide};
}

}  // namespace

Sparsity dynamic::jacobian_sparsity(const Function& f, const Tensors& x, const SparsityOptions& options) {
  return sparsity_of("jacobian_sparsity", f, x, options);
}

Sparsity dynamic::hessian_sparsity(const Function& f, const Tensors& x, const SparsityOptions& options) {
  std::vector<int64_t> all(x.size());
  std::iota(all.begin(), all.end(), 0);
  return sparsity_of("hessian_sparsity", grad(f, std::move(all)), x, options);
}

}  // namespace tower
