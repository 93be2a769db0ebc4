#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "core/level.h"
#include "core/operator.h"
#include "sparse/colouring.h"
#include "tower/errors.h"
#include "tower/sparse.h"

namespace tower {

using dynamic::Tensors;

struct SparseJacobian::Plan {
  TensorFunction f;
  Sparsity pattern;
  SparseOptions options;
  bool by_rows = false;
  int64_t num_colours = 0;
  Tensor group = {};                 // of each column, or row, its colour
  Tensor places = {};                // of each entry, in the flat matrix of the groups' derivatives
  Tensor starts = {}, columns = {};  // of the pattern
};

namespace {

Tensor as_tensor(const std::vector<int64_t>& numbers) { return at::tensor(numbers, at::kLong); }

}  // namespace

SparseJacobian::SparseJacobian(TensorFunction f, Sparsity pattern, SparseOptions options) {
  if (options.chunk_size && *options.chunk_size <= 0)
    throw ArgumentError("sparse_jacobian: chunk_size is " + std::to_string(*options.chunk_size) +
                        "; it must be positive.");
  DispatchGuard keys;
  keys.see_every_operator(false);
  auto plan = std::make_shared<Plan>(Plan{std::move(f), std::move(pattern), options});
  const sparse::Colouring of_columns = sparse::colour_columns(plan->pattern);
  const sparse::Colouring of_rows = sparse::colour_columns(plan->pattern.transposed());
  // A vjp costs about what two jvps do.
  plan->by_rows = 2 * of_rows.count < of_columns.count;
  const sparse::Colouring& chosen = plan->by_rows ? of_rows : of_columns;
  plan->num_colours = chosen.count;
  plan->group = as_tensor(chosen.colours);
  const Sparsity& p = plan->pattern;
  std::vector<int64_t> places;
  places.reserve(size_t(p.num_entries()));
  for (int64_t r = 0; r < p.num_rows(); ++r)
    for (int64_t k = p.starts()[size_t(r)]; k < p.starts()[size_t(r) + 1]; ++k) {
      const int64_t c = p.columns()[size_t(k)];
      places.push_back(plan->by_rows ? chosen.colours[size_t(r)] * p.num_columns() + c
                                     : chosen.colours[size_t(c)] * p.num_rows() + r);
    }
  plan->places = as_tensor(places);
  plan->starts = as_tensor(p.starts());
  plan->columns = as_tensor(p.columns());
  plan_ = std::move(plan);
}

const Sparsity& SparseJacobian::pattern() const { return plan_->pattern; }
int64_t SparseJacobian::num_colours() const { return plan_->num_colours; }
bool SparseJacobian::by_rows() const { return plan_->by_rows; }

Tensor SparseJacobian::values(const Tensor& x) const {
  const Plan& plan = *plan_;
  const auto refuse = [](const char* what, const Tensor& found, int64_t expected, const char* of) {
    throw ArgumentError(std::string("sparse_jacobian: ") + what + " is " + describe(found) + ", but the pattern has " +
                        std::to_string(expected) + " " + of + ".");
  };
  if (x.numel() != plan.pattern.num_columns()) refuse("the argument", x, plan.pattern.num_columns(), "columns");
  const dynamic::Function f = [&](const Tensors& in) { return Tensors{plan.f(in[0])}; };
  const auto [outs, derivative] = plan.by_rows ? dynamic::vjp(f, {x}) : dynamic::linearize(f, {x});
  if (outs[0].numel() != plan.pattern.num_rows()) refuse("the result", outs[0], plan.pattern.num_rows(), "rows");
  const Tensor& along = plan.by_rows ? outs[0] : x;
  std::vector<int64_t> sizes{plan.num_colours};
  sizes.insert(sizes.end(), along.sizes().begin(), along.sizes().end());
  // Ones in the elements of a group.
  const Tensor seeds = at::arange(plan.num_colours, plan.group.options())
                           .unsqueeze(1)
                           .eq(plan.group)
                           .to(along.scalar_type())
                           .view(sizes);
  const dynamic::Function of_group = derivative;
  const Tensors groups = dynamic::vmap(of_group, {0}, {0}, {.chunk_size = plan.options.chunk_size})({seeds});
  return groups[0].flatten().index_select(0, plan.places);
}

Tensor SparseJacobian::operator()(const Tensor& x) const {
  if (top())
    throw UnsupportedError(
        top()->describe() +
        ": a sparse Jacobian is no tensor that a transform can carry. Take its values(), which are.");
  const Tensor entries = values(x);
  return at::_sparse_csr_tensor_unsafe(plan_->starts, plan_->columns, entries,
                                       {plan_->pattern.num_rows(), plan_->pattern.num_columns()},
                                       entries.options().layout(at::kSparseCsr));
}

SparseJacobian sparse_hessian(TensorFunction f, Sparsity pattern, SparseOptions options) {
  return {grad(std::move(f)), std::move(pattern), options};
}

}  // namespace tower
