// Orders, searches and scatters inside of kernels: against LibTorch's kernels, one example after the other and bit by
// bit, on numbers with many ties, NaN, infinities and zeros of both signs; and against LibTorch's gradients.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <array>
#include <limits>
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

constexpr std::optional<bool> kStable = true;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kLong, at::kInt};

class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(static_cast<std::mt19937::result_type>(seed)) {}

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  template <class T, size_t n>
  T one_of(const T (&list)[n]) {
    return list[below(n)];
  }
  // Few different numbers, and so many ties; `special`: how often they are what goes wrong if anything does.
  Tensor ties(at::IntArrayRef sizes, at::ScalarType dtype, int64_t special) {
    std::vector<double> numbers;
    constexpr double kSpecial[] = {kNaN, kInf, -kInf, 0.0, -0.0, 5e-324, -5e-324};
    constexpr double kOfIntegers[] = {2147483647.0, -2147483648.0, 0.0};
    for (int64_t i = 0; i < c10::multiply_integers(sizes); ++i) {
      const bool is_special = below(10) < special;
      if (!is_special) numbers.push_back(static_cast<double>(below(5) - 2) / (at::isFloatingType(dtype) ? 2 : 1));
      else numbers.push_back(at::isFloatingType(dtype) ? one_of(kSpecial) : one_of(kOfIntegers));
    }
    return at::tensor(numbers, at::kDouble).to(dtype).view(sizes);
  }
  Tensor different(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }

 private:
  std::mt19937 random_;
};

struct Ran {
  Tensors results;
  size_t calls;
  std::string names;  // of the calls
};
Ran run(const td::Function& f, const Tensors& args) {
  compiler::FusedGraph graph = kernels::fused(f, args);
  const size_t calls = graph.graph.calls.size();
  std::string names;
  for (const compiler::Call& call : graph.graph.calls) names += call.op->name() + " ";
  return {compiler::Plan(std::move(graph.graph)).run(args), calls, names};
}

std::string bits(const Tensor& actual, const Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return "other sizes";
  return kernels::bit_difference(actual.flatten(), expected.flatten(), {});
}

// What LibTorch gives for each example.
Tensors of_each(const td::Function& f, const Tensors& args, int64_t examples) {
  std::vector<Tensors> results;
  for (int64_t b = 0; b < examples; ++b) {
    Tensors one;
    for (const Tensor& t : args) one.push_back(t[b]);
    const Tensors given = f(one);
    results.resize(given.size());
    for (size_t k = 0; k < given.size(); ++k) results[k].push_back(given[k]);
  }
  Tensors all;
  for (const Tensors& list : results) all.push_back(at::stack(list));
  return all;
}

// An operator of one tensor, along a dimension.
struct OfRows {
  const char* name;
  std::function<Tensors(const Tensor& x, int64_t dim)> f;
  bool orders_equals;    // LibTorch says which of equal elements comes first
  int64_t longest = 16;  // of a row
  bool in_kernels_of_integers = true;
};

Tensors both(const std::tuple<Tensor, Tensor>& of) { return {std::get<0>(of), std::get<1>(of)}; }

