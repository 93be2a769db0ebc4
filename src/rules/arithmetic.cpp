// Addition, subtraction, multiplication, division, powers and their relatives; copies and fills.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/bind.h"
#include "core/broadcast.h"
#include "numbers/bits.h"
#include "records/linearity.h"
#include "records/masks.h"
#include "records/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

using Mode = std::optional<std::string>;
using compiler::E;
using compiler::Raw;
using compiler::Type;

Scalar one() { return 1; }
Scalar minus_one() { return -1; }

Scalar one_minus(const Scalar& a) {
  if (a.isComplex()) return 1.0 - a.toComplexDouble();
  return 1.0 - a.toDouble();
}
bool is_zero(const Scalar& a) { return a.isComplex() ? a.toComplexDouble() == 0.0 : a.toDouble() == 0.0; }

// a + factor·b.
template <class Op>
void sum_with(Scalar (*factor)(const Scalar& alpha)) {
  op<Op>()
      .pointwise()
      .template vjp<0>([](Ct<0> ct, Like<0> a) { return summed_to(*ct, a->sizes); })
      .template vjp<1>([factor](Ct<0> ct, Skip, Skip, const Scalar& alpha, Like<1> b) {
        return summed_to(times(*ct, factor(alpha).conj()), b->sizes);
      })
      .template jvp<0, 1>([factor](Skip, Skip, const Scalar& alpha, Tan<0> da, Tan<1> db) {
        if (!db->defined()) return *da;
        return da->defined() ? at::add(*da, *db, factor(alpha)) : times(*db, factor(alpha));
      });
}

// x to a whole power by multiplications: pow goes through logarithms, which takes as long as fifteen of them.
Tensor whole_power(const Tensor& x, uint64_t n) {
  Tensor y = x;
  for (int bit = std::bit_width(n) - 2; bit >= 0; --bit) {
    y = y * y;
    if (n >> bit & 1) y = y * x;
  }
  return y;
}

// t p x^(p - 1), and zero for p = 0.
Tensor along_power(const Tensor& t, const Tensor& x, const Scalar& p) {
  if (p.isComplex()) return t * (x.pow(p.toComplexDouble() - 1.0) * p);
  const double exponent = p.toDouble(), less = exponent - 1;
  if (exponent == 0.0) return Tensor();
  if (exponent == 1.0) return t;
  if (less == 1.0) return times(t, x * 2);
  // From -2 to 3 pow multiplies itself; beyond 8 it is the more exact.
  const bool multiplies = less == std::trunc(less) && (less < -2 || less > 3) && std::abs(less) <= 8;
  if (multiplies && x.is_floating_point()) {
    const auto n = static_cast<uint64_t>(std::abs(less));
    if (less > 0) return times(t, whole_power(x, n)) * p;
    // In halves: x^n may be infinite where t / x^n is none too small.
    const Tensor some = whole_power(x, n / 2), others = n % 2 == 0 ? some : some * x;
    return t / some / others * p;
  }
  return times(t, x.pow(p.isFloatingPoint() ? Scalar(less) : Scalar(p.toLong() - 1)) * p);
}

// x y' = p y x'. Not of positive powers, whose derivatives at zero may be finite: those below them are negative soon.
Tensor slope_of_power(const Tensor& t, const Stack& args, const Tensor& y) {
  const Tensor x = args[0].toTensor();
  const Scalar p = args[1].toScalar();
  if (!x.is_floating_point() || p.isComplex() || p.toDouble() >= 0) return {};
  return t * y / x * p;
}

// Where 0 to the power p is constant in p: p >= 0.
Tensor nonnegative(const Tensor& p) {
  if (!p.is_complex()) return p >= 0;
  return (at::imag(p) == 0).logical_and(at::real(p) >= 0);
}

// a / (x² + y²), and zero where that is zero.
Tensor over_square(const Tensor& a, const Tensor& y, const Tensor& x) {
  const Tensor square = y * y + x * x;
  return zero_where(square == 0, a / square);
}

// The result has the first argument's dtype and logical shape, whatever the second one's.
void vmap_copy(VmapFrame& frame) {
  for (size_t i : {size_t{0}, size_t{1}}) frame.to_front(i, i == 0);
  const Tensor self = frame.tensor(0);
  Tensor source = frame.tensor(1);
  if (frame.batched(1))
    while (source.dim() < self.dim()) source = source.unsqueeze(1);
  static const Operator& copy = *Operator::find("aten::copy", "");
  Stack call{self, source, false};
  bind_call(copy, call);
  frame.result(call[0].toTensor());
}

// ---- elements ----

