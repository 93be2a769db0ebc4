// Compiled functions of float16 and bfloat16: folds, chains, derivatives, loops, autocast, files. Oracles: LibTorch's
// operators, one by one, and the same in float64.
#include <ATen/autocast_mode.h>
#include <tower/compile.h>
#include <tower/loops.h>
#include <tower/transforms.h>

#include "compile/files.h"
#include "compile/kernels.h"
#include "support/prelude.h"

namespace {

const std::vector<at::ScalarType> kHalfTypes = {at::kHalf, at::kBFloat16};

Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype, double scale = 1) {
  return (waves(sizes) * scale).to(dtype);
}

std::string difference(const Tensor& a, const Tensor& b) {
  return kernels::bit_difference(a.flatten(), b.flatten(), {});
}
bool equal_bits(const Tensor& a, const Tensor& b) { return a.sizes() == b.sizes() && difference(a, b).empty(); }

// Of several results, the first that is another: its place, and what differs.
template <class... T>
std::string first_other(const std::tuple<T...>& found, const std::tuple<T...>& plain) {
  std::string text;
  [&]<size_t... i>(std::index_sequence<i...>) {
    const auto look = [&](size_t k, const Tensor& a, const Tensor& b) {
      if (text.empty() && !equal_bits(a, b)) text = std::to_string(k) + ": " + difference(a, b);
    };
    (look(i, std::get<i>(found), std::get<i>(plain)), ...);
  }
  (std::index_sequence_for<T...>());
  return text;
}

// ---- rows ----

struct Fold {
  const char* name;
  Tensor (*of)(const Tensor& x);
};
const std::vector<Fold>& folds() {
  static const std::vector<Fold> all{
      {"sum", [](const Tensor& x) { return x.sum(-1); }},
      {"sum of all", [](const Tensor& x) { return x.sum(); }},
      {"mean", [](const Tensor& x) { return x.mean(-1); }},
      {"prod", [](const Tensor& x) { return x.slice(-1, 0, 7).prod(-1); }},
      {"var", [](const Tensor& x) { return x.var(-1); }},
      {"std", [](const Tensor& x) { return x.std(-1); }},
      {"norm", [](const Tensor& x) { return at::linalg_vector_norm(x, 2, at::IntArrayRef({-1})); }},
      {"logsumexp", [](const Tensor& x) { return at::logsumexp(x, {-1}); }},
      {"softmax", [](const Tensor& x) { return at::softmax(x, -1); }},
      {"log_softmax", [](const Tensor& x) { return at::log_softmax(x, -1); }},
      {"layer_norm", [](const Tensor& x) { return at::layer_norm(x, {x.size(-1)}); }},
      {"layer_norm with weights",
       [](const Tensor& x) { return at::layer_norm(x, {x.size(-1)}, x.select(0, 0), x.select(0, 1)); }},
      {"cumsum", [](const Tensor& x) { return x.cumsum(-1); }},
  };
  return all;
}

// The largest error in units of the exact number's last place, or of what is a thousandth of the largest one, where
// that is more.
double error(const Tensor& found, const Tensor& exact) {
  const double epsilon = found.scalar_type() == at::kHalf ? 0x1p-10 : 0x1p-7;
  const Tensor size = exact.abs().clamp_min(exact.abs().max().item<double>() * 1e-3);
  return ((found.to(at::kDouble) - exact) / (size * epsilon)).abs().max().item<double>();
}

// The operator is preceded and followed by another, so that there is a kernel.
TEST(HalfPrograms, WhatRowsComeToIsNoLessExactThanLibTorchs) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : kHalfTypes)
    for (const Fold& fold : folds())
      for (const int64_t length : {2, 7, 64, 100, 1000, 4099}) {
        const Tensor x = numbers({3, length}, dtype, 2);
        const auto f = [of = fold.of](const Tensor& t) { return -of(-t); };
        const auto fast = tower::compile(f);
        for (int call = 0; call < 2; ++call) fast(x);
        const Tensor plain = f(x), found = fast(x), exact = f(x.to(at::kDouble));
        ASSERT_EQ(found.scalar_type(), plain.scalar_type()) << fold.name;
        ASSERT_EQ(found.sizes(), plain.sizes()) << fold.name;
        EXPECT_LE(error(found, exact), std::max(error(plain, exact), 0.502))
            << fold.name << " of " << length << " of " << toString(dtype);
      }
}

