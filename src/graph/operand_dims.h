// How the elements of a call's results find those of its operands, and how tensors lie in memory.
#pragma once

#include <optional>

#include "graph/graph.h"

namespace tower::compiler {

/// What a list that has something for each dimension (a size, a stride, a place) has for this one.
template <class T>
decltype(auto) along(T& of_dimensions, int64_t dim) {
  return of_dimensions[static_cast<size_t>(dim)];
}

/// Where each dimension of the results is in the operand's; −1 where the operand repeats.
using Places = c10::SmallVector<int64_t, 6>;

/// The dimensions of the vmaps come first in the results, in order; what one example has is aligned at the end.
Places places_of(const Call& call, size_t operand, int64_t operand_dims, int64_t result_dims);
/// Each element of the operand is read for the same one of the result.
bool one_for_one(const Places& places, const Sizes& operand, const Sizes& lanes);

constexpr uint64_t kNoAxis = static_cast<uint64_t>(-1);
constexpr int64_t kNoLane = -1;

/// What an operand of a call is for one lane, which is an example of the vmap over `axis` (kNoAxis: of none).
/// Dimensions of vmaps and examples are numbered as if that of the lanes were not there.
struct Seen {
  int64_t lane = kNoLane;         // dimension of the whole tensor
  std::vector<int64_t> of_vmaps;  // of each other vmap, or −1
  std::vector<int64_t> of_example;
};
Seen seen(const Call& call, size_t operand, size_t dims, uint64_t axis);

/// The sizes of a call's result with the dimensions of all vmaps, from those for one example.
Sizes sizes_of_all(const Call& call, at::IntArrayRef of_one);

int64_t count(const Sizes& sizes);

/// Of a call with results; undefined ones, such as derivatives that nobody asked for, are none.
ValueId first_result(const Call& call);

/// The number that all elements of a constant are, to the bit; none of other values.
std::optional<at::Scalar> same_everywhere(const Value& v);

/// The order of dimensions in which a tensor lies in memory without gaps; none if it lies otherwise.
std::optional<Places> order_in_memory(const Value& v);
/// The strides of a tensor whose dimensions lie in memory in this order, without gaps.
Sizes strides_in_order(const Sizes& sizes, const Places& order);

template <class T>
T ordered(const T& of_dimensions, const Places& order) {
  T result;
  for (const int64_t d : order) result.push_back(along(of_dimensions, d));
  return result;
}

}  // namespace tower::compiler
