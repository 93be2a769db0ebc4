// What undoes a view: the scatters that write one back into its base, the backward operators that give one zeros around
// it; and as_strided, the view that reads memory by address.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/layout.h"
#include "records/demands.h"
#include "records/dims.h"
#include "records/op.h"
#include "records/overwriting.h"
#include "rules/registry.h"
#include "rules/small_windows.h"
#include "tower/errors.h"

namespace tower::rules {
namespace {

using MaybeInt = std::optional<int64_t>;

// ---- batching ----

// A base and what is written to it; dimensions are those of the base.
VmapRule write_back(std::initializer_list<uint8_t> dims) {
  return [dims = std::vector<uint8_t>(dims)](VmapFrame& f) {
    const int64_t rank = f.logical_dim(0);
    TORCH_CHECK(rank > 0, f.op.name(), ": a tensor without dimensions has no part to write to");
    for (size_t arg : {0, 1}) f.to_front(arg, true);
    for (uint8_t d : dims) f.stack[d] = at::maybe_wrap_dim(f.stack[d].toInt(), rank) + 1;
    f.call();
  };
}

// The sizes of the base are argument 1.
VmapRule zeros_around(std::initializer_list<uint8_t> dims) {
  return [dims = std::vector<uint8_t>(dims)](VmapFrame& f) {
    const auto sizes = f.stack[1].toIntVector();
    f.to_front(0, false);
    f.stack[1] = with_batch(f, sizes);
    for (uint8_t d : dims) f.stack[d] = at::maybe_wrap_dim(f.stack[d].toInt(), static_cast<int64_t>(sizes.size())) + 1;
    f.call();
  };
}

void unfold_backward_vmap(VmapFrame& f) {
  if (!f.stack[1].toIntVector().empty()) return zeros_around({2})(f);
  f.to_front(0, false);
  f.result(f.tensor(0).select(1, 0));
}

// ---- as_strided ----

template <class F>
void for_each_address(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t start, F&& f) {
  std::vector<int64_t> at(sizes.size(), 0);
  const int64_t n = product(sizes);
  int64_t address = start;
  for (int64_t k = 0; k < n; ++k) {
    f(k, address);
    for (size_t d = sizes.size(); d-- > 0;) {
      address += strides[d];
      if (++at[d] < sizes[d]) break;
      address -= strides[d] * sizes[d];
      at[d] = 0;
    }
  }
}

// as_strided names addresses in memory, which neither an example of a batch nor a traced value has. What it reads is
// worked out from where its argument says that it lies (NOTE [Strides of one example], NOTE [Places of views]): for
// every address, which element is there. So it becomes a look-up by index, before any level sees it, and the examples
// are never mixed. Addresses that belong to no element of the argument are refused.
class Addresses {
 public:
  explicit Addresses(const Tensor& t) : offset_(t.storage_offset()) {
    for (const int64_t d : farthest_first(t.strides()))
      if (t.size(d) != 1)
        dims_.push_back({t.size(d), t.stride(d), product(t.sizes().slice(static_cast<size_t>(d) + 1))});
    int64_t span = 0;
    for (size_t k = dims_.size(); k-- > 0; span += (dims_[k].size - 1) * dims_[k].stride)
      nested_ = nested_ && dims_[k].stride > span;
    if (!nested_)
      for_each_address(t.sizes(), t.strides(), offset_,
                       [&](int64_t k, int64_t address) { element_at_.emplace(address, k); });
  }

  /// The element that lies there, in the order of the dimensions; -1: none.
  int64_t element(int64_t address) const {
    if (!nested_) {
      const auto found = element_at_.find(address);
      return found == element_at_.end() ? -1 : found->second;
    }
    int64_t rest = address - offset_, place = 0;
    if (rest < 0) return -1;
    for (const auto& [size, stride, step] : dims_) {
      const int64_t k = rest / stride;
      if (k >= size) return -1;
      rest -= k * stride;
      place += k * step;
    }
    return rest == 0 ? place : -1;
  }

