// Kernels' arithmetic is LibTorch's, bit by bit, on the numbers where it goes wrong if anywhere; functions of the
// vector library are within two units in the last place of what a longer type says.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>

#include "compile/kernels.h"
#include "numbers/element.h"

namespace {

namespace compiler = tower::compiler;
using compiler::E;
using kernels::compute;
using kernels::special;
using kernels::special_pairs;
using tower::compiler::Expressions;
using tower::compiler::Id;
using tower::compiler::Op;
using Tensors = std::vector<at::Tensor>;

kernels::Build of(Op op) {
  return [op](Expressions& g, const std::vector<Id>& in) {
    return std::vector{g.make(op, in[0], in.size() > 1 ? in[1] : tower::compiler::kNone,
                              in.size() > 2 ? in[2] : tower::compiler::kNone)};
  };
}

void expect_same(Op op, const Tensors& inputs, const at::Tensor& expected) {
  SCOPED_TRACE(std::string(name(op)) + " of " + toString(inputs[0].scalar_type()));
  EXPECT_EQ(kernels::bit_difference(compute(inputs, of(op)), expected, inputs), "");
}

// As C has it; LibTorch's vectors have NaN where the quotient overflows.
at::Tensor rest_of(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor y = at::empty_like(a);
  const at::Tensor of = a.contiguous(), by = b.contiguous();
  for (int64_t i = 0; i < y.numel(); ++i) {
    if (a.scalar_type() == at::kFloat)
      y.mutable_data_ptr<float>()[i] = std::fmod(of.const_data_ptr<float>()[i], by.const_data_ptr<float>()[i]);
    else y.mutable_data_ptr<double>()[i] = std::fmod(of.const_data_ptr<double>()[i], by.const_data_ptr<double>()[i]);
  }
  return y;
}

// As IEEE 754 has it; LibTorch's own is sometimes off by the last bit, where a vector library computes it.
at::Tensor rooted(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (x.scalar_type() == at::kFloat) y.mutable_data_ptr<float>()[i] = std::sqrt(x.const_data_ptr<float>()[i]);
    else y.mutable_data_ptr<double>()[i] = std::sqrt(x.const_data_ptr<double>()[i]);
  }
  return y;
}

TEST(KernelArithmetic, OfFloatsIsBitEqualToLibTorchs) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto [a, b] = special_pairs(dtype);
    expect_same(Op::add, {a, b}, a + b);
    expect_same(Op::sub, {a, b}, a - b);
    expect_same(Op::mul, {a, b}, a * b);
    expect_same(Op::div, {a, b}, a / b);
    expect_same(Op::copysign, {a, b}, at::copysign(a, b));
    expect_same(Op::fmod, {a, b}, rest_of(a, b));
    const at::Tensor x = special(dtype);
    expect_same(Op::neg, {x}, -x);
    expect_same(Op::abs, {x}, x.abs());
    expect_same(Op::sqrt, {x}, rooted(x));
    expect_same(Op::floor, {x}, x.floor());
    expect_same(Op::ceil, {x}, x.ceil());
    expect_same(Op::trunc, {x}, x.trunc());
    expect_same(Op::round, {x}, x.round());
    const at::Tensor as_integers = x.view(dtype == at::kFloat ? at::kInt : at::kLong);
    expect_same(Op::bits, {x}, as_integers);
    expect_same(Op::bits, {as_integers}, x);
  }
}

TEST(KernelArithmetic, OfIntegersIsBitEqualToLibTorchsAndWrapsAround) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : {at::kInt, at::kLong}) {
    const auto [a, b] = special_pairs(dtype);
    expect_same(Op::add, {a, b}, a + b);
    expect_same(Op::sub, {a, b}, a - b);
    expect_same(Op::mul, {a, b}, a * b);
    expect_same(Op::bit_and, {a, b}, a.bitwise_and(b));
    expect_same(Op::bit_or, {a, b}, a.bitwise_or(b));
    expect_same(Op::bit_xor, {a, b}, a.bitwise_xor(b));
    const at::Tensor x = special(dtype);
    expect_same(Op::neg, {x}, -x);
    expect_same(Op::abs, {x}, x.abs());
  }
}

TEST(KernelArithmetic, DivisionOfIntegersIsLibTorchs) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : {at::kInt, at::kLong}) {
    auto [a, b] = special_pairs(dtype);
    // The smallest by −1 stops LibTorch's process.
    const at::Tensor smallest = a == special(dtype).min(),
                     defined = (b != 0).logical_and(smallest.logical_and(b == -1).logical_not());
    a = a.masked_select(defined);
    b = b.masked_select(defined);
    expect_same(Op::quotient, {a, b}, at::div(a, b, "trunc"));
    expect_same(Op::rest, {a, b}, at::fmod(a, b));
  }
}

