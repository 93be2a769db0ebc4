// Small graphs, which run as one function of memory (fuse/one_function.h). Oracles: the function itself, which LibTorch
// runs, differences, and of whose memory a result is.
#include "fuse/one_function.h"

#include <c10/util/Exception.h>
#include <tower/compile.h>
#include <tower/loops.h>
#include <tower/transforms.h>

#include <thread>

#include "compile/kernels.h"
#include "support/prelude.h"

namespace {

using tower::compiler::OneFunction;
using tower::compiler::Worth;

constexpr double kClose = 1e-12;

// Kernels, what only moves elements between them, and views of either.
Tensors turned(const Tensors& in) {
  const Tensor &x = in[0], &a = in[1];
  const Tensor both = at::cat({x.sin(), x.slice(0, 1).cos() + 1}), rows = at::stack({x * 2, x - 1});
  const Tensor moved = at::mv(rows.t(), a.slice(0, 0, 2)) + x.flip({0});
  return {both, rows.exp().sum(0) * moved, (both.square().sum() + moved.select(0, 0)).tanh()};
}

void expect_equal(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t k = 0; k < actual.size(); ++k) {
    EXPECT_EQ(actual[k].sizes(), expected[k].sizes()) << k;
    EXPECT_EQ(actual[k].strides(), expected[k].strides()) << k;
    EXPECT_EQ(actual[k].scalar_type(), expected[k].scalar_type()) << k;
    EXPECT_TRUE(actual[k].allclose(expected[k], kClose, kClose)) << k;
  }
}

// The graph of such a call as one function; null where it is none.
std::unique_ptr<const OneFunction> whole(const Function& f, const Tensors& args) {
  const auto table = std::make_shared<tower::compiler::Kernels>();
  return OneFunction::of(kernels::fused(f, args, *table, Worth::any).graph, table);
}

TEST(SmallGraphs, AreOneFunctionWithWhatMovesElementsBetweenKernels) {
  TOWER_NEEDS_LLVM();
  const Tensors args{waves({5}), waves({3}, 1)};
  const auto one = whole(turned, args);
  ASSERT_TRUE(one);
  const auto results = one->run(args);
  ASSERT_TRUE(results);
  expect_equal(*results, turned(args));
}

TEST(SmallGraphs, AreRightForOtherSizesStridesAndValuesAtTheNextCall) {
  TOWER_NEEDS_LLVM();
  const Function fast = td::compile(turned);
  for (int round = 0; round < 2; ++round)
    for (const int64_t n : {5, 1, 13, 64})
      for (const int call : {0, 1}) {
        SCOPED_TRACE(n);
        const Tensors args{waves({n}, 0.1 * call) + 1000 * call, waves({7}, 1).slice(0, call)},
            apart{waves({n, 3}, 0.1 * call).select(1, 1), waves({5, 2}).select(1, 0)};
        for (const Tensors& given : {args, apart}) expect_equal(fast(given), turned(given));
      }
}

TEST(SmallGraphs, ReadWhatIsSeenByAddressesWhereverAnArgumentBegins) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor seen = in[0].as_strided({3}, {2}, 4);
    return Tensors{at::cat({seen.sin(), in[0] * 2}), seen + 1};
  };
  const Function fast = td::compile(f);
  const Tensor all = waves({20});
  for (const int64_t begin : {0, 0, 0, 5, 2, 0})
    expect_equal(fast({all.slice(0, begin, begin + 8)}), f({all.slice(0, begin, begin + 8)}));
}

TEST(SmallGraphs, DoNotTakeArgumentsThatLieOtherwise) {
  TOWER_NEEDS_LLVM();
  const auto one = whole(turned, {waves({5}), waves({3}, 1)});
  ASSERT_TRUE(one);
  EXPECT_FALSE(one->run({waves({5, 2}).select(1, 0), waves({3}, 1)}));
  EXPECT_FALSE(one->run({waves({6}), waves({3}, 1)}));
  EXPECT_FALSE(one->run({waves({5}).to(at::kFloat), waves({3}, 1)}));
}

TEST(SmallGraphs, GiveResultsInMemoryOfTheirOwnAtEachCall) {
  TOWER_NEEDS_LLVM();
  const Function fast = td::compile(turned);
  const Tensors args{waves({5}), waves({3}, 1)}, expected = turned(args);
  std::vector<Tensors> all;
  for (int call = 0; call < 4; ++call) all.push_back(fast(args));
  for (const Tensors& results : all) expect_equal(results, expected);
  all[2][0].zero_();
  for (const int call : {0, 1, 3}) expect_equal(all[static_cast<size_t>(call)], expected);
}

TEST(SmallGraphs, GiveArgumentsAndTheirViewsAndConstantsAsTheFunctionDoes) {
  TOWER_NEEDS_LLVM();
  const Tensor captured = waves({4}, 2);
  const Function f = [captured](const Tensors& in) {
    const Tensor made = at::cat({in[0].sin(), in[0] * captured}) + 1;
    return Tensors{in[0], made, at::ones({2}, in[0].options()), captured, made};
  };
  const Function views = [](const Tensors& in) {
    const Tensor made = at::cat({in[0].sin(), in[0]}) + 1;
    return Tensors{in[0].slice(0, 1), made, made.slice(0, 2)};
  };
  EXPECT_TRUE(whole(f, {waves({4})}));
  EXPECT_FALSE(whole(views, {waves({4})}));  // which share memory
  const Function fast = td::compile(f), fast_views = td::compile(views);
  const Tensor x = waves({4});
  for (int call = 0; call < 3; ++call) {
    const Tensors results = fast({x});
    expect_equal(results, f({x}));
    EXPECT_TRUE(results[0].is_same(x));
    EXPECT_TRUE(results[3].is_same(captured));
    EXPECT_TRUE(results[1].is_same(results[4]) || results[1].is_alias_of(results[4]));
    results[2].zero_();
    const Tensors seen = fast_views({x});
    expect_equal(seen, views({x}));
    EXPECT_TRUE(seen[0].is_alias_of(x));
    EXPECT_TRUE(seen[2].is_alias_of(seen[1]));
  }
}

