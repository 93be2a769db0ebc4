// What moves elements, and what looks them up, in kernels whose lanes are elements: bit by bit as LibTorch's operators,
// in one kernel with what is computed of them.
#include "fuse/elsewhere.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <random>

#include "compile/kernels.h"
#include "graph/plan.h"
#include "numbers/thresholds.h"
#include "support/seeds.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using td::Function;
using td::Tensors;

const std::vector<at::ScalarType> kDtypes{at::kDouble, at::kFloat, at::kLong, at::kInt};

// Special values, and others, none of which is like its neighbours.
Tensor values(at::IntArrayRef sizes, at::ScalarType dtype) {
  const int64_t n = c10::multiply_integers(sizes);
  const Tensor any = at::isFloatingType(dtype) ? at::randn({n}, at::kDouble).mul(100).to(dtype)
                                               : at::randint(-1000000, 1000000, {n}, at::kLong).to(dtype);
  const Tensor special = kernels::special(dtype);
  return at::cat({special, any}).narrow(0, 0, std::max<int64_t>(n, 1)).slice(0, 0, n).view(sizes).clone();
}

Tensor indices(at::IntArrayRef sizes, int64_t n, at::ScalarType dtype = at::kLong, bool from_the_end = false) {
  return at::randint(from_the_end ? -n : 0, n, sizes, at::kLong).to(dtype);
}

struct Made {
  size_t calls, kernels;
};
// Results of a graph with kernels are those of LibTorch's operators to the bit.
Made expect_the_same_bits(const Function& f, const Tensors& args) {
  compiler::FusedGraph fused = kernels::fused(f, args);
  const Made made{fused.graph.calls.size(), fused.kernels.size()};
  const Tensors expected = f(args), found = compiler::Plan(std::move(fused.graph)).run(args);
  EXPECT_EQ(found.size(), expected.size());
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(found[k].strides(), expected[k].strides());
    EXPECT_EQ(kernels::bit_difference(found[k], expected[k], {}), "") << k;
  }
  return made;
}
void expect_one_kernel(const Function& f, const Tensors& args) {
  const Made made = expect_the_same_bits(f, args);
  EXPECT_EQ(made.calls, 1u);
  EXPECT_EQ(made.kernels, 1u);
}

// ---- what moves ----

using OfOne = std::function<Tensor(const Tensor&)>;

TEST(MovesOfElements, ArePiecesOfRows) {
  TOWER_NEEDS_LLVM();
  const std::vector<std::pair<const char*, OfOne>> functions = {
      {"pad",
       [](const Tensor& x) {
         return at::constant_pad_nd(x, {3, 5}, 7);
       }},
      {"pad in front",
       [](const Tensor& x) {
         return at::constant_pad_nd(x, {0, 0, 2, 0});
       }},
      {"crop and pad",
       [](const Tensor& x) {
         return at::constant_pad_nd(x, {-2, 4}, 1);
       }},
      {"flip", [](const Tensor& x) { return x.flip(-1); }},
      {"flip of rows", [](const Tensor& x) { return x.flip(0); }},
      {"flip of all",
       [](const Tensor& x) {
         return x.flip({0, 1, 2});
       }},
      {"roll", [](const Tensor& x) { return x.roll(5, -1); }},
      {"roll of rows", [](const Tensor& x) { return x.roll(1, 0); }},
      {"cat with itself",
       [](const Tensor& x) {
         return at::cat({x, x, x}, 1);
       }},
      {"cat of rows",
       [](const Tensor& x) {
         return at::cat({x, x}, 0);
       }},
      {"stack",
       [](const Tensor& x) {
         return at::stack({x, x}, 2);
       }},
      {"repeat",
       [](const Tensor& x) {
         return x.repeat({2, 1, 1, 2});
       }},
      {"slice_backward",
       [](const Tensor& x) {
         return at::slice_backward(x, {3, 50, 179}, 1, 4, 45, 1);
       }},
      {"select_backward",
       [](const Tensor& x) {
         return at::select_backward(x, {3, 5, 41, 179}, 1, -2);
       }},
  };
  for (const auto& [name, f] : functions)
    for (const at::ScalarType dtype : kDtypes) {
      SCOPED_TRACE(std::string(name) + " of " + toString(dtype));
      expect_one_kernel([f = f](const Tensors& in) { return Tensors{f(in[0]).neg() * 2}; },
                        {values({3, 41, 179}, dtype)});
    }
}

