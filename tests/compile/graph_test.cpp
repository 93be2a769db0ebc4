// Graphs, printed and walked.
#include <tower/compile.h>
#include <tower/graph.h>
#include <tower/transforms.h>

#include <sstream>

#include "support/prelude.h"

namespace {

template <class F, class... Args>
std::string text_of(F f, const Args&... args) {
  std::ostringstream text;
  text << tower::graph(f)(args...);
  return text.str();
}

TEST(Graph, ShowsOperatorsAsTheFunctionCalledThem) {
  const Tensor w = waves({3});
  const auto f = [&](const Tensor& x) { return (x * w + 2).sum(); };
  EXPECT_EQ(text_of(f, waves({2, 3})), R"(argument %0 : Double [2, 3]
captured %1 : Double [3]
%2 = aten::mul.Tensor(%0, %1) : Double [2, 3]
%3 = aten::add.Scalar(%2; other=2, alpha=1) : Double [2, 3]
%4 = aten::sum(%3) : Double []
return %4
)");
}

TEST(Graph, ShowsWhichDimensionsAreMappedByWhichVmap) {
  const auto f = [](const Tensor& x) { return x.square(); };
  const std::string text = text_of(tower::vmap(tower::jacfwd(f)), waves({4, 3}));
  EXPECT_TRUE(contains(text, "aten::mul.Scalar<0|a4>(%0; other=2) : Double [4, 3]")) << text;
  EXPECT_TRUE(contains(text, "<-,0|a4;0,-|b3>")) << text;
  // As many examples as columns: still two vmaps.
  const std::string square = text_of(tower::vmap(tower::jacfwd(f)), waves({3, 3}));
  EXPECT_TRUE(contains(square, "<-,0|a3;0,-|b3>")) << square;
}

TEST(Graph, IsTheSameForEveryNumberOfExamples) {
  const auto f = tower::vmap(tower::jacfwd([](const Tensor& x) { return (x * x.sum()).sin(); }));
  EXPECT_EQ(tower::graph(f)(waves({4, 3})).calls.size(), tower::graph(f)(waves({9, 3})).calls.size());
}

TEST(Graph, HasEqualCallsOnceAndNoneThatNobodyNeeds) {
  const auto f = [](const Tensor& x) {
    const Tensor unused = x.exp(), once = x.sin(), again = x.sin();
    return once * again + x;
  };
  std::vector<std::string> names;
  for (const auto& call : tower::graph(f)(waves({3})).calls) names.push_back(call.op);
  EXPECT_EQ(names, (std::vector<std::string>{"aten::sin", "aten::mul.Tensor", "aten::add.Tensor"}));
}

TEST(Graph, TellsNumbersApartThatPrintAlike) {
  const auto f = [](const Tensor& x) {
    return at::div(x, 0.0) + at::div(x, -0.0) + (x + 1) + (x + 1.0) + (x + 1.0000000000000002);
  };
  EXPECT_EQ(tower::graph(f)(vec({1})).calls.size(), 9u);
  const auto g =
      tower::compile([](const Tensor& x) { return std::pair(at::atan2(x * 0.0, x), at::atan2(x * -0.0, x)); });
  for (int i = 0; i < 2; ++i) {
    const auto [a, b] = g(vec({-1}));
    EXPECT_TRUE(same(a, -b));
  }
}

TEST(Graph, OfWrites) {
  const auto f = [](const Tensor& x) { return Tensor(x).mul_(2); };
  Tensor x = vec({1, 2});
  EXPECT_EQ(text_of(f, x), R"(argument %0 : Double [2]
%1 = aten::mul.Scalar(%0; other=2) : Double [2]
aten::copy_(%0, %1; non_blocking=False)
return %0
)");
  EXPECT_TRUE(same(x, vec({2, 4})));
}

TEST(Graph, ConstantsAreFolded) {
  const auto f = [](const Tensor& x) { return x + (at::ones({3}, at::kDouble) * 2).cumsum(0); };
  const tower::Graph graph = tower::graph(f)(waves({3}));
  ASSERT_EQ(graph.calls.size(), 1u);
  const auto& constant = graph.values[static_cast<size_t>(graph.calls[0].operands[1])];
  EXPECT_EQ(constant.origin, tower::ValueOrigin::constant);
  EXPECT_TRUE(same(constant.tensor, vec({2, 4, 6})));
}

}  // namespace