TEST(HalfPrograms, ExtremaAndTheirPlacesAreLibTorchs) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : kHalfTypes)
    for (const int64_t length : {1, 7, 64, 1000}) {
      Tensor x = numbers({4, length}, dtype, 100);
      x.select(0, 1).select(0, length / 2).fill_(std::numeric_limits<double>::quiet_NaN());
      x.select(0, 2).select(0, length / 2).fill_(std::numeric_limits<double>::infinity());
      x.select(0, 3).fill_(-std::numeric_limits<double>::infinity());
      const auto f = [](const Tensor& t) {
        const Tensor u = -t;
        const auto [greatest, place] = u.max(1);
        return std::tuple(greatest, place, u.amin(1), u.argmin(1), u.gt(0).any(1), u.eq(0).sum(1));
      };
      const auto fast = tower::compile(f);
      for (int call = 0; call < 2; ++call) fast(x);
      EXPECT_EQ(first_other(fast(x), f(x)), "") << length << toString(dtype);
    }
}

// ---- chains ----

Tensor chain(const Tensor& x, const Tensor& y) {
  Tensor z = (x * y + 0.1).relu();
  z = (z - y) * 0.3 / (y * y + 1);
  return at::where(z > x, z, -x).abs().sqrt() + x;
}

TEST(HalfPrograms, AChainHasTheBitsOfItsOperators) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : kHalfTypes)
    for (const int64_t n : {0, 1, 7, 64, 1031}) {
      const auto fast = tower::compile(chain);
      // Whole vectors: LibTorch's code for what is left rounds otherwise.
      const Tensor x = numbers({n * 64}, dtype, 3), y = numbers({n * 64}, dtype, 2).flip(0);
      for (int call = 0; call < 3; ++call) EXPECT_EQ(difference(fast(x, y), chain(x, y)), "") << n << toString(dtype);
      EXPECT_TRUE(n == 0 || contains(fast.report(), "calls left to LibTorch: 0")) << fast.report();
    }
}

TEST(HalfPrograms, DtypesMeetAsLibTorchPromotesThem) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : kHalfTypes) {
    const Tensor x = numbers({256}, dtype, 3), wide = numbers({256}, at::kFloat, 2), whole = at::arange(256) * 7 - 500;
    const Tensor number = at::scalar_tensor(0.1, at::kFloat), other = at::ones({256}, at::kInt);
    const auto f = [&](const Tensor& a, const Tensor& b, const Tensor& i, const Tensor& s) {
      return std::tuple(a * b + 1, a + i, a * s, a.gt(0.1), a.to(at::kFloat) * 3, b.to(a.scalar_type()) - a,
                        a.to(at::kLong) + i, at::where(a > 0, a, b), i / a, s - a);
    };
    const auto fast = tower::compile(f);
    for (int call = 0; call < 2; ++call) fast(x, wide, whole, number);
    EXPECT_EQ(first_other(fast(x, wide, whole, number), f(x, wide, whole, number)), "") << toString(dtype);
  }
}

// ---- transforms ----

TEST(HalfPrograms, DerivativesOfExamplesHaveTheBitsOfTheirOperators) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensor& x, const Tensor& w) { return ((x * w).relu() * x - w).select(0, 1); };
  const auto derivative = tower::vmap(tower::grad(f));
  for (const auto dtype : kHalfTypes)
    for (const int64_t n : {1, 2, 64, 131}) {
      const auto fast = tower::compile(derivative);
      const Tensor x = numbers({n, 3}, dtype, 2), w = numbers({n, 3}, dtype, 1.5);
      for (int call = 0; call < 3; ++call) EXPECT_TRUE(equal_bits(fast(x, w), derivative(x, w))) << n;
    }
}

