// Making tensors: from a shape, or like another tensor. What is made does not depend on the example, so that under vmap
// a constant of one example's shape is enough; it becomes batched when something batched is written to it.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <algorithm>

#include "records/demands.h"
#include "records/dims.h"
#include "records/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

// What is made is like any of the examples, order in memory included.
void like_vmap(VmapFrame& f) {
  const Tensor t = f.tensor(0);
  f.stack[0] = f.batch_size > 0 ? t.select(f.in_dims[0], 0) : at::empty(logical_sizes(f, 0), t.options());
  f.call();
  f.out_dims.assign(1, VmapFrame::kUnbatched);
}

template <class... Op>
void makes_constant() {
  (op<Op>().vmap(like_vmap).no_derivative(), ...);
  ((record_of(Op::name, Op::overload_name).reads_shapes_alone = true), ...);
}

using MaybeType = std::optional<at::ScalarType>;
using MaybeLayout = std::optional<at::Layout>;
using MaybeDevice = std::optional<at::Device>;

at::ScalarType result_type(const MaybeType& type) {
  return type.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

// LibTorch makes integers of the ends first, and of what lies between them last: rounding decides, so it is computed in
// the same order.
Tensor spaced_integers(const Tensor& start, const Tensor& end, int64_t steps, at::ScalarType result) {
  const Tensor first = start.to(result).to(at::kDouble), last = end.to(result).to(at::kDouble);
  const Tensor step = (last - first) / static_cast<double>(std::max<int64_t>(steps - 1, 1));
  const Tensor index = at::arange(steps, first.options());
  return at::where(index.lt(std::max<int64_t>(steps / 2, 1)), first + step * index, last - step * (steps - 1 - index));
}

// Evenly spaced numbers whose ends are tensors: a mixture of the two.
Tensor spaced(const Tensor& start, const Tensor& end, int64_t steps, at::ScalarType result) {
  TORCH_CHECK(start.dim() == 0 && end.dim() == 0, "linspace only supports 0-dimensional start and end tensors");
  if (c10::isIntegralType(result, true)) return spaced_integers(start, end, steps, result);
  const Tensor share = at::linspace(0, 1, steps, start.options().dtype(result));
  return at::where(share.lt(0.5), start + share * (end - start), end - (1 - share) * (end - start)).to(result);
}

// What a call asks for beside the numbers. Without a device it is LibTorch's default, wherever the ends are.
struct Asked {
  at::ScalarType type;
  at::Device device;
  Asked(const MaybeType& type, const MaybeDevice& device)
      : type(result_type(type)), device(device.value_or(at::kCPU)) {}
};

Tensor between(const Tensor& start, const Tensor& end, int64_t steps, const Asked& asked) {
  return spaced(start.to(asked.device), end.to(asked.device), steps, asked.type).to(asked.type);
}
Tensor powers_between(double base, const Tensor& start, const Tensor& end, int64_t steps, const Asked& asked) {
  return at::pow(base, spaced(start.to(asked.device), end.to(asked.device), steps, asked.type)).to(asked.type);
}
Tensor number(const Scalar& value, const Tensor& like) {
  return at::scalar_tensor(value, like.options().dtype(value.isComplex() ? at::kComplexDouble : at::kDouble));
}

}  // namespace

void factories() {
  makes_constant<at::_ops::zeros_like, at::_ops::ones_like, at::_ops::full_like, at::_ops::empty_like,
                 at::_ops::new_zeros, at::_ops::new_ones, at::_ops::new_full, at::_ops::new_empty,
                 at::_ops::new_empty_strided>();

  // The first `batch_dims` sizes are those of `x`, all else is that of `like`.
  op<at::_ops::_new_zeros_with_same_feature_meta>().decomposes(
      [](const Tensor& x, const Tensor& like, int64_t batch_dims) {
        std::vector<int64_t> sizes = x.sizes().slice(0, static_cast<size_t>(batch_dims)).vec();
        sizes.insert(sizes.end(), like.sizes().begin(), like.sizes().end());
        return at::zeros(sizes, like.options());
      });

  op<at::_ops::linspace_Tensor_Tensor>().decomposes([](const Tensor& start, const Tensor& end, int64_t steps,
                                                       const MaybeType& type, const MaybeLayout&,
                                                       const MaybeDevice& device) {
    return between(start, end, steps, {type, device});
  });
  op<at::_ops::linspace_Tensor_Scalar>().decomposes([](const Tensor& start, const Scalar& end, int64_t steps,
                                                       const MaybeType& type, const MaybeLayout&,
                                                       const MaybeDevice& device) {
    return between(start, number(end, start), steps, {type, device});
  });
  op<at::_ops::linspace_Scalar_Tensor>().decomposes([](const Scalar& start, const Tensor& end, int64_t steps,
                                                       const MaybeType& type, const MaybeLayout&,
                                                       const MaybeDevice& device) {
    return between(number(start, end), end, steps, {type, device});
  });
  op<at::_ops::logspace_Tensor_Tensor>().decomposes([](const Tensor& start, const Tensor& end, int64_t steps,
                                                       double base, const MaybeType& type, const MaybeLayout&,
                                                       const MaybeDevice& device) {
    return powers_between(base, start, end, steps, {type, device});
  });
  op<at::_ops::logspace_Tensor_Scalar>().decomposes([](const Tensor& start, const Scalar& end, int64_t steps,
                                                       double base, const MaybeType& type, const MaybeLayout&,
                                                       const MaybeDevice& device) {
    return powers_between(base, start, number(end, start), steps, {type, device});
  });
  op<at::_ops::logspace_Scalar_Tensor>().decomposes([](const Scalar& start, const Tensor& end, int64_t steps,
                                                       double base, const MaybeType& type, const MaybeLayout&,
                                                       const MaybeDevice& device) {
    return powers_between(base, number(start, end), end, steps, {type, device});
  });
  for (const char* name : {"aten::linspace", "aten::logspace"})
    for (const char* overload : {"Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"})
      guard(record_of(name, overload), [](const Example& e) {
        const size_t type = e.op().schema().argumentIndexWithName("dtype").value();
        const at::ScalarType wanted = result_type(e[type].to<MaybeType>());
        for (const size_t i : {0, 1})
          TORCH_CHECK(!e.has(i) || !e.is_complex(i) || c10::isComplexType(wanted), e.op().name(), "(): inferred dtype ",
                      e.dtype(i), " can't be safely cast to passed dtype ", wanted);
      });
}

}  // namespace tower::rules