const std::vector<OfRows>& of_rows() {
  static const std::vector<OfRows> list = {
      {"sort, stable", [](const Tensor& x, int64_t d) { return both(at::sort(x, kStable, d)); }, true, 20},
      {"sort, stable, descending", [](const Tensor& x, int64_t d) { return both(at::sort(x, kStable, d, true)); },
       true},
      {"sort", [](const Tensor& x, int64_t d) { return both(x.sort(d)); }, false},
      {"sort, descending", [](const Tensor& x, int64_t d) { return both(x.sort(d, true)); }, false},
      {"argsort, stable", [](const Tensor& x, int64_t d) { return Tensors{at::argsort(x, true, d, true)}; }, true},
      {"topk, greatest", [](const Tensor& x, int64_t d) { return both(x.topk((x.size(d) + 1) / 2, d)); }, false, 16,
       false},
      {"topk, least", [](const Tensor& x, int64_t d) { return both(x.topk(x.size(d), d, false)); }, false, 16, false},
      {"kthvalue, low", [](const Tensor& x, int64_t d) { return both(x.kthvalue((x.size(d) + 3) / 4, d)); }, false, 16,
       false},
      {"kthvalue, high", [](const Tensor& x, int64_t d) { return both(x.kthvalue(x.size(d), d, true)); }, false, 16,
       false},
      {"median.dim", [](const Tensor& x, int64_t d) { return both(x.median(d)); }, true},
      {"median.dim, kept", [](const Tensor& x, int64_t d) { return both(x.median(d, true)); }, true},
      {"nanmedian.dim", [](const Tensor& x, int64_t d) { return both(x.nanmedian(d)); }, true},
      {"median", [](const Tensor& x, int64_t) { return Tensors{x.median()}; }, false},
      {"nanmedian", [](const Tensor& x, int64_t) { return Tensors{x.nanmedian()}; }, false},
      {"mode", [](const Tensor& x, int64_t d) { return both(x.mode(d)); }, true},
      {"mode, kept", [](const Tensor& x, int64_t d) { return both(x.mode(d, true)); }, true},
      {"cummax", [](const Tensor& x, int64_t d) { return both(x.cummax(d)); }, true},
      {"cummin", [](const Tensor& x, int64_t d) { return both(x.cummin(d)); }, true},
  };
  return list;
}

std::vector<int64_t> sizes_of_rows(Draws& draws, int64_t longest, int64_t& dim) {
  std::vector<int64_t> sizes;
  const int64_t rank = 1 + draws.below(3), most = longest;
  dim = draws.below(rank);
  for (int64_t d = 0; d < rank; ++d)
    sizes.push_back(d == dim ? 1 + draws.below(rank == 1 ? most : 7) : 1 + draws.below(3));
  return sizes;
}

TEST(OrdersInKernels, AreThoseOfLibTorch) {
  TOWER_NEEDS_LLVM();
  for (const uint64_t seed : support::seeds("TOWER_ORDERS", 120)) {
    Draws draws(seed);
    const OfRows& op = of_rows()[seed % of_rows().size()];
    int64_t dim = 0;
    const auto one = sizes_of_rows(draws, op.longest, dim);
    const at::ScalarType dtype = draws.one_of(kDtypes);
    constexpr int64_t kExamples[] = {1, 7, 16, 37};
    const int64_t examples = draws.one_of(kExamples);
    std::vector<int64_t> sizes{examples};
    sizes.insert(sizes.end(), one.begin(), one.end());
    const Tensor x = draws.ties(sizes, dtype, draws.below(6));
    SCOPED_TRACE(std::string(op.name) + " of " + toString(dtype) + ", seed " + std::to_string(seed));
    const td::Function f = [&](const Tensors& in) { return op.f(in[0].neg().neg(), dim); };
    const Tensors expected = of_each(f, {x}, examples);
    td::Dims out(expected.size(), 0);
    const Ran actual = run(td::vmap(f, {0}, out), {x});
    EXPECT_EQ(actual.calls, op.in_kernels_of_integers || at::isFloatingType(dtype) ? 1u : 2u) << actual.names;
    for (size_t k = 0; k < expected.size(); ++k) {
      if (op.orders_equals) {
        EXPECT_EQ(bits(actual.results[k], expected[k]), "") << k;
      } else if (k == 0) {
        EXPECT_EQ(support::difference(actual.results[k], expected[k], {0, 0}), "") << "but for signs of zeros";
      } else {
        // Where equals may be: each is one of those that LibTorch found, and none is there twice.
        const bool kept = actual.results[k].dim() == x.dim();
        const auto at_places = [&](const Tensor& places) {
          return kept ? x.gather(dim + 1, places) : x.gather(dim + 1, places.unsqueeze(dim + 1)).squeeze(dim + 1);
        };
        EXPECT_EQ(support::difference(at_places(actual.results[k]), at_places(expected[k]), {0, 0}), "");
        if (!kept) continue;
        const Tensor in_order = std::get<0>(actual.results[k].sort(dim + 1));
        EXPECT_TRUE(in_order.diff(1, dim + 1).gt(0).all().item<bool>());
      }
    }
  }
}