TEST(HalfPrograms, SmallTensorsOfAnExampleMoveAndAreLookedUp) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensor& x, const Tensor& i) {
    const Tensor moved = at::cat({x.flip(0), x.roll(1).slice(0, 0, 2)});
    return at::stack({moved.index_select(0, i), moved.gather(0, i)}).t() * 2;
  };
  const auto mapped = tower::vmap(f);
  for (const auto dtype : kHalfTypes) {
    const auto fast = tower::compile(mapped);
    const Tensor x = numbers({67, 4}, dtype), i = (at::arange(67 * 3) % 6).view({67, 3});
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(equal_bits(fast(x, i), mapped(x, i)));
    EXPECT_TRUE(contains(fast.report(), "calls left to LibTorch: 0")) << fast.report();
  }
}

TEST(HalfPrograms, LoopsCarryHalfTypes) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensor& a) {
    return tower::while_loop([a](const Tensor& y) { return (y * y - a).abs() > 0.05 * a; },
                             [a](const Tensor& y) { return (y + a / y) / 2; }, at::ones_like(a), {.max_steps = 20});
  };
  const auto mapped = tower::vmap(f);
  const auto slope = tower::vmap(tower::grad(f));
  for (const auto dtype : kHalfTypes) {
    const Tensor a = numbers({67}, dtype).abs() * 5 + 1;
    const auto fast = tower::compile(mapped);
    const auto fast_slope = tower::compile(slope);
    for (int call = 0; call < 3; ++call) {
      EXPECT_TRUE(equal_bits(fast(a), mapped(a)));
      EXPECT_TRUE(fast_slope(a).allclose(slope(a), 0.03, 0.03));
    }
  }
}

// ---- around ----

class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

TEST(HalfPrograms, UnderAutocastWhatFollowsAProductIsAKernel) {
  TOWER_NEEDS_LLVM();
  const Autocast autocast;
  const auto f = [](const Tensor& x, const Tensor& w, const Tensor& b) { return ((x.matmul(w) + b).relu() * 0.5 - 1); };
  const auto fast = tower::compile(f);
  const Tensor x = numbers({64, 64}, at::kFloat), w = numbers({64, 64}, at::kFloat, 0.2),
               b = numbers({64}, at::kBFloat16);
  for (int call = 0; call < 3; ++call) {
    EXPECT_EQ(f(x, w, b).scalar_type(), at::kBFloat16);
    EXPECT_TRUE(equal_bits(fast(x, w, b), f(x, w, b)));
  }
  // Those before the product are casts.
  EXPECT_TRUE(contains(fast.report(), "kernels: 3, of 6 operators")) << fast.report();
}

Tensor chain_of_float16(const Tensor& x, const Tensor& y) { return chain(x, y).exp().sum(-1); }

TEST(HalfPrograms, AreSavedWithTheirMachineCode) {
  TOWER_NEEDS_LLVM();
  const support::Folder folder;
  const auto fast = tower::compile(chain_of_float16);
  for (const auto dtype : kHalfTypes)
    for (int call = 0; call < 2; ++call) fast(numbers({4, 128}, dtype), numbers({4, 128}, dtype, 2));
  fast.save(folder / "f");
  EXPECT_EQ(support::run_in_new_process("HalfPrograms.InAProcessWithoutLlvm", folder / "f",
                                        {{"TOWER_LLVM", "/nowhere/libLLVM.so"}}),
            0);
}

TEST(HalfPrograms, InAProcessWithoutLlvm) {
  if (support::left_by_another_process().empty()) GTEST_SKIP() << "another test runs it";
  const auto loaded = tower::load<Tensor(Tensor, Tensor)>(support::left_by_another_process());
  for (const auto dtype : kHalfTypes) {
    const Tensor x = numbers({4, 128}, dtype), y = numbers({4, 128}, dtype, 2);
    for (int call = 0; call < 2; ++call)
      EXPECT_TRUE(loaded(x, y).allclose(chain_of_float16(x, y), 0.01, 0)) << toString(dtype);
  }
  EXPECT_TRUE(contains(loaded.report(), "from a file")) << loaded.report();
}

}  // namespace
