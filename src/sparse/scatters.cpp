#include "sparse/scatters.h"

#include <ATen/Functions.h>

#include "core/operator.h"
#include "sparse/ids.h"

namespace tower::sparse {

namespace {

using Tensors = std::vector<Tensor>;

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

}  // namespace

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

}  // namespace tower::sparse