TEST(OrdersInKernels, HaveTheGradientsOfLibTorch) {
  TOWER_NEEDS_LLVM();
  for (const OfRows& op : of_rows())
    for (const int64_t length : {1, 2, 5, 8}) {
      SCOPED_TRACE(std::string(op.name) + ", " + std::to_string(length));
      at::manual_seed(length);
      const int64_t examples = 11;
      const Tensor x = at::randn({examples, 2, length}, at::kDouble);
      const auto one = [&](const Tensor& v) { return op.f(v.sin(), 1)[0].mul(2); };
      if (!at::isFloatingType(one(x[0]).scalar_type())) continue;
      Tensors gradients, cotangents;
      for (int64_t b = 0; b < examples; ++b) {
        const Tensor leaf = x[b].clone().requires_grad_(true);
        const Tensor y = one(leaf);
        cotangents.push_back(at::randn_like(y));
        y.backward(cotangents.back());
        gradients.push_back(leaf.grad());
      }
      const td::Function pulled = [&](const Tensors& in) {
        return td::vjp([&](const Tensors& v) { return Tensors{one(v[0])}; }, {in[0]}).second({in[1]});
      };
      const Ran g = run(td::vmap(pulled, {0, 0}, {0}), {x, at::stack(cotangents)});
      EXPECT_EQ(support::difference(g.results[0], at::stack(gradients), {1e-12, 1e-12}), "");
      // What scatters over more elements is better off outside.
      if (length <= 5) {
        EXPECT_EQ(g.calls, 1u) << g.names;
      }
    }
}

TEST(OrdersInKernels, QuantilesAreOpened) {
  TOWER_NEEDS_LLVM();
  const Tensor x = at::randn({33, 7}, at::kDouble);
  for (const bool ignores : {false, true}) {
    const td::Function f = [&](const Tensors& in) {
      const Tensor y = in[0].exp();
      return Tensors{ignores ? at::nanquantile(y, 0.3, 0) : at::quantile(y, 0.3, 0)};
    };
    const Tensors expected = of_each(f, {x}, 33);
    const Ran actual = run(td::vmap(f, {0}, {0}), {x});
    EXPECT_EQ(support::difference(actual.results[0], expected[0], {1e-12, 1e-12}), "");
    EXPECT_EQ(actual.names.find("aten::sort"), std::string::npos) << actual.names;
  }
}

// ---- searches ----

TEST(SearchesInKernels, EndWhereThoseOfLibTorchEnd) {
  TOWER_NEEDS_LLVM();
  for (const uint64_t seed : support::seeds("TOWER_SEARCHES", 60)) {
    Draws draws(seed);
    SCOPED_TRACE(seed);
    const int64_t n = 1 + draws.below(12), m = 1 + draws.below(5), examples = 1 + draws.below(20);
    const bool right = draws.below(2), int32 = draws.below(2), ordered = draws.below(4) > 0, rows = draws.below(2),
               sorter = draws.below(3) == 0, number = draws.below(4) == 0 && !rows;
    const at::ScalarType dtype = draws.one_of(kDtypes), of_values = draws.one_of(kDtypes);
    std::vector<int64_t> sizes{examples};
    if (rows) sizes.push_back(2);
    sizes.push_back(n);
    Tensor sequence = draws.ties(sizes, dtype, 2);
    const auto [in_order, places] = at::sort(sequence, kStable, -1);
    if (ordered && !sorter) sequence = in_order;
    sizes.back() = m;
    const Tensor values = draws.ties(sizes, of_values, 2);
    const td::Function f = [&](const Tensors& in) {
      const std::optional<Tensor> order = sorter ? std::optional(in[2] * 1) : std::nullopt;
      if (number) return Tensors{at::searchsorted(in[0].neg().neg(), 0.5, int32, right, std::nullopt, order) + 1};
      return Tensors{at::searchsorted(in[0].neg().neg(), in[1], int32, right, std::nullopt, order) + 1};
    };
    const Tensors args{sequence, values, places}, expected = of_each(f, args, examples);
    const Ran actual = run(td::vmap(f, {0, 0, 0}, {0}), args);
    EXPECT_EQ(bits(actual.results[0], expected[0]), "");
    EXPECT_EQ(actual.calls, 1u) << actual.names;
  }
}

