// Sparsity patterns and sparse Jacobians against dense ones.
#include "tower/sparse.h"

#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/cond.h"
#include "tower/loops.h"

namespace {

using tower::Sparsity;
using tower::TensorFunction;

Tensor padded(const Tensor& x) { return at::constant_pad_nd(x, {1, 1}); }
Tensor laplacian(const Tensor& x) {
  const int64_t n = x.size(0);
  return padded(x).narrow(0, 0, n) - 2 * x + padded(x).narrow(0, 2, n);
}
// Five points of a square grid.
Tensor five_points(const Tensor& x) {
  const Tensor wide = at::constant_pad_nd(x, {1, 1, 1, 1});
  const int64_t n = x.size(0), m = x.size(1);
  const auto shifted = [&](int64_t i, int64_t j) { return wide.narrow(0, i, n).narrow(1, j, m); };
  return shifted(0, 1) + shifted(2, 1) + shifted(1, 0) + shifted(1, 2) - 4 * x + x.pow(3) * shifted(1, 2).cos();
}
const Tensor some_matrix = at::tensor({1.0, 2.0, -1.0, 0.5, 3.0, 4.0}, at::kDouble).view({2, 3});

struct Case {
  const char* name;
  std::vector<int64_t> shape;
  TensorFunction f;
  bool exact = true;  // else the pattern may have more than the Jacobian
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"pointwise", {5}, [](const Tensor& x) { return x.sin() * x.exp() + 2; }},
      {"nothing", {4}, [](const Tensor& x) { return at::ones({3}, x.options()); }},
      {"a constant beside x",
       {4},
       [](const Tensor& x) {
         return at::cat({x.detach() * 0, x}) + 1;
       },
       false},
      {"a stencil", {7}, [](const Tensor& x) { return laplacian(x) * x; }},
      {"a stencil by slices",
       {7},
       [](const Tensor& x) { return x.slice(0, 2) - x.slice(0, 0, -2) + x.slice(0, 1, -1).square(); }},
      {"a stencil written in place",
       {7},
       [](const Tensor& x) {
         Tensor y = x.clone();
         y.slice(0, 1).sub_(x.slice(0, 0, -1));
         y.slice(0, 0, -1).add_(x.slice(0, 1).square());
         return y;
       }},
      {"five points of a grid", {4, 5}, five_points},
      {"a periodic stencil", {6}, [](const Tensor& x) { return x.roll(1, 0) * x - x.roll(-1, 0); }},
      {"rows sums", {3, 4}, [](const Tensor& x) { return x.square().sum(1); }},
      {"column means", {3, 4}, [](const Tensor& x) { return x.exp().mean(std::vector<int64_t>{0}, true); }},
      {"a norm", {5}, [](const Tensor& x) { return x.norm(); }},
      {"largest of rows", {3, 4}, [](const Tensor& x) { return x.amax(std::vector<int64_t>{1}); }, false},
      {"logsumexp", {3, 4}, [](const Tensor& x) { return x.logsumexp(1); }},
      {"softmax of rows", {2, 3}, [](const Tensor& x) { return x.softmax(1); }},
      {"running sums", {5}, [](const Tensor& x) { return x.cumsum(0); }, false},
      {"blocks", {2, 3}, [](const Tensor& x) { return at::mm(x, some_matrix.t()).tanh(); }},
      {"blocks from the left", {2, 3}, [](const Tensor& x) { return at::mm(some_matrix.t(), x); }},
      {"x by its transposed", {2, 3}, [](const Tensor& x) { return at::mm(x, x.t()); }, false},
      {"a dense matrix", {3}, [](const Tensor& x) { return at::mv(some_matrix, x); }},
      {"matmul", {2, 2, 3}, [](const Tensor& x) { return at::matmul(x, some_matrix.t()); }},
      {"a linear layer", {2, 3}, [](const Tensor& x) { return at::linear(x, some_matrix, x.sum(1)); }, false},
      {"a sparse matrix",
       {3},
       [](const Tensor& x) {
         const Tensor a = at::tensor({1.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 4.0}, at::kDouble).view({3, 3});
         return at::mv(a.to_sparse_csr(), x.square());
       }},
      {"an inner product", {4}, [](const Tensor& x) { return at::dot(x, x.flip(0)); }},
      {"an arrow",
       {5},
       [](const Tensor& x) {
         return at::cat({x.sum().unsqueeze(0), x.slice(0, 1) * x[0]});
       }},
      {"a permutation",
       {6},
       [](const Tensor& x) {
         return x.index_select(0, at::tensor({5, 3, 1, 0, 2, 4})).square();
       }},
      {"gather",
       {2, 3},
       [](const Tensor& x) {
         return x.gather(1, at::tensor({2, 0, 1, 1}).view({2, 2})).sin();
       }},
      {"advanced indices",
       {3, 4},
       [](const Tensor& x) {
         return x.index({at::tensor({2, 0}), at::tensor({1, 3})}).exp();
       }},
      {"edges of a graph",
       {5},
       [](const Tensor& x) {
         const Tensor from = at::tensor({0, 1, 1, 4}), to = at::tensor({1, 2, 3, 0});
         const Tensor flow = (x.index_select(0, from) - x.index_select(0, to)).tanh();
         return at::zeros_like(x).index_add(0, from, flow).index_add(0, to, -flow);
       }},
      {"scatter_add",
       {4},
       [](const Tensor& x) {
         return at::zeros({3}, x.options()).scatter_add(0, at::tensor({0, 2, 0, 1}), x.square());
       }},
      {"index_put with accumulation",
       {4},
       [](const Tensor& x) {
         return x.index_put({at::tensor({1, 1})}, x.slice(0, 2), /*accumulate=*/true).sin();
       }},
      {"where", {6}, [](const Tensor& x) { return at::where(x > 0, x.square(), x.flip(0)); }, false},
      {"cond",
       {4},
       [](const Tensor& x) {
         return tower::cond(
             x.sum() > 100, [](const Tensor& v) { return v.sum() * v; }, [](const Tensor& v) { return v * v; }, x);
       }},
      {"a loop",
       {6},
       [](const Tensor& x) {
         return tower::fori_loop(
             0, 2, [](int64_t, const Tensor& s) { return s + 0.1 * laplacian(s).sin(); }, x);
       }},
      {"stacked and unbound",
       {2, 3},
       [](const Tensor& x) {
         const auto rows = x.unbind(0);
         return at::stack({rows[1], rows[0] * rows[1]}, 1);
       }},
      {"triangles", {3, 3}, [](const Tensor& x) { return x.tril() + x.triu(1).t(); }},
      {"a block matrix",
       {4},
       [](const Tensor& x) {
         return at::block_diag({x.view({2, 2}), x.narrow(0, 0, 2).diag()}).sum(0);
       }},
      {"types and views",
       {4},
       [](const Tensor& x) {
         return x.to(at::kFloat).view({2, 2}).t().contiguous().to(at::kDouble).flatten() * 2;
       }},
      {"integers have no derivative", {4}, [](const Tensor& x) { return x * x.round().sign() + x.argmax(); }, false},
      {"an inverse", {2, 2}, [](const Tensor& x) { return at::linalg_inv(x + 3 * at::eye(2, x.options())); }},
      {"variance", {2, 3}, [](const Tensor& x) { return x.var(1); }},
      {"maximum of two", {5}, [](const Tensor& x) { return at::max(x, x.roll(1, 0)); }, false},
      {"a gradient inside",
       {6},
       [](const Tensor& x) {
         return tower::grad([](const Tensor& v) { return (v.slice(0, 1) * v.slice(0, 0, -1).square()).sum(); })(x);
       }},
      {"a vmap inside",
       {3, 2},
       [](const Tensor& x) { return tower::vmap([](const Tensor& row) { return row[0] * row.exp(); })(x); }},
      {"a jvp inside",
       {5},
       [](const Tensor& x) {
         return tower::jvp([](const Tensor& v) { return laplacian(v).sin(); }, x, x.cos()).second;
       }},
      {"a number",
       {},
       [](const Tensor& x) {
         return at::stack({x, x * x, x * 0 + 1});
       },
       false},
  };
  return all;
}

