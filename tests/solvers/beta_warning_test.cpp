// LibTorch warns of its compressed sparse tensors: not where Tower chose them.
#include "sparse/beta_warning.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/sparse.h>
#include <tower/tower.h>

#include "support/warnings.h"

namespace {

using at::Tensor;

// What is else said once in a process is said each time.
class EachTime {
 public:
  EachTime() : before_(c10::WarningUtils::get_warnAlways()) { c10::WarningUtils::set_warnAlways(true); }
  ~EachTime() { c10::WarningUtils::set_warnAlways(before_); }

 private:
  bool before_;
};

Tensor stencil(const Tensor& x) { return x.square() - x.roll({1}, {0}); }

TEST(SparseMatrices, AreMadeWithoutAWarningOfBetaState) {
  const EachTime always;
  const Tensor x = at::rand({6}, at::kDouble);
  for (const at::Layout layout : {at::kSparseCsr, at::kSparseCsc, at::kSparse, at::kSparseBsr}) {
    const support::Warnings warnings;
    const auto pattern = tower::jacobian_sparsity(stencil, x);
    tower::sparse_jacobian(stencil, pattern, {.layout = layout, .block = {2, 2}})(x);
    tower::Sparsity::of(at::eye(3));
    EXPECT_EQ(warnings.texts, std::vector<std::string>{}) << layout;
  }
  // Of what the user makes it is said, also after that.
  const support::Warnings warnings;
  at::eye(3).to_sparse_csr();
  ASSERT_EQ(warnings.texts.size(), 1);
  EXPECT_NE(warnings.texts[0].find("beta state"), std::string::npos);
}

TEST(SparseMatrices, LeaveOtherWarningsToTheThreadsHandler) {
  const support::Warnings warnings;
  {
    const tower::sparse::NoBetaWarning quiet;
    TORCH_WARN("of something else");
  }
  ASSERT_EQ(warnings.texts.size(), 1);
  EXPECT_EQ(warnings.texts[0], "of something else");
}

}  // namespace