TEST(SearchesInKernels, LookUpInSharedSequences) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : kDtypes)
    for (const int64_t n : {129, 1000, 1024})
      for (const bool right : {false, true}) {
        SCOPED_TRACE(std::string(toString(dtype)) + ", " + std::to_string(n));
        Draws draws(static_cast<uint64_t>(n));
        const Tensor sequence = std::get<0>(at::randn({n}, at::kDouble).mul(100).to(dtype).sort());
        Tensor values = at::randn({53, 2}, at::kDouble).mul(100).to(dtype);
        values.select(1, 0).copy_(draws.ties({53}, dtype, 5));
        values[3][1] = sequence[n / 2];
        values[4][1] = sequence[0];
        values[5][1] = sequence[n - 1];
        const td::Function f = [&](const Tensors& in) {
          return Tensors{at::searchsorted(in[0], in[1], false, right) * 2,
                         at::bucketize(in[1], in[0], true, right) + 1};
        };
        const td::Function mapped = td::vmap(f, {std::nullopt, 0}, {0, 0});
        std::array<Tensors, 2> expected;
        for (int64_t b = 0; b < 53; ++b)
          for (size_t k = 0; k < 2; ++k) expected[k].push_back(f({sequence, values[b]})[k]);
        const Ran actual = run(mapped, {sequence, values});
        for (size_t k = 0; k < 2; ++k) EXPECT_EQ(bits(actual.results[k], at::stack(expected[k])), "") << k;
        EXPECT_EQ(actual.calls, 1u) << actual.names;
      }
}

// ---- scatters ----

struct Writes {
  const char* name;
  std::function<Tensor(const Tensor& x, const Tensor& index, const Tensor& source)> f;
  bool slices = false;    // the index is a list
  bool negative = false;  // indices may count from the end
  bool integers = true;
  bool has_derivative = true;
};

const std::vector<Writes>& all_writes() {
  static const std::vector<Writes> list = [] {
    std::vector<Writes> all = {
        {"scatter", [](const Tensor& x, const Tensor& i, const Tensor& s) { return at::scatter(x, 1, i, s); }},
        {"scatter of a number",
         [](const Tensor& x, const Tensor& i, const Tensor&) { return at::scatter(x, 1, i, 2.5); }},
        {"scatter_add", [](const Tensor& x, const Tensor& i, const Tensor& s) { return at::scatter_add(x, 1, i, s); }},
        {"index_copy", [](const Tensor& x, const Tensor& i, const Tensor& s) { return at::index_copy(x, 1, i, s); },
         true},
        {"index_fill", [](const Tensor& x, const Tensor& i, const Tensor&) { return at::index_fill(x, 1, i, -3); },
         true, true},
        {"index_add", [](const Tensor& x, const Tensor& i, const Tensor& s) { return at::index_add(x, 1, i, s); },
         true},
        {"index_add, doubled",
         [](const Tensor& x, const Tensor& i, const Tensor& s) { return at::index_add(x, 1, i, s, 2); }, true},
        {"put",
         [](const Tensor& x, const Tensor& i, const Tensor& s) {
           return at::put(x, i, s.flatten().slice(0, 0, i.numel()));
         },
         true, true},
    };
    for (const char* reduce : {"sum", "prod", "mean", "amax", "amin"})
      for (const bool include_self : {true, false}) {
        const bool integers = std::string(reduce) != "mean";
        all.push_back({reduce,
                       [=](const Tensor& x, const Tensor& i, const Tensor& s) {
                         return at::scatter_reduce(x, 1, i, s, reduce, include_self);
                       },
                       false, false, integers});
        if (integers && std::string(reduce) != "sum")
          all.push_back({reduce,
                         [=](const Tensor& x, const Tensor& i, const Tensor& s) {
                           return at::index_reduce(x, 1, i, s, reduce, include_self);
                         },
                         true});
      }
    return all;
  }();
  return list;
}