Tensor dense_jacobian(const TensorFunction& f, const Tensor& x) {
  const Tensor y = f(x);
  return tower::jacfwd(f)(x).reshape({y.numel(), x.numel()});
}

TEST(JacobianSparsity, IsASupersetAndExactWhereTheListSaysSo) {
  for (const Case& one : cases()) {
    const Tensor x = waves(one.shape);
    try {
      const Tensor mask = tower::jacobian_sparsity(one.f, x).mask();
      const Tensor entries = dense_jacobian(one.f, x) != 0;
      ASSERT_EQ(mask.sizes(), entries.sizes()) << one.name;
      EXPECT_TRUE(at::logical_or(mask, ~entries).all().item<bool>()) << one.name << "\n" << mask << "\n" << entries;
      EXPECT_TRUE(!one.exact || at::equal(mask, entries)) << one.name << "\n" << mask << "\n" << entries;
    } catch (const std::exception& error) {
      ADD_FAILURE() << one.name << ": " << error.what();
    }
  }
}

TEST(JacobianSparsity, WhatIsNotKnownIsDenseAndNamed) {
  const auto f = [](const Tensor& x) { return at::cat({at::linalg_inv(x.narrow(0, 0, 4).view({2, 2})).flatten(), x}); };
  const Sparsity pattern = tower::jacobian_sparsity(f, vec({2, 1, 0, 3, 5, 6}));
  EXPECT_EQ(pattern.taken_for_dense(), (std::vector<std::string>{"aten::linalg_inv_ex"}));
  EXPECT_EQ(pattern.num_entries(), 4 * 4 + 6);
  EXPECT_TRUE(tower::jacobian_sparsity([](const Tensor& x) { return x.sin(); }, vec({1})).taken_for_dense().empty());
}

