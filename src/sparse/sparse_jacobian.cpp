#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

#include "core/level.h"
#include "core/operator.h"
#include "sparse/compressed.h"
#include "sparse/layout.h"
#include "tower/errors.h"
#include "tower/sparse.h"

namespace tower::dynamic {

struct SparsePlan::Parts {
  Sparsity pattern;
  SparseOptions options;
  sparse::Compressed compressed;
  Tensor places;                     // of each entry among the derivatives (sparse/groups.h)
  std::optional<sparse::Runs> runs;  // in the place of these
  sparse::MatrixLayout layout;
};

namespace {

// All of them as one vector, one direction after the other.
Tensor as_vector(const std::vector<sparse::InParts>& found) {
  Tensors each;
  for (const sparse::InParts& parts : found) {
    const Tensor all = parts.size() == 1 ? parts[0] : at::cat(parts);
    each.push_back(all.reshape({all.size(0), all.numel() / std::max<int64_t>(all.size(0), 1)}));
  }
  return (each.size() == 1 ? each[0] : at::cat(each, 1)).flatten();
}

bool are_of_one_dtype(const std::vector<sparse::InParts>& found) {
  return std::all_of(found.begin(), found.end(),
                     [&](const sparse::InParts& parts) { return parts[0].scalar_type() == found[0][0].scalar_type(); });
}

}  // namespace

SparsePlan::SparsePlan(Sparsity pattern, SparseOptions options, bool symmetric) {
  if (options.chunk_size && *options.chunk_size <= 0)
    throw ArgumentError("sparse derivatives: chunk_size is " + std::to_string(*options.chunk_size) +
                        "; it must be positive.");
  DispatchGuard keys;
  keys.see_every_operator(false);
  sparse::Compressed compressed(pattern, symmetric);
  sparse::MatrixLayout layout(pattern, options);
  const std::vector<int64_t>& places = compressed.places();
  auto runs = compressed.rows() == 0 && !places.empty() ? sparse::Runs::of(pattern, places) : std::nullopt;
  Tensor as_tensor = sparse::as_tensor(places);
  parts_ = std::make_shared<const Parts>(Parts{std::move(pattern), options, std::move(compressed), std::move(as_tensor),
                                               std::move(runs), std::move(layout)});
}

const Sparsity& SparsePlan::pattern() const { return parts_->pattern; }
int64_t SparsePlan::num_colours() const { return parts_->compressed.columns() + parts_->compressed.rows(); }
int64_t SparsePlan::num_row_colours() const { return parts_->compressed.rows(); }

Tensor SparsePlan::values(const Function& f, const Tensors& x) const {
  const auto& [pattern, options, compressed, places, runs, layout] = *parts_;
  const auto [by_columns, by_rows] = compressed.derivatives(f, x, options.chunk_size);
  if (runs && are_of_one_dtype(by_columns)) return runs->entries(by_columns);
  Tensors found;
  for (const auto* derivatives : {&by_columns, &by_rows})
    if (!derivatives->empty()) found.push_back(as_vector(*derivatives));
  const Tensor all = found.size() == 1 ? found[0] : at::cat(found);
  return all.index_select(0, places.to(all.device()));
}

Tensor SparsePlan::matrix(const Tensor& values) const {
  if (top())
    throw UnsupportedError(
        top()->describe() +
        ": a sparse Jacobian is no tensor that a transform can carry. Take its values(), which are.");
  return parts_->layout.matrix(values);
}

}  // namespace tower::dynamic
