#include "rules/small_norms.h"

#include <vector>

#include "rules/small_places.h"

namespace tower::rules::small {

using namespace compiler;

namespace {

E sum_of(const std::vector<E>& terms) {
  E sum = terms[0];
  for (size_t k = 1; k < terms.size(); ++k) sum = sum + terms[k];
  return sum;
}

}  // namespace

// (cotangent, x, shape, mean, rstd, weight, bias, which are wanted) → of x, weight, bias
SmallResults layer_norm_backward(const SmallCall& c) {
  const Small &g = *c.tensor(0), &x = *c.tensor(1), &mean = *c.tensor(3), &rstd = *c.tensor(4);
  const Small *weight = c.tensor(5), *bias = c.tensor(6);
  const auto wanted = c.arg(7).toBoolList();
  const Sizes shape(c.arg(2).toIntVector());
  const size_t length = count(shape), rows = mean.ids.size();
  for (size_t k = 0; k < 3; ++k)
    if (c.dtypes[k] != at::ScalarType::Undefined && c.dtypes[k] != x.dtype) return {};
  if (!is_float(*type_of(x.dtype)) || g.dtype != x.dtype || mean.dtype != x.dtype ||
      (weight && weight->dtype != x.dtype) || x.ids.size() != rows * length)
    return {};
  std::vector<E> dx;
  std::vector<std::vector<E>> of_weight(length), of_bias(length);  // of each row, what they get
  const auto n = static_cast<double>(length);
  for (size_t row = 0; row < rows; ++row) {
    std::vector<E> normalized, weighted, products;
    for (size_t k = 0; k < length; ++k) {
      const size_t i = row * length + k;
      normalized.push_back((c.at(x, i) - c.at(mean, row)) * c.at(rstd, row));
      weighted.push_back(weight ? c.at(g, i) * c.at(*weight, k) : c.at(g, i));
      products.push_back(weighted[k] * normalized[k]);
      of_weight[k].push_back(c.at(g, i) * normalized[k]);
      of_bias[k].push_back(c.at(g, i));
    }
    const E level = sum_of(weighted) / n, slope = sum_of(products) / n;
    for (size_t k = 0; k < length; ++k) dx.push_back(c.at(rstd, row) * (weighted[k] - level - normalized[k] * slope));
  }
  SmallResults results(3);
  if (wanted[0]) results[0] = c.give(x.sizes, dx)[0];
  const auto give_sums = [&](size_t k, const std::vector<std::vector<E>>& terms) {
    results[k] = {shape, {}, c.dtypes[k]};
    for (const auto& of_rows : terms) results[k].ids.push_back(sum_of(of_rows).id());
  };
  if (wanted[1] && weight) give_sums(1, of_weight);
  if (wanted[2] && bias) give_sums(2, of_bias);
  return results;
}

}  // namespace tower::rules::small
