// Loops over large tensors, tile by tile: beside their steps, one after the other, and LibTorch's autograd of these.
#include "fuse/tiled_loop.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <random>
#include <sstream>

#include "compile/kernels.h"
#include "numbers/thresholds.h"
#include "support/seeds.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using td::Function;
using td::Tensors;

// `t` moved by `by` places, with `fill` where it is from nowhere.
Tensor moved(const Tensor& t, int64_t by, double fill) {
  const int64_t n = t.size(0), k = std::min(std::abs(by), n);
  const Tensor filled = at::full({k}, fill, t.options());
  return by >= 0 ? at::cat({filled, t.slice(0, 0, n - k)}) : at::cat({t.slice(0, k, n), filled});
}

// A step of one or two states and of a tensor that all steps share, drawn by chance: places up to four elements away,
// and operations whose results LibTorch's kernels and Tower's have to the bit.
class Program {
 public:
  explicit Program(uint64_t seed) : states(1 + seed % 2), seed_(seed) {}

  Tensors step(const Tensors& all) const {
    std::mt19937_64 draw(seed_);
    const auto chance = [&](uint64_t n) { return static_cast<int64_t>(draw() % n); };
    Tensors known = all;
    const auto one = [&] { return known[static_cast<size_t>(chance(known.size()))]; };
    for (int64_t k = 3 + chance(6); k > 0; --k) {
      const Tensor a = one(), b = one();
      const int64_t by = chance(9) - 4;
      switch (chance(7)) {
        case 0:
          known.push_back(a + b);
          break;
        case 1:
          known.push_back(a * b);
          break;
        case 2:
          known.push_back(at::sub(a, b, 0.5));
          break;
        case 3:
          known.push_back(a / (1 + b * b));
          break;
        case 4:
          known.push_back(at::constant_pad_nd(a.slice(0, 0, a.size(0) - std::min<int64_t>(2, a.size(0))),
                                              {std::min<int64_t>(2, a.size(0)), 0}, 0.25));
          break;
        default:
          known.push_back(moved(a, by, 0.5) * b);
          break;
      }
    }
    Tensors next;
    for (size_t k = 0; k < states; ++k) {
      const Tensor& v = known[known.size() - 1 - k];
      next.push_back(0.5 * all[k] + v / (2 + v * v));
    }
    return next;
  }

  size_t states;

 private:
  uint64_t seed_;
};

Tensors run(const Program& program, Tensors all, int64_t steps) {
  for (int64_t s = 0; s < steps; ++s) {
    const Tensors next = program.step(all);
    std::copy(next.begin(), next.end(), all.begin());
  }
  all.resize(program.states);
  return all;
}

Function loop_of(const Program& program, int64_t steps) {
  return [=](const Tensors& all) {
    const Tensors start(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(program.states));
    const auto step = [program, shared = all.back()](int64_t, const Tensors& state) {
      Tensors own = state;
      own.push_back(shared);
      return program.step(own);
    };
    return td::fori_loop(0, steps, step, start);
  };
}

// The gradient of a weighted sum of the last states.
Function gradient_of(const Function& f, const Tensors& weights) {
  return [=](const Tensors& all) {
    auto [results, pull_back] = td::vjp(f, all);
    return pull_back(weights);
  };
}

Tensors recorded(const Tensors& tensors) {
  Tensors result;
  for (const Tensor& t : tensors) result.push_back(t.clone().requires_grad_());
  return result;
}

Tensors random(size_t count, int64_t n, at::ScalarType dtype) {
  Tensors result;
  for (size_t k = 0; k < count; ++k) result.push_back(at::randn({n}, at::kDouble).to(dtype));
  return result;
}

Tensors third_call(const Function& f, const Tensors& args) {
  const Function fast = td::compile(f);
  fast(args);
  fast(args);
  return fast(args);
}

std::string calls_of(const Function& f, const Tensors& args) {
  std::ostringstream text;
  text << td::graph(f)(args);
  return text.str();
}

void expect_close(const Tensors& found, const Tensors& expected, double units) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t k = 0; k < found.size(); ++k) {
    if (expected[k].numel() == 0) continue;
    const double most = expected[k].abs().max().item<double>();
    const double epsilon = expected[k].scalar_type() == at::kFloat ? 1.2e-7 : 2.3e-16;
    EXPECT_LE((found[k] - expected[k]).abs().max().item<double>(), units * epsilon * (most + 1e-300)) << k;
  }
}

