// Choosing between values element by element: where, clamp, maximum, masked_fill and their relatives.
#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <algorithm>
#include <limits>

#include "numbers/element.h"
#include "records/demands.h"
#include "records/masks.h"
#include "records/op.h"
#include "records/overwriting.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

using compiler::E;
using compiler::Raw;
using compiler::Type;
using Number = std::optional<Scalar>;

E between(E x, std::optional<E> min, std::optional<E> max) {
  const E raised = min ? at_least(x, *min) : x;
  return max ? at_most(raised, *max) : raised;
}

E finite(E x, std::optional<double> nan, std::optional<double> positive, std::optional<double> negative) {
  if (!x.floating()) return x;
  const E infinity = x.like(std::numeric_limits<double>::infinity());
  const double largest = x.type() == Type::f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  const E low = where(x == -infinity, negative.value_or(-largest), x);
  const E high = where(x == infinity, positive.value_or(largest), low);
  return where(isnan(x), nan.value_or(0), high);
}

// The derivative where two values tie is shared between them.
Tensor half_at_ties(const Tensor& a, const Tensor& b, const Tensor& a_loses, const Tensor& t) {
  return zero_where(a_loses, at::where(a == b, t / 2, t));
}

// The plain operator makes a number of the value, which has to be one of the tensor's dtype: without a fraction, where
// that is of integers, but in its range.
void check_fits(const Tensor& value, at::ScalarType dtype) {
  if (value.scalar_type() == dtype || value.scalar_type() == at::kBool || dtype == at::kBool) return;
  Tensor real = value, beyond;
  if (value.is_complex()) {
    if (at::isComplexType(dtype)) return;
    real = at::real(value);
    beyond = at::imag(value).ne(0);
  }
  if (at::isIntegralType(dtype, false)) {
    const auto [low, high] = AT_DISPATCH_INTEGRAL_TYPES(dtype, "masked_fill", [] {
      return std::pair(at::Scalar(std::numeric_limits<scalar_t>::lowest()),
                       at::Scalar(std::numeric_limits<scalar_t>::max()));
    });
    const bool wraps = dtype == at::kByte && at::isIntegralType(real.scalar_type(), false);  // -1 is 255
    const Tensor outside = real.lt(wraps ? at::Scalar(-high.toLong()) : low).logical_or(real.gt(high));
    beyond = beyond.defined() ? beyond.logical_or(outside) : outside;
  }
  if (!beyond.defined()) return;
  const Tensor found = beyond.any();
  TORCH_CHECK(at::equal(found, at::zeros_like(found)), "value cannot be converted to type ", dtype,
              " without overflow");
}

// The value has no dimensions, so a batched one takes where(); the result has the first argument's dtype.
void vmap_masked_fill(VmapFrame& frame) {
  const int64_t rank = std::max(frame.logical_dim(0), frame.logical_dim(1));
  for (size_t i : {0, 1, 2}) {
    if (!frame.batched(i)) continue;
    frame.to_front(i, false);
    while (frame.tensor(i).dim() <= rank) frame.stack[i] = frame.tensor(i).unsqueeze(1);
  }
  const Tensor self = frame.tensor(0), mask = frame.tensor(1), value = frame.tensor(2);
  if (frame.batched(2)) check_fits(value, self.scalar_type());
  frame.result(frame.batched(2) ? at::where(mask, value.to(self.scalar_type()), self)
                                : at::masked_fill(self, mask, value));
}

bool fill_where(const Tensor& base, const Stack& stack) {
  const Tensor& mask = stack[1].toTensor();
  if (mask.scalar_type() != at::kBool || !at::is_expandable_to(mask.sizes(), base.sizes())) return false;
  base.masked_fill_(mask, stack[2].toScalar());
  return true;
}

void demand_mask(const Example& e) {
  TORCH_CHECK(e.dtype(1) == at::kBool, "masked_fill_ only supports boolean masks, but got mask with dtype ",
              e.dtype(1));
}

}  // namespace

