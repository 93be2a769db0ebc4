// Math::strict and Math::fast: what kernels may do to arithmetic.
#include <tower/compile.h>
#include <tower/transforms.h>

#include "compile/kernels.h"
#include "kernels/cpu.h"
#include "support/prelude.h"

namespace {

using tower::Math;

Tensor products(const Tensor& x, const Tensor& y) { return x * y + x.sin() * 0.1; }
Tensor quotients(const Tensor& x, const Tensor& y, const Tensor& z) { return x / z + (y / z) * 2; }

TEST(CompiledMath, StrictGivesTheBitsOfSingleOperations) {
  const auto f = tower::compile([](const Tensor& x, const Tensor& y, const Tensor& z) { return x * y + z; });
  const auto g = tower::compile(quotients);
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const Tensor x = waves({1000}).to(dtype), y = waves({1000}, 0.7).to(dtype), z = -(x * y) * 1.0001;
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::equal(f(x, y, z), x * y + z));
      EXPECT_TRUE(at::equal(g(x, y, z), quotients(x, y, z)));
    }
  }
}

// A rounding error is what a contracted product leaves, and all that is left here.
TEST(CompiledMath, FastContractsProductsAndSums) {
  TOWER_NEEDS_LLVM();
  const auto rest = [](const Tensor& x, const Tensor& y, const Tensor& z) { return (x * y - z) * 2; };
  const auto strict = tower::compile(rest), fast = tower::compile(rest, {.math = Math::fast});
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const Tensor x = waves({1000}).to(dtype), y = waves({1000}, 0.7).to(dtype), z = x * y;
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(strict(x, y, z), at::zeros_like(x)));
      if (i == 0) fast(x, y, z);  // the first run is operator by operator
    }
    const Tensor error = fast(x, y, z) / 2;
    EXPECT_GT(error.ne(0).sum().item<int64_t>(), 500);
    const double half_ulp = dtype == at::kDouble ? 0x1p-53 : 0x1p-24;
    EXPECT_TRUE((error.abs() <= z.abs() * half_ulp).all().item<bool>());
    // Of the very product.
    if (dtype == at::kFloat) {
      const Tensor exact = x.to(at::kDouble) * y.to(at::kDouble) - z.to(at::kDouble);
      EXPECT_TRUE(at::equal(error, exact.to(at::kFloat)));
    }
  }
}

TEST(CompiledMath, FastStaysWithinAFewRoundings) {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const Tensor x = waves({1000}).to(dtype), y = waves({1000}, 0.7).to(dtype), z = waves({1000}, 0.3).to(dtype) + 2;
    const double ulp = dtype == at::kDouble ? 0x1p-52 : 0x1p-23;
    const auto f = tower::compile(products, {.math = Math::fast});
    const auto g = tower::compile(quotients, {.math = Math::fast});
    for (int i = 0; i < 2; ++i) {
      const Tensor xd = x.to(at::kDouble), yd = y.to(at::kDouble), zd = z.to(at::kDouble);
      const auto off = [&](const Tensor& found, const Tensor& expected, const Tensor& size) {
        return ((found.to(at::kDouble) - expected).abs() / (size * ulp)).max().item<double>();
      };
      EXPECT_LE(off(f(x, y), products(xd, yd), (xd * yd).abs() + xd.abs()), 3);
      EXPECT_LE(off(g(x, y, z), quotients(xd, yd, zd), (xd / zd).abs() + 2 * (yd / zd).abs()), 3);
    }
  }
}

TEST(CompiledMath, TheTextSaysWhatIsPermitted) {
  using namespace kernels;
  using tower::compiler::Op;
  const Region region = region_of({at::kDouble, at::kDouble, at::kLong}, [](Expressions& g, const std::vector<Id>& in) {
    const Id product = g.make(Op::mul, in[0], in[1]);
    return std::vector{g.make(Op::div, g.make(Op::add, product, in[0]), in[1]), g.make(Op::mul, in[2], in[2])};
  });
  const auto text = [&](Math math) { return tower::compiler::print_kernel(region, "k", 32, math).module.text; };
  const std::string strict = text(Math::strict), fast = text(Math::fast);
  EXPECT_FALSE(contains(strict, "contract") || contains(strict, "arcp") || contains(strict, "fast")) << strict;
  for (const char* op : {"fmul", "fadd", "fdiv"}) {
    EXPECT_TRUE(contains(fast, std::string("= ") + op + " contract arcp <4 x double>")) << fast;
    EXPECT_TRUE(contains(strict, std::string("= ") + op + " <4 x double>")) << strict;
  }
  EXPECT_TRUE(contains(fast, "= mul <4 x i64>")) << fast;
}

TEST(CompiledMath, ImagesAreAsFastAsTheFunction) {
  TOWER_NEEDS_LLVM();
  const auto rest = [](const Tensor& x, const Tensor& y, const Tensor& z) { return ((x * y - z) * 2).abs().sqrt(); };
  const auto fast = tower::compile(rest, {.math = Math::fast});
  const auto mapped = tower::vmap(fast);
  const Tensor x = waves({5, 100}), y = waves({5, 100}, 0.7), z = x * y;
  Tensor found;
  for (int i = 0; i < 3; ++i) found = mapped(x, y, z);
  EXPECT_GT(found.ne(0).sum().item<int64_t>(), 200);
}

}  // namespace
