// Reading by index, and adding where an index points to, inside of kernels: against LibTorch's operators, one example
// after the other, and against LibTorch's gradients.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/errors.h>
#include <tower/tower.h>

#include <random>

#include "compile/kernels.h"
#include "graph/plan.h"
#include "support/compare.h"
#include "support/seeds.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using td::Tensors;
using List = c10::List<std::optional<Tensor>>;

// ---- random programs ----

class Programs {
 public:
  explicit Programs(uint64_t seed) : random_(static_cast<std::mt19937::result_type>(seed)) {}

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  Tensor values(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }
  Tensor indices(at::IntArrayRef sizes, int64_t n, bool may_be_negative = false) {
    const Tensor any = at::randint(may_be_negative ? -n : 0, n, sizes, at::kLong);
    return below(2) ? any : any.to(at::kInt);
  }
  // `like`, for one example, or for each of several.
  Tensor for_each(const std::function<Tensor()>& like, int64_t examples) {
    Tensors all;
    const at::ScalarType dtype = like().scalar_type();
    for (int64_t b = 0; b < examples; ++b) all.push_back(like().to(dtype));
    return at::stack(all);
  }

 private:
  std::mt19937 random_;
};

// An operator of x and an index, which may be a constant; what is computed before and after is in its kernel.
struct Program {
  std::string name;
  std::function<Tensor(const Tensor& x, const Tensor& index)> f;
  std::vector<int64_t> x;
  std::function<Tensor()> index;
};

Program program(Programs& random) {
  const int64_t n = 2 + random.below(4), m = 1 + random.below(4), k = 1 + random.below(4);
  using List = c10::List<std::optional<Tensor>>;
  switch (random.below(10)) {
    case 0:
      return {"index_select",
              [](const Tensor& x, const Tensor& i) { return at::index_select(x, -1, i); },
              {m, n},
              [&random, n, k] { return random.indices({k}, n); }};
    case 1:
      return {"gather",
              [](const Tensor& x, const Tensor& i) { return at::gather(x, 1, i.to(at::kLong)); },
              {m, n},
              [&random, n, m, k] {
                return random.indices({m, k}, n);
              }};
    case 2:
      return {"index, one",
              [](const Tensor& x, const Tensor& i) {
                return at::index(x, List({std::nullopt, i}));
              },
              {m, n},
              [&random, n, k] {
                return random.indices({2, k}, n, true);
              }};
    case 3:
      return {"index, two beside each other",
              [](const Tensor& x, const Tensor& i) {
                return at::index(x, List({std::nullopt, i, i.flip(0)}));
              },
              {m, n, n},
              [&random, n, k] { return random.indices({k}, n, true); }};
    case 4:
      return {"index, two apart",
              [](const Tensor& x, const Tensor& i) {
                return at::index(x, List({i, std::nullopt, i.unsqueeze(1)}));
              },
              {n, m, n},
              [&random, n, k] { return random.indices({k}, n, true); }};
    case 5:
      return {"take",
              [](const Tensor& x, const Tensor& i) { return at::take(x, i.to(at::kLong)); },
              {m, n},
              [&random, n, m, k] {
                return random.indices({k, 2}, n * m, true);
              }};
    case 6:
      return {"take_along_dim",
              [](const Tensor& x, const Tensor& i) { return at::take_along_dim(x, i.to(at::kLong), 0); },
              {n, m},
              [&random, n, m, k] {
                return random.indices({k, m}, n);
              }};
    case 7:
      return {"embedding",
              [](const Tensor& x, const Tensor& i) { return at::embedding(x, i, 1); },
              {n, m},
              [&random, n, k] {
                return random.indices({k, 2}, n);
              }};
    case 8:
      return {"index_put",
              [](const Tensor& x, const Tensor& i) {
                return at::index_put(x, List({i}), x.select(0, 0) * 2, /*accumulate=*/true);
              },
              {n, m},
              [&random, n, k] { return random.indices({k}, n, true); }};
    default:
      return {"index_put without adding",
              [](const Tensor& x, const Tensor& i) { return at::index_put(x, List({i}), x.select(0, 0) * 2); },
              {n, m},
              [&random, n] { return random.indices({1}, n, true); }};
  }
}