void expect_as_steps(const Program& program, int64_t n, int64_t steps, at::ScalarType dtype) {
  const Tensors args = random(program.states + 1, n, dtype);
  const Function loop = loop_of(program, steps);
  const Tensors records = recorded(args), expected = run(program, records, steps);
  const Tensors found = third_call(loop, args);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t k = 0; k < found.size(); ++k)
    EXPECT_EQ(kernels::bit_difference(found[k], expected[k].detach(), {}), "") << k;
  const Tensors weights = random(program.states, n, dtype);
  Tensors gradients = torch::autograd::grad(expected, records, weights, {}, false, true);
  for (size_t k = 0; k < gradients.size(); ++k)
    if (!gradients[k].defined()) gradients[k] = at::zeros_like(args[k]);
  expect_close(third_call(gradient_of(loop, weights), args), gradients, 2000);
}

class TiledLoop : public testing::Test {
  void SetUp() override { at::manual_seed(1); }
};
class TiledLoopPrograms : public testing::TestWithParam<int> {
  void SetUp() override { at::manual_seed(GetParam()); }
};

TEST_P(TiledLoopPrograms, AreAsTheirStepsForEachSizeAndDtype) {
  TOWER_NEEDS_LLVM();
  for (const uint64_t seed : support::seeds("TOWER_PROGRAMS", 16).part(static_cast<uint64_t>(GetParam()), 8)) {
    SCOPED_TRACE(seed);
    const Program program(seed);
    const auto& sizes = seed % 3 == 0   ? std::vector<int64_t>{0, 1009}
                        : seed % 3 == 1 ? std::vector<int64_t>{1, 4099}
                                        : std::vector<int64_t>{7, 131, 9001};
    for (const int64_t n : sizes) {
      SCOPED_TRACE(n);
      expect_as_steps(program, n, 8 + static_cast<int64_t>(n > 1000 ? seed % 5 : 0),
                      seed / 3 % 2 == 0 ? at::kDouble : at::kFloat);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, TiledLoopPrograms, testing::Range(0, 8));

// y[i]' = x[i] y[i - 1], by the method of Runge and Kutta.
Tensor slope(const Tensor& x, const Tensor& y) { return x * at::cat({at::ones({1}, y.options()), y.slice(0, 0, -1)}); }
Tensors chain(const Tensors& all, double h) {
  const Tensor &y = all[0], &x = all[1];
  const Tensor k1 = slope(x, y), k2 = slope(x, y + h / 2 * k1), k3 = slope(x, y + h / 2 * k2),
               k4 = slope(x, y + h * k3);
  return {y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)};
}
Function loop_of_chain(int64_t steps) {
  return [=](const Tensors& all) {
    const auto step = [=, x = all[1]](int64_t, const Tensors& y) {
      return chain({y[0], x}, 2 / static_cast<double>(steps));
    };
    return td::fori_loop(0, steps, step, {all[0]});
  };
}

// With so many steps, a tile would be what it reads of its neighbours: they are made in blocks.
TEST(TiledLoop, OfManyStepsIsAsItsStepsForwardsAndBackwards) {
  TOWER_NEEDS_LLVM();
  for (const auto& [n, steps] : std::vector<std::pair<int64_t, int64_t>>{{100003, 12}, {20011, 331}, {2003, 700}}) {
    SCOPED_TRACE(n);
    const Tensors args{at::zeros({n}, at::kDouble), at::rand({n}, at::kDouble) * 2};
    const Tensors weights = random(1, n, at::kDouble), records = recorded(args);
    Tensors expected = records;
    for (int64_t s = 0; s < steps; ++s) expected[0] = chain(expected, 2 / static_cast<double>(steps))[0];
    const Function loop = loop_of_chain(steps), gradient = gradient_of(loop, weights);
    EXPECT_TRUE(at::equal(third_call(loop, args)[0], expected[0].detach()));
    expect_close(third_call(gradient, args), torch::autograd::grad({expected[0]}, records, weights), 2000);
    EXPECT_NE(calls_of(loop, args).find("fori_loop"), std::string::npos);
    EXPECT_NE(calls_of(gradient, args).find("fori_loop_backward"), std::string::npos);
  }
}

TEST(TiledLoop, IsSharedOutToThreads) {
  TOWER_NEEDS_LLVM();
  const int threads = at::get_num_threads();
  const Tensors args{at::zeros({50021}, at::kDouble), at::rand({50021}, at::kDouble) * 2};
  const Tensors weights = random(1, 50021, at::kDouble);
  const Function loop = loop_of_chain(20), gradient = gradient_of(loop, weights);
  at::set_num_threads(1);
  const Tensor last = third_call(loop, args)[0];
  const Tensors by_one = third_call(gradient, args);
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(third_call(loop, args)[0], last));
  const Tensors by_three = third_call(gradient, args);
  at::set_num_threads(threads);
  for (size_t k = 0; k < by_one.size(); ++k) EXPECT_TRUE(at::equal(by_one[k], by_three[k]));
}