TEST(MovesOfElements, OfManyPiecesAreInAList) {
  TOWER_NEEDS_LLVM();
  const std::vector<std::pair<const char*, OfOne>> functions = {
      {"pad on all sides",
       [](const Tensor& x) {
         return at::constant_pad_nd(x, {1, 2, 3, 4}, 5);
       }},
      {"tril", [](const Tensor& x) { return x.tril(-1); }},
      {"triu", [](const Tensor& x) { return x.triu(2); }},
      {"rot90",
       [](const Tensor& x) {
         return x.rot90(1, {1, 2});
       }},
      {"steps",
       [](const Tensor& x) {
         return at::slice_backward(x, {1, 2, 20, 90}, 3, 1, 88, 3);
       }},
      {"flip between", [](const Tensor& x) { return x.flip(2); }},
      {"pixel_shuffle",
       [](const Tensor& x) {
         return at::pixel_shuffle(x.narrow(1, 0, 1).repeat({1, 4, 1, 1}), 2);
       }},
  };
  for (const auto& [name, f] : functions)
    for (const at::ScalarType dtype : kDtypes) {
      SCOPED_TRACE(std::string(name) + " of " + toString(dtype));
      expect_the_same_bits([f = f](const Tensors& in) { return Tensors{f(in[0]).neg() * 2}; },
                           {values({1, 2, 20, 29}, dtype)});
    }
  expect_one_kernel(
      [](const Tensors& in) {
        return Tensors{at::constant_pad_nd(in[0], {1, 2, 3, 4}, 5) * 2};
      },
      {values({1, 2, 20, 29}, at::kFloat)});
}

TEST(MovesOfElements, WithWhatStandsBesideThem) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor all = at::cat({in[0], in[1]}, 1);
    return Tensors{(all * in[2] + in[3]).tanh() - at::constant_pad_nd(in[0], {0, 40}), all + in[3]};
  };
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
    for (const int64_t n : {1, 2, 17}) {
      const Tensors in{at::randn({n, 161}, dtype), at::randn({n, 40}, dtype), at::randn({n, 201}, dtype),
                       at::randn({201}, dtype)};
      compiler::FusedGraph fused = kernels::fused(f, in);
      EXPECT_EQ(fused.graph.calls.size(), 1u) << n;
      kernels::expect_as_operators(std::move(fused.graph), f, in, dtype == at::kFloat ? 1e-6 : 1e-14);
    }
}

TEST(MovesOfElements, OfTwoTensorsReadBoth) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : kDtypes)
    for (const int64_t n : {1, 3}) {
      const Tensors in{values({n, 5, 140}, dtype), values({n, 5, 10}, dtype)};
      expect_one_kernel([](const Tensors& in) { return Tensors{at::slice_scatter(in[0], in[1], 2, 11, 21) * 2}; }, in);
      expect_one_kernel([](const Tensors& in) { return Tensors{at::cat({in[1], in[0], in[1]}, -1) * 2}; }, in);
    }
}

TEST(MovesOfElements, OfOtherTypesBecomeTheResults) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) { return Tensors{at::cat({in[0], in[1]}) * 2}; };
  for (const at::ScalarType a : kDtypes)
    for (const at::ScalarType b : kDtypes) expect_the_same_bits(f, {values({101}, a), values({203}, b)});
}

// Lanes of a long piece have a loop of their own: of more pieces than there are such loops, forwards and backwards,
// which end within vectors and with them.
TEST(MovesOfElements, OfLongPiecesAndShortOnes) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& args) {
    const Tensor &x = args[0], y = args[1].flip(0);
    const Tensor pieces =
        at::cat({x.slice(0, 1, 801), y, x.slice(0, 3, 10), args[1].slice(0, 64, 192), x, y.slice(0, 5)});
    return Tensors{at::constant_pad_nd(pieces, {129, 200}, 3) * args[2]};
  };
  for (const at::ScalarType dtype : kDtypes)
    for (const int64_t n : {1000, 1024, 1337}) {
      const Tensor x = values({n}, dtype), y = values({321}, dtype);
      const Tensor all = values({800 + 321 + 7 + 128 + n + 316 + 329}, dtype);
      expect_the_same_bits(f, {x, y, all});
    }
}

