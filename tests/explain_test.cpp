// coverage() knows every operator, and explain() counts what ran.
#include "tower/explain.h"

#include <set>
#include <sstream>

#include "support/prelude.h"
#include "tower/coverage.h"

namespace {

TEST(Coverage, HasARowForEveryOperatorAndTransformInOrder) {
  const auto rows = tower::coverage();
  EXPECT_GT(rows.size(), 3 * 3000u);
  EXPECT_EQ(rows.size() % 3, 0u);
  std::set<std::pair<std::string, std::string>> seen;
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(seen.emplace(rows[i].op, rows[i].transform).second) << rows[i].op;
    EXPECT_FALSE(rows[i].served.empty()) << rows[i].op;
    if (i > 0) {
      EXPECT_LE(rows[i - 1].op, rows[i].op);
    }
  }
}

TEST(Coverage, SaysHowAnOperatorIsServed) {
  std::map<std::pair<std::string, std::string>, std::string> served;
  for (const auto& row : tower::coverage()) served[{row.op, row.transform}] = row.served;
  const auto of = [&](const char* op, const char* transform) { return served[{op, transform}]; };
  EXPECT_TRUE(contains(of("aten::sin", "vmap"), "family: pointwise"));
  EXPECT_EQ(of("aten::sin", "vjp"), "own rule");
  EXPECT_EQ(of("aten::sin", "jvp"), "own rule");
  EXPECT_EQ(of("aten::add_.Tensor", "vmap"), "in-place form of aten::add.Tensor");
  EXPECT_EQ(of("aten::matmul", "vjp"), "composite");
  EXPECT_EQ(of("aten::argmax", "vjp"), "no derivative");
  EXPECT_TRUE(of("aten::_local_scalar_dense", "vmap").starts_with("refused: "));
  EXPECT_EQ(of("aten::_masked_softmax", "vjp"), "LibTorch autograd");
  EXPECT_EQ(of("aten::_masked_softmax", "jvp"), "transposed vjp");
}

const tower::ExplainedCall* find(const std::vector<tower::ExplainedCall>& calls, const std::string& op,
                                 const std::string& level) {
  for (const auto& c : calls)
    if (c.op == op && c.level == level) return &c;
  return nullptr;
}

TEST(Explainer, CountsCallsByOperatorAndLevel) {
  const Function f = [](const Tensors& in) { return Tensors{(in[0].sin().sin() + in[0].sin()).sum()}; };
  tower::Explainer explainer;
  td::vmap(td::grad(f, {0}), {0}, {0})({vec({1, 2, 3, 4}).view({2, 2})});
  const auto calls = explainer.calls();
  const auto* upper = find(calls, "aten::sin", "grad (level 2)");
  ASSERT_NE(upper, nullptr);
  EXPECT_EQ(upper->count, 3);
  EXPECT_EQ(upper->served, "own rule");
  const auto* middle = find(calls, "aten::sin", "vmap (level 1)");
  ASSERT_NE(middle, nullptr);
  EXPECT_EQ(middle->count, 3);
  EXPECT_TRUE(contains(middle->served, "pointwise"));
  const auto* cosines = find(calls, "aten::cos", "vmap (level 1)");
  ASSERT_NE(cosines, nullptr);
  EXPECT_EQ(cosines->count, 3);  // one for each sine, in the pullback, a level down
  EXPECT_EQ(find(calls, "aten::cos", "grad (level 2)"), nullptr);
  EXPECT_EQ(calls.front().level, "grad (level 2)");
  EXPECT_TRUE(contains(explainer.table(), "aten::sin"));
}

TEST(Explainer, SeesNothingOnceItIsGone) {
  tower::Explainer outer;
  {
    tower::Explainer inner;
    td::grad([](const Tensors& in) { return Tensors{in[0].tanh().sum()}; }, {0})({vec({1, 2})});
    EXPECT_FALSE(inner.calls().empty());
  }
  EXPECT_TRUE(outer.calls().empty());
}

TEST(Explain, PrintsATableAndReturnsTheResult) {
  std::ostringstream out;
  const Function f = td::grad([](const Tensors& in) { return Tensors{in[0].exp().sum()}; }, {0});
  const auto g = tower::explain(f, out)(Tensors{vec({0, 1})});
  EXPECT_TRUE(support::same(g[0], vec({0, 1}).exp()));
  EXPECT_TRUE(contains(out.str(), "aten::exp"));
  EXPECT_TRUE(contains(out.str(), "grad (level 1)"));
  support::expect_intact();
}

}  // namespace
