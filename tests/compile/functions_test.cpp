// Exponentials and their kin as kernels compute them, beside the C library's in a wider type: over the bits of all
// numbers, thickly where the functions are used, around the points where formulas change, and on special numbers.
#include "numbers/functions.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "compile/kernels.h"

namespace {

using kernels::region_of;
using tower::compiler::CodeSource;
using tower::compiler::Expressions;
using tower::compiler::Id;
using tower::compiler::Kernel;
using tower::compiler::Op;
using tower::compiler::Region;

using Wide = long double;
constexpr int64_t kRandom = 300000;

struct OfOne {
  Op op;
  Wide (*exact)(Wide);
  double least, most;  // where it is used
};
const OfOne kOfOne[] = {
    {Op::exp, std::exp, -30, 30},       {Op::exp2, std::exp2, -30, 30},   {Op::expm1, std::expm1, -5, 5},
    {Op::log, std::log, 0, 10},         {Op::log2, std::log2, 0, 10},     {Op::log10, std::log10, 0, 10},
    {Op::log1p, std::log1p, -1, 5},     {Op::sin, std::sin, -20, 20},     {Op::cos, std::cos, -20, 20},
    {Op::tan, std::tan, -20, 20},       {Op::asin, std::asin, -1, 1},     {Op::acos, std::acos, -1, 1},
    {Op::atan, std::atan, -5, 5},       {Op::sinh, std::sinh, -10, 10},   {Op::cosh, std::cosh, -10, 10},
    {Op::tanh, std::tanh, -5, 5},       {Op::asinh, std::asinh, -10, 10}, {Op::acosh, std::acosh, 1, 20},
    {Op::atanh, std::atanh, -1, 1},     {Op::erf, std::erf, -6, 6},       {Op::erfc, std::erfc, -6, 28},
    {Op::lgamma, std::lgamma, -10, 10},
};
struct OfTwo {
  Op op;
  Wide (*exact)(Wide, Wide);
  double most;
};
const OfTwo kOfTwo[] = {
    {Op::pow, std::pow, 20}, {Op::atan2, std::atan2, 5}, {Op::hypot, std::hypot, 10}, {Op::fmod, std::fmod, 10}};

template <class T>
constexpr at::ScalarType kDtype = std::is_same_v<T, double> ? at::kDouble : at::kFloat;

Region region(Op op, at::ScalarType dtype, size_t operands) {
  return region_of(std::vector(operands, dtype), [&](Expressions& g, const std::vector<Id>& in) {
    return std::vector{g.make(op, in[0], operands == 2 ? in[1] : tower::compiler::kNone)};
  });
}

template <class T>
std::vector<T> computed(const Kernel& kernel, const std::vector<std::vector<T>>& x) {
  std::vector<T> y(x[0].size());
  std::vector<const void*> from;
  for (const auto& operand : x) from.push_back(operand.data());
  kernel.run(static_cast<int64_t>(y.size()), from, {y.data()});
  return y;
}

// Of numbers below zero lgamma is a difference, and has zeros that are no multiples of anything. What it lacks is small
// beside numbers of this size, where LibTorch has it to some units of 1.
constexpr Wide kTermsOfLgamma = 0.0625;
Wide size_of_terms(Op op, Wide x) { return op == Op::lgamma && x < 0 ? kTermsOfLgamma : 0; }

// In units of the last place of a T next to `exact`, or to `size` if that is larger. Beyond the greatest number,
// infinity is right, and so is that.
template <class T>
double distance(T actual, Wide exact, Wide size) {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(exact)) return std::isnan(actual) ? 0 : INFINITY;
  if (exact == 0) return actual == 0 && std::signbit(actual) == std::signbit(exact) ? 0 : INFINITY;
  if (std::isinf(exact) || std::isnan(actual)) return actual == exact ? 0 : INFINITY;
  if (std::isinf(actual)) {
    const bool beyond = std::fabs(exact) >= Limits::max() && std::signbit(actual) == std::signbit(exact);
    return beyond ? 0 : INFINITY;
  }
  int exponent;
  std::frexp(std::max(std::fabs(exact), size), &exponent);
  const Wide unit = std::ldexp(Wide{1}, std::max(exponent, Limits::min_exponent) - Limits::digits);
  return static_cast<double>(std::fabs(actual - exact) / unit);
}

template <class T>
std::vector<T> special_numbers() {
  const at::Tensor special = kernels::special(kDtype<T>);
  std::vector<T> all(special.const_data_ptr<T>(), special.const_data_ptr<T>() + special.numel());
  // Multiples of π/2, bounds of results that overflow or vanish, where polynomials change, and their neighbours.
  std::vector<double> points = {0.25,
                                0.3465,
                                0.5,
                                0.7071067811865476,
                                1,
                                1.4142135623730951,
                                2,
                                2.5,
                                6,
                                9.2,
                                10.05,
                                22,
                                26.5,
                                27.2,
                                40,
                                45,
                                88.72284,
                                103.972,
                                104,
                                127,
                                128,
                                149,
                                150,
                                709.782712893384,
                                710.4758600739439,
                                744.4400719213812,
                                745.1332191019412,
                                1022,
                                1023,
                                1024,
                                1074,
                                1075,
                                0x1p28,
                                0x1p30,
                                0x1p52,
                                0x1p53,
                                0x1p54,
                                0x1p100,
                                0x1p200,
                                0x1p500,
                                0x1p900,
                                6381956970095103 * 0x1p797};
  for (const double n : {1., 2., 3., 4., 7., 100., 12345., 1e6, 1e9, 1e15}) points.push_back(n * M_PI_2);
  for (const double at : points) {
    T below = static_cast<T>(at), above = below;
    for (int k = 0; k < 4; ++k) {
      all.insert(all.end(), {below, -below, above, -above});
      below = std::nextafter(below, T{0});
      above = std::nextafter(above, std::numeric_limits<T>::infinity());
    }
  }
  return all;
}