TEST(TiledLoop, HasTheSameNanInfinitiesAndDenormalsAsItsSteps) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Tensor special = kernels::special(dtype);
    const int64_t n = special.size(0) * 60 + 97;
    Tensor x = at::rand({n}, at::kDouble).to(dtype);
    for (int64_t k = 0; k < special.size(0); ++k) x[k * 60 + 17] = special[k];
    const Tensors args{x.flip(0).contiguous(), x}, records = recorded(args), weights = random(1, n, dtype);
    Tensors expected = records;
    for (int64_t s = 0; s < 9; ++s) expected[0] = chain(expected, 2. / 9)[0];
    const Function loop = loop_of_chain(9);
    EXPECT_EQ(kernels::bit_difference(third_call(loop, args)[0], expected[0].detach(), {}), "");
    const Tensors found = third_call(gradient_of(loop, weights), args),
                  gradients = torch::autograd::grad({expected[0]}, records, weights);
    for (size_t k = 0; k < found.size(); ++k)
      EXPECT_TRUE(at::allclose(found[k], gradients[k], 1e-4, 1e-4, /*equal_nan=*/true)) << k;
  }
}

TEST(TiledLoop, OfIntegersIsToTheBit) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : {at::kLong, at::kInt}) {
    const Function f = [](const Tensors& all) {
      const auto step = [x = all[1]](int64_t, const Tensors& y) {
        return Tensors{y[0] * 3 + at::cat({y[0].slice(0, 1), x.slice(0, 0, 1)}) * x};
      };
      return td::fori_loop(0, 10, step, {all[0]});
    };
    const Tensors args{at::randint(-1000, 1000, {5003}, dtype), at::randint(-1000, 1000, {5003}, dtype)};
    EXPECT_TRUE(at::equal(third_call(f, args)[0], f(args)[0]));
    EXPECT_NE(calls_of(f, args).find("fori_loop"), std::string::npos);
  }
}

// Time goes along as one number; states change places; a state is of another length.
TEST(TiledLoop, TakesStatesOfOneElementAndOfOtherLengths) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& all) {
    const auto step = [](int64_t, const Tensors& s) {
      const Tensor &t = s[0], &u = s[1], &v = s[2], &between = s[3];
      const Tensor difference = v.slice(0, 1) - v.slice(0, 0, -1);
      return Tensors{t + 0.125, v, u * 0.5 + t * moved(v, 1, 0), between * 0.25 + difference};
    };
    return td::fori_loop(0, 11, step, all);
  };
  const Tensors args{at::scalar_tensor(0.5, at::kDouble), at::randn({4001}, at::kDouble),
                     at::randn({4001}, at::kDouble), at::randn({4000}, at::kDouble)};
  const Tensors found = third_call(f, args), expected = f(args);
  for (size_t k = 0; k < found.size(); ++k) EXPECT_TRUE(at::equal(found[k], expected[k])) << k;
  EXPECT_NE(calls_of(f, args).find("fori_loop"), std::string::npos);
}