TEST(JacobianSparsity, ValuesDoNotDecide) {
  const auto f = [](const Tensor& x) { return at::where(x > 0, x.roll(1, 0), x * 0); };
  const Tensor mask = tower::jacobian_sparsity(f, at::zeros({4}, at::kDouble)).mask();
  EXPECT_TRUE(at::equal(mask, tower::jacobian_sparsity(f, at::ones({4}, at::kDouble)).mask()));
  EXPECT_EQ(mask.sum().item<int64_t>(), 8);
}

TEST(SparseJacobian, HasTheEntriesOfTheDenseOne) {
  for (const Case& one : cases()) {
    const Tensor x = waves(one.shape);
    try {
      const auto jacobian = tower::sparse_jacobian(one.f, tower::jacobian_sparsity(one.f, x));
      for (const double phase : {0.2, 1.1}) {
        const Tensor at_x = waves(one.shape, phase);
        EXPECT_TRUE(same(jacobian(at_x).to_dense(), dense_jacobian(one.f, at_x))) << one.name;
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << one.name << ": " << error.what();
    }
  }
}

TEST(SparseJacobian, TakesAsManyDirectionsAsAStencilHasPoints) {
  const auto of_line = tower::sparse_jacobian(laplacian, tower::jacobian_sparsity(laplacian, waves({50})));
  EXPECT_EQ(of_line.num_colours(), 3);
  EXPECT_EQ(of_line.pattern().num_entries(), 3 * 50 - 2);
  const auto of_grid = tower::sparse_jacobian(five_points, tower::jacobian_sparsity(five_points, waves({30, 20})));
  EXPECT_LE(of_grid.num_colours(), 7);
  EXPECT_FALSE(of_grid.by_rows());
}

TEST(SparseJacobian, DenseRowsAreTakenByReverseMode) {
  const auto f = [](const Tensor& x) { return at::stack({x.square().sum(), x.exp().sum()}); };
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, waves({20})));
  EXPECT_TRUE(jacobian.by_rows());
  EXPECT_EQ(jacobian.num_colours(), 2);
  EXPECT_TRUE(same(jacobian(waves({20})).to_dense(), dense_jacobian(f, waves({20}))));
}

TEST(SparseJacobian, ChunksAreTheSame) {
  const auto pattern = tower::jacobian_sparsity(five_points, waves({6, 5}));
  const Tensor whole = tower::sparse_jacobian(five_points, pattern).values(waves({6, 5}));
  EXPECT_TRUE(same(tower::sparse_jacobian(five_points, pattern, {.chunk_size = 2}).values(waves({6, 5})), whole));
}

