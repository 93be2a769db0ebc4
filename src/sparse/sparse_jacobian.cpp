#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "core/level.h"
#include "core/operator.h"
#include "sparse/groups.h"
#include "sparse/layout.h"
#include "tower/errors.h"
#include "tower/sparse.h"

namespace tower::dynamic {

struct SparsePlan::Parts {
  Sparsity pattern;
  SparseOptions options;
  int64_t num_columns, num_rows;  // of colours
  Tensor columns, rows;           // the colour of each; that after the last of those that have none
  Tensor places;                  // of each entry among the derivatives (sparse/groups.h)
  sparse::MatrixLayout layout;
};

namespace {

// With a group more, of those that are in none.
Tensor groups_of(const sparse::Colouring& colouring) {
  const Tensor colours = sparse::as_tensor(colouring.colours);
  return at::where(colours.lt(0), colouring.count, colours);
}

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

// Derivatives along the sums of the unit vectors of each group, all of them as one vector.
Tensor along_groups(const Function& derivative, const Tensor& group, int64_t count, const Tensors& like,
                    std::optional<int64_t> chunk_size) {
  const auto options = like[0].options();
  const Tensor in_group = at::zeros({count + 1, group.numel()}, options)
                              .scatter_(0, group.to(options.device()).unsqueeze(0), 1)
                              .narrow(0, 0, count);
  Tensors seeds;
  int64_t start = 0;
  for (const Tensor& t : like) {
    std::vector<int64_t> sizes{count};
    sizes.insert(sizes.end(), t.sizes().begin(), t.sizes().end());
    const Tensor part = like.size() == 1 ? in_group : in_group.narrow(1, start, t.numel());
    seeds.push_back(part.to(t.scalar_type()).view(sizes));
    start += t.numel();
  }
  Tensors found = vmap(derivative, Dims(seeds.size(), 0), {0}, {.chunk_size = chunk_size})(seeds);
  for (Tensor& t : found) t = t.reshape({count, t.numel() / std::max<int64_t>(count, 1)});
  return (found.size() == 1 ? found[0] : at::cat(found, 1)).flatten();
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
  parts_ = std::make_shared<const Parts>(Parts{std::move(pattern), options, groups.columns.count, groups.rows.count,
                                               groups_of(groups.columns), groups_of(groups.rows),
                                               sparse::as_tensor(groups.places), std::move(layout)});
}

const Sparsity& SparsePlan::pattern() const { return parts_->pattern; }
int64_t SparsePlan::num_colours() const { return parts_->num_columns + parts_->num_rows; }
int64_t SparsePlan::num_row_colours() const { return parts_->num_rows; }

Tensor SparsePlan::values(const Function& f, const Tensors& x) const {
  const Parts& parts = *parts_;
  check_size("the argument", x, parts.pattern.num_columns(), "columns");
  Tensors found;
  if (parts.num_columns > 0 || parts.num_rows == 0) {
    const auto [outs, push] = linearize(f, x);
    check_size("the result", outs, parts.pattern.num_rows(), "rows");
    found.push_back(along_groups(push, parts.columns, parts.num_columns, x, parts.options.chunk_size));
  }
  if (parts.num_rows > 0) {
    const auto [outs, pull] = vjp(f, x);
    check_size("the result", outs, parts.pattern.num_rows(), "rows");
    found.push_back(along_groups(pull, parts.rows, parts.num_rows, outs, parts.options.chunk_size));
  }
  const Tensor all = found.size() == 1 ? found[0] : at::cat(found);
  return all.index_select(0, parts.places.to(all.device()));
}

Tensor SparsePlan::matrix(const Tensor& values) const {
  if (top())
    throw UnsupportedError(
        top()->describe() +
        ": a sparse Jacobian is no tensor that a transform can carry. Take its values(), which are.");
  return parts_->layout.matrix(values);
}

}  // namespace tower::dynamic