TEST(KernelArithmetic, TheSmallestIntegerByMinusOneWrapsAround) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : {at::kInt, at::kLong}) {
    const at::Tensor a = special(dtype).min().reshape(1), b = at::full({1}, -1, dtype);
    expect_same(Op::quotient, {a, b}, a);
    expect_same(Op::rest, {a, b}, at::zeros({1}, dtype));
  }
}

TEST(KernelArithmetic, AnIntegerDividedByZeroIsAnErrorWhereverItIs) {
  TOWER_NEEDS_LLVM();
  for (const int64_t n : {1, 7, 64, 100003}) {
    for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
      const at::Tensor a = at::ones({n}, at::kLong), b = at::ones({n}, at::kLong);
      EXPECT_NO_THROW(compute({a, b}, of(Op::quotient)));
      b[at] = 0;
      EXPECT_THROW(compute({a, b}, of(Op::quotient)), c10::Error) << n << ' ' << at;
      EXPECT_THROW(compute({a, b}, of(Op::rest)), c10::Error) << n << ' ' << at;
    }
  }
}

TEST(KernelArithmetic, ComparisonsAreLibTorchs) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt, at::kLong, at::kBool}) {
    const auto [a, b] = special_pairs(dtype);
    expect_same(Op::eq, {a, b}, a == b);
    expect_same(Op::ne, {a, b}, a != b);
    expect_same(Op::lt, {a, b}, a < b);
    expect_same(Op::le, {a, b}, a <= b);
  }
}

TEST(KernelArithmetic, BooleansAddAsOrAndMultiplyAsAnd) {
  TOWER_NEEDS_LLVM();
  const auto [a, b] = special_pairs(at::kBool);
  expect_same(Op::add, {a, b}, a + b);
  expect_same(Op::mul, {a, b}, a * b);
  expect_same(Op::bit_xor, {a, b}, a.logical_xor(b));
}

TEST(KernelArithmetic, SelectionIsWhere) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt, at::kLong, at::kBool}) {
    const auto [a, b] = special_pairs(dtype);
    const at::Tensor mask = at::arange(a.numel()).remainder(3) == 1;
    expect_same(Op::select, {mask, a, b}, at::where(mask, a, b));
  }
}

TEST(KernelArithmetic, FusedMultiplicationAndAdditionRoundsOnceAndOrdinaryOnesRoundTwice) {
  TOWER_NEEDS_LLVM();
  const auto [a, b] = special_pairs(at::kDouble);
  const at::Tensor c = b.flip(0);
  at::Tensor fused = at::empty_like(a);
  for (int64_t i = 0; i < a.numel(); ++i)
    fused.mutable_data_ptr<double>()[i] =
        std::fma(a.const_data_ptr<double>()[i], b.const_data_ptr<double>()[i], c.const_data_ptr<double>()[i]);
  expect_same(Op::fma, {a, b, c}, fused);
  const auto separate = compute({a, b, c}, [](Expressions& g, const std::vector<Id>& in) {
    return std::vector{g.make(Op::add, g.make(Op::mul, in[0], in[1]), in[2])};
  });
  EXPECT_EQ(kernels::bit_difference(separate, a * b + c, {a, b, c}), "");
}

TEST(KernelArithmetic, CastsAreLibTorchs) {
  TOWER_NEEDS_LLVM();
  const auto dtypes = {at::kFloat, at::kDouble, at::kInt, at::kLong, at::kBool};
  for (const auto from : dtypes) {
    for (const auto to : dtypes) {
      SCOPED_TRACE(std::string(toString(from)) + " to " + toString(to));
      at::Tensor x = special(from);
      // Beyond an integer's range C++ says nothing, and LibTorch's kernels say different things.
      if (at::isFloatingType(from) && (to == at::kInt || to == at::kLong))
        x = x.masked_select(x.abs() < (to == at::kInt ? 2147483648.0 : 9223372036854775808.0));
      const at::Tensor converted = compute({x}, [&](Expressions& g, const std::vector<Id>& in) {
        return std::vector{g.cast(in[0], *tower::compiler::type_of(to))};
      });
      EXPECT_EQ(kernels::bit_difference(converted, x.to(to), {x}), "");
    }
  }
}

// ---- functions ----

// The number of floats between two, in units in the last place of the exact value.
template <class T>
double distance(T actual, long double exact) {
  if (std::isnan(actual) || std::isnan(exact)) return std::isnan(actual) && std::isnan(exact) ? 0 : INFINITY;
  const T nearest = static_cast<T>(exact);
  if (std::isinf(nearest) || std::isinf(actual)) {
    if (actual == nearest) return 0;
    // The largest number for an infinity, or the other way round, by rounding.
    return std::isinf(actual) ? std::fabs(static_cast<double>(nearest)) == std::numeric_limits<T>::max() ? 1 : INFINITY
           : std::fabs(static_cast<double>(actual)) == std::numeric_limits<T>::max() ? 1
                                                                                     : INFINITY;
  }
  const T magnitude = std::fabs(nearest);
  const T next = std::nextafter(magnitude, std::numeric_limits<T>::infinity());
  const long double unit = std::isinf(next) ? static_cast<long double>(magnitude) - std::nextafter(magnitude, T{0})
                                            : static_cast<long double>(next) - magnitude;
  return static_cast<double>(std::fabs(static_cast<long double>(actual) - exact) / unit);
}

