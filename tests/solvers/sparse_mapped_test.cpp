// Sparse Jacobians of functions that are mapped over many examples, compiled: the colours' directions are inside of the
// kernel of an example.
#include "compile/kernels.h"
#include "graph/plan.h"
#include "solvers/sparse_cases.h"
#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/sparse.h"
#include "tower/transforms.h"

namespace {

using tower::Sparsity;

// Each example finds its rows in two tables, and has a number of its own.
struct Observations {
  Tensor from_first, from_second;

  std::tuple<Tensor, Tensor> operator()(const std::vector<Tensor>& x) const {
    const auto row = [](const Tensor& table, const Tensor& i) { return table.index_select(0, i.unsqueeze(0))[0]; };
    const auto error = [&](const Tensor& weight, const Tensor& i, const Tensor& j) {
      const Tensor a = row(x[0], i), b = row(x[1], j);
      const Tensor turned = at::linalg_cross(a.slice(0, 0, 3), b) + b * (a[3] * b.square().sum()).cos();
      return weight * turned.slice(0, 0, 2) / (2 + turned[2].sin());
    };
    return {tower::vmap(error)(x[2], from_first, from_second),
            tower::vmap([](const Tensor& w) { return 1 - w * w; })(x[2])};
  }
};

std::pair<Observations, std::vector<Tensor>> some(int64_t first, int64_t second, int64_t n,
                                                  at::ScalarType dtype = at::kDouble) {
  return {{at::randint(0, first, {n}, at::kLong), at::randint(0, second, {n}, at::kLong)},
          {at::randn({first, 4}, dtype), at::randn({second, 3}, dtype), at::randn({n}, dtype)}};
}

// All examples at once.
Tensor on_lists(const Observations& f, const Tensors& in) {
  const Tensor a = in[0].index_select(0, f.from_first), b = in[1].index_select(0, f.from_second);
  const Tensor along = (a.select(1, 3) * b.square().sum(1)).cos();
  const Tensor turned = at::linalg_cross(a.slice(1, 0, 3), b) + b * along.unsqueeze(1);
  const Tensor error = turned.slice(1, 0, 2) * (in[2] / (2 + turned.select(1, 2).sin())).unsqueeze(1);
  return at::cat({error.flatten(), 1 - in[2] * in[2]});
}

Tensor flat(const Tensors& list) {
  Tensors all;
  for (const Tensor& t : list) all.push_back(t.flatten());
  return at::cat(all);
}

// By LibTorch's autograd, row by row.
Tensor dense(const Observations& f, const std::vector<Tensor>& x) {
  const auto all_at_once = [&](const Tensors& in) { return Tensors{on_lists(f, in)}; };
  const int64_t rows = on_lists(f, x).numel();
  Tensors all;
  for (int64_t r = 0; r < rows; ++r) {
    Tensor unit = at::zeros({rows}, x[0].options());
    unit[r] = 1;
    all.push_back(flat(support::autograd_vjp(all_at_once, x, {unit})));
  }
  return at::stack(all);
}

TEST(SparseJacobian, OfAMappedFunctionIsCompiledAndRight) {
  for (const auto& [first, second, n] : {std::tuple(3, 5, 1), std::tuple(3, 5, 40), std::tuple(40, 60, 131)}) {
    SCOPED_TRACE(n);
    const auto [f, x] = some(first, second, n);
    const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, x));
    const auto fast = tower::compile([&jacobian](const std::vector<Tensor>& at) { return jacobian.values(at); });
    for (int call = 0; call < 2; ++call) {
      const auto there = some(first, second, n).second;
      EXPECT_TRUE(same(jacobian.matrix(fast(there)).to_dense(), dense(f, there)));
    }
    // A compiled function, too.
    const auto compiled = tower::compile([f = f](const std::vector<Tensor>& at) { return f(at); });
    const auto of_compiled = tower::sparse_jacobian(compiled, jacobian.pattern());
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(same(of_compiled(x).to_dense(), dense(f, x)));
  }
}