// ⌊a / b⌋, which for floats is not the floor of the rounded quotient.
E floor_divided(E a, E b) {
  const E rest = fmod(a, b);
  const E apart = (rest != 0) & ((b < 0) ^ (rest < 0));
  if (!a.floating()) return where(apart, a / b - 1, a / b);
  const E simple = a / b, exact = (a - rest) / b, quotient = where(apart, exact - 1, exact);
  const E rounded = floor(quotient), whole = where(quotient - rounded > 0.5, rounded + 1, rounded);
  return where(b == 0, simple, where(quotient == 0, copysign(a.like(0), simple), whole));
}

// a - alpha b. The number is negated as such: of the integer 0 there is no -0.
E difference(E a, E b, const Scalar& alpha) { return fma(b, a.like(-alpha), a); }

std::optional<E> divided(E a, E b, const Mode& mode) {
  if (!mode) return a / b;
  if (*mode == "trunc") return trunc(a / b);
  if (*mode == "floor") return floor_divided(a, b);
  return std::nullopt;
}

// With the sign of b.
E remainder(E a, E b) {
  const E rest = fmod(a, b);
  return where((rest != 0) & ((b < 0) ^ (rest < 0)), rest + b, rest);
}

// LibTorch's kernels take the exponents that occur apart.
std::optional<E> power(E x, const Scalar& p) {
  if (p.isComplex()) return std::nullopt;
  const double exponent = p.toDouble();
  if (exponent == 0) return x.like(1);
  if (exponent == 1) return x;
  if (exponent == 2) return x * x;
  if (exponent == 3) return x * x * x;
  if (!x.floating()) return std::nullopt;
  // Of half types the others are rounded otherwise.
  if (is_half(x.type()) && exponent != 0.5 && exponent != -1 && exponent != -2) return std::nullopt;
  if (exponent == 0.5) return sqrt(x);
  if (exponent == -0.5) return 1 / sqrt(x);
  if (exponent == -1) return 1 / x;
  if (exponent == -2) return 1 / (x * x);
  return pow(x, x.like(exponent));
}

// Integers' powers are not computed by multiplication.
std::optional<E> floating_power(E x, E p) { return x.floating() ? std::optional(pow(x, p)) : std::nullopt; }

// x 2^n, rounded once. In float64 by steps, of which those that make a number smaller leave it normal until the last.
E scaled_by_power(E x, E n) {
  const auto power = [](E k) { return bits(shift_left(k + 1023, k.like(52))); };
  if (x.type() == Type::f32) return (x.to(Type::f64) * power(at_most(at_least(n, -600), 600))).to(Type::f32);
  for (int step = 0; step < 2; ++step) {
    const E up = n > 1023, down = n < -1022;
    x = where(up, x * 0x1p1023, where(down, x * 0x1p-969, x));
    n = where(up, n - 1023, where(down, n + 969, n));
  }
  return x * power(at_most(at_least(n, -1022), 1023));
}
std::optional<E> times_power(Raw x, Raw n) {
  if (!x.floating()) return std::nullopt;
  if (n.floating()) return n.type() == x.type() ? std::optional(x * pow(x.like(2), n)) : std::nullopt;
  return scaled_by_power(x, n.to(Type::i64));
}

// The float next to x on the way to another one, whose bits are those of the next integer.
std::optional<E> next_after(E x, E toward) {
  if (!x.floating()) return std::nullopt;
  const bool wide = x.type() == Type::f64;
  const E up = bits(x), away = (x < toward) ^ (x < 0);
  const E next = bits(where(away, up + 1, up - 1));
  const double least = wide ? std::numeric_limits<double>::denorm_min() : std::numeric_limits<float>::denorm_min();
  const E from_zero = copysign(x.like(least), toward);
  return where(isnan(x) | isnan(toward), x + toward, where(x == toward, toward, where(x == 0, from_zero, next)));
}

// start + weight (end - start), from the nearer end.
E interpolated(E start, E end, E weight) {
  const E near = abs(weight) < 0.5;
  return fma(where(near, weight, weight - 1), end - start, where(near, start, end));
}

}  // namespace