TEST(SparseJacobian, ItsValuesGoThroughTransforms) {
  const Tensor x = waves({6});
  const auto f = [](const Tensor& v) { return laplacian(v) * v; };
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, x));
  const auto values = [&](const Tensor& v) { return jacobian.values(v); };
  const Tensor xs = waves({3, 6});
  const Tensor batch = tower::vmap(values)(xs);
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(same(batch[i], values(xs[i])));
  const Tensor h = waves({6}, 2);
  const Tensor tangent = tower::jvp(values, x, h).second;
  EXPECT_TRUE(same(tangent, (values(x + h) - values(x - h)) / 2));  // the Jacobian is linear in x
  EXPECT_TRUE(contains(
      message_of<tower::UnsupportedError>([&] { tower::vmap([&](const Tensor& v) { return jacobian(v); })(xs); }),
      "Take its values()"));
}

TEST(SparseHessian, IsThatOfAnEnergy) {
  const auto energy = [](const Tensor& x) {
    return (x.slice(0, 1) - x.slice(0, 0, -1)).cosh().sum() + (x.square().square()).sum();
  };
  const Tensor x = waves({12});
  const Sparsity pattern = tower::hessian_sparsity(energy, x);
  const Tensor expected = tower::hessian(energy)(x);
  EXPECT_TRUE(at::equal(pattern.mask(), expected != 0)) << pattern.mask();
  EXPECT_TRUE(pattern.taken_for_dense().empty());
  const auto hessian = tower::sparse_hessian(energy, pattern);
  EXPECT_EQ(hessian.num_colours(), 3);
  EXPECT_TRUE(same(hessian(x).to_dense(), expected));
}

TEST(Sparsity, IsGivenByAMatrixAndHeldToItsForm) {
  const Tensor matrix = at::tensor({0.0, 2.0, 1.0, 0.0, 0.0, 0.0}, at::kDouble).view({2, 3});
  for (const Tensor& m : {matrix, matrix.to_sparse(), matrix.to_sparse_csr()}) {
    const Sparsity pattern = Sparsity::of(m);
    EXPECT_EQ(pattern.columns(), (std::vector<int64_t>{1, 2}));
    EXPECT_EQ(pattern.starts(), (std::vector<int64_t>{0, 2, 2}));
    EXPECT_TRUE(at::equal(pattern.transposed().mask(), pattern.mask().t()));
  }
  EXPECT_THROW(Sparsity(2, {0, 1}, {2}), tower::ArgumentError);
  EXPECT_THROW(Sparsity(3, {0, 2}, {1, 0}), tower::ArgumentError);
  EXPECT_THROW(Sparsity(3, {0, 1}, {0, 1}), tower::ArgumentError);
  EXPECT_THROW(Sparsity(3, {}, {}), tower::ArgumentError);
  EXPECT_THROW(Sparsity::of(vec({1, 2})), tower::ArgumentError);
}

TEST(JacobianSparsity, WhatItDoesNotTakeIsRefused) {
  const auto f = [](const Tensor& x) { return x.square(); };
  EXPECT_TRUE(
      contains(message_of<tower::ArgumentError>([&] { tower::jacobian_sparsity(f, at::complex(vec({1}), vec({1}))); }),
               "functions of real numbers"));
  EXPECT_TRUE(contains(message_of<tower::UnsupportedError>([&] {
                         tower::vmap([&](const Tensor& x) { return tower::jacobian_sparsity(f, x), x; })(waves({2, 2}));
                       }),
                       "jacobian_sparsity was called inside of a transform"));
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, waves({3})));
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] { jacobian(waves({4})); }), "the pattern has 3 columns"));
}

TEST(SparseJacobian, AHundredThousandUnknowns) {
  const Tensor x = waves({320, 320});
  const auto jacobian = tower::sparse_jacobian(five_points, tower::jacobian_sparsity(five_points, x));
  const Tensor h = waves({320, 320}, 2);
  const Tensor product = at::mv(jacobian(x), h.flatten());
  EXPECT_TRUE(same(product, tower::jvp(five_points, x, h).second.flatten()));
}

}  // namespace