struct Function {
  const char* name;
  E (*element)(E);
  long double (*exact)(long double);
  double lowest, highest;  // between these besides the special numbers
};

template <class T>
void expect_accurate(const Function& f, at::ScalarType dtype) {
  SCOPED_TRACE(std::string(f.name) + " of " + toString(dtype));
  const at::Tensor between = at::linspace(f.lowest, f.highest, 2001, at::kDouble).to(dtype);
  const at::Tensor small = at::logspace(-30, 0, 301, 10.0, at::kDouble).to(dtype);
  const at::Tensor x = at::cat({special(dtype), between, small, -small});
  const at::Tensor y =
      compute({x}, [&](Expressions& g, const std::vector<Id>& in) { return std::vector{f.element(E(g, in[0])).id()}; });
  double worst = 0;
  T where = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const T at = x.const_data_ptr<T>()[i];
    const double d = distance(y.const_data_ptr<T>()[i], f.exact(at));
    if (d > worst) worst = d, where = at;
  }
  EXPECT_LE(worst, 2) << "at " << where;
}

TEST(KernelFunctions, OfOneNumberAreWithinTwoUnitsInTheLastPlace) {
  TOWER_NEEDS_LLVM();
  const Function functions[] = {
      {"exp", compiler::exp, std::exp, -110, 90},      {"exp2", compiler::exp2, std::exp2, -150, 130},
      {"expm1", compiler::expm1, std::expm1, -40, 80}, {"log", compiler::log, std::log, 0.5, 2},
      {"log2", compiler::log2, std::log2, 0.5, 2},     {"log10", compiler::log10, std::log10, 0.5, 2},
      {"log1p", compiler::log1p, std::log1p, -1, 10},  {"sin", compiler::sin, std::sin, -30, 30},
      {"cos", compiler::cos, std::cos, -30, 30},       {"tan", compiler::tan, std::tan, -30, 30},
      {"asin", compiler::asin, std::asin, -1, 1},      {"acos", compiler::acos, std::acos, -1, 1},
      {"atan", compiler::atan, std::atan, -10, 10},    {"sinh", compiler::sinh, std::sinh, -20, 20},
      {"cosh", compiler::cosh, std::cosh, -20, 20},    {"tanh", compiler::tanh, std::tanh, -10, 10},
      {"asinh", compiler::asinh, std::asinh, -50, 50}, {"acosh", compiler::acosh, std::acosh, 1, 50},
      {"atanh", compiler::atanh, std::atanh, -1, 1},   {"erf", compiler::erf, std::erf, -5, 5},
      {"erfc", compiler::erfc, std::erfc, -5, 8},
  };
  for (const Function& f : functions) {
    expect_accurate<float>(f, at::kFloat);
    expect_accurate<double>(f, at::kDouble);
  }
}

template <class T>
void expect_accurate(Op op, long double (*exact)(long double, long double), at::ScalarType dtype) {
  SCOPED_TRACE(std::string(name(op)) + " of " + toString(dtype));
  const auto [a, b] = special_pairs(dtype);
  const at::Tensor x = at::cat({a, at::rand({3000}, dtype) * 4}), y = at::cat({b, at::randn({3000}, dtype) * 3});
  const at::Tensor z = compute({x, y}, of(op));
  double worst = 0;
  std::pair<T, T> where;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const std::pair at(x.const_data_ptr<T>()[i], y.const_data_ptr<T>()[i]);
    const double d = distance(z.const_data_ptr<T>()[i], exact(at.first, at.second));
    if (d > worst) worst = d, where = at;
  }
  EXPECT_LE(worst, 2) << "at " << where.first << ", " << where.second;
}

TEST(KernelFunctions, OfTwoNumbersAreWithinTwoUnitsInTheLastPlace) {
  TOWER_NEEDS_LLVM();
  expect_accurate<float>(Op::pow, std::pow, at::kFloat);
  expect_accurate<double>(Op::pow, std::pow, at::kDouble);
  expect_accurate<float>(Op::atan2, std::atan2, at::kFloat);
  expect_accurate<double>(Op::atan2, std::atan2, at::kDouble);
  expect_accurate<float>(Op::hypot, std::hypot, at::kFloat);
  expect_accurate<double>(Op::hypot, std::hypot, at::kDouble);
}

}  // namespace