TEST(SparseJacobian, OfAMappedFunctionHasOneKernelForAllDirections) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const auto [f, x] = some(40, 60, 500, dtype);
    const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, x));
    EXPECT_EQ(jacobian.num_colours(), 8);
    const auto values = [&](const Tensors& in) { return Tensors{jacobian.values(in)}; };
    auto fused = kernels::fused(values, x);
    // One for all directions of both errors' examples, one for the weights', and one for indices.
    size_t of_errors = 0;
    for (const auto& kernel : fused.kernels) {
      EXPECT_EQ(kernel.lanes, 500);
      of_errors += kernel.operators.size() > 10;
    }
    EXPECT_EQ(of_errors, 1u);
    EXPECT_LE(fused.graph.calls.size(), 6u);  // with two views and a cat
    const Tensors expected = values(x), actual = tower::compiler::Plan(std::move(fused.graph)).run(x);
    const double tolerance = dtype == at::kDouble ? 1e-12 : 1e-4;
    EXPECT_EQ(support::difference(actual[0], expected[0], {tolerance, tolerance}), "");
  }
}

TEST(SparseJacobian, OfAMappedFunctionIsNotFiniteWhereItIsNot) {
  auto [f, x] = some(40, 60, 300);
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, x));
  const auto fast = tower::compile([&](const std::vector<Tensor>& at) { return jacobian.values(at); });
  x[0][3].fill_(std::nan(""));
  x[1][4].fill_(std::numeric_limits<double>::infinity());
  x[2].slice(0, 0, 300, 7).zero_();
  const Tensor expected = jacobian.values(x);
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(at::allclose(fast(x), expected, 1e-12, 1e-12, /*equal_nan=*/true));
}

TEST(SparseJacobian, OfAMappedFunctionSaysWhichIndexIsOutOfRange) {
  auto [f, x] = some(40, 60, 300);
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, x));
  const auto fast = tower::compile([&](const std::vector<Tensor>& at) { return jacobian.values(at); });
  for (int call = 0; call < 2; ++call) fast(x);
  f.from_first[7] = 40;  // of which the function knows: it shares the memory
  EXPECT_THROW(fast(x), c10::Error);
}

// What a pattern leaves out, as of a camera that is held where it is, moves along no direction of the others.
TEST(SparseJacobian, OfColumnsThatWereLeftOutIsThatOfTheOthers) {
  const auto [f, x] = some(3, 40, 60);
  Tensor mask = tower::jacobian_sparsity(f, x).mask();
  mask.slice(1, 0, 4).fill_(false);
  const auto jacobian = tower::sparse_jacobian(f, Sparsity::of(mask));
  const Tensor expected = dense(f, x).masked_fill(mask.logical_not(), 0);
  EXPECT_TRUE(same(jacobian(x).to_dense(), expected));
  const auto fast = tower::compile([&](const std::vector<Tensor>& at) { return jacobian.values(at); });
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(same(jacobian.matrix(fast(x)).to_dense(), expected));
}

// Of many columns, directions along which other tensors move are apart: along these there are no tangents of the rest.
TEST(SparseJacobian, OfTensorsThatMoveApartIsThatOfAll) {
  const auto [f, given] = some(500, 600, 700);
  Tensors x = given;
  x.push_back(at::zeros({0, 2}, at::kDouble));
  x.push_back(at::randn({3}, at::kDouble));  // on which nothing depends
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, x));
  EXPECT_EQ(jacobian.num_colours(), 8);
  const auto all_at_once = [f = f](const Tensors& in) { return Tensors{on_lists(f, in)}; };
  const Tensor matrix = jacobian(x).to_dense();
  for (int k = 0; k < 3; ++k) {
    const Tensor v = at::randn({matrix.size(0)}, at::kDouble);
    const Tensors expected = support::autograd_vjp(all_at_once, given, {v});
    EXPECT_TRUE(same(matrix.t().mv(v), at::cat({flat(expected), at::zeros({3}, at::kDouble)})));
  }
  const auto fast = tower::compile([&](const std::vector<Tensor>& at) { return jacobian.values(at); });
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(same(fast(x), jacobian.values(x)));
  const auto in_chunks = tower::sparse_jacobian(f, jacobian.pattern(), {.chunk_size = 2});
  EXPECT_TRUE(same(in_chunks.values(x), jacobian.values(x)));
  // Without rows that are taken whole.
  const auto mixed = [f = f](const std::vector<Tensor>& in) {
    const auto [errors, of_weights] = f(in);
    return at::cat({errors.flatten(), of_weights}).index_select(0, at::arange(2099, -1, -1) * 11 % 2100);
  };
  const auto of_mixed = tower::sparse_jacobian(mixed, tower::jacobian_sparsity(mixed, x));
  EXPECT_TRUE(same(of_mixed(x).to_dense(), matrix.index_select(0, at::arange(2099, -1, -1) * 11 % 2100)));
}