// What kernels have no tables of, and what has no elements.
TEST(MovesOfElements, RemainLibTorchsOtherwise) {
  TOWER_NEEDS_LLVM();
  const Function cat = [](const Tensors& in) { return Tensors{at::cat({in[0], in[1]}).logical_not()}; };
  for (const at::ScalarType dtype : {at::kBool, at::kHalf, at::kBFloat16, at::kByte, at::kComplexFloat})
    EXPECT_EQ(kernels::calls_left(cat, {at::ones({300}, dtype), at::zeros({200}, dtype)}), 2u) << dtype;
  const Function pad = [](const Tensors& in) { return Tensors{at::constant_pad_nd(in[0], {100, 100}, 3) * 2}; };
  expect_the_same_bits(pad, {at::ones({0})});
  expect_the_same_bits(pad, {at::ones({3, 0})});
  const Function none = [](const Tensors& in) { return Tensors{at::constant_pad_nd(in[0], {-200, -100}, 3) * 2}; };
  expect_the_same_bits(none, {at::ones({300})});
}

TEST(MovesOfElements, FillWithTheNumberItself) {
  TOWER_NEEDS_LLVM();
  const int64_t large = (int64_t{1} << 53) + 1;
  for (const int64_t n : {3, 300}) {
    const Function whole = [&](const Tensors& in) {
      return Tensors{at::constant_pad_nd(in[0], {1, 2}, at::Scalar(large)).bitwise_not().bitwise_xor(3)};
    };
    expect_the_same_bits(whole, {values({n}, at::kLong)});
    for (const double value : {-0.0, std::numeric_limits<double>::quiet_NaN(), 0.1, 5e-324})
      expect_the_same_bits(
          [&](const Tensors& in) {
            return Tensors{at::constant_pad_nd(in[0], {1, 2}, value).neg().neg()};
          },
          {values({n}, at::kDouble)});
  }
}

TEST(MovesOfElements, OfTensorsThatLieOtherwiseThanTraced) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) { return Tensors{at::cat({in[0], in[1]}, 1) * 2}; };
  const Tensor x = values({70, 141}, at::kDouble), y = values({70, 33}, at::kDouble);
  compiler::FusedGraph fused = kernels::fused(f, {x, y});
  ASSERT_EQ(fused.graph.calls.size(), 1u);
  const Tensors others{x.t().contiguous().t(), at::stack({y, y}, 2).select(2, 1)};
  const Tensors found = compiler::Plan(std::move(fused.graph)).run(others);
  EXPECT_EQ(kernels::bit_difference(found[0], f(others)[0], {}), "");
}

TEST(MovesOfElements, OfManyLanesAreSharedByThreads) {
  TOWER_NEEDS_LLVM();
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  for (const int64_t n : {99991, 100003}) {
    expect_one_kernel(
        [](const Tensors& in) {
          return Tensors{at::cat({in[0], in[1], in[0]}).abs() + 1};
        },
        {at::randn({n}), at::randn({n + 11})});
    expect_one_kernel([](const Tensors& in) { return Tensors{in[0].flip(0) * 3 + in[0]}; }, {at::randn({n})});
    expect_one_kernel([](const Tensors& in) { return Tensors{in[0].index({in[1]}) * 3 + in[0]}; },
                      {at::randn({n}), indices({n}, n)});
  }
  at::set_num_threads(threads);
}

// ---- what is looked up ----

using OfIndex = std::function<Tensor(const Tensor& table, const Tensor& index)>;
struct Read {
  const char* name;
  OfIndex f;
  std::vector<int64_t> table, index;
  int64_t n;  // places
  bool from_the_end = false;
  bool long_only = false;
};
using List = c10::List<std::optional<Tensor>>;

