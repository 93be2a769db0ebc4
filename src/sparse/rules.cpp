// The rules of the interpreter, by what operators do with elements. A rule that finds a call to be more than it knows
// of returns nothing: then all depends on all.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>

#include <string_view>
#include <unordered_map>

#include "core/operator.h"
#include "sparse/dependence.h"
#include "sparse/ids.h"
#include "sparse/windows.h"

namespace tower::sparse {

namespace {

using Tensors = std::vector<Tensor>;
using Id = Sets::Id;

bool is_complex(const CallWithIds& call) {
  bool any = false;
  for_each_tensor(call.op, call.args, [&](const Tensor& t, LeafRef) { any = any || t.is_complex(); });
  return any;
}

Tensors pointwise(const CallWithIds& call) {
  Tensors result;
  for (const Tensor& out : call.outputs()) {
    Tensor ids;
    for (const auto& [leaf, of_one] : call.tracked) {
      if (!at::is_expandable_to(of_one.sizes(), out.sizes())) return {};
      ids = ids.defined() ? united(call.sets, ids, of_one, out.sizes()) : of_one.expand(out.sizes());
    }
    result.push_back(ids);
  }
  return result;
}

// The operator itself. What it fills with depends on nothing.
Tensors moved(const CallWithIds& call) {
  if (is_complex(call) || call.points_by_x()) return {};
  Stack stack(call.args.begin(), call.args.end());
  replace_tensors(call.op, stack, [&](const Tensor& t, LeafRef leaf) {
    const Tensor known = call.known_ids(leaf.arg, leaf.element);
    return known.defined() ? known : t.is_floating_point() ? at::zeros_like(t, at::kDouble) : t;
  });
  for (size_t i = 0; i < stack.size(); ++i)
    if (call.op.argument_name(i) == std::string_view("value") && stack[i].isScalar()) stack[i] = at::Scalar(0.0);
  call.op.call(stack);
  Tensors result;
  for (const IValue& v : stack) {
    if (v.isTensor()) result.push_back(v.toTensor());
    else if (v.isTensorList())
      for (const auto& e : v.toListRef()) result.push_back(e.toTensor());
  }
  const Tensors outs = call.outputs();
  if (result.size() != outs.size()) return {};
  for (size_t k = 0; k < result.size(); ++k) {
    if (!result[k].is_floating_point()) result[k] = Tensor();
    if (result[k].defined() && !result[k].sizes().equals(outs[k].sizes())) return {};
  }
  return result;
}

// Where the mask depends on x, both what it hides and what it shows.
Tensors masked(const CallWithIds& call) { return call.points_by_x() ? pointwise(call) : moved(call); }

// The first argument, whatever becomes of its dtype and layout.
Tensors kept(const CallWithIds& call) { return {call.known_ids(0)}; }

// The same elements in the same order, however they lie in memory.
Tensors reshaped(const CallWithIds& call) {
  const Tensor ids = call.known_ids(0), out = call.outputs()[0];
  if (ids.numel() != out.numel()) return {};
  return {ids.reshape(out.sizes())};
}

// The first two arguments are what is written to and what is written.
Tensors written(const CallWithIds& call) { return {call.ids(1).expand(call.outputs()[0].sizes())}; }

std::vector<int64_t> dims_of(const CallWithIds& call) {
  const size_t arg = call.argument("dim");
  if (arg == call.op.num_args() || call.args[arg].isNone()) return {};
  if (call.args[arg].isInt()) return {call.args[arg].toInt()};
  if (!call.args[arg].isIntList()) return {};
  return call.args[arg].toIntVector();
}

// One argument with elements, some dimensions of which are gone.
Tensors reduced(const CallWithIds& call) {
  if (call.op.num_args() > 1 && call.op.kind(1) == ArgKind::tensor) return pointwise(call);  // max(a, b)
  if (call.tracked.size() != 1 || call.tracked[0].first.arg != 0) return {};
  const Tensor ids = united_over(call.sets, call.tracked[0].second, dims_of(call));
  Tensors result;
  for (const Tensor& out : call.outputs()) {
    if (out.numel() != ids.numel()) return {};
    result.push_back(ids.reshape(out.sizes()));
  }
  return result;
}

// Along a dimension all depends on all.
Tensors mixed(const CallWithIds& call) {
  if (call.tracked.size() != 1 || call.tracked[0].first.arg != 0 || call.argument("dim") == call.op.num_args())
    return {};
  const Tensor& given = call.tracked[0].second;
  if (given.dim() == 0) return {given, given};
  const Tensor ids = united_over(call.sets, given, dims_of(call)).expand(given.sizes());
  Tensors result;
  for (const Tensor& out : call.outputs()) {
    if (!at::is_expandable_to(ids.sizes(), out.sizes())) return {};
    result.push_back(ids.expand(out.sizes()));
  }
  return result;
}

// Each component is made of the two others.
Tensors crossed(const CallWithIds& call) {
  const Tensor out = call.outputs()[0];
  const size_t dim = call.argument("dim");
  if (dim == call.op.num_args() || !call.args[dim].isInt()) return {};
  Tensor result;
  for (const auto& [leaf, ids] : call.tracked) {
    const Tensor whole = ids.expand(out.sizes());
    const int64_t d = call.args[dim].toInt();
    const Tensor others = united(call.sets, at::roll(whole, 1, d), at::roll(whole, 2, d), out.sizes());
    result = result.defined() ? united(call.sets, result, others, out.sizes()) : others;
  }
  return {result};
}

// The first half along a dimension, by the second.
Tensors gated(const CallWithIds& call) {
  const std::vector<int64_t> dims = dims_of(call);
  const Tensor out = call.outputs()[0];
  if (dims.size() != 1) return {};
  const auto halves = call.ids(0).chunk(2, dims[0]);
  return {united(call.sets, halves[0], halves[1], out.sizes())};
}

// Rows that begin at some dimension; weight and bias are those of a row.
Tensors normalized(const CallWithIds& call) {
  const Tensor input = call.ids(0);
  const int64_t rows = input.dim() - static_cast<int64_t>(call.args[1].toIntVector().size());
  std::vector<int64_t> dims;
  for (int64_t d = rows; d < input.dim(); ++d) dims.push_back(d);
  if (dims.empty()) return {};
  const Tensor of_row = united_over(call.sets, input, dims);
  Tensor out = of_row.expand(input.sizes());
  for (const size_t arg : {2, 3})
    if (const Tensor ids = call.known_ids(arg); ids.defined()) out = united(call.sets, out, ids, input.sizes());
  return {out, of_row, of_row};
}

// Each image of a batch, and each of its channels, by itself.
Tensors by_planes(const CallWithIds& call) {
  if (call.tracked.size() != 1 || call.tracked[0].first.arg != 0) return {};
  const Tensor& given = call.tracked[0].second;
  const Tensor out = call.outputs()[0];
  if (given.dim() < 3 || given.dim() != out.dim()) return {};
  std::vector<int64_t> dims;
  for (int64_t d = 2; d < given.dim(); ++d) dims.push_back(d);
  return {united_over(call.sets, given, dims).expand(out.sizes())};
}

// Functions of matrices in a batch: those of an example depend on those of that example.
Tensors by_matrices(const CallWithIds& call) {
  int64_t batch_dims = -1;
  std::vector<int64_t> batch;
  for_each_tensor(call.op, call.args, [&](const Tensor& t, LeafRef leaf) {
    if (leaf.arg != 0 || t.dim() < 2) return;
    batch_dims = t.dim() - 2;
    batch = t.sizes().slice(0, static_cast<size_t>(batch_dims)).vec();
  });
  if (batch_dims < 0) return {};
  const auto begins_with_batch = [&](const Tensor& t) {
    return t.dim() >= batch_dims && t.sizes().slice(0, batch.size()).equals(batch);
  };
  Tensor of_example;
  for (const auto& [leaf, ids] : call.tracked) {
    // What has as many dimensions as the batch, or fewer, may be meant for all examples.
    if (ids.dim() <= batch_dims || !begins_with_batch(ids)) return {};
    std::vector<int64_t> dims;
    for (int64_t d = batch_dims; d < ids.dim(); ++d) dims.push_back(d);
    const Tensor one = united_over(call.sets, ids, dims).reshape(batch);
    of_example = of_example.defined() ? united(call.sets, of_example, one, batch) : one;
  }
  Tensors result;
  for (const Tensor& out : call.outputs()) {
    if (!begins_with_batch(out)) return {};
    std::vector<int64_t> sizes(batch);
    sizes.resize(static_cast<size_t>(out.dim()), 1);
    result.push_back(of_example.reshape(sizes).expand(out.sizes()));
  }
  return result;
}

// The entries of a sparse matrix say which rows of b come together.
Tensor of_sparse(Sets& sets, const Tensor& matrix, const Tensor& b) {
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

// A product of matrices or vectors, of arguments `a` and `b`, perhaps in batches.
Tensor product(const CallWithIds& call, size_t a, size_t b) {
  const Tensor out = call.outputs()[0];
  const Tensor left = call.args[a].toTensor(), right = call.args[b].toTensor();
  if (left.layout() != at::kStrided) {
    const Tensor ids = call.known_ids(b);
    return call.is_constant(a) && ids.defined() && right.layout() == at::kStrided ? of_sparse(call.sets, left, ids)
                                                                                  : Tensor();
  }
  if (right.layout() != at::kStrided) return {};
  if (is_constant_with_zeros(call, a)) return of_sparse(call.sets, left, call.known_ids(b));
  if (is_constant_with_zeros(call, b)) {
    const Tensor ids = call.known_ids(a);
    return of_sparse(call.sets, right.t(), ids.t()).t();
  }
  Tensor result;
  if (const Tensor ids = call.known_ids(a); ids.defined()) {
    const Tensor rows = united_over(call.sets, ids, {-1});  // stay as rows of one column
    result = (right.dim() == 1 ? rows.squeeze(-1) : rows).expand(out.sizes());
  }
  if (const Tensor ids = call.known_ids(b); ids.defined()) {
    const Tensor columns = united_over(call.sets, ids, {ids.dim() == 1 ? -1 : -2});
    result = result.defined() ? united(call.sets, result, columns, out.sizes()) : columns.expand(out.sizes());
  }
  return result;
}

Tensors multiplied(const CallWithIds& call) {
  const Tensor ids = product(call, 0, 1);
  return ids.defined() ? Tensors{ids} : Tensors{};
}

Tensors inner_product(const CallWithIds& call) {
  std::vector<Id> all;
  for (const auto& [leaf, ids] : call.tracked) all.push_back(id_of(united_over(call.sets, ids, {}).item<double>()));
  return {at::full({}, static_cast<double>(call.sets.unite_all(all)), at::kDouble)};
}

// self and the product of the other two.
Tensors added(const CallWithIds& call) {
  const Tensor out = call.outputs()[0], self = call.known_ids(0);
  Tensor ids;
  if (call.known_ids(1).defined() || call.known_ids(2).defined()) {
    ids = product(call, 1, 2);
    if (!ids.defined()) return {};
  }
  if (!self.defined()) return {ids};
  return {ids.defined() ? united(call.sets, ids, self, out.sizes()) : self.expand(out.sizes())};
}

// Unites `source` with what is at `places`, flat positions in `base`.
Tensor united_at(Sets& sets, const Tensor& base, const Tensor& places, const Tensor& source) {
  Tensor result = base.clone(at::MemoryFormat::Contiguous);
  const Tensor where = places.to(at::kLong).contiguous(), from = source.expand(places.sizes()).contiguous();
  auto* to = result.mutable_data_ptr<double>();
  const auto* ids = from.const_data_ptr<double>();
  const auto* place = where.const_data_ptr<int64_t>();
  for (int64_t k = 0; k < where.numel(); ++k)
    to[place[k]] = static_cast<double>(sets.unite(id_of(to[place[k]]), id_of(ids[k])));
  return result;
}

// What was there, and all of `source` anywhere.
Tensors put_anywhere(const CallWithIds& call, const Tensor& source) {
  const Tensor base = call.ids(0), all = united_over(call.sets, source, {});
  return {united(call.sets, base, all.reshape({}), base.sizes())};
}

Tensor positions_in(const Tensor& t) { return at::arange(t.numel(), at::kLong).view(t.sizes()); }

// index_put(self, indices, values, accumulate): what was there stays in the set where it is added to, or where indices
// repeat.
Tensors put_by_indices(const CallWithIds& call) {
  if (call.points_by_x()) return put_anywhere(call, call.ids(2));
  const Tensor base = call.ids(0);
  c10::List<std::optional<Tensor>> indices;
  for (const auto& e : call.args[1].toListRef())
    indices.push_back(e.isTensor() && e.toTensor().defined() ? std::optional(e.toTensor()) : std::nullopt);
  return {united_at(call.sets, base, at::index(positions_in(base), indices), call.ids(2))};
}

// scatter_add(self, dim, index, src), and scatter with a reduction.
Tensors scattered(const CallWithIds& call) {
  const Tensor base = call.ids(0);
  const Tensor index = call.args[2].toTensor();
  if (base.dim() == 0 || !call.args[3].isTensor()) return {};
  Tensor source = call.ids(3);
  if (call.points_by_x()) return put_anywhere(call, source);
  for (int64_t d = 0; d < index.dim(); ++d) source = source.narrow(d, 0, index.size(d));
  return {united_at(call.sets, base, at::gather(positions_in(base), call.args[1].toInt(), index), source)};
}

// index_add(self, dim, index, source)
Tensors added_at_index(const CallWithIds& call) {
  const Tensor base = call.ids(0);
  if (base.dim() == 0) return {};
  if (call.points_by_x()) return put_anywhere(call, call.ids(3));
  return {united_at(call.sets, base,
                    at::index_select(positions_in(base), call.args[1].toInt(), call.args[2].toTensor()), call.ids(3))};
}

const std::unordered_map<std::string_view, Rule>& rules() {
  static const auto* table = new std::unordered_map<std::string_view, Rule>([] {
    std::unordered_map<std::string_view, Rule> all;
    const auto add = [&](Rule rule, std::initializer_list<std::string_view> names) {
      for (const auto name : names) all.emplace(name, rule);
    };
    add(moved, {"cat",
                "stack",
                "index_select",
                "gather",
                "index",
                "flip",
                "roll",
                "repeat",
                "constant_pad_nd",
                "select_scatter",
                "slice_scatter",
                "diagonal_scatter",
                "select_backward",
                "slice_backward",
                "diagonal_backward",
                "tril",
                "triu",
                "masked_select",
                "take",
                "diag_embed",
                "reflection_pad1d",
                "reflection_pad2d",
                "replication_pad1d",
                "replication_pad2d",
                "unsqueeze_copy",
                "pixel_shuffle",
                "pixel_unshuffle",
                "im2col",
                "block_diag",
                "rot90",
                "unfold_copy",
                "expand_copy",
                "index_copy",
                "index_fill",
                "embedding",
                "upsample_nearest1d",
                "upsample_nearest2d",
                "upsample_nearest3d"});
    add(masked, {"masked_fill"});
    add(reshaped, {"view", "_unsafe_view", "_reshape_alias", "reshape", "view_copy"});
    add(kept, {"_to_copy", "clone", "detach", "alias", "alias_copy", "contiguous", "lift_fresh"});
    add(written, {"copy"});
    add(reduced, {"sum", "mean", "prod", "amax", "amin", "logsumexp", "linalg_vector_norm", "norm", "var", "std",
                  "nansum", "max", "min", "median", "nanmedian", "kthvalue", "mode", "var_mean", "std_mean"});
    add(mixed, {"_softmax", "_log_softmax", "softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp", "sort",
                "cummax", "cummin", "_safe_softmax"});
    add(crossed, {"linalg_cross"});
    add(gated, {"glu"});
    add(normalized, {"native_layer_norm"});
    add(by_planes, {"upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
                    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "grid_sampler_2d"});
    add(by_matrices,
        {"linalg_inv_ex", "_linalg_solve_ex", "_linalg_det", "_linalg_slogdet", "linalg_cholesky_ex", "_linalg_eigh",
         "_linalg_svd", "linalg_qr", "linalg_lu", "linalg_lu_factor_ex", "linalg_solve_triangular", "triangular_solve",
         "cholesky_solve", "linalg_pinv", "linalg_matrix_exp", "linalg_householder_product"});
    add(multiplied, {"mm", "mv", "bmm"});
    add(inner_product, {"dot", "vdot"});
    add(added, {"addmm", "addmv", "baddbmm"});
    add(put_by_indices, {"index_put", "_index_put_impl"});
    add(scattered, {"scatter_add", "scatter", "scatter_reduce"});
    add(added_at_index, {"index_add"});
    add(convolved, {"convolution"});
    add(pooled, {"avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"});
    return all;
  }());
  return *table;
}

}  // namespace

Tensor CallWithIds::known_ids(size_t arg, size_t element) const {
  for (const auto& [leaf, ids] : tracked)
    if (leaf.arg == arg && leaf.element == element) return ids;
  return {};
}

Tensor CallWithIds::ids(size_t arg) const {
  const Tensor known = known_ids(arg);
  return known.defined() ? known : at::zeros(args[arg].toTensor().sizes(), at::kDouble);
}

bool CallWithIds::is_constant(size_t arg) const { return !(varying >> arg & 1); }

bool CallWithIds::points_by_x() const {
  bool any = false;
  for_each_tensor(op, args, [&](const Tensor& t, LeafRef leaf) {
    any = any || (!is_constant(leaf.arg) && c10::isIntegralType(t.scalar_type(), /*includeBool=*/true));
  });
  return any;
}

std::vector<Tensor> CallWithIds::outputs() const {
  std::vector<Tensor> result;
  for (const IValue& v : outs) {
    if (v.isTensor()) result.push_back(v.toTensor());
    else if (v.isTensorList())
      for (const auto& e : v.toListRef()) result.push_back(e.toTensor());
  }
  return result;
}

size_t CallWithIds::argument(const char* name) const {
  size_t i = 0;
  while (i < op.num_args() && op.argument_name(i) != std::string_view(name)) ++i;
  return i;
}

Rule rule_of(const Operator& op) {
  constexpr std::string_view kLibTorch = "aten::";
  const std::string_view name = op.name();
  if (op.handle() && name.starts_with(kLibTorch)) {
    const auto base = name.substr(kLibTorch.size(), name.find('.') - kLibTorch.size());
    if (const auto found = rules().find(base); found != rules().end()) return found->second;
    if (base == "as_strided" || base == "view_as_real" || base == "view_as_complex") return nullptr;
    if (op.is_view()) return moved;
  }
  return op.vmap_is_pointwise || op.pointwise_tag() ? pointwise : nullptr;
}

std::vector<Tensor> dense(const CallWithIds& call) {
  std::vector<Id> all;
  for (const auto& [leaf, ids] : call.tracked) {
    const Tensor list = ids.contiguous();
    const auto* from = list.const_data_ptr<double>();
    for (int64_t k = 0; k < list.numel(); ++k) all.push_back(id_of(from[k]));
  }
  const auto id = static_cast<double>(call.sets.unite_all(all));
  Tensors result;
  for (const Tensor& out : call.outputs()) result.push_back(at::full({}, id, at::kDouble).expand(out.sizes()));
  return result;
}

}  // namespace tower::sparse