TEST(ScattersInKernels, AreThoseOfLibTorchInItsOrder) {
  TOWER_NEEDS_LLVM();
  int in_one_kernel = 0, programs = 0;
  for (const uint64_t seed : support::seeds("TOWER_SCATTERS", 120)) {
    Draws draws(seed);
    const Writes& op = all_writes()[seed % all_writes().size()];
    const at::ScalarType dtype = op.integers ? draws.one_of(kDtypes) : at::kDouble;
    SCOPED_TRACE(std::string(op.name) + " of " + toString(dtype) + ", seed " + std::to_string(seed));
    constexpr int64_t kExamples[] = {1, 7, 16, 37};
    const int64_t examples = draws.one_of(kExamples), n = 1 + draws.below(4), m = 1 + draws.below(3),
                  k = 1 + draws.below(5);
    const Tensor x = draws.ties({examples, m, n}, dtype, draws.below(4)),
                 source = draws.ties({examples, m, k}, dtype, draws.below(4));
    const Tensor index = op.slices ? at::randint(op.negative ? -n : 0, n, {examples, k}, at::kLong)
                                   : at::randint(0, n, {examples, m, k}, at::kLong);
    const td::Function f = [&](const Tensors& in) {
      return Tensors{op.f(in[0].neg(), in[1], in[2].neg()), in[0].sum()};
    };
    const Tensors args{x, index, source}, expected = of_each(f, args, examples);
    const Ran actual = run(td::vmap(f, {0, 0, 0}, {0, 0}), args);
    EXPECT_EQ(bits(actual.results[0], expected[0]), "");
    in_one_kernel += actual.calls == 1;
    ++programs;
  }
  // The others have more elements to choose from than is worth a kernel.
  EXPECT_GE(in_one_kernel, programs * 3 / 4) << "of " << programs;
}

TEST(ScattersInKernels, HaveTheGradientsOfLibTorch) {
  TOWER_NEEDS_LLVM();
  for (const Writes& op : all_writes())
    for (const int64_t n : {1, 2, 4}) {
      SCOPED_TRACE(std::string(op.name) + ", " + std::to_string(n));
      at::manual_seed(n);
      const int64_t examples = 9, m = 2, k = std::min<int64_t>(n, 3);
      const Tensor x = at::randn({examples, m, n}, at::kDouble), source = at::randn({examples, m, k}, at::kDouble);
      // What overwrites is told where to go once; what collects, several times.
      Tensors indices;
      for (int64_t b = 0; b < examples; ++b) {
        const Tensor order = at::randperm(n, at::kLong).slice(0, 0, k);
        indices.push_back(op.slices ? order : order.expand({m, k}));
      }
      const Tensor index = at::stack(indices);
      const auto one = [&](const Tensor& v, const Tensor& i, const Tensor& s) {
        return op.f(v.sin(), i, s.cos()).mul(2);
      };
      Tensors of_x, of_source, cotangents;
      for (int64_t b = 0; b < examples; ++b) {
        const Tensor v = x[b].clone().requires_grad_(true), s = source[b].clone().requires_grad_(true);
        const Tensor y = one(v, index[b], s);
        cotangents.push_back(at::randn_like(y));
        y.backward(cotangents.back());
        of_x.push_back(v.grad());
        of_source.push_back(s.grad().defined() ? s.grad() : at::zeros_like(s));
      }
      const td::Function pulled = [&](const Tensors& in) {
        return td::vjp([&](const Tensors& v) { return Tensors{one(v[0], in[1], v[1])}; }, {in[0], in[2]})
            .second({in[3]});
      };
      const Ran g = run(td::vmap(pulled, {0, 0, 0, 0}, {0, 0}), {x, index, source, at::stack(cotangents)});
      EXPECT_EQ(support::difference(g.results[0], at::stack(of_x), {1e-12, 1e-12}), "");
      EXPECT_EQ(support::difference(g.results[1], at::stack(of_source), {1e-12, 1e-12}), "");
    }
}

// ---- losses of classes ----