struct Fused {
  Tensors results;
  size_t calls;
};
Fused run(const td::Function& f, const Tensors& args) {
  compiler::FusedGraph graph = kernels::fused(f, args);
  const size_t calls = graph.graph.calls.size();
  return {compiler::Plan(std::move(graph.graph)).run(args), calls};
}

// The function, its gradient by x with a random cotangent: of all examples, in one kernel, and of each by LibTorch.
TEST(IndicesInKernels, AreThoseOfLibTorchWithGradients) {
  TOWER_NEEDS_LLVM();
  int in_one_kernel = 0, programs = 0;
  for (const uint64_t seed : support::seeds("TOWER_INDICES", 60)) {
    at::manual_seed(seed);
    Programs random(seed);
    const Program p = program(random);
    SCOPED_TRACE(p.name + ", seed " + std::to_string(seed));
    const int64_t examples = std::array<int64_t, 4>{1, 7, 16, 37}[static_cast<size_t>(random.below(4))];
    const bool constant = random.below(3) == 0;
    Tensor index;
    if (constant) {
      index = p.index();
    } else {
      const Tensor shape = p.index();
      index = random.for_each([&] { return p.index().expand_as(shape); }, examples);
    }
    std::vector<int64_t> sizes{examples};
    sizes.insert(sizes.end(), p.x.begin(), p.x.end());
    const Tensor x = random.values(sizes);
    const auto index_of = [&](int64_t b) { return constant ? index : index[b]; };
    Tensors outs, gradients, cotangents;
    for (int64_t b = 0; b < examples; ++b) {
      const Tensor leaf = x[b].clone().requires_grad_(true);
      const Tensor y = p.f(leaf.sin(), index_of(b)).mul(2).add(1);
      cotangents.push_back(at::randn_like(y));
      y.backward(cotangents.back());
      outs.push_back(y.detach());
      gradients.push_back(leaf.grad());
    }
    const auto one = [&](const Tensor& v, const Tensor& i) { return p.f(v.sin(), i).mul(2).add(1); };
    const td::Function forward = [&](const Tensors& in) { return Tensors{one(in[0], in[1])}; };
    const td::Function both = [&](const Tensors& in) {
      auto [y, pull] = td::vjp([&](const Tensors& v) { return Tensors{one(v[0], in[1])}; }, {in[0]});
      return Tensors{y[0], pull({in[2]})[0]};
    };
    // A constant is one of the function, and not an argument.
    const auto with_constant = [&](const td::Function& f) -> td::Function {
      if (!constant) return f;
      const auto numbers = index.to(at::kLong).contiguous();
      const std::vector<int64_t> list(numbers.const_data_ptr<int64_t>(),
                                      numbers.const_data_ptr<int64_t>() + numbers.numel());
      return [f, list, like = index](const Tensors& in) {
        Tensors args = in;
        args.insert(args.begin() + 1, at::tensor(list).view(like.sizes()).to(like.scalar_type()));
        return f(args);
      };
    };
    Tensors args{x};
    td::Dims dims{0};
    if (!constant) {
      args.push_back(index);
      dims.push_back(0);
    }
    const Fused y = run(td::vmap(with_constant(forward), dims, {0}), args);
    EXPECT_EQ(support::difference(y.results[0], at::stack(outs), {1e-12, 1e-12}), "");
    args.push_back(at::stack(cotangents));
    dims.push_back(0);
    const Fused g = run(td::vmap(with_constant(both), dims, {0, 0}), args);
    EXPECT_EQ(support::difference(g.results[1], at::stack(gradients), {1e-12, 1e-12}), "");
    in_one_kernel += y.calls == 1 && g.calls == 1;
    ++programs;
  }
  // The others have more elements to choose from than is worth a kernel.
  EXPECT_GE(in_one_kernel, programs * 3 / 4) << "of " << programs;
}

