#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

#include "core/level.h"
#include "core/operator.h"
#include "sparse/directions.h"
#include "sparse/groups.h"
#include "sparse/layout.h"
#include "tower/errors.h"
#include "tower/sparse.h"

namespace tower::dynamic {

struct SparsePlan::Parts {
  Sparsity pattern;
  SparseOptions options;
  sparse::Directions columns, rows;
  Tensor places;                     // of each entry among the derivatives (sparse/groups.h)
  std::optional<sparse::Runs> runs;  // in the place of these
  sparse::MatrixLayout layout;
};

namespace {

int64_t size_of(const Tensors& list) {
  int64_t size = 0;
  for (const Tensor& t : list) size += t.numel();
  return size;
}

void check_size(const char* what, const Tensors& list, int64_t expected, const char* of) {
  if (size_of(list) == expected) return;
  const std::string found = list.size() == 1 ? describe(list[0]) : std::to_string(size_of(list)) + " elements";
  throw ArgumentError(std::string("sparse derivatives: ") + what + " is " + found + ", but the pattern has " +
                      std::to_string(expected) + " " + of + ".");
}

// Of each result, the derivatives along all directions.
std::vector<sparse::InParts> along(const Function& derivative, const sparse::Directions& directions,
                                   const Tensors& like, std::optional<int64_t> chunk_size) {
  Tensors all;
  int64_t start = 0;
  for (const Tensor& t : like) {
    all.push_back(directions.of(t, start));
    start += t.numel();
  }
  std::vector<sparse::InParts> found;
  for (const auto& [begin, end, moves] : directions.parts(like)) {
    Tensors seeds;
    for (size_t k = 0; k < all.size(); ++k)
      if (moves[k]) seeds.push_back(end - begin == directions.count() ? all[k] : all[k].narrow(0, begin, end - begin));
    const auto derivative_of_those = [&, moves = moves](const Tensors& those) {
      Tensors tangents(like.size());
      for (size_t k = 0, next = 0; k < like.size(); ++k)
        if (moves[k]) tangents[k] = those[next++];
      return derivative(tangents);
    };
    const Tensors part = vmap(derivative_of_those, Dims(seeds.size(), 0), {0}, {.chunk_size = chunk_size})(seeds);
    found.resize(part.size());
    for (size_t k = 0; k < part.size(); ++k) found[k].push_back(part[k]);
  }
  return found;
}

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
  const sparse::Groups groups = symmetric ? sparse::hessian_groups(pattern) : sparse::jacobian_groups(pattern);
  sparse::MatrixLayout layout(pattern, options);
  auto runs =
      groups.rows.count == 0 && !groups.places.empty() ? sparse::Runs::of(pattern, groups.places) : std::nullopt;
  // All that have entries have a colour, unless some of the entries are the others'.
  sparse::Directions columns(groups.columns, pattern.is_whole() && groups.rows.count == 0),
      rows(groups.rows, pattern.is_whole() && groups.columns.count == 0);
  parts_ = std::make_shared<const Parts>(Parts{std::move(pattern), options, std::move(columns), std::move(rows),
                                               sparse::as_tensor(groups.places), std::move(runs), std::move(layout)});
}

const Sparsity& SparsePlan::pattern() const { return parts_->pattern; }
int64_t SparsePlan::num_colours() const { return parts_->columns.count() + parts_->rows.count(); }
int64_t SparsePlan::num_row_colours() const { return parts_->rows.count(); }

Tensor SparsePlan::values(const Function& f, const Tensors& x) const {
  const auto& [pattern, options, columns, rows, places, runs, layout] = *parts_;
  check_size("the argument", x, pattern.num_columns(), "columns");
  Tensors found;
  if (columns.count() > 0 || rows.count() == 0) {
    const auto [outs, push] = linearize(f, x);
    check_size("the result", outs, pattern.num_rows(), "rows");
    const auto pushed = along(push, columns, x, options.chunk_size);
    if (runs && are_of_one_dtype(pushed)) return runs->entries(pushed);
    found.push_back(as_vector(pushed));
  }
  if (rows.count() > 0) {
    const auto [outs, pull] = vjp(f, x);
    check_size("the result", outs, pattern.num_rows(), "rows");
    found.push_back(as_vector(along(pull, rows, outs, options.chunk_size)));
  }
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
