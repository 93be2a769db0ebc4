#include "sparse/products.h"

#include <ATen/Functions.h>

#include "core/operator.h"
#include "sparse/beta_warning.h"
#include "sparse/ids.h"

namespace tower::sparse {

namespace {

using Id = Sets::Id;

// The entries of a sparse matrix say which rows of b come together.
Tensor of_sparse(Sets& sets, const Tensor& matrix, const Tensor& b) {
  const NoBetaWarning quiet;
  const Tensor entries = matrix.layout() == at::kSparseCsr ? matrix : matrix.to_sparse_csr();
  const Tensor starts = entries.crow_indices().to(at::kLong).contiguous(),
               columns = entries.col_indices().to(at::kLong).contiguous(), rows = b.contiguous();
  const int64_t width = b.dim() == 2 ? b.size(1) : 1;
  Tensor result =
      b.dim() == 2 ? at::zeros({matrix.size(0), width}, b.options()) : at::zeros({matrix.size(0)}, b.options());
  const auto *start = starts.const_data_ptr<int64_t>(), *column = columns.const_data_ptr<int64_t>();
  const auto* from = rows.const_data_ptr<double>();
  auto* to = result.mutable_data_ptr<double>();
  std::vector<Id> together;
  for (int64_t r = 0; r < matrix.size(0); ++r)
    for (int64_t w = 0; w < width; ++w) {
      together.clear();
      for (int64_t k = start[r]; k < start[r + 1]; ++k) together.push_back(id_of(from[column[k] * width + w]));
      to[r * width + w] = static_cast<double>(sets.unite_all(together));
    }
  return result;
}

// Whose zeros are zeros at every x.
bool is_constant_with_zeros(const CallWithIds& call, size_t arg) {
  const Tensor matrix = call.args[arg].toTensor();
  return call.is_constant(arg) && matrix.dim() == 2 && matrix.eq(0).any().item<bool>();
}

// A product's operands, by their letters: the result's rows are the left one's, its columns the right one's.
bool left_is_matrix(const Contraction& c) {
  return c.a.size() == 2 && c.b.front() == c.a[1] && c.result == c.a[0] + c.b.substr(1);
}
bool right_is_matrix(const Contraction& c) { return c.b.size() == 2 && left_is_matrix(c); }

// What an operand adds to each element of the result: all along the letters that the result lacks.
Tensor of_operand(Sets& sets, const Tensor& ids, const std::string& letters, const std::string& result,
                  at::IntArrayRef sizes) {
  std::vector<int64_t> gone, order, missing;
  std::string kept;
  for (size_t d = 0; d < letters.size(); ++d) {
    if (result.find(letters[d]) == std::string::npos) gone.push_back(static_cast<int64_t>(d));
    else kept += letters[d];
  }
  for (size_t d = 0; d < result.size(); ++d) {
    const size_t at = kept.find(result[d]);
    if (at == std::string::npos) missing.push_back(static_cast<int64_t>(d));
    else order.push_back(static_cast<int64_t>(at));
  }
  Tensor t = gone.empty() ? ids : united_over(sets, ids, gone).squeeze(gone);
  t = t.permute(order);
  for (const int64_t d : missing) t = t.unsqueeze(d);
  return t.expand(sizes);
}

// Of the arguments `a` and `a + 1`. Undefined where nothing better is known than that all depends on all.
Tensor product(const CallWithIds& call, const Contraction& c, size_t a) {
  const size_t b = a + 1;
  const Tensor left = call.args[a].toTensor(), right = call.args[b].toTensor();
  const Tensor of_left = call.known_ids(a), of_right = call.known_ids(b);
  if (left.layout() != at::kStrided) {
    const bool known = left_is_matrix(c) && call.is_constant(a) && of_right.defined();
    return known && right.layout() == at::kStrided ? of_sparse(call.sets, left, of_right) : Tensor();
  }
  if (right.layout() != at::kStrided) return {};
  if (left_is_matrix(c) && is_constant_with_zeros(call, a)) return of_sparse(call.sets, left, of_right);
  if (right_is_matrix(c) && is_constant_with_zeros(call, b)) return of_sparse(call.sets, right.t(), of_left.t()).t();
  const Tensor out = call.outputs()[0];
  Tensor result;
  if (of_left.defined()) result = of_operand(call.sets, of_left, c.a, c.result, out.sizes());
  if (of_right.defined()) {
    const Tensor more = of_operand(call.sets, of_right, c.b, c.result, out.sizes());
    result = result.defined() ? united(call.sets, result, more, out.sizes()) : more;
  }
  return result;
}

}  // namespace

std::vector<Tensor> contracted(const CallWithIds& call) {
  const Contraction& c = *call.op.contraction;
  const size_t first = c.adds ? 1 : 0;
  Tensor ids;
  if (call.known_ids(first).defined() || call.known_ids(first + 1).defined()) {
    ids = product(call, c, first);
    if (!ids.defined()) return {};
  }
  if (const Tensor self = c.adds ? call.known_ids(0) : Tensor(); self.defined()) {
    const Tensor out = call.outputs()[0];
    ids = ids.defined() ? united(call.sets, ids, self, out.sizes()) : self.expand(out.sizes());
  }
  return {ids};
}

}  // namespace tower::sparse
