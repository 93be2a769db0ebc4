// Code is told apart by the bits of what it is made of: constants that print alike, or that are equal as numbers, are
// others.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/tower.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "compile/kernels.h"
#include "core/bytes.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using compiler::Expressions;
using compiler::Id;
using compiler::Type;

std::string bytes_of(const Expressions& g, const std::vector<Id>& outputs) {
  compiler::ByteWriter out;
  g.write(out, outputs);
  return out.take();
}

TEST(Keys, ConstantsWhoseDigitsAreManyAreOthers) {
  const auto f = tower::compile([](const Tensor& x) { return (x + ((int64_t{1} << 53) + x.size(0) - 4)) * 3; });
  for (const int64_t n : {4, 4, 5, 5, 5, 6, 6, 6}) {
    const Tensor x = at::arange(n);
    EXPECT_TRUE(at::equal(f(x), (x + ((int64_t{1} << 53) + n - 4)) * 3)) << n;
  }
}

// Numbers next to each other, of which one function has a kernel each.
template <class T>
std::vector<T> neighbours(std::mt19937_64& random) {
  if constexpr (std::is_same_v<T, int64_t>) {
    const auto n = static_cast<int64_t>(random()) >> random() % 63;
    return {n, n - (n > 0 ? 1 : -1), n / 2};
  } else {
    double n = std::bit_cast<double>(random());
    if (std::isnan(n)) n = -0.0;
    return {n, std::nextafter(n, 0.0), -n, n == 0 ? 5e-324 : n / 2};
  }
}
template <class T>
void expect_bits(const Tensor& x, int count) {
  std::mt19937_64 random(1);
  const auto plain = [](const Tensor& x, T c) { return at::where(x > 1, x + c, at::mul(x, c)); };
  const auto f = tower::compile(plain);
  for (int i = 0; i < count; ++i)
    for (const T c : neighbours<T>(random))
      for (int run = 0; run < 2; ++run) EXPECT_EQ(kernels::bit_difference(f(x, c), plain(x, c), {x}), "") << c;
}
TEST(Keys, NumbersNextToEachOtherHaveCodeOfTheirOwn) {
  TOWER_NEEDS_LLVM();
  expect_bits<int64_t>(at::arange(8), 5);
  expect_bits<double>(at::linspace(-3, 5, 9, at::kDouble), 5);
  expect_bits<double>(at::linspace(-3, 5, 9, at::kFloat), 5);
}

TEST(Keys, OfExpressionsAreTheirBits) {
  const auto constant = [](Type type, auto value) {
    Expressions g;
    const Id id = g.constant(type, value);
    return bytes_of(g, {id});
  };
  const int64_t large = int64_t{1} << 53;
  EXPECT_EQ(constant(Type::i64, large), constant(Type::i64, large));
  EXPECT_NE(constant(Type::i64, large), constant(Type::i64, large + 1));
  EXPECT_NE(constant(Type::f64, 0.0), constant(Type::f64, -0.0));
  EXPECT_NE(constant(Type::f64, 1.0), constant(Type::f64, std::nextafter(1.0, 2.0)));
  EXPECT_NE(constant(Type::f64, 1.0), constant(Type::f32, 1.0));
  EXPECT_NE(constant(Type::f64, 5e-324), constant(Type::f64, 0.0));
  EXPECT_NE(constant(Type::i64, int64_t{1}), constant(Type::i32, int64_t{1}));
}

// Three equations with one column take as many numbers as two with four.
TEST(Keys, OfSystemsHaveTheirSizes) {
  const auto system = [](int64_t size, int64_t columns) {
    Expressions g;
    std::vector<Id> numbers;
    for (uint64_t i = 0; i < 12; ++i) numbers.push_back(g.input(Type::f64, i));
    return bytes_of(g, {g.solve(size, columns, numbers)[0]});
  };
  EXPECT_EQ(system(3, 1), system(3, 1));
  EXPECT_NE(system(3, 1), system(2, 4));
}

// A graph for any number of examples is one whose constants are the same at two: also in their sign.
TEST(Keys, ZerosOfOtherSignsAreOtherConstants) {
  const auto plain = [](const Tensor& x) {
    const double zero = x.size(0) == 3 ? 0.0 : -0.0;
    return tower::vmap([zero](const Tensor& v) { return (1 / (v * at::full({2}, zero))) * 2; })(x);
  };
  const auto f = tower::compile(plain);
  for (const int64_t n : {3, 3, 4, 4, 5, 5, 3, 6}) {
    const Tensor x = at::ones({n, 2});
    EXPECT_TRUE(at::equal(f(x), plain(x))) << n;
  }
}

TEST(Keys, PrintedIntegersHaveAllTheirDigits) {
  Expressions g;
  const Id id = g.constant(Type::i64, (int64_t{1} << 53) + 1);
  EXPECT_NE(g.print({id}).find("9007199254740993"), std::string::npos) << g.print({id});
}

}  // namespace