TEST(ClassLossesInKernels, AreThoseOfLibTorchWithGradients) {
  TOWER_NEEDS_LLVM();
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{5}, {3, 4}, {2, 3, 2, 2}})
    for (const int64_t reduction : {0, 1, 2})
      for (const bool weighted : {false, true})
        for (const bool all_ignored : {false, true}) {
          SCOPED_TRACE(std::to_string(sizes.size()) + " dimensions, reduction " + std::to_string(reduction) +
                       (weighted ? ", weighted" : "") + (all_ignored ? ", all ignored" : ""));
          at::manual_seed(7);
          const int64_t examples = 13, classes = sizes[sizes.size() == 1 ? 0 : 1];
          std::vector<int64_t> of_x = sizes, of_target = sizes;
          of_target.erase(of_target.begin() + (sizes.size() == 1 ? 0 : 1));
          of_x.insert(of_x.begin(), examples);
          of_target.insert(of_target.begin(), examples);
          const Tensor x = at::randn(of_x, at::kDouble), weight = at::rand({examples, classes}, at::kDouble);
          // Class 1 is ignored.
          const Tensor target =
              all_ignored ? at::ones(of_target, at::kLong) : at::randint(0, classes, of_target, at::kLong);
          const auto one = [&](const Tensor& v, const Tensor& t, const Tensor& w) {
            return at::nll_loss_nd(v.sin(), t, weighted ? std::optional(w) : std::nullopt, reduction, 1).mul(2);
          };
          Tensors losses, gradients, cotangents;
          for (int64_t b = 0; b < examples; ++b) {
            const Tensor leaf = x[b].clone().requires_grad_(true);
            const Tensor y = one(leaf, target[b], weight[b]);
            cotangents.push_back(at::randn_like(y));
            y.backward(cotangents.back());
            losses.push_back(y.detach());
            gradients.push_back(leaf.grad());
          }
          const td::Function pulled = [&](const Tensors& in) {
            auto [y, pull] = td::vjp([&](const Tensors& v) { return Tensors{one(v[0], in[1], in[2])}; }, {in[0]});
            return Tensors{y[0], pull({in[3]})[0]};
          };
          const Ran g = run(td::vmap(pulled, {0, 0, 0, 0}, {0, 0}), {x, target, weight, at::stack(cotangents)});
          EXPECT_EQ(support::difference(g.results[0], at::stack(losses), {1e-12, 1e-12}), "");
          EXPECT_EQ(support::difference(g.results[1], at::stack(gradients), {1e-12, 1e-12}), "");
          // Without weights the loss itself is mapped as one call.
          if (weighted) continue;
          const td::Function loss = [&](const Tensors& in) { return Tensors{one(in[0], in[1], in[2])}; };
          const Ran forward = run(td::vmap(loss, {0, 0, 0}, {0}), {x, target, weight});
          EXPECT_EQ(support::difference(forward.results[0], at::stack(losses), {1e-12, 1e-12}), "");
          if (sizes.size() < 3) {
            EXPECT_EQ(forward.calls, 1u) << forward.names;
          }
        }
}

// LibTorch says which index it was, as it does where nothing is compiled.
TEST(ScattersInKernels, OutOfRangeAreLibTorchsErrors) {
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
      {[](const Tensor& x, const Tensor& i) { return at::scatter(x * 2, 0, i, x) + 1; }, 3},
      {[](const Tensor& x, const Tensor& i) { return at::scatter(x * 2, 0, i, 2) + 1; }, -1},
      {[](const Tensor& x, const Tensor& i) { return at::scatter_reduce(x * 2, 0, i, x, "amax") + 1; }, 3},
      {[](const Tensor& x, const Tensor& i) { return at::index_copy(x * 2, 0, i, x) + 1; }, 3},
      {[](const Tensor& x, const Tensor& i) { return at::index_fill(x * 2, 0, i, 3) + 1; }, -4},
      {[](const Tensor& x, const Tensor& i) { return at::put(x * 2, i, x) + 1; }, 3},
      {[](const Tensor& x, const Tensor& i) { return at::nll_loss(at::outer(x, x), i) + 1; }, 3},
      {[](const Tensor& x, const Tensor& i) { return at::searchsorted(x * 2, x, false, false, std::nullopt, i) + 1; },
       3},
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

// A search of the greatest few, over and over: in a loop each example goes on for itself.
TEST(OrdersInKernels, AreInLoops) {
  TOWER_NEEDS_LLVM();
  const auto f = tower::vmap([](const Tensor& x) {
    return tower::while_loop(
        [](const Tensor& y) { return y.max() > 1; },
        [](const Tensor& y) { return std::get<0>(y.sort()) * at::linspace(1, 0.5, 5, at::kDouble); }, x);
  });
  const auto fast = tower::compile(f);
  const Tensor x = at::randn({29, 5}, at::kDouble).mul(10);
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(fast(x).allclose(f(x)));
  EXPECT_NE(fast.report().find("kernels: 1,"), std::string::npos) << fast.report();
}

}  // namespace
