#include "sparse/compressed.h"

#include <algorithm>

#include "core/operator.h"
#include "tower/errors.h"

namespace tower::sparse {

using dynamic::Dims;
using dynamic::Function;
using dynamic::Tensors;

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
std::vector<InParts> along(const Function& derivative, const Directions& directions, const Tensors& like,
                           std::optional<int64_t> chunk_size) {
  Tensors all;
  int64_t start = 0;
  for (const Tensor& t : like) {
    all.push_back(directions.of(t, start));
    start += t.numel();
  }
  std::vector<InParts> found;
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
    const Tensors part =
        dynamic::vmap(derivative_of_those, Dims(seeds.size(), 0), {0}, {.chunk_size = chunk_size})(seeds);
    found.resize(part.size());
    for (size_t k = 0; k < part.size(); ++k) found[k].push_back(part[k]);
  }
  return found;
}

}  // namespace

Compressed::Compressed(const Sparsity& pattern, bool symmetric)
    : Compressed(pattern, symmetric ? hessian_groups(pattern) : jacobian_groups(pattern)) {}

// All that have entries have a colour, unless some of the entries are the others'.
Compressed::Compressed(const Sparsity& pattern, Groups groups)
    : num_rows_(pattern.num_rows()),
      num_columns_(pattern.num_columns()),
      places_(std::move(groups.places)),
      columns_(groups.columns, pattern.is_whole() && groups.rows.count == 0),
      rows_(groups.rows, pattern.is_whole() && groups.columns.count == 0) {}

Compressed::Derivatives Compressed::derivatives(const Function& f, const Tensors& x,
                                                std::optional<int64_t> chunk_size) const {
  check_size("the argument", x, num_columns_, "columns");
  Derivatives found;
  if (columns() > 0 || rows() == 0) {
    const auto [outs, push] = dynamic::linearize(f, x);
    check_size("the result", outs, num_rows_, "rows");
    found.by_columns = along(push, columns_, x, chunk_size);
  }
  if (rows() > 0) {
    const auto [outs, pull] = dynamic::vjp(f, x);
    check_size("the result", outs, num_rows_, "rows");
    found.by_rows = along(pull, rows_, outs, chunk_size);
  }
  return found;
}

}  // namespace tower::sparse
