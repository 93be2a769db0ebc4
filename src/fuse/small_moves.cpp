// Operators that move elements. Where each comes from, the operator says itself: it is run on the elements' numbers.
// Kernels whose lanes are elements ask for these numbers, too (fuse/elsewhere.h).
#include <ATen/Functions.h>

#include "fuse/small.h"

namespace tower::compiler {
namespace {

constexpr int64_t kExact = int64_t{1} << 24;  // whole numbers up to it are floats

// All operands' elements have numbers, one after the other, from `first` on. They are floats where the elements are:
// some operators take no others, and where resampling finds an element is rounded in the type of the elements. Of
// booleans, too: im2col takes these, and no integers.
std::vector<Tensor> numbers_of(const SmallCall& c, int64_t first) {
  int64_t last = first;
  for (const Small* t : c.operands) last += c10::multiply_integers(t->sizes);
  std::vector<Tensor> numbers;
  for (const Small* t : c.operands) {
    const int64_t n = c10::multiply_integers(t->sizes);
    const bool floats = (at::isFloatingType(t->dtype) || t->dtype == at::kBool) && last <= kExact;
    const at::ScalarType dtype = !floats ? at::kLong : t->dtype == at::kDouble ? at::kDouble : at::kFloat;
    numbers.push_back(at::arange(first, first + n, dtype).view(t->sizes));
    first += n;
  }
  return numbers;
}

Id element(const SmallCall& c, size_t number) {
  for (const Small* t : c.operands) {
    if (number < t->ids.size()) return t->ids[number];
    number -= t->ids.size();
  }
  return kNone;
}

}  // namespace

Origins origins(const SmallCall& c) {
  switch (c.op.moves) {
    case Moves::no:
      return {};
    case Moves::elements:
    case Moves::broadcast:
      return {c.run(numbers_of(c, 0))};
    case Moves::elements_or_zero:
      // Zero is then no element's number.
      return {c.run(numbers_of(c, 1)), 1};
    case Moves::elements_or_value: {
      const auto value = static_cast<size_t>(c.op.schema().argumentIndexWithName("value").value());
      Stack args(c.args.begin(), c.args.end());
      const at::Scalar filled = args[value].toScalar();
      args[value] = at::Scalar(0);
      return {c.run(std::move(args), numbers_of(c, 1)), 1, filled};
    }
    case Moves::in_order: {
      // Strides, where there are any, are about memory, which elements have none of.
      const auto size = c.op.schema().argumentIndexWithName("size");
      if (!size) return {c.run(numbers_of(c, 0))};
      return {{numbers_of(c, 0)[0].reshape(c.args[static_cast<size_t>(*size)].toIntVector())}};
    }
    case Moves::nothing:
      return {{numbers_of(c, 0).at(0)}};
  }
  return {};
}

SmallResults moved(const SmallCall& c) {
  const Origins from = origins(c);
  SmallResults all;
  for (size_t k = 0; k < from.results.size(); ++k) {
    const Tensor flat = from.results[k].to(at::kLong).contiguous();
    const auto* numbers = flat.const_data_ptr<int64_t>();
    Small t{Sizes(flat.sizes()), {}, c.dtypes[k]};
    const Type type = c.type(k);
    for (int64_t i = 0; i < flat.numel(); ++i)
      t.ids.push_back(numbers[i] < from.first
                          ? detail::number(c.graph, type, from.filled).id()
                          : c.graph.cast(element(c, static_cast<size_t>(numbers[i] - from.first)), type));
    all.push_back(std::move(t));
  }
  return all;
}

}  // namespace tower::compiler