const std::vector<Read>& reads() {
  static const auto& all = *new std::vector<Read>{
      {"index_select", [](const Tensor& t, const Tensor& i) { return at::index_select(t, 0, i); }, {1000}, {333}, 1000},
      {"index_select of rows",
       [](const Tensor& t, const Tensor& i) { return at::index_select(t, 0, i); },
       {50, 167},
       {31},
       50},
      {"index_select of columns",
       [](const Tensor& t, const Tensor& i) { return at::index_select(t, -1, i); },
       {5, 67},
       {201},
       67},
      {"index_select between",
       [](const Tensor& t, const Tensor& i) { return at::index_select(t, 1, i); },
       {3, 17, 2, 83},
       {29},
       17},
      {"gather",
       [](const Tensor& t, const Tensor& i) { return at::gather(t, 0, i); },
       {1000},
       {333},
       1000,
       false,
       true},
      {"gather of rows",
       [](const Tensor& t, const Tensor& i) { return at::gather(t, 1, i); },
       {5, 170},
       {4, 167},
       170,
       false,
       true},
      {"gather of columns",
       [](const Tensor& t, const Tensor& i) { return at::gather(t, 0, i); },
       {50, 170},
       {7, 167},
       50,
       false,
       true},
      {"take", [](const Tensor& t, const Tensor& i) { return at::take(t, i); }, {30, 10}, {11, 43}, 300, true, true},
      {"index", [](const Tensor& t, const Tensor& i) { return at::index(t, List({i})); }, {1000}, {17, 41}, 1000, true},
      {"index of rows",
       [](const Tensor& t, const Tensor& i) { return at::index(t, List({i})); },
       {50, 3, 43},
       {7, 5},
       50,
       true},
      {"index of columns",
       [](const Tensor& t, const Tensor& i) {
         return at::index(t, List({std::nullopt, i}));
       },
       {7, 50},
       {143},
       50,
       true},
      {"embedding", [](const Tensor& t, const Tensor& i) { return at::embedding(t, i); }, {50, 167}, {3, 19}, 50},
  };
  return all;
}

TEST(IndicesOfElements, AreThoseOfLibTorch) {
  TOWER_NEEDS_LLVM();
  for (const Read& read : reads())
    for (const at::ScalarType dtype : kDtypes)
      for (const at::ScalarType of_index : {at::kLong, at::kInt}) {
        if (read.long_only && of_index == at::kInt) continue;
        SCOPED_TRACE(std::string(read.name) + " of " + toString(dtype) + " by " + toString(of_index));
        expect_one_kernel([&](const Tensors& in) { return Tensors{read.f(in[0], in[1]).neg() * 2}; },
                          {values(read.table, dtype), indices(read.index, read.n, of_index, read.from_the_end)});
      }
}

// The index is computed in the same kernel, where it has an element for each lane.
TEST(IndicesOfElements, AreComputedOnTheWay) {
  TOWER_NEEDS_LLVM();
  for (const int64_t n : {33, 1000}) {
    expect_one_kernel([](const Tensors& in) { return Tensors{at::take(in[0], in[1] * 2 + 1) * in[2] + 1}; },
                      {values({2 * n}, at::kDouble), indices({n}, n), values({n}, at::kDouble)});
    // Two views, and a kernel that wraps the index.
    const Made wrapped =
        expect_the_same_bits([](const Tensors& in) { return Tensors{at::take_along_dim(in[0], in[1], 0) * 2}; },
                             {values({n, 150}, at::kDouble), indices({7, 150}, n, at::kLong, true)});
    EXPECT_EQ(wrapped.calls, 3u);
    EXPECT_EQ(wrapped.kernels, 1u);
    // Read at two places, as interpolation does.
    expect_one_kernel(
        [](const Tensors& in) {
          const Tensor i = in[1].floor().to(at::kLong).clamp(0, in[0].size(0) - 2), t = in[1] - i;
          return Tensors{in[0].index({i}) * (1 - t) + in[0].index({i + 1}) * t};
        },
        {at::randn({n}, at::kDouble), at::rand({777}, at::kDouble) * static_cast<double>(n)});
  }
}