void selection() {
  op<at::_ops::where_self>()
      .pointwise()
      .element([](Raw mask, E a, E b) { return where(mask.to(Type::b1), a, b); })
      .inactive<0>()
      .derivative<1>([](Along t, const Tensor& mask) { return keep_where(mask, *t); })
      .derivative<2>([](Along t, const Tensor& mask) { return zero_where(mask, *t); });

  op<at::_ops::masked_fill_Scalar>()
      .depends(Depends::on_shown)
      .pointwise()
      .evaluated_by(evaluate_in_rows<at::_ops::masked_fill_Scalar, fill_where>)
      .element([](E x, Raw mask, E value) { return where(mask, value, x); })
      .inactive<1>()
      .derivative<0>([](Along t, Skip, const Tensor& mask) { return t->masked_fill(mask, 0); });
  op<at::_ops::masked_fill_Tensor>()
      .depends(Depends::on_shown)
      .element([](E x, Raw mask, E value) { return where(mask, value, x); })
      .vmap(vmap_masked_fill)
      .inactive<1>()
      .derivative<0>([](Along t, Skip, const Tensor& mask) { return t->masked_fill(mask, 0); })
      .derivative<2>([](Along t, Skip, const Tensor& mask) { return keep_where(mask, *t); });

  // ---- clamp: bounds are included, and a missing bound does not bind ----
  op<at::_ops::clamp>().pointwise().element(between).derivative<0>(
      [](Along t, const Tensor& x, const Number& min, const Number& max) {
        if (min && max) return keep_where((x >= *min).logical_and(x <= *max), *t);
        return keep_where(min ? x >= *min : x <= *max, *t);
      });
  op<at::_ops::clamp_min>()
      .pointwise()
      .element([](E x, E low) { return at_least(x, low); })
      .derivative<0>([](Along t, const Tensor& x, const Scalar& min) { return keep_where(x >= min, *t); });
  op<at::_ops::clamp_max>()
      .pointwise()
      .element([](E x, E high) { return at_most(x, high); })
      .derivative<0>([](Along t, const Tensor& x, const Scalar& max) { return keep_where(x <= max, *t); });
  op<at::_ops::clamp_min_Tensor>()
      .pointwise()
      .element([](E x, E low) { return maximum(x, low); })
      .derivative<0>([](Along t, const Tensor& x, const Tensor& min) { return keep_where(x >= min, *t); })
      .derivative<1>([](Along t, const Tensor& x, const Tensor& min) { return keep_where(x < min, *t); });
  op<at::_ops::clamp_max_Tensor>()
      .pointwise()
      .element([](E x, E high) { return minimum(x, high); })
      .derivative<0>([](Along t, const Tensor& x, const Tensor& max) { return keep_where(x <= max, *t); })
      .derivative<1>([](Along t, const Tensor& x, const Tensor& max) { return keep_where(x > max, *t); });
  // Where the bounds cross, the upper one is the value.
  op<at::_ops::clamp_Tensor>()
      .pointwise()
      .element([](E x, std::optional<E> min, std::optional<E> max) {
        const E raised = min ? maximum(x, *min) : x;
        return max ? minimum(raised, *max) : raised;
      })
      .derivative<0>([](Along t, const Tensor& x, const Tensor& min, const Tensor& max) {
        if (min.defined() && max.defined()) return keep_where((x >= min).logical_and(x <= max), *t);
        return keep_where(min.defined() ? x >= min : x <= max, *t);
      })
      .derivative<1>([](Along t, const Tensor& x, const Tensor& min, const Tensor& max) {
        return keep_where(max.defined() ? (x < min).logical_and(min < max) : x < min, *t);
      })
      .derivative<2>([](Along t, const Tensor& x, const Tensor& min, const Tensor& max) {
        return keep_where(min.defined() ? (x > max).logical_or(max < min) : x > max, *t);
      });

  // ---- the larger, the smaller ----
  op<at::_ops::maximum>()
      .pointwise()
      .element([](E a, E b) { return maximum(a, b); })
      .derivative<0>([](Along t, const Tensor& a, const Tensor& b) { return half_at_ties(a, b, a < b, *t); })
      .derivative<1>([](Along t, const Tensor& a, const Tensor& b) { return half_at_ties(a, b, a > b, *t); });
  op<at::_ops::minimum>()
      .pointwise()
      .element([](E a, E b) { return minimum(a, b); })
      .derivative<0>([](Along t, const Tensor& a, const Tensor& b) { return half_at_ties(a, b, a > b, *t); })
      .derivative<1>([](Along t, const Tensor& a, const Tensor& b) { return half_at_ties(a, b, a < b, *t); });
  // fmax and fmin prefer a number to NaN, and give the whole derivative to the first where two values tie.
  op<at::_ops::fmax>()
      .pointwise()
      .element([](E a, E b) { return where((a >= b) | isnan(b), a, b); })
      .derivative<0>(
          [](Along t, const Tensor& a, const Tensor& b) { return keep_where((a >= b).logical_or(b.isnan()), *t); })
      .derivative<1>(
          [](Along t, const Tensor& a, const Tensor& b) { return zero_where((a >= b).logical_or(b.isnan()), *t); });
  op<at::_ops::fmin>()
      .pointwise()
      .element([](E a, E b) { return where((a <= b) | isnan(b), a, b); })
      .derivative<0>(
          [](Along t, const Tensor& a, const Tensor& b) { return keep_where((a <= b).logical_or(b.isnan()), *t); })
      .derivative<1>(
          [](Along t, const Tensor& a, const Tensor& b) { return zero_where((a <= b).logical_or(b.isnan()), *t); });

  op<at::_ops::nan_to_num>().pointwise().element(finite).derivative<0>(
      [](Along t, const Tensor& x) { return keep_where(at::isfinite(x), *t); });
  op<at::_ops::heaviside>()
      .pointwise()
      .element([](E x, E at_zero) { return where(x == 0, at_zero, (x > 0).to(x.type())); })
      .inactive<0>()
      .derivative<1>([](Along t, const Tensor& x) { return keep_where(x == 0, *t); });
  demands<at::_ops::masked_fill_Scalar>(demand_mask);
  demands<at::_ops::masked_fill_Tensor>([](const Example& e) {
    demand_mask(e);
    TORCH_CHECK(e.dim(2) == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
                e.dim(2), " dimension(s).");
    TORCH_CHECK(e.device(2) == e.device(0) || e.device(2).is_cpu(), "Expected a value on ", e.device(0),
                ", as what is filled, or on the CPU, but got one on ", e.device(2));
  });
  demands<at::_ops::heaviside>([](const Example& e) {
    TORCH_CHECK(e.dtype(0) == e.dtype(1), "heaviside is not yet implemented for tensors with different dtypes.");
  });
}

}  // namespace tower::rules
