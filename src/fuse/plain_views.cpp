#include "fuse/plain_views.h"

#include <ATen/EmptyTensor.h>

#include <utility>
#include <vector>

namespace tower::compiler {
namespace {

Call view_by(const Operator& op, Graph& graph, ValueId id, Sizes sizes, Sizes strides) {
  Value v;
  v.dtype = graph.values[id].dtype;
  v.device = graph.values[id].device;
  v.sizes = std::move(sizes);
  v.strides = std::move(strides);
  Call call;
  call.op = call.bound = &op;
  call.args = {IValue(at::detail::empty_cpu({0}, v.dtype))};
  call.places = {{0, 0}};
  call.operands = {id};
  call.results = {graph.values.add(std::move(v))};
  return call;
}

}  // namespace

Call view_of(Graph& graph, ValueId id, Sizes sizes, Sizes strides) {
  static const Operator& view = *Operator::find("aten::view", "");
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  Call call = view_by(view, graph, id, std::move(sizes), std::move(strides));
  call.args.emplace_back(std::move(shape));
  return call;
}

Call transposed(Graph& graph, ValueId id, int64_t a, int64_t b) {
  static const Operator& transpose = *Operator::find("aten::transpose", "int");
  Sizes sizes = graph.values[id].sizes, strides = graph.values[id].strides;
  std::swap(sizes[static_cast<size_t>(a)], sizes[static_cast<size_t>(b)]);
  std::swap(strides[static_cast<size_t>(a)], strides[static_cast<size_t>(b)]);
  Call call = view_by(transpose, graph, id, std::move(sizes), std::move(strides));
  call.args.emplace_back(a);
  call.args.emplace_back(b);
  return call;
}

}  // namespace tower::compiler
