// Sparsity patterns and sparse Jacobians against dense ones.
#include "tower/sparse.h"

#include "solvers/sparse_cases.h"
#include "support/device.h"
#include "support/oracles.h"
#include "support/prelude.h"
#include "support/warnings.h"
#include "tower/compile.h"
#include "tower/cond.h"
#include "tower/higher_order.h"

namespace {

using sparse_cases::Case;
using sparse_cases::cases;
using sparse_cases::five_points;
using sparse_cases::laplacian;
using sparse_cases::TensorFunction;
using tower::Sparsity;

Tensor dense_jacobian(const TensorFunction& f, const Tensor& x) {
  const Tensor y = f(x);
  return tower::jacfwd(f)(x).reshape({y.numel(), x.numel()});
}

bool runs_on_device(const Case& one) {
  return support::runs_on_device(one.name, [&] {
    const Tensor y = one.f(waves(one.shape).to(support::device()).requires_grad_());
    if (y.requires_grad()) y.sum().backward();
  });
}
bool has_sparse_matrices() {
  return support::runs_on_device("a sparse matrix made dense",
                                 [] { at::eye(3, at::device(support::device())).to_sparse_csr().to_dense(); });
}

TEST(JacobianSparsity, IsASupersetAndExactWhereTheListSaysSo) {
  EXPECT_GE(cases().size(), 60);
  for (const Case& one : cases()) {
    if (!runs_on_device(one)) continue;
    const Tensor x = waves(one.shape).to(support::device());
    try {
      const Tensor mask = tower::jacobian_sparsity(one.f, x).mask();
      const Tensor entries = dense_jacobian(one.f, x).cpu() != 0;
      ASSERT_EQ(mask.sizes(), entries.sizes()) << one.name;
      EXPECT_TRUE(at::logical_or(mask, ~entries).all().item<bool>()) << one.name << "\n" << mask << "\n" << entries;
      EXPECT_TRUE(!one.exact || at::equal(mask, entries)) << one.name << "\n" << mask << "\n" << entries;
    } catch (const std::exception& error) {
      ADD_FAILURE() << one.name << ": " << error.what();
    }
  }
}

// A compiled function calls what a vmap made of its operators, and not the operators.
TEST(JacobianSparsity, OfACompiledFunctionIsThatOfTheFunction) {
  const auto expect_same = [](const char* name, const TensorFunction& f, const Tensor& x) {
    const Sparsity expected = tower::jacobian_sparsity(f, x);
    const auto compiled = tower::compile(f);
    for (int call = 0; call < 2; ++call) {
      const Sparsity found = tower::jacobian_sparsity(compiled, x);
      EXPECT_EQ(found.taken_for_dense(), expected.taken_for_dense()) << name;
      EXPECT_TRUE(at::equal(found.mask(), expected.mask())) << name << "\n" << found << expected;
      compiled(x);
    }
  };
  int compared = 0;
  for (const Case& one : cases()) {
    if (!runs_on_device(one)) continue;
    const Tensor x = waves(one.shape).to(support::device());
    const auto mapped = tower::vmap(one.f);
    try {
      tower::compile(one.f)(x);
      tower::vmap(one.f)(at::stack({x, x}));
    } catch (const std::exception&) {
      continue;  // one that reads values
    }
    expect_same(one.name, one.f, x);
    expect_same(one.name, mapped, at::stack({x, x + 1}));
    ++compared;
  }
  EXPECT_GE(compared, 50);
  const auto turned = [](const Tensor& x) { return at::linalg_cross(x, x.flip(0)) * x; };
  expect_same("of two vmaps", tower::vmap(tower::vmap(turned)), waves({2, 2, 3}));
}

TEST(JacobianSparsity, BothBranchesOfAChoiceAreInIt) {
  const auto f = [](const Tensor& x) {
    return tower::cond(
        x.sum() > 0, [](const Tensor& v) { return v.roll(1, 0); }, [](const Tensor& v) { return v * 2; }, x);
  };
  const Tensor expected = at::eye(4, at::kBool) | at::eye(4, at::kBool).roll(1, 0);
  for (const double value : {-1.0, 1.0})
    EXPECT_TRUE(at::equal(tower::jacobian_sparsity(f, at::full({4}, value, at::kDouble)).mask(), expected));
  // One that depends on no element is made.
  const auto fixed = [&](const Tensor& x) {
    return tower::cond(
        at::ones({}, at::kBool), [](const Tensor& v) { return v.roll(1, 0); }, [](const Tensor& v) { return v * 2; },
        x);
  };
  EXPECT_EQ(tower::jacobian_sparsity(fixed, vec({1, 2, 3})).num_entries(), 3);
  const auto unlike = [](const Tensor& x) {
    return tower::cond(
        x.sum() > 0, [](const Tensor& v) { return v; }, [](const Tensor& v) { return v.sum(); }, x);
  };
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] {
                         tower::jacobian_sparsity(unlike, vec({1, 2}));
                       }),
                       "a sparsity pattern holds for any value of the predicate: both must have the same shape"));
}

TEST(JacobianSparsity, ZerosOfWhatDependsOnValuesAreNone) {
  const auto f = [](const Tensor& x) { return at::mv((x.unsqueeze(0) > x.unsqueeze(1)).to(at::kDouble), x); };
  EXPECT_EQ(tower::jacobian_sparsity(f, vec({1, 2, 3})).num_entries(), 9);
}