TEST(SmallGraphs, ReadCapturedTensorsWhereTheyAreNow) {
  TOWER_NEEDS_LLVM();
  Tensor captured = waves({4}, 2);
  const Function f = [&](const Tensors& in) { return Tensors{at::cat({in[0].sin(), in[0] * captured}) + 1}; };
  const Function fast = td::compile(f);
  const Tensors args{waves({4})};
  for (int call = 0; call < 3; ++call) expect_equal(fast(args), f(args));
  captured.add_(3);
  expect_equal(fast(args), f(args));
  captured.set_data(waves({4}, 5));  // other memory
  expect_equal(fast(args), f(args));
  captured.set_data(waves({4, 2}, 5).select(1, 1));  // which lies otherwise
  expect_equal(fast(args), f(args));
}

TEST(SmallGraphs, RaiseWhatKernelsRaiseAndGoOn) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    return Tensors{at::cat({at::div(in[0], in[1], "floor"), in[0] + 1}), at::stack({in[0], in[1]}).sum(0)};
  };
  const Function fast = td::compile(f);
  const Tensor x = at::arange(4), one = at::ones({4}, at::kLong);
  for (int call = 0; call < 3; ++call) expect_equal(fast({x, one + call}), f({x, one + call}));
  EXPECT_THROW(fast({x, at::zeros({4}, at::kLong)}), c10::Error);
  expect_equal(fast({x, one}), f({x, one}));
  const Function picked = [](const Tensors& in) {
    return Tensors{at::cat({in[0].index_select(0, in[1]).sin(), in[0] * 2}), in[0] + 1};
  };
  const Function fast_picked = td::compile(picked);
  for (int call = 0; call < 3; ++call) expect_equal(fast_picked({waves({5}), x}), picked({waves({5}), x}));
  EXPECT_THROW(fast_picked({waves({5}), x + 4}), c10::IndexError);
  expect_equal(fast_picked({waves({5}), x}), picked({waves({5}), x}));
}

TEST(SmallGraphs, HaveGradientsInLibTorchAndUnderTransforms) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensor& x) { return turned({x, x.slice(0, 1)})[1].square().sum(); };
  const auto fast = tower::compile(f);
  const auto slope = tower::compile(tower::grad(f));
  const Tensor x = waves({4}), ct = waves({}, 3).exp();
  const auto vector = [](const Tensor& v) { return at::cat({v.sin() * v, v.exp() + 1}); };
  const auto fast_vector = tower::compile(vector);
  const double h = 1e-6;
  Tensor differences = at::zeros_like(x);
  for (int64_t k = 0; k < 4; ++k) {
    Tensor step = at::zeros_like(x);
    step[k] = h;
    differences[k] = (f(x + step) - f(x - step)) / (2 * h);
  }
  for (int call = 0; call < 3; ++call) {
    const Tensor leaf = x.clone().requires_grad_();
    fast(leaf).backward(call == 1 ? ct : Tensor());
    EXPECT_TRUE((leaf.grad() / (call == 1 ? ct : at::ones_like(ct))).allclose(differences, 1e-6, 1e-7));
    EXPECT_TRUE(tower::grad(fast)(x).allclose(differences, 1e-6, 1e-7));
    EXPECT_TRUE(slope(x).allclose(differences, 1e-6, 1e-7));
    // A cotangent that lies otherwise from call to call.
    const auto pull = [&](const auto& g, const Tensor& y) {
      auto [value, pullback] = tower::vjp(g, x);
      return pullback(y);
    };
    for (const Tensor& y : {waves({8}), waves({8, 2}).select(1, 0), at::ones({}, at::kDouble).expand({8})})
      EXPECT_TRUE(pull(fast_vector, y).allclose(pull(vector, y), kClose, kClose));
  }
}

TEST(SmallGraphs, RunOnSeveralThreadsAtOnce) {
  TOWER_NEEDS_LLVM();
  const Function fast = td::compile(turned);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const Tensors args{waves({5}, t), waves({3}, 1)}, expected = turned(args);
      for (int call = 0; call < 50; ++call) {
        const Tensors results = fast(args);
        for (size_t k = 0; k < results.size(); ++k) wrong += !results[k].allclose(expected[k], kClose, kClose);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(SmallGraphs, LeaveLargeTensorsDrawsAndWritesToThePlan) {
  TOWER_NEEDS_LLVM();
  const auto is_small = [](const Function& f, const Tensors& args) {
    return tower::compiler::is_small_graph(kernels::graph_of(f, args));
  };
  EXPECT_TRUE(is_small(turned, {waves({5}), waves({3}, 1)}));
  EXPECT_FALSE(is_small(turned, {waves({100000}), waves({3}, 1)}));
  EXPECT_FALSE(is_small([](const Tensors& in) { return Tensors{in[0].sin()}; }, {waves({5})}));
  EXPECT_FALSE(is_small([](const Tensors& in) { return Tensors{(at::rand_like(in[0]) + in[0]).sin()}; }, {waves({5})}));
  EXPECT_FALSE(is_small(
      [](const Tensors& in) {
        in[0].add_(1);
        return Tensors{in[0].sin().cos()};
      },
      {waves({5})}));
}

}  // namespace