// The gradient by a number is a sum over all elements, which no tile has; rows that wrap around are read far away.
TEST(TiledLoop, IsItsStepsWhereTilesWillNotDo) {
  TOWER_NEEDS_LLVM();
  const Function by_number = [](const Tensors& all) {
    const auto step = [a = all[1]](int64_t, const Tensors& y) { return Tensors{y[0] + a * moved(y[0], 1, 1)}; };
    return td::fori_loop(0, 9, step, {all[0]});
  };
  const Function around = [](const Tensors& all) {
    const auto step = [](int64_t, const Tensors& y) { return Tensors{y[0] * 0.5 + y[0].roll({1}, {0})}; };
    return td::fori_loop(0, 9, step, {all[0]});
  };
  const Function sums = [](const Tensors& all) {
    const auto step = [](int64_t, const Tensors& y) { return Tensors{y[0] / y[0].abs().sum()}; };
    return td::fori_loop(0, 9, step, {all[0]});
  };
  const Function by_index = [](const Tensors& all) {
    const auto step = [](int64_t k, const Tensors& y) {
      return Tensors{y[0] * 0.5 + static_cast<double>(k) * moved(y[0], 1, 1)};
    };
    return td::fori_loop(0, 9, step, {all[0]});
  };
  const Tensors weights = random(1, 6007, at::kDouble);
  for (const Function& f : {by_number, around, sums, by_index}) {
    const Tensors args{at::rand({6007}, at::kDouble) + 1, at::scalar_tensor(0.25, at::kDouble)},
        records = recorded(args);
    const Tensors expected = f(records);
    expect_close(third_call(f, args), {expected[0].detach()}, 100);
    Tensors gradients = torch::autograd::grad(expected, records, weights, {}, false, true);
    for (size_t k = 0; k < 2; ++k)
      if (!gradients[k].defined()) gradients[k] = at::zeros_like(args[k]);
    expect_close(third_call(gradient_of(f, weights), args), gradients, 10000);
  }
}

TEST(TiledLoop, HasForwardModeAndSecondDerivatives) {
  TOWER_NEEDS_LLVM();
  const int64_t n = 1009;
  const Tensors args{at::rand({n}, at::kDouble), at::rand({n}, at::kDouble) * 2};
  const Tensors weights = random(1, n, at::kDouble), along = random(2, n, at::kDouble);
  const auto step = [](const Tensor& y, const Tensor& x) { return y + 0.25 * slope(x, y); };
  const Function loop = [=](const Tensors& all) {
    const auto one = [=, x = all[1]](int64_t, const Tensors& y) { return Tensors{step(y[0], x)}; };
    return td::fori_loop(0, 8, one, {all[0]});
  };
  const auto tangent = [&](const Function& f) -> Function {
    return [=](const Tensors& all) { return td::jvp(f, all, along).second; };
  };
  const Tensors records = recorded(args);
  Tensors last = records;
  for (int64_t s = 0; s < 8; ++s) last[0] = step(last[0], last[1]);
  const Tensors gradients = torch::autograd::grad({last[0]}, records, weights, true, true);
  const Tensors second = torch::autograd::grad(gradients, records, along);
  // By the equality of mixed derivatives, a gradient's tangent is the gradient of its product with the direction.
  expect_close(third_call(tangent(gradient_of(loop, weights)), args), second, 4000);
  double product = 0;
  for (size_t k = 0; k < 2; ++k) product += (gradients[k].detach() * along[k]).sum().item<double>();
  EXPECT_NEAR((third_call(tangent(loop), args)[0] * weights[0]).sum().item<double>(), product,
              1e-11 * std::abs(product) + 1e-11);
}

TEST(TiledLoop, IsStoredWithTheFunction) {
  TOWER_NEEDS_LLVM();
  const Tensors args{at::zeros({4001}, at::kDouble), at::rand({4001}, at::kDouble) * 2};
  const Function gradient = gradient_of(loop_of_chain(10), random(1, 4001, at::kDouble));
  const Function fast = td::compile(gradient);
  fast(args);
  const Tensors expected = fast(args);
  const std::string file = testing::TempDir() + "tiled_loop.tower";
  td::save(fast, file);
  const Function loaded = td::load(file);
  std::remove(file.c_str());
  for (int call = 0; call < 2; ++call) {
    const Tensors found = loaded(args);
    for (size_t k = 0; k < found.size(); ++k) EXPECT_TRUE(at::allclose(found[k], expected[k], 1e-12, 1e-14)) << k;
  }
}

}  // namespace