TEST(JacobianSparsity, WhatIsNotKnownIsDenseAndNamed) {
  const auto f = [](const Tensor& x) { return at::cat({std::get<0>(at::topk(x.narrow(0, 0, 4), 4)), x}); };
  const Sparsity pattern = tower::jacobian_sparsity(f, vec({2, 1, 0, 3, 5, 6}));
  EXPECT_EQ(pattern.taken_for_dense(), (std::vector<std::string>{"aten::topk"}));
  EXPECT_EQ(pattern.num_entries(), 4 * 4 + 6);
  EXPECT_TRUE(tower::jacobian_sparsity([](const Tensor& x) { return x.sin(); }, vec({1})).taken_for_dense().empty());
}

TEST(JacobianSparsity, WarnsOnceOfEachOperatorThatIsTakenForDense) {
  // A warning comes once in a process, and so this is of what nobody else has.
  tower::HigherOrderRules rules;
  rules.name = "sparse_test::unknown";
  rules.forward = [](const Tensors& x, const tower::Attributes&) { return Tensors{x[0].detach() * 2}; };
  const tower::HigherOrderOperator op(rules);
  const auto unknown = [&](const Tensor& x) { return op({x})[0]; };
  support::Warnings warnings;
  for (int time = 0; time < 2; ++time) tower::jacobian_sparsity(unknown, vec({2, 1, 0, 3}));
  ASSERT_EQ(warnings.texts.size(), 1);
  EXPECT_TRUE(contains(warnings.texts[0],
                       "jacobian_sparsity: it is not known which elements the results of "
                       "sparse_test::unknown depend on"))
      << warnings.texts[0];
}

// Sums of ever more elements: all of a triangle, whose sets alone would take as much memory again.
Tensor running(const Tensor& x) {
  Tensor sum = x[0];
  std::vector<Tensor> sums{sum};
  for (int64_t k = 1; k < x.size(0); ++k) sums.push_back(sum = sum + x[k]);
  return at::stack(sums);
}

TEST(JacobianSparsity, OfMoreEntriesThanThereMayBeIsRefusedBeforeTheyAreThere) {
  const auto refusal = [](const auto& f, const Tensor& x, int64_t most) {
    return message_of<tower::UnsupportedError>([&] { tower::jacobian_sparsity(f, x, {.most_entries = most}); });
  };
  const auto unknown = [](const Tensor& x) { return std::get<0>(at::topk(x, x.size(0))); };
  EXPECT_EQ(tower::jacobian_sparsity(unknown, waves({10}), {.most_entries = 100}).num_entries(), 100);
  const std::string dense = refusal(unknown, waves({10}), 99);
  EXPECT_TRUE(contains(dense, "jacobian_sparsity: the pattern would have 100 entries in 10 rows of 10, more than 99"))
      << dense;
  EXPECT_TRUE(contains(dense, "the results of aten::topk depend on")) << dense;
  EXPECT_TRUE(contains(dense, "give a custom operator a sparsity rule")) << dense;
  // 10¹⁰ entries, of which nobody makes one.
  EXPECT_TRUE(contains(refusal(unknown, waves({100000}), 100'000'000), "would have 10000000000 entries"));
  const auto outer = [](const Tensor& x) { return (x.sum() * x).sin(); };
  const std::string known = refusal(outer, waves({10}), 99);
  EXPECT_TRUE(contains(known, "100 entries in 10 rows of 10, more than 99 (most_entries). Where there is memory"))
      << known;
  EXPECT_EQ(tower::jacobian_sparsity(running, waves({50})).num_entries(), 50 * 51 / 2);
  const std::string on_the_way = refusal([](const Tensor& x) { return running(x).sum(); }, waves({50}), 50);
  EXPECT_TRUE(contains(on_the_way, "jacobian_sparsity: at aten::add.Tensor the sets of elements")) << on_the_way;
  EXPECT_THROW(tower::jacobian_sparsity(outer, waves({3}), {.most_entries = -1}), tower::ArgumentError);
}

TEST(JacobianSparsity, ValuesDoNotDecide) {
  const auto f = [](const Tensor& x) { return at::where(x > 0, x.roll(1, 0), x * 0); };
  const Tensor mask = tower::jacobian_sparsity(f, at::zeros({4}, at::kDouble)).mask();
  EXPECT_TRUE(at::equal(mask, tower::jacobian_sparsity(f, at::ones({4}, at::kDouble)).mask()));
  EXPECT_EQ(mask.sum().item<int64_t>(), 8);
}

TEST(SparseJacobian, HasTheEntriesOfTheDenseOne) {
  if (!has_sparse_matrices()) GTEST_SKIP() << "LibTorch lacks them on " << support::device();
  for (const Case& one : cases()) {
    if (!runs_on_device(one)) continue;
    const Tensor x = waves(one.shape).to(support::device());
    try {
      const auto jacobian = tower::sparse_jacobian(one.f, tower::jacobian_sparsity(one.f, x));
      for (const double phase : {0.2, 1.1}) {
        const Tensor at_x = waves(one.shape, phase).to(support::device());
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
  EXPECT_EQ(of_grid.num_colours(), 5);
  EXPECT_EQ(of_grid.num_row_colours(), 0);
}

TEST(SparseJacobian, DenseRowsAreTakenByReverseMode) {
  const auto f = [](const Tensor& x) { return at::stack({x.square().sum(), x.exp().sum()}); };
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, waves({20})));
  EXPECT_EQ(jacobian.num_row_colours(), 2);
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