TEST(IndicesOfElements, UnderVmapsEachExampleHasItsOwn) {
  TOWER_NEEDS_LLVM();
  const Function by_both = [](const Tensors& in) { return Tensors{at::index_select(in[0], 0, in[1]) * 2}; };
  const Function along = [](const Tensors& in) { return Tensors{at::gather(in[0], 1, in[1]) * 2}; };
  for (const int64_t n : {1, 3, 10}) {
    const Tensor tables = values({n, 40, 150}, at::kDouble), rows = indices({n, 6}, 40),
                 places = indices({n, 6, 150}, 150);
    expect_the_same_bits(td::vmap(by_both, {0, 0}, {0}), {tables, rows});
    expect_the_same_bits(td::vmap(by_both, {std::nullopt, 0}, {0}), {tables[0].clone(), rows});
    expect_the_same_bits(td::vmap(by_both, {0, std::nullopt}, {0}), {tables, rows[0].clone()});
    expect_the_same_bits(td::vmap(by_both, {2, 1}, {1}),
                         {tables.permute({1, 2, 0}).contiguous(), rows.t().contiguous()});
    expect_the_same_bits(td::vmap(along, {0, 0}, {0}), {tables, places});
    expect_the_same_bits(td::vmap(along, {0, std::nullopt}, {0}), {tables, places[0].clone()});
    expect_the_same_bits(td::vmap(
                             [](const Tensors& in) {
                               return Tensors{at::cat({in[0], in[1].flip(0)}, 1) * 2};
                             },
                             {0, std::nullopt}, {0}),
                         {tables, tables[0].clone()});
  }
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "no error";
}

// LibTorch says which index it was; nothing beyond the table is read.
TEST(IndicesOfElements, OutOfRangeAreLibTorchsErrors) {
  TOWER_NEEDS_LLVM();
  for (const Read& read : reads()) {
    const auto f = [&](const Tensor& t, const Tensor& i) { return read.f(t, i) * 2 + 1; };
    const auto fast = tower::compile(f);
    const Tensor table = at::randn(read.table, at::kDouble), right = indices(read.index, read.n);
    for (int call = 0; call < 2; ++call) EXPECT_TRUE(fast(table, right).equal(f(table, right))) << read.name;
    EXPECT_NE(fast.report().find("kernels: 1,"), std::string::npos) << read.name << "\n" << fast.report();
    for (const int64_t wrong : {read.n, read.from_the_end ? -read.n - 1 : int64_t{-1}, int64_t{1} << 40,
                                std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()})
      for (const int64_t where : {int64_t{0}, right.numel() - 1}) {
        Tensor out_of_range = right.clone();
        out_of_range.view({-1})[where] = wrong;
        SCOPED_TRACE(std::string(read.name) + " at " + std::to_string(wrong));
        const std::string expected = message([&] { f(table, out_of_range); });
        EXPECT_NE(expected, "no error");
        EXPECT_EQ(message([&] { fast(table, out_of_range); }), expected);
      }
    EXPECT_TRUE(fast(table, right).equal(f(table, right)));
  }
}

TEST(IndicesOfElements, WithoutElements) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) { return Tensors{at::index_select(in[0], 0, in[1]) * 2}; };
  expect_the_same_bits(f, {values({30, 40}, at::kDouble), indices({0}, 1)});
  expect_the_same_bits(f, {values({30, 0}, at::kDouble), indices({50}, 30)});
  expect_the_same_bits(f, {values({0, 40}, at::kDouble), indices({0}, 1)});
}

// ---- random programs ----

class RandomMoves {
 public:
  explicit RandomMoves(uint64_t seed) : random_(static_cast<std::mt19937::result_type>(seed)) {}

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  std::vector<int64_t> sizes() {
    std::vector<int64_t> all(static_cast<size_t>(1 + below(4)));
    const std::vector<int64_t> most{3000, 300, 40, 20};
    for (int64_t& n : all) n = 1 + below(most[all.size() - 1]);
    return all;
  }
  // A step of a program; what it needs is drawn now, so that it does the same at each call.
  OfOne step(const std::vector<int64_t>& sizes) {
    const auto dims = static_cast<int64_t>(sizes.size());
    const int64_t d = below(dims), n = sizes[static_cast<size_t>(d)], a = below(5), b = below(5);
    switch (below(9)) {
      case 0:
        return [d, a](const Tensor& x) { return at::cat({x, x.narrow(d, 0, std::min(a, x.size(d))) + 1}, d); };
      case 1: {
        std::vector<int64_t> pad;
        for (int64_t k = 1 + below(dims); k > 0; --k) pad.insert(pad.end(), {below(4), below(4)});
        return [pad](const Tensor& x) { return at::constant_pad_nd(x, pad, -3); };
      }
      case 2:
        return [d](const Tensor& x) { return x.flip(d); };
      case 3:
        return [d, a](const Tensor& x) { return x.roll(a, d); };
      case 4:
        return [i = indices({1 + below(40)}, n), d](const Tensor& x) { return at::index_select(x, d, i); };
      case 5: {
        std::vector<int64_t> of_index = sizes;
        of_index[static_cast<size_t>(d)] = 1 + below(2 * n);
        return [i = indices(of_index, n), d](const Tensor& x) { return at::gather(x, d, i); };
      }
      case 6:
        return [a, b, d](const Tensor& x) {
          std::vector<int64_t> whole = x.sizes().vec();
          whole[static_cast<size_t>(d)] += a + b;
          return at::slice_backward(x, whole, d, a, whole[static_cast<size_t>(d)] - b, 1);
        };
      case 7:
        return [a](const Tensor& x) { return x.dim() < 2 ? x.clone() : x.tril(a - 2); };
      default:
        return [i = indices({1 + below(20)}, n, below(2) ? at::kInt : at::kLong, true), d](const Tensor& x) {
          List list;
          for (int64_t k = 0; k < d; ++k) list.push_back(std::nullopt);
          list.push_back(i);
          return at::index(x, list);
        };
    }
  }