template <class T>
std::vector<T> numbers(double least, double most, uint64_t seed, int64_t count = kRandom) {
  std::vector<T> x = special_numbers<T>();
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> used(least, most), fraction(1, 2);
  const size_t end = x.size() + static_cast<size_t>(count);
  while (x.size() < end) {
    const uint64_t bits = random();
    T any;
    std::memcpy(&any, &bits, sizeof any);
    const double near_one = std::ldexp(fraction(random), static_cast<int>(random() % 40) - 30);
    x.insert(x.end(), {any, static_cast<T>(used(random)), static_cast<T>(random() % 2 ? near_one : -near_one)});
  }
  return x;
}

template <class T>
void expect_within_one_unit(Op op, const std::vector<std::vector<T>>& x, const std::function<Wide(size_t)>& exact) {
  const std::vector<T> y = computed(Kernel(region(op, kDtype<T>, x.size())), x);
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < y.size(); ++i)
    if (const double d = distance(y[i], exact(i), size_of_terms(op, x[0][i])); d > worst) worst = d, where = i;
  // A rest is a number of the type, and exact.
  EXPECT_LE(worst, op == Op::fmod ? 0 : 1)
      << name(op) << " of " << toString(kDtype<T>) << " " << x[0][where] << ", " << x.back()[where] << ": " << y[where];
}

template <class T>
class Functions : public testing::Test {};
using Floats = testing::Types<float, double>;
TYPED_TEST_SUITE(Functions, Floats);

TYPED_TEST(Functions, OfOneNumberAreWithinOneUnitInTheLastPlace) {
  TOWER_NEEDS_LLVM();
  using T = TypeParam;
  for (const OfOne& f : kOfOne) {
    const std::vector<T> x = numbers<T>(f.least, f.most, static_cast<uint64_t>(f.op));
    expect_within_one_unit<T>(f.op, {x}, [&](size_t i) { return f.exact(x[i]); });
  }
}

TYPED_TEST(Functions, OfTwoNumbersAreWithinOneUnitInTheLastPlace) {
  TOWER_NEEDS_LLVM();
  using T = TypeParam;
  for (const OfTwo& f : kOfTwo) {
    std::vector<T> x = numbers<T>(-1, f.most, 1), y = numbers<T>(-f.most, f.most, 2);
    // Every pair of special numbers, too.
    const std::vector<T> special = special_numbers<T>();
    for (const T a : special)
      for (const T b : special) x.push_back(a), y.push_back(b);
    expect_within_one_unit<T>(f.op, {x, y}, [&](size_t i) { return f.exact(x[i], y[i]); });
  }
}

TEST(FunctionsOfFloat32, AreWithinOneUnitEverywhere) {
  TOWER_NEEDS_LLVM();
  std::vector<float> x;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 10007) {
    const auto narrow = static_cast<uint32_t>(bits);
    float number;
    std::memcpy(&number, &narrow, sizeof number);
    x.push_back(number);
  }
  for (const OfOne& f : kOfOne) expect_within_one_unit<float>(f.op, {x}, [&](size_t i) { return f.exact(x[i]); });
}

TYPED_TEST(Functions, GiveTheSameBitsInVectorsOfAnyWidth) {
  TOWER_NEEDS_LLVM();
  using T = TypeParam;
  const auto expect_same = [](Op op, const std::vector<std::vector<T>>& x) {
    Region alone = region(op, kDtype<T>, x.size());
    const std::vector<T> expected = computed(Kernel(alone), x);
    std::vector<std::vector<T>> others;
    for (const int64_t bytes : {8, 16, 32, 64})
      others.push_back(computed(Kernel(region(op, kDtype<T>, x.size()), CodeSource({}, bytes)), x));
    alone.single = true;
    others.push_back(computed(Kernel(alone), x));
    for (const auto& other : others)
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_TRUE(std::memcmp(&other[i], &expected[i], sizeof(T)) == 0 ||
                    (std::isnan(other[i]) && std::isnan(expected[i])))
            << name(op) << " of " << x[0][i] << ": " << other[i] << ", not " << expected[i];
  };
  for (const OfOne& f : kOfOne) expect_same(f.op, {numbers<T>(f.least, f.most, 3, 2000)});
  for (const OfTwo& f : kOfTwo)
    expect_same(f.op, {numbers<T>(-1, f.most, 4, 2000), numbers<T>(-f.most, f.most, 5, 2000)});
}

}  // namespace
