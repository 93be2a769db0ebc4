// Operators that move elements. Where each comes from, the operator says itself: it is run on the elements' numbers.
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
  for (const Small* t : c.operands) last += static_cast<int64_t>(t->ids.size());
  std::vector<Tensor> numbers;
  for (const Small* t : c.operands) {
    const auto n = static_cast<int64_t>(t->ids.size());
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

// `results` are numbers of elements: the tensors of these elements. Numbers below `first` stand for `filled`.
SmallResults elements_of(const SmallCall& c, c10::ArrayRef<Tensor> results, int64_t first, double filled) {
  SmallResults all;
  for (size_t k = 0; k < results.size(); ++k) {
    const Tensor flat = results[k].to(at::kLong).contiguous();
    const auto* numbers = flat.const_data_ptr<int64_t>();
    Small t{Sizes(flat.sizes()), {}, c.dtypes[k]};
    const Type type = c.type(k);
    for (int64_t i = 0; i < flat.numel(); ++i)
      t.ids.push_back(numbers[i] < first ? c.graph.constant(type, filled)
                                         : c.graph.cast(element(c, static_cast<size_t>(numbers[i] - first)), type));
    all.push_back(std::move(t));
  }
  return all;
}

}  // namespace

SmallResults moved(const SmallCall& c) {
  switch (c.op.moves) {
    case Moves::no:
      return {};
    case Moves::elements:
    case Moves::broadcast:
      return elements_of(c, c.run(numbers_of(c, 0)), 0, 0);
    case Moves::elements_or_zero:
      // Zero is then no element's number.
      return elements_of(c, c.run(numbers_of(c, 1)), 1, 0);
    case Moves::elements_or_value: {
      const auto value = static_cast<size_t>(c.op.schema().argumentIndexWithName("value").value());
      Stack args(c.args.begin(), c.args.end());
      const double filled = args[value].toScalar().toDouble();
      args[value] = at::Scalar(0);
      return elements_of(c, c.run(std::move(args), numbers_of(c, 1)), 1, filled);
    }
    case Moves::in_order: {
      // Strides, where there are any, are about memory, which elements have none of.
      const auto size = c.op.schema().argumentIndexWithName("size");
      if (!size) return elements_of(c, c.run(numbers_of(c, 0)), 0, 0);
      return elements_of(c, {numbers_of(c, 0)[0].reshape(c.args[static_cast<size_t>(*size)].toIntVector())}, 0, 0);
    }
    case Moves::nothing:
      return elements_of(c, numbers_of(c, 0), 0, 0);
  }
  return {};
}

}  // namespace tower::compiler