 private:
  struct Dim {
    int64_t size, stride, place;
  };
  int64_t offset_;
  std::vector<Dim> dims_;                            // of more than one element, the farthest apart first
  bool nested_ = true;                               // a step along each is longer than all those after it together
  std::unordered_map<int64_t, int64_t> element_at_;  // otherwise
};

// For each element of the view, the position of that element in the flattened argument.
Tensor elements_read(const char* op, const Tensor& x, at::IntArrayRef sizes, at::IntArrayRef strides,
                     const MaybeInt& offset) {
  TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  const Addresses addresses(x);
  std::vector<int64_t> elements;
  for_each_address(sizes, strides, offset.value_or(x.storage_offset()), [&](int64_t, int64_t address) {
    elements.push_back(addresses.element(address));
    if (elements.back() < 0)
      throw UnsupportedError(
          std::string(op) + " is given address " + std::to_string(address) +
          ", where no element of its argument lies. Inside a transform it can only reach elements of "
          "the tensor it is given, and of that which this is a view of. Use indexing, or views such as select, unfold "
          "and diagonal.");
  });
  return at::tensor(elements, at::TensorOptions().dtype(at::kLong)).to(x.device()).view(sizes);
}

// What is read lies in memory in the order that was asked for.
Tensor read_strided(const Tensor& x, const Ints& sizes, const Ints& strides, const MaybeInt& offset) {
  const Tensor places = elements_read("aten::as_strided", x, sizes, strides, offset);
  const auto order = farthest_first(strides);
  const bool repeats = std::find(strides.begin(), strides.end(), 0) != strides.end();
  if (repeats || std::is_sorted(order.begin(), order.end())) return at::take(x, places);
  Ints back(order.size());
  for (size_t d = 0; d < order.size(); ++d) back[static_cast<size_t>(order[d])] = static_cast<int64_t>(d);
  return at::take(x, places.permute(order).contiguous()).permute(back);
}

Tensor write_strided(const Tensor& x, const Tensor& src, const Ints& sizes, const Ints& strides,
                     const MaybeInt& offset) {
  TORCH_CHECK(src.sizes().equals(sizes),
              "expected src to have a size equal to the slice of self. src size = ", src.sizes(),
              ", slice size = ", at::IntArrayRef(sizes));
  const Tensor places = elements_read("aten::as_strided_scatter", x, sizes, strides, offset);
  return at::put(x, places, src.to(x.scalar_type()).expand(sizes));
}

bool addresses_repeat(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::unordered_set<int64_t> seen;
  bool repeat = false;
  for_each_address(sizes, strides, 0,
                   [&](int64_t, int64_t address) { repeat = repeat || !seen.insert(address).second; });
  return repeat;
}

void check_strides(at::IntArrayRef strides) {
  for (const int64_t stride : strides)
    TORCH_CHECK(stride >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ", strides);
}
void demand_strides(const Example& e) { check_strides(e[2].toIntVector()); }

}  // namespace

void view_inverses() {
  // ---- a part of the base replaced ----
  op<at::_ops::select_scatter>().moves(Moves::elements).vmap(write_back({2}));
  op<at::_ops::slice_scatter>().moves(Moves::elements).vmap(write_back({2}));
  op<at::_ops::diagonal_scatter>().moves(Moves::elements).vmap(write_back({3, 4}));
  scatters_of_views();

  // ---- zeros around a part ----
  op<at::_ops::select_backward>()
      .moves(Moves::elements_or_zero)
      .vmap(zeros_around({2}))
      .linear<0>([](Ct<0> ct, Skip, Skip, int64_t dim, int64_t index) { return ct->select(dim, index); });
  op<at::_ops::slice_backward>()
      .moves(Moves::elements_or_zero)
      .vmap(zeros_around({2}))
      .linear<0>([](Ct<0> ct, Skip, Skip, int64_t dim, int64_t start, int64_t end, int64_t step) {
        return at::slice(*ct, dim, start, end, step);
      });
  op<at::_ops::diagonal_backward>()
      .moves(Moves::elements_or_zero)
      .vmap(zeros_around({3, 4}))
      .linear<0>([](Ct<0> ct, Skip, Skip, int64_t offset, int64_t dim1, int64_t dim2) {
        return ct->diagonal(offset, dim1, dim2);
      });
  op<at::_ops::unfold_backward>()
      .small(small::sums)
      .vmap(unfold_backward_vmap)
      .linear<0>(
          [](Ct<0> ct, Skip, Skip, int64_t dim, int64_t size, int64_t step) { return ct->unfold(dim, size, step); });

  // ---- memory by address ----
  op<at::_ops::as_strided>()
      .depends(Depends::on_all)
      .decomposes(read_strided)
      .inverse([](const Tensor& base, const Tensor& written, c10::ArrayRef<IValue> args, size_t) {
        return write_strided(base, written, args[1].toIntVector(), args[2].toIntVector(), args[3].to<MaybeInt>());
      })
      .repeats([](const Tensor&, c10::ArrayRef<IValue> args) {
        return addresses_repeat(args[1].toIntVector(), args[2].toIntVector());
      });
  op<at::_ops::as_strided_copy>().decomposes(read_strided);
  op<at::_ops::as_strided_scatter>().decomposes(write_strided);
  demands<at::_ops::as_strided>(demand_strides);
  demands<at::_ops::as_strided_copy>(demand_strides);
  demands<at::_ops::as_strided_scatter>([](const Example& e) {
    const auto sizes = e[2].toIntVector(), strides = e[3].toIntVector();
    TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
    TORCH_CHECK(at::IntArrayRef(e.sizes(1)) == at::IntArrayRef(sizes),
                "expected src to have a size equal to the slice of self. src size = ", at::IntArrayRef(e.sizes(1)),
                ", slice size = ", at::IntArrayRef(sizes));
    check_strides(strides);
    bool expanded = false;
    for (size_t d = 0; d < sizes.size(); ++d) expanded = expanded || (strides[d] == 0 && sizes[d] > 1);
    TORCH_CHECK(!expanded,
                "unsupported operation: more than one element of the written-to "
                "tensor refers to a single memory location. Please clone() the tensor before performing the "
                "operation.");
  });
}

}  // namespace tower::rules