void arithmetic() {
  // ---- sums ----
  sum_with<at::_ops::add_Tensor>([](const Scalar& alpha) { return alpha; });
  op<at::_ops::add_Tensor>().element([](E a, E b, E alpha) { return fma(b, alpha, a); });
  op<at::_ops::add_Scalar>().pointwise().element([](E a, E b, E alpha) { return fma(b, alpha, a); }).derivative<0>(one);
  sum_with<at::_ops::sub_Tensor>([](const Scalar& alpha) { return -alpha; });
  op<at::_ops::sub_Tensor>().element(difference);
  op<at::_ops::sub_Scalar>().pointwise().element(difference).derivative<0>(one);
  op<at::_ops::rsub_Tensor>()
      .pointwise()
      .element([](E a, E b, const Scalar& alpha) { return difference(b, a, alpha); })
      .derivative<0>([](Skip, Skip, const Scalar& alpha) { return -alpha; })
      .derivative<1>(one);
  op<at::_ops::rsub_Scalar>()
      .pointwise()
      .element([](E a, E b, const Scalar& alpha) { return difference(b, a, alpha); })
      .derivative<0>([](Skip, Skip, const Scalar& alpha) { return -alpha; });
  op<at::_ops::neg>().pointwise().element([](E a) { return -a; }).derivative<0>(minus_one);

  // ---- products ----
  op<at::_ops::mul_Tensor>()
      .pointwise()
      .element([](E a, E b) { return a * b; })
      .derivative<0>([](Skip, const Tensor& b) { return b; })
      .derivative<1>([](const Tensor& a) { return a; });
  linearity<at::_ops::mul_Tensor>(Linearity::product);
  op<at::_ops::mul_Scalar>()
      .pointwise()
      .element([](E a, E b) { return a * b; })
      .derivative<0>([](Skip, const Scalar& b) { return b; });
  op<at::_ops::addcmul>()
      .pointwise()
      .element([](E x, E a, E b, E value) { return fma(value * a, b, x); })
      .derivative<0>(one)
      .derivative<1>([](Along t, Skip, Skip, const Tensor& b, const Scalar& value) { return *t * (b * value); })
      .derivative<2>([](Along t, Skip, const Tensor& a, Skip, const Scalar& value) { return *t * (a * value); });
  op<at::_ops::lerp_Scalar>()
      .pointwise()
      .element(interpolated)
      .derivative<0>([](Skip, Skip, const Scalar& weight) { return one_minus(weight); })
      .derivative<1>([](Skip, Skip, const Scalar& weight) { return weight; });
  op<at::_ops::lerp_Tensor>()
      .pointwise()
      .element(interpolated)
      .derivative<0>([](Skip, Skip, const Tensor& weight) { return at::rsub(weight, 1); })
      .derivative<1>([](Skip, Skip, const Tensor& weight) { return weight; })
      .derivative<2>([](const Tensor& start, const Tensor& end) { return end - start; });

  // ---- quotients ----
  op<at::_ops::div_Tensor>()
      .pointwise()
      .element([](E a, E b) { return a / b; })
      .derivative<0>([](Along t, Skip, const Tensor& b) { return *t / b; })
      .derivative<1>([](Along t, Skip, const Tensor& b, Out<0> y) { return -*t * (*y / b); });
  linearity<at::_ops::div_Tensor>(Linearity::quotient);
  op<at::_ops::div_Scalar>()
      .pointwise()
      .element([](E a, E b) { return a / b; })
      .derivative<0>([](Along t, Skip, const Scalar& b) { return *t / b; });
  op<at::_ops::div_Tensor_mode>()
      .pointwise()
      .element(divided)
      .derivative<0>([](Along t, Skip, const Tensor& b, const Mode& mode) { return mode ? Tensor() : *t / b; })
      .derivative<1>([](Along t, const Tensor& a, const Tensor& b, const Mode& mode) {
        return mode ? Tensor() : -*t * ((a / b) / b);
      });
  op<at::_ops::div_Scalar_mode>().pointwise().element(divided).derivative<0>(
      [](Along t, Skip, const Scalar& b, const Mode& mode) { return mode ? Tensor() : *t / b; });
  op<at::_ops::floor_divide>().pointwise().element(floor_divided).inactive<0, 1>();
  op<at::_ops::floor_divide_Scalar>().pointwise().element(floor_divided).inactive<0>();
  op<at::_ops::reciprocal>().pointwise().element([](E x) { return 1 / x; }).derivative<0>([](Out<0> y) {
    return -(*y * *y);
  });
  op<at::_ops::addcdiv>()
      .pointwise()
      .element([](E x, E a, E b, E value) { return x + value * a / b; })
      .derivative<0>(one)
      .derivative<1>([](Along t, Skip, Skip, const Tensor& b, const Scalar& value) { return *t * (value / b); })
      .derivative<2>([](Along t, Skip, const Tensor& a, const Tensor& b, const Scalar& value) {
        return -*t * (a * value / (b * b));
      });

  // a mod b = a - b ⌊a / b⌋, and the quotient is piecewise constant.
  op<at::_ops::remainder_Tensor>().pointwise().element(remainder).derivative<0>(one).derivative<1>(
      [](const Tensor& a, const Tensor& b) { return -a.div(b, "floor"); });
  op<at::_ops::remainder_Scalar>().pointwise().element(remainder).derivative<0>(one);
  op<at::_ops::remainder_Scalar_Tensor>().pointwise().element(remainder).derivative<1>(
      [](const Scalar& a, const Tensor& b) { return -at::full_like(b, a).div(b, "floor"); });
  op<at::_ops::fmod_Tensor>()
      .pointwise()
      .element([](E a, E b) { return fmod(a, b); })
      .derivative<0>(one)
      .derivative<1>([](const Tensor& a, const Tensor& b) { return -a.div(b, "trunc"); });
  op<at::_ops::fmod_Scalar>().pointwise().element([](E a, E b) { return fmod(a, b); }).derivative<0>(one);

  // ---- powers ----
  // x^0 is constant in x, also at 0; 0^p is constant in p where p >= 0.
  op<at::_ops::pow_Tensor_Scalar>().pointwise().element(power).derivative<0>(
      [](Along t, const Tensor& x, const Scalar& p) { return along_power(*t, x, p); });
  slope_by_result<at::_ops::pow_Tensor_Scalar>(slope_of_power);
  op<at::_ops::pow_Tensor_Tensor>()
      .pointwise()
      .element(floating_power)
      .derivative<0>(
          [](Along t, const Tensor& x, const Tensor& p) { return zero_where(p == 0, *t * (p * x.pow(p - 1))); })
      .derivative<1>([](Along t, const Tensor& x, const Tensor& p, Out<0> y) {
        return *t * zero_where((x == 0).logical_and(nonnegative(p)), *y * x.to(y->scalar_type()).log());
      });
  op<at::_ops::pow_Scalar>()
      .pointwise()
      .element(floating_power)
      .derivative<1>([](Along t, const Scalar& x, const Tensor& p, Out<0> y) {
        const Tensor slope = *y * x.log();
        return *t * (is_zero(x) ? zero_where(nonnegative(p), slope) : slope);
      });
  op<at::_ops::ldexp_Tensor>()
      .pointwise()
      .element(times_power)
      .derivative<0>([](Skip, const Tensor& e) { return at::pow(2.0, e); })
      .derivative<1>([](Along t, Skip, Skip, Out<0> y) { return *t * (*y * M_LN2); });

  // ---- lengths and angles ----
  op<at::_ops::hypot>()
      .pointwise()
      .element([](E a, E b) { return hypot(a, b); })
      .derivative<0>([](Along t, const Tensor& a, Skip, Out<0> y) { return *t * (a / *y); })
      .derivative<1>([](Along t, Skip, const Tensor& b, Out<0> y) { return *t * (b / *y); });
  // At the origin, where there is no angle, LibTorch takes zero.
  op<at::_ops::atan2>()
      .pointwise()
      .element([](E y, E x) { return atan2(y, x); })
      .derivative<0>([](Along t, const Tensor& y, const Tensor& x) { return *t * over_square(x, y, x); })
      .derivative<1>([](Along t, const Tensor& y, const Tensor& x) { return -*t * over_square(y, y, x); });
  op<at::_ops::copysign_Tensor>()
      .pointwise()
      .element([](E x, E sign) { return copysign(x, sign); })
      .derivative<0>([](const Tensor& x, Skip, Out<0> y) { return zero_where(x == 0, *y / x); })
      .inactive<1>();
  op<at::_ops::copysign_Scalar>()
      .pointwise()
      .element([](E x, E sign) { return copysign(x, sign); })
      .derivative<0>([](const Tensor& x, Skip, Out<0> y) { return zero_where(x == 0, *y / x); });
  op<at::_ops::nextafter>()
      .pointwise()
      .element(next_after)
      .derivative<0>([](Along t, const Tensor& x, const Tensor& toward) { return keep_where(x != toward, *t); })
      .inactive<1>();

  // ---- integers ----
  op<at::_ops::gcd>().pointwise().no_derivative();
  op<at::_ops::lcm>().pointwise().no_derivative();

  // ---- what in-place writes become ----
  // LibTorch's autograd knows copy_ and zeros_like, but not the functional operators of these names.
  op<at::_ops::copy>()
      .depends(Depends::on_second)
      .element([](Skip, Raw source) { return source; })
      .vmap(vmap_copy)
      .inactive<0>()
      .derivative<1>(one)
      .evaluated_by([](Stack& stack) {
        const Tensor result = at::empty_like(stack[0].toTensor()).copy_(stack[1].toTensor(), stack[2].toBool());
        stack.assign(1, result);
      });
  op<at::_ops::fill_Scalar>().pointwise().element([](Skip, E value) { return value; }).inactive<0>();
  op<at::_ops::fill_Tensor>()
      .element([](Skip, E value) { return value; })
      .vmap([](VmapFrame& frame) {
        if (frame.batched(1)) return vmap_copy(frame);
        frame.to_front(0, false);
        frame.call();
      })
      .inactive<0>()
      .derivative<1>(one);
  op<at::_ops::zero>().pointwise().element([](E x) { return x.like(0); }).inactive<0>().evaluated_by([](Stack& stack) {
    stack[0] = at::zeros_like(stack[0].toTensor());
  });
}

}  // namespace tower::rules
