#include "graph/operand_dims.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "core/layout.h"

namespace tower::compiler {

Places places_of(const Call& call, size_t operand, int64_t operand_dims, int64_t result_dims) {
  c10::SmallVector<int64_t, 6> left;
  for (int64_t d = 0; d < operand_dims; ++d) left.push_back(d);
  Places places;
  for (const Mapped& vmap : call.vmaps) {
    const int64_t d = vmap.dims[operand];
    places.push_back(d == Mapped::kUnmapped ? -1 : along(left, d));
    if (d != Mapped::kUnmapped) left.erase(left.begin() + d);
  }
  while (static_cast<int64_t>(places.size() + left.size()) < result_dims) places.push_back(-1);
  places.append(left.begin(), left.end());
  return places;
}

bool one_for_one(const Places& places, const Sizes& operand, const Sizes& lanes) {
  if (operand != lanes) return false;
  for (size_t d = 0; d < places.size(); ++d)
    if (places[d] != static_cast<int64_t>(d) && lanes[d] != 1) return false;
  return true;
}

Seen seen(const Call& call, size_t operand, size_t dims, uint64_t axis) {
  c10::SmallVector<int64_t, 6> left;
  for (size_t d = 0; d < dims; ++d) left.push_back(static_cast<int64_t>(d));
  Seen result;
  for (const Mapped& vmap : call.vmaps) {
    const int64_t d = vmap.dims[operand];
    int64_t whole = -1;
    if (d != Mapped::kUnmapped) {
      whole = along(left, d);
      left.erase(left.begin() + d);
    }
    if (vmap.axis == axis) result.lane = whole;
    else result.of_vmaps.push_back(whole);
  }
  const auto without_lane = [&](int64_t d) { return d - (result.lane != kNoLane && d > result.lane); };
  for (int64_t& d : result.of_vmaps) d = without_lane(d);
  for (const int64_t d : left) result.of_example.push_back(without_lane(d));
  return result;
}

Sizes sizes_of_all(const Call& call, at::IntArrayRef of_one) {
  Sizes sizes;
  for (const Mapped& vmap : call.vmaps) sizes.push_back(vmap.batch_size);
  sizes.append(of_one.begin(), of_one.end());
  return sizes;
}

ValueId first_result(const Call& call) {
  return *std::find_if(call.results.begin(), call.results.end(), [](ValueId id) { return id != kNoValue; });
}

int64_t count(const Sizes& sizes) {
  int64_t n = 1;
  for (const int64_t s : sizes) n *= s;
  return n;
}

std::optional<Places> order_in_memory(const Value& v) {
  Places order;
  if (count(v.sizes) == 0) {
    for (size_t d = 0; d < v.sizes.size(); ++d) order.push_back(static_cast<int64_t>(d));
    return order;
  }
  for (const int64_t d : farthest_first(v.strides)) order.push_back(d);
  int64_t expected = 1;
  for (size_t k = order.size(); k-- > 0;) {
    const auto d = static_cast<size_t>(order[k]);
    if (v.sizes[d] != 1 && v.strides[d] != expected) return std::nullopt;
    expected *= v.sizes[d];
  }
  return order;
}

Sizes strides_in_order(const Sizes& sizes, const Places& order) {
  Sizes strides(sizes.size(), 1);
  int64_t next = 1;
  for (size_t k = order.size(); k-- > 0;) {
    along(strides, order[k]) = next;
    next *= std::max<int64_t>(along(sizes, order[k]), 1);
  }
  return strides;
}

std::optional<at::Scalar> same_everywhere(const Value& v) {
  Tensor t = v.constant();
  if (!t.defined() || count(v.sizes) == 0 || t.is_complex()) return std::nullopt;
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.stride(d) == 0) t = t.narrow(d, 0, 1);
  const at::Scalar first = t.flatten()[0].item();
  if (t.numel() == 1) return first;
  const bool same =
      at::eq(t, first).all().item<bool>() && at::eq(t.signbit(), std::signbit(first.toDouble())).all().item<bool>();
  return same ? std::optional(first) : std::nullopt;
}

}  // namespace tower::compiler