// A table that all examples share is looked up where it lies, however large it is.
TEST(IndicesInKernels, LookUpInSharedTables) {
  TOWER_NEEDS_LLVM();
  using List = c10::List<std::optional<Tensor>>;
  using Function = std::function<Tensor(const Tensor& table, const Tensor& i)>;
  const std::vector<std::pair<const char*, Function>> functions = {
      {"index_select", [](const Tensor& t, const Tensor& i) { return at::index_select(t, 0, i).squeeze(0); }},
      {"index_select of columns", [](const Tensor& t, const Tensor& i) { return at::index_select(t, 1, i % 11); }},
      {"index", [](const Tensor& t, const Tensor& i) { return at::index(t, List({i - 100})); }},
      {"index of both",
       [](const Tensor& t, const Tensor& i) {
         return at::index(t, List({i, i.flip(0) % 11}));
       }},
      {"index with a constant",
       [](const Tensor& t, const Tensor& i) {
         return at::index(t, List({i, at::tensor({3}, at::kLong)}));
       }},
      {"take", [](const Tensor& t, const Tensor& i) { return at::take(t, i * 10); }},
      {"embedding", [](const Tensor& t, const Tensor& i) { return at::embedding(t, i.to(at::kInt)); }},
      {"two loads of one row",
       [](const Tensor& t, const Tensor& i) { return at::index(t, List({i})) + at::index(t, List({i})).cos(); }},
  };
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kLong, at::kInt})
    for (const auto& [name, f] : functions) {
      const bool narrow = std::string(name) == "index_select of columns";
      const auto one = [f = f](const Tensor& t, const Tensor& x, const Tensor& i) { return f(t, i) * x.sum() + 1; };
      const td::Function mapped =
          td::vmap([&](const Tensors& in) { return Tensors{one(in[0], in[1], in[2])}; }, {std::nullopt, 0, 0}, {0});
      for (const int64_t n : {1, 5, 16, 41}) {
        SCOPED_TRACE(std::string(name) + " of " + toString(dtype) + ", " + std::to_string(n));
        const int64_t rows = narrow ? 12 : 200;
        const Tensor table = at::randn({rows, 11}, at::kDouble).mul(10).to(dtype),
                     x = at::randn({n, 3}, at::kDouble).mul(10).to(dtype), i = at::randint(0, rows, {n, 1}, at::kLong);
        Tensors each;
        for (int64_t b = 0; b < n; ++b) each.push_back(one(table, x[b], i[b]));
        const Fused whole = run(mapped, {table, x, i});
        EXPECT_EQ(support::difference(whole.results[0], at::stack(each), {1e-5, 1e-5}), "");
        EXPECT_EQ(whole.calls, 1u);
        // A table that lies otherwise than the one that the kernel was made for.
        compiler::FusedGraph fused = kernels::fused(mapped, {table, x, i});
        const Tensors there = compiler::Plan(std::move(fused.graph)).run({table.t().contiguous().t(), x, i});
        EXPECT_TRUE(there[0].equal(whole.results[0]));
      }
    }
}

TEST(IndicesInKernels, OutsideOfATableNothingIsRead) {
  TOWER_NEEDS_LLVM();
  const Tensor table = at::randn({1000, 3}, at::kDouble);
  const auto f = tower::vmap([&](const Tensor& x, const Tensor& i) { return (at::index(table, List({i})) * x).sum(); });
  const auto fast = tower::compile(f);
  const Tensor x = at::randn({50, 3}, at::kDouble), right = at::randint(0, 1000, {50}, at::kLong);
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(fast(x, right).allclose(f(x, right)));
  for (const int64_t wrong : {int64_t{1000}, int64_t{-1001}, int64_t{1} << 60, -(int64_t{1} << 60)}) {
    Tensor out_of_range = right.clone();
    out_of_range[49] = wrong;
    try {
      fast(x, out_of_range);
      ADD_FAILURE() << wrong << " was found";
    } catch (const c10::IndexError& e) {
      EXPECT_NE(std::string(e.what()).find("index " + std::to_string(wrong) + " is out of bounds"), std::string::npos)
          << e.what();
    }
  }
}

