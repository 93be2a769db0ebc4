// Systems of equations whose matrix, or right-hand side, all examples share: what says whether it went well may then be
// one number for all of them.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <tower/tower.h>

namespace {

using at::Tensor;

TEST(CompiledSolve, MayShareTheMatrixOrTheRightHandSide) {
  const Tensor matrices = at::randn({4, 3, 3}, at::kDouble) + 3 * at::eye(3, at::kDouble);
  const Tensor sides = at::randn({4, 3}, at::kDouble);
  const auto solve = [](const Tensor& a, const Tensor& b) { return at::linalg_solve(a, b); };
  const auto one_matrix = tower::compile(tower::vmap(solve, {.in_dims = {std::nullopt, 0}}));
  const auto one_side = tower::compile(tower::vmap(solve, {.in_dims = {0, std::nullopt}}));
  for (int call = 0; call < 2; ++call) {  // traced, then compiled
    const Tensor x = one_matrix(matrices[0], sides), y = one_side(matrices, sides[0]);
    for (int64_t i = 0; i < sides.size(0); ++i) {
      EXPECT_TRUE(at::allclose(x[i], at::linalg_solve(matrices[0], sides[i]), 1e-12, 1e-12));
      EXPECT_TRUE(at::allclose(y[i], at::linalg_solve(matrices[i], sides[0]), 1e-12, 1e-12));
    }
  }
}

TEST(CompiledSolve, OfAMatrixThatAllShareFailsWhereItIsSingular) {
  const auto solve = tower::compile(tower::vmap([](const Tensor& a, const Tensor& b) { return at::linalg_solve(a, b); },
                                                {.in_dims = {std::nullopt, 0}}));
  EXPECT_THROW(solve(at::zeros({3, 3}), at::ones({4, 3})), c10::Error);
}

}  // namespace
