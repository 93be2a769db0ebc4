// Compiled functions of any number of examples: two are traced, and the graph for others follows from those, if it
// does.
#include "graph/lanes.h"

#include <tower/compile.h>
#include <tower/transforms.h>

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "compile/kernels.h"
#include "kernels/lanes_by_pointers.h"
#include "support/prelude.h"

namespace {

Tensor energy(const Tensor& x) { return ((x * x + 0.3).log().sin() * x + x.exp()).sum(); }

Tensor residual(const Tensor& x, const Tensor& load) {
  const Tensor head = x.slice(0, 0, 3), last = x.select(0, 3);
  return at::cat({head * 2 - load * last + head.mean(), (last * last - head.square().sum()).unsqueeze(0)});
}
Tensor correct(const Tensor& x, const Tensor& load) {
  return x - at::linalg_solve(tower::jacfwd(residual)(x, load), residual(x, load));
}

const std::vector<int64_t> kNumbers{10, 7, 10000, 10001, 1, 0, 3, 64, 65};

TEST(CompiledLanes, OtherNumbersOfExamplesAreNotTraced) {
  int runs = 0;
  const auto step = tower::compile(tower::vmap([&](const Tensor& x, const Tensor& load) {
    ++runs;
    return correct(x, load);
  }));
  for (const int64_t n : kNumbers) {
    const Tensor x = waves({n, 4}) + 2, load = waves({n, 3}, 0.7);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(same(step(x, load), tower::vmap(correct)(x, load))) << n;
  }
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(step.graphs(), 2u);
}

TEST(CompiledLanes, WhereverTheExamplesLie) {
  int runs = 0;
  const auto f = tower::compile(tower::vmap(
      [&](const Tensor& x, const Tensor& w) {
        ++runs;
        return std::tuple(tower::grad(energy)(x) * w, w * 2, x.sum());
      },
      {.in_dims = {1, std::nullopt}, .out_dims = {1, 0, 0}}));
  const auto plain = tower::vmap(
      [](const Tensor& x, const Tensor& w) { return std::tuple(tower::grad(energy)(x) * w, w * 2, x.sum()); },
      {.in_dims = {1, std::nullopt}, .out_dims = {1, 0, 0}});
  const Tensor w = waves({4}, 0.4);
  for (const int64_t n : kNumbers) {
    const Tensor x = waves({4, n});
    const auto [a, b, c] = f(x, w);
    const auto [d, e, g] = plain(x, w);
    EXPECT_TRUE(same(a, d) && same(b, e) && same(c, g)) << n;
  }
  EXPECT_EQ(runs, 2);
}

TEST(CompiledLanes, ImagesAreForAnyNumberToo) {
  const auto f = tower::compile(energy);
  const auto gradient = tower::vmap(tower::grad(f));
  for (const int64_t n : kNumbers) {
    const Tensor x = waves({n, 4});
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(same(gradient(x), tower::vmap(tower::grad(energy))(x))) << n;
  }
}

TEST(CompiledLanes, NoKernelIsCompiledForAnotherNumber) {
  TOWER_NEEDS_LLVM();
  namespace compiler = tower::compiler;
  const td::Function newton = td::vmap([](const Tensors& in) { return Tensors{correct(in[0], in[1])}; }, {0, 0}, {0});
  const td::Function gradient = td::vmap(td::grad(of_one(energy), {0}), {0, std::nullopt}, {0});
  for (const auto& f : {newton, gradient}) {
    const auto args = [&](int64_t n) { return Tensors{waves({n, 4}) + 2, waves({n, 3})}; };
    const auto lanes = compiler::LaneGraph::of(kernels::graph_of(f, args(10)), kernels::graph_of(f, args(7)), {10, 7});
    ASSERT_TRUE(lanes);
    compiler::Kernels kernels;
    const compiler::FusedGraph fused = compiler::fuse(lanes->with(10), kernels);
    std::set<const compiler::Kernel*> known;
    for (const auto& k : fused.kernels) known.insert(k.kernel.get());
    EXPECT_FALSE(known.empty());
    for (const int64_t n : {10000, 10001, 2, 1, 0})
      for (const auto& k : compiler::fuse(lanes->with(n), kernels).kernels)
        EXPECT_TRUE(known.count(k.kernel.get()))
            << n << ": " << k.operators.size() << " operators from " << k.operators[0];
  }
}

// What depends on the number has a graph for each.
TEST(CompiledLanes, AMeanOverTheExamplesIsTheirs) {
  int runs = 0;
  const auto cost = [&](const Tensor& x) {
    ++runs;
    return tower::grad([](const Tensor& x) { return tower::vmap(energy)(x).mean(); })(x);
  };
  const auto f = tower::compile(cost);
  for (const int64_t n : {5, 6, 7, 5, 1}) {
    const Tensor x = waves({n, 4});
    EXPECT_TRUE(same(f(x), tower::vmap(tower::grad(energy))(x) / n)) << n;
  }
  EXPECT_EQ(runs, 4);
}

TEST(CompiledLanes, ANumberThatTheFunctionReadsIsSeen) {
  const auto by_size = tower::compile([](const Tensor& x) { return tower::vmap(energy)(x) / x.size(0); });
  const auto places = tower::compile([](const Tensor& x) { return x * at::arange(x.size(0), at::kDouble); });
  const auto last = tower::compile([](const Tensor& x) { return x.select(0, x.size(0) - 1) * 2; });
  const auto given = tower::compile([](const Tensor& x) { return std::pair(x * 2, x.size(0)); });
  const auto squeezed = tower::compile([](const Tensor& x) { return x.squeeze() * 2; });
  for (const int64_t n : {5, 6, 7, 1}) {
    const Tensor x = waves({n, 4}), y = waves({n});
    EXPECT_TRUE(same(by_size(x), tower::vmap(energy)(x) / n)) << n;
    EXPECT_TRUE(same(places(y), y * at::arange(n, at::kDouble))) << n;
    EXPECT_TRUE(same(last(y), y[n - 1] * 2)) << n;
    EXPECT_EQ(given(y).second, n);
    EXPECT_TRUE(same(squeezed(x), x.squeeze() * 2)) << n;
  }
}

// Traced with two numbers of rows, in which some numbers are equal by accident, and called with others.
struct Accident {
  const char* text;
  std::function<Tensor(const Tensor&)> f;
  int64_t first, second;
};
TEST(CompiledLanes, NumbersThatAreEqualByAccidentAreNotFollowed) {
  const int64_t end = std::numeric_limits<int64_t>::max();
  const auto twice = td::vmap([](const Tensors& in) { return Tensors{in[0] * 2 + 1}; }, {0}, {0});
  const std::vector<Accident> accidents{
      {"x[:2]", [](const Tensor& x) { return x.slice(0, 0, 2) * 1 + 1; }, 7, 5},
      {"x[::2]", [&](const Tensor& x) { return x.slice(0, 0, end, 2) * 2 + 1; }, 3, 4},
      {"x[5:]", [](const Tensor& x) { return x.slice(0, 5) * 2 + 1; }, 2, 3},
      {"x[:8]", [](const Tensor& x) { return x.slice(0, 0, 8) * 2 + 1; }, 16, 32},
      {"x[-5:]", [](const Tensor& x) { return x.slice(0, -5) * 2 + 1; }, 7, 9},
      {"diagonal", [](const Tensor& x) { return x.diagonal() * 2 + 1; }, 7, 9},
      {"unfold", [](const Tensor& x) { return x.unfold(0, 2, 2) * 2 + 1; }, 4, 5},
      {"arange(0, n, 2)", [](const Tensor& x) { return at::arange(0, x.size(0), 2) * 2 + x.sum(); }, 3, 4},
      {"zeros(n)[:2]", [](const Tensor& x) { return at::zeros({x.size(0)}, at::kDouble).slice(0, 0, 2) + x.sum(); }, 3,
       4},
      {"like x[:2]", [](const Tensor& x) { return at::ones_like(x.slice(0, 0, 2)) * 2; }, 3, 4},
      {"the middle", [](const Tensor& x) { return x.narrow(0, x.size(0) / 2, 1) * 2 + 1; }, 2, 3},
      {"the middle, selected", [](const Tensor& x) { return x.select(0, x.size(0) / 2) * 2 + 1; }, 2, 3},
      {"a slice before a vmap", [&](const Tensor& x) { return twice({x.slice(0, 0, 2)})[0]; }, 7, 5},
      {"a sum of a slice", [](const Tensor& x) { return (x.slice(0, 0, 4).sum(0) * 2 + 1).sin(); }, 16, 32},
      {"split", [](const Tensor& x) { return x.split(2)[0] * 2 + 1; }, 3, 4},
      {"squeeze", [](const Tensor& x) { return x.squeeze(0) * 2 + 1; }, 3, 4},
  };
  for (const Accident& a : accidents) {
    const auto f = tower::compile(a.f);
    const Tensor many = waves({200, 3});
    for (const int64_t n : {a.first, a.second, int64_t{100}, int64_t{3}, int64_t{1}, int64_t{64}, int64_t{0}})
      for (int i = 0; i < 2; ++i) {
        const Tensor x = many.slice(0, 3, 3 + n);
        EXPECT_EQ(refusal<c10::Error>([&] { EXPECT_TRUE(same(f(x), a.f(x))) << a.text << " " << n; }).empty(),
                  refusal<c10::Error>([&] { a.f(x); }).empty())
            << a.text << " " << n;
      }
  }
}

TEST(CompiledLanes, WhatKeepsTheExamplesIsFollowed) {
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> functions{
      {"pointwise", [](const Tensor& x) { return (x * 2 + 1).sin(); }},
      {"transpose", [](const Tensor& x) { return x.t() * 2 + 1; }},
      {"permute",
       [](const Tensor& x) {
         return x.unsqueeze(1).permute({2, 0, 1}) * 2 + 1;
       }},
      {"a part of each", [](const Tensor& x) { return x.slice(1, 0, 2) * x.select(1, 2).unsqueeze(1); }},
      {"split", [](const Tensor& x) { return x.split(2, 1)[0] * 2 + 1; }},
      {"squeeze", [](const Tensor& x) { return x.unsqueeze(1).squeeze(1) * 2 + 1; }},
      {"expand",
       [](const Tensor& x) {
         return x.unsqueeze(0).expand({2, -1, 3}) * 2 + 1;
       }},
      {"reshape", [](const Tensor& x) { return x.reshape({-1}) * 2 + 1; }},
      {"view",
       [](const Tensor& x) {
         return x.view({x.size(0), 1, 3}) * 2 + 1;
       }},
      {"zeros",
       [](const Tensor& x) {
         return x + at::zeros({x.size(0), 1}, at::kDouble);
       }},
      {"ones like it", [](const Tensor& x) { return x * at::ones_like(x) * 2; }},
      {"gradient of a sum",
       [](const Tensor& x) { return tower::grad([](const Tensor& y) { return (y * y).sum(); })(x); }},
  };
  for (const auto& [name, plain] : functions) {
    int runs = 0;
    const auto f = tower::compile([&](const Tensor& x) {
      ++runs;
      return plain(x);
    });
    for (const int64_t n : {10, 7, 100, 101, 3, 64}) {
      const Tensor x = waves({n, 3});
      for (int i = 0; i < 2; ++i) EXPECT_TRUE(same(f(x), plain(x))) << name << " " << n;
    }
    EXPECT_EQ(runs, 2) << name;
  }
}

TEST(CompiledLanes, TwoNumbersThatChangeTogetherAreTwo) {
  const auto f = tower::compile([](const Tensor& x, const Tensor& y) { return x.unsqueeze(1) * y; });
  for (const auto& [n, m] : std::vector<std::pair<int64_t, int64_t>>{{3, 4}, {5, 6}, {7, 9}, {3, 3}, {8, 8}, {2, 5}}) {
    const Tensor x = waves({n}), y = waves({m});
    EXPECT_TRUE(same(f(x, y), x.unsqueeze(1) * y)) << n << ' ' << m;
  }
}

TEST(CompiledLanes, RandomNumbers) {
  const auto noisy = [](const Tensor& x) { return x * at::rand_like(x) + x; };
  const auto f = tower::compile(tower::vmap(noisy, {.randomness = tower::Randomness::different}));
  for (const int64_t n : {5, 6, 7, 1, 0}) {
    const Tensor x = waves({n, 4});
    at::manual_seed(1);
    const Tensor actual = f(x);
    at::manual_seed(1);
    EXPECT_TRUE(same(actual, tower::vmap(noisy, {.randomness = tower::Randomness::different})(x))) << n;
  }
}

TEST(CompiledLanes, AFunctionThatIsTracedAgainAndAgainSaysWhatChanges) {
  const auto f = tower::compile([](const Tensor& x) { return x.sum() / x.size(0); });
  testing::internal::CaptureStderr();
  for (int64_t n = 1; n <= 70; ++n) EXPECT_TRUE(same(f(waves({n})), waves({n}).sum() / n));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(says(text, {"traced 32 times", "argument 0 was Double [31], and is Double [32]"})) << text;
  EXPECT_EQ(text.find("was traced"), text.rfind("was traced")) << text;
  EXPECT_EQ(f.graphs(), 64u);
}

// As machine code of vectors of four does.
void add_vectors(int64_t begin, int64_t end, const void* const* inputs, void* const* outputs, uint8_t*) {
  for (int64_t lane = begin; lane < end; ++lane)
    static_cast<double*>(outputs[0])[lane] =
        static_cast<const double*>(inputs[0])[lane] + static_cast<const double*>(inputs[1])[lane];
}

TEST(CompiledLanes, AVectorThatIsNotWholeIsCopiedWithinTheRoomOfABlock) {
  constexpr int64_t kBlock = 8;
  const tower::compiler::LaneElement elements[] = {{8, 8, 0}, {8, 8, 0}, {8, 8, 0}};
  const tower::compiler::LaneCode code{add_vectors, 4, 2, 1, elements, 0, 0, 0, 0, 0};
  for (const int64_t apart : {1, 2})
    for (const int64_t lanes : {3, 8, 1000, 1003}) {
      const Tensor a = waves({lanes, apart}), b = waves({lanes, apart}, 0.3), sum = at::zeros_like(a);
      const tower::compiler::LaneSource sources[] = {{a.const_data_ptr(), apart}, {b.const_data_ptr(), apart}};
      const tower::compiler::LaneTarget target{sum.mutable_data_ptr(), apart};
      std::vector<double> room(static_cast<size_t>(3 * (kBlock + lanes)), 7);
      const void* from[2];
      void* to[1];
      uint8_t fault = 0;
      tower::compiler::run_lanes(&code, 0, lanes, kBlock, sources, &target, from, to,
                                 reinterpret_cast<char*>(room.data()), &fault);
      EXPECT_TRUE(same(sum.select(1, 0), a.select(1, 0) + b.select(1, 0))) << lanes << ' ' << apart;
      EXPECT_EQ(std::count(room.begin() + 3 * kBlock, room.end(), 7), 3 * lanes) << lanes << ' ' << apart;
    }
}

}  // namespace