TEST(IndicesInKernels, ThatAreConstantsChooseNothing) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensors& in) {
    return Tensors{at::index_select(in[0].sin(), 0, at::tensor({2, 0, 1})) * in[0]};
  };
  const compiler::FusedGraph graph = kernels::fused(td::vmap(f, {0}, {0}), {at::randn({16, 3}, at::kDouble)});
  ASSERT_EQ(graph.kernels.size(), 1u);
  EXPECT_EQ(graph.kernels[0].kernel->facts().instructions, 3 * 4);  // loads, sines, products, stores
}

// LibTorch says which index it was, as it does where nothing is compiled.
TEST(IndicesInKernels, OutOfRangeAreLibTorchsErrors) {
  TOWER_NEEDS_LLVM();
  const auto message = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "no error";
  };
  using Function = std::function<Tensor(const Tensor&, const Tensor&)>;
  const std::vector<std::pair<Function, int64_t>> programs = {
      {[](const Tensor& x, const Tensor& i) { return at::index_select(x * 2, 0, i) + 1; }, -1},
      {[](const Tensor& x, const Tensor& i) { return at::gather(x * 2, 0, i) + 1; }, 3},
      {[](const Tensor& x, const Tensor& i) { return at::index(x * 2, List({i})) + 1; }, -4},
      {[](const Tensor& x, const Tensor& i) { return at::take(x * 2, i) + 1; }, 3},
      {[](const Tensor& x, const Tensor& i) { return at::embedding((x * 2).unsqueeze(1), i) + 1; }, 3},
      {[](const Tensor& x, const Tensor& i) { return at::scatter_add(x * 2, 0, i, x) + 1; }, 3},
      {[](const Tensor& x, const Tensor& i) { return at::index_add(x * 2, 0, i, x) + 1; }, 3},
  };
  for (const int64_t examples : {1, 5, 40})
    for (size_t p = 0; p < programs.size(); ++p) {
      SCOPED_TRACE(std::to_string(p) + " with " + std::to_string(examples));
      const auto& [f, wrong] = programs[p];
      const auto mapped = tower::vmap(f);
      const auto fast = tower::compile(mapped);
      const Tensor x = at::randn({examples, 3}, at::kDouble), right = at::randint(0, 3, {examples, 3}, at::kLong);
      for (int call = 0; call < 3; ++call) EXPECT_TRUE(fast(x, right).allclose(mapped(x, right)));
      EXPECT_NE(fast.report().find("kernels: 1,"), std::string::npos) << fast.report();
      Tensor out_of_range = right.clone();
      out_of_range[examples - 1][2] = wrong;
      const std::string expected = message([&] { mapped(x, out_of_range); });
      EXPECT_NE(expected, "no error");
      EXPECT_EQ(message([&] { fast(x, out_of_range); }), expected);
      EXPECT_TRUE(fast(x, right).allclose(mapped(x, right)));
    }
}

// An index that nobody needs in the end is looked at all the same.
TEST(IndicesInKernels, WhatIsReadForNothingIsStillInRange) {
  TOWER_NEEDS_LLVM();
  const auto mapped = tower::vmap([](const Tensor& x, const Tensor& i) {
    return at::cat({at::index_select(x, 0, i), x.sin()}).slice(0, 1) * 2;
  });
  const auto fast = tower::compile(mapped);
  const Tensor x = at::randn({9, 3}, at::kDouble), i = at::zeros({9, 1}, at::kLong);
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(fast(x, i).allclose(mapped(x, i)));
  EXPECT_THROW(fast(x, i + 3), c10::Error);
}

// Which elements an index may point to is known where it was chosen among constants, but not past what changes them.
TEST(IndicesInKernels, ChosenAmongConstantsPointToWhatTheyAreConvertedTo) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType through : {at::kLong, at::kInt, at::kBool, at::kDouble}) {
    const auto mapped = tower::vmap([through](const Tensor& x) {
      const Tensor five = at::full({}, 5, at::kLong), chosen = at::where(x.sum() > 0, five, at::zeros_like(five));
      return at::index_select(x.sin(), 0, chosen.to(through).to(at::kLong).view({1})) * 2;
    });
    const auto fast = tower::compile(mapped);
    const Tensor x = at::randn({9, 6}, at::kDouble);
    for (int call = 0; call < 2; ++call) EXPECT_TRUE(fast(x).allclose(mapped(x))) << through;
  }
}

}  // namespace