 private:
  std::mt19937 random_;
};

TEST(MovesOfElements, InRandomProgramsAreThoseOfLibTorch) {
  TOWER_NEEDS_LLVM();
  size_t moves = 0, left = 0;
  for (const uint64_t seed : support::seeds("TOWER_MOVES", 120)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    at::manual_seed(seed);
    RandomMoves random(seed);
    const at::ScalarType dtype = kDtypes[static_cast<size_t>(random.below(4))];
    const Tensor x = values(random.sizes(), dtype);
    const bool mapped = x.dim() > 1 && random.below(2);
    std::vector<int64_t> sizes = x.sizes().vec();
    if (mapped) sizes.erase(sizes.begin());
    std::vector<OfOne> steps;
    for (int64_t k = 1 + random.below(2); k > 0; --k) {
      Tensor there = at::zeros(sizes, at::kLong);
      steps.push_back(random.step(sizes));
      sizes = steps.back()(there).sizes().vec();
      ++moves;
    }
    const Function one = [&](const Tensors& in) {
      Tensor y = in[0];
      for (const OfOne& step : steps) y = step(y) * 2 + 1;
      return Tensors{y};
    };
    const Made made = expect_the_same_bits(mapped ? td::vmap(one, {0}, {0}) : one, {x});
    left += made.calls - made.kernels;
  }
  // The others have short rows, or many pieces.
  EXPECT_LE(left, moves * 2 / 3) << "of " << moves;
}

// ---- what is not worth it ----

TEST(MovesOfElements, InShortRowsAreLibTorchs) {
  TOWER_NEEDS_LLVM();
  EXPECT_EQ(kernels::calls_left([](const Tensors& in) { return Tensors{at::embedding(in[0], in[1]) * 2}; },
                                {at::randn({50, 3}), indices({500}, 50)}),
            2u);
  // Alone they are, too.
  EXPECT_EQ(kernels::fused(
                [](const Tensors& in) {
                  return Tensors{at::cat({in[0], in[0]})};
                },
                {at::randn({500})})
                .kernels.size(),
            0u);
}

TEST(MovesOfElements, ThresholdsDecideOnlyWhoMovesThem) {
  TOWER_NEEDS_LLVM();
  using T = compiler::Thresholds;
  const Function f = [](const Tensors& in) {
    return Tensors{at::cat({in[0], in[1], in[0]}, 1) * 2, at::constant_pad_nd(in[0], {1, 1, 1, 1}, 3) * 2,
                   at::index_select(in[0], 1, in[2]) * 2, at::index_select(in[3], 0, in[2]) * 2};
  };
  for (const auto number : {&T::most_pieces, &T::most_followed, &T::most_in_list, &T::shortest_row_elsewhere,
                            &T::few_elements, &T::shortest_walked_row, &T::longest_walked_row})
    for (const int64_t value : {int64_t{0}, int64_t{1}, int64_t{1} << 40}) {
      T others;
      others.*number = value;
      const compiler::OtherThresholds changed(others);
      expect_the_same_bits(f, {values({17, 140}, at::kFloat), values({17, 9}, at::kFloat), indices({50}, 40),
                               values({40, 32}, at::kFloat)});
    }
}

}  // namespace