TEST(SparseJacobian, OfResultsThatMoveApartIsThatOfAll) {
  const auto f = [](const Tensor& x) { return std::pair(x.square().sum(1), x.sin().sum(1)); };
  const Tensor x = at::randn({2100, 40}, at::kDouble);
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, x));
  EXPECT_EQ(jacobian.num_row_colours(), 2);
  EXPECT_EQ(jacobian.num_colours(), 2);
  EXPECT_TRUE(same(jacobian.values(x), at::cat({(2 * x).flatten(), x.cos().flatten()})));
}

TEST(SparseJacobian, OfTensorsThatMoveApartIsNotFiniteWhereItIsNot) {
  // Of the product one factor is infinite: a zero along the other one's direction is none.
  const auto f = [](const std::pair<Tensor, Tensor>& in) { return in.first * in.second; };
  const Tensor x = at::ones({3000}, at::kDouble), y = at::full({3000}, 2.0, at::kDouble);
  x[5].fill_(std::numeric_limits<double>::infinity());
  y[6].fill_(std::nan(""));
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, std::pair(x, y)));
  const Tensor expected = at::stack({y, x}, 1).flatten();
  EXPECT_TRUE(at::allclose(jacobian.values(std::pair(x, y)), expected, 0, 0, /*equal_nan=*/true));
  const auto fast = tower::compile([&](const std::pair<Tensor, Tensor>& in) { return jacobian.values(in); });
  for (int call = 0; call < 2; ++call)
    EXPECT_TRUE(at::allclose(fast(std::pair(x, y)), expected, 0, 0, /*equal_nan=*/true));
}

// Rows that have the same colours, one after the other, are taken whole: of several outputs, across them, and in parts.
TEST(SparseJacobian, RunsOfEqualRowsAreTakenWhole) {
  const Tensor c = waves({7});
  const auto f = [&](const Tensor& x) {
    const Tensor left = x.slice(0, 0, 6), right = x.slice(0, 6, 12);
    return std::tuple(at::stack({left * right, left.sin() + right}, 1), at::zeros({0, 3}, x.options()), right.exp(),
                      x[0] * x[1], at::cat({left * left.cos(), c, left - right * right}));
  };
  const Tensor x = waves({12});
  const auto as_one = [&](const Tensors& in) {
    const auto [a, b, d, e, g] = f(in[0]);
    return Tensors{at::cat({a.flatten(), b.flatten(), d.flatten(), e.flatten(), g.flatten()})};
  };
  Tensors rows;
  for (int64_t r = 0; r < as_one({x})[0].numel(); ++r) {
    Tensor unit = at::zeros_like(as_one({x})[0]);
    unit[r] = 1;
    rows.push_back(support::autograd_vjp(as_one, {x}, {unit})[0]);
  }
  const Tensor expected = at::stack(rows);
  const Sparsity pattern = tower::jacobian_sparsity(f, x);
  EXPECT_TRUE(at::equal(pattern.mask(), expected.ne(0)));
  for (const std::optional<int64_t> chunk : {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
    const auto jacobian = tower::sparse_jacobian(f, pattern, {.chunk_size = chunk});
    EXPECT_TRUE(same(jacobian(x).to_dense(), expected));
    const auto fast = tower::compile([&](const Tensor& at) { return jacobian.values(at); });
    for (int call = 0; call < 2; ++call) EXPECT_TRUE(same(fast(x), jacobian.values(x)));
    const Tensor mapped = tower::vmap([&](const Tensor& at) { return jacobian.values(at); })(at::stack({x, 2 * x}));
    EXPECT_TRUE(same(mapped[1], jacobian.values(2 * x)));
  }
}

}  // namespace
