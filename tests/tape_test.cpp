// The tape: as deep as memory allows, run as often as asked, and never wrong about what it kept.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "support/prelude.h"
#include "tower/coverage.h"

namespace {

using tower::DerivativeError;

// A recursive destructor or traversal overflows an 8 MiB stack long before a million.
constexpr int kMillion = 1'000'000;
constexpr int kManyViews = 300'000;

TEST(AMillionNodes, ArePulledBackAndFreed) {
  const auto f = of_one([](const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < kMillion; ++i) y = i % 2 == 0 ? y * -1 : y + 1;
    return y;
  });
  {
    const auto [y, pullback] = td::vjp(f, {number(3)});
    EXPECT_TRUE(same(pullback({number(5)})[0], number(5)));  // an even number of changes of sign
  }
  support::expect_intact();
}

TEST(AMillionNodes, ThatNoOutputNeedsArePruned) {
  const auto f = of_one([](const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < kMillion; ++i) y = y * -1;
    return x * 2;
  });
  EXPECT_TRUE(same(td::grad(f, {0})({number(3)})[0], number(2)));
}

TEST(ManyNodes, ArePushedForward) {
  const auto f = of_one([](const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < kMillion / 4; ++i) y = y * -1;
    return y;
  });
  EXPECT_TRUE(same(td::linearize(f, {number(3)}).second({number(5)})[0], number(5)));
}

TEST(ALongChainOfViews, IsDifferentiatedMappedAndFreed) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor base = x * 1;
    Tensor view = base;
    for (int i = 0; i < kManyViews; ++i) view = view.view({2});
    return view * view;
  });
  EXPECT_TRUE(same(td::vjp(f, {vec({1, 2})}).second({vec({1, 1})})[0], vec({2, 4})));
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({vec({1, 2, 3, 4}).view({2, 2})})[0], vec({1, 4, 9, 16}).view({2, 2})));
  support::expect_intact();
}

TEST(Pullbacks, CanBeCalledAgainWithOtherCotangents) {
  const auto [y, pullback] = td::vjp(
      [](const Tensors& in) {
        return Tensors{in[0] * in[1], in[0].exp()};
      },
      {vec({1, 2}), vec({3, 4})});
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Tensor a = vec({1.0 + repeat, 2}), b = vec({0.5, -1.0 * repeat});
    const Tensors g = pullback({a, b});
    EXPECT_TRUE(same(g[0], a * vec({3, 4}) + b * vec({1, 2}).exp()));
    EXPECT_TRUE(same(g[1], a * vec({1, 2})));
  }
}

TEST(Pullbacks, UnderVmapGiveTheRowsOfTheJacobian) {
  const Tensor x = vec({0.3, 0.7, 1.1});
  const auto [y, pullback] = td::vjp(of_one([](const Tensor& v) { return v.cumsum(0) * v; }), {x});
  const Tensor rows = td::vmap(pullback, {0}, {0})({at::eye(3, at::kDouble)})[0];
  // d(x_i Σ_{j≤i} x_j)/dx_k = [k ≤ i] x_i + [k = i] Σ_{j≤i} x_j
  const Tensor expected = at::tril(x.unsqueeze(1).expand({3, 3})) + at::diag(x.cumsum(0));
  EXPECT_TRUE(same(rows, expected));
}

TEST(Pullbacks, AreDifferentiableInTheirCotangentAndPrimal) {
  const Tensor x = vec({0.3, 0.7});
  const auto through = of_one([](const Tensor& v) {
    const auto [y, pullback] = td::vjp(of_one([](const Tensor& u) { return u * u * u; }), {v});
    return pullback({v})[0].sum();  // Σ 3 v³
  });
  EXPECT_TRUE(same(td::grad(through, {0})({x})[0], 9 * x * x));
}

TEST(Pullbacks, CallableAfterOtherTransformsAndInsideThem) {
  const auto [y, pullback] = td::vjp(of_one([](const Tensor& v) { return v.sin(); }), {vec({1, 2})});
  const Tensor g = td::grad(of_one([&pullback = pullback](const Tensor& c) { return (pullback({c})[0] * c).sum(); }),
                            {0})({vec({3, 4})})[0];
  EXPECT_TRUE(same(g, 2 * vec({3, 4}) * vec({1, 2}).cos()));
}

TEST(Linearized, PushforwardsAreLinearAndReusable) {
  int evaluations = 0;
  const auto f = of_one([&](const Tensor& v) {
    ++evaluations;
    return v.exp() * v;
  });
  const Tensor x = vec({0.5, 1.5});
  const auto [y, push] = td::linearize(f, {x});
  const Tensor slope = x.exp() * (x + 1);
  EXPECT_TRUE(same(push({vec({1, 2})})[0], slope * vec({1, 2})));
  EXPECT_TRUE(same(push({Tensor()})[0], vec({0, 0})));
  EXPECT_TRUE(same(td::vmap(push, {0}, {0})({at::eye(2, at::kDouble)})[0], at::diag(slope)));
  EXPECT_EQ(evaluations, 1);
}

TEST(SavedTensors, ThatAreWrittenToBeforeThePullbackAreNoticed) {
  const Tensor x = vec({1, 2}), w = vec({3, 4});
  const auto [y, pullback] = td::vjp(of_one([&](const Tensor& v) { return v * w; }), {x});
  w.mul_(2);
  const auto text = refusal<DerivativeError>([&pullback = pullback] { pullback({vec({1, 1})}); });
  EXPECT_TRUE(says(text, {"vjp: ", "aten::mul", "modified by an in-place operation", "Clone it"}));
}

TEST(SavedTensors, ThatWereNotNeededMayBeWrittenTo) {
  const Tensor x = vec({1, 2}), w = vec({3, 4});
  const auto [y, pullback] = td::vjp(of_one([&](const Tensor& v) { return v + w; }), {x});
  w.mul_(2);
  EXPECT_TRUE(same(pullback({vec({5, 6})})[0], vec({5, 6})));
}

TEST(SavedTensors, WrittenToInsideTheFunctionKeepTheirOldValue) {
  // y = x²; then y is overwritten, after sin(y) has been taken of it.
  const auto f = of_one([](const Tensor& x) {
    Tensor y = x * x;
    const Tensor s = y.sin();
    y.fill_(0);
    return (s + y).sum();
  });
  const Tensor x = vec({0.5, 1.5});
  EXPECT_TRUE(same(td::grad(f, {0})({x})[0], 2 * x * (x * x).cos()));
}

// Operators that Tower has no rule for use LibTorch's formula, to any order.

tower::CoverageRow served(const std::string& op, const std::string& transform) {
  for (auto& row : tower::coverage())
    if (row.op == op && row.transform == transform) return row;
  return {};
}

// The sine, by an operator that Tower knows nothing of but its schema; its derivative is LibTorch's business.
struct Sine : torch::autograd::Function<Sine> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::sin(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               const torch::autograd::tensor_list& grads) {
    return {grads[0] * ctx->get_saved_variables()[0].cos()};
  }
};
TORCH_LIBRARY(tower_tape_test, m) { m.def("sine(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(tower_tape_test, CPU, m) {
  m.impl("sine", [](const Tensor& x) { return at::sin(x); });
}
TORCH_LIBRARY_IMPL(tower_tape_test, Autograd, m) {
  m.impl("sine", [](const Tensor& x) { return Sine::apply(x); });
}
Tensor sine(const Tensor& x) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tower_tape_test::sine", "").typed<Tensor(const Tensor&)>();
  return op.call(x);
}

TEST(LibTorchsFormulas, AreDifferentiatedToThirdOrderInAnyMode) {
  ASSERT_EQ(served("tower_tape_test::sine", "vjp").served, "LibTorch autograd");
  const Tensor x = number(0.8);
  const Function f = of_one(sine);
  const auto reverse = [](const Function& g) { return td::grad(g, {0}); };
  const auto forward = [](const Function& g) {
    return of_one([g](const Tensor& v) { return td::jvp(g, {v}, {at::ones_like(v)}).second[0]; });
  };
  const std::vector<std::function<Function(const Function&)>> modes = {reverse, forward};
  for (const auto& first : modes)
    for (const auto& second : modes) {
      EXPECT_TRUE(same(first(f)({x})[0], x.cos()));
      EXPECT_TRUE(same(second(first(f))({x})[0], -x.sin()));
      EXPECT_TRUE(same(reverse(second(first(f)))({x})[0], -x.cos()));
      EXPECT_TRUE(same(forward(second(first(f)))({x})[0], -x.cos()));
    }
}

TEST(LibTorchsFormulas, AreThoseOfEveryExampleUnderVmap) {
  const Tensor x = vec({0.1, 0.8, 2, 3}).view({2, 2});
  const auto f = of_one([](const Tensor& v) { return (sine(v) * v).sum(); });
  EXPECT_TRUE(same(td::vmap(td::grad(f, {0}), {0}, {0})({x})[0], x.cos() * x + x.sin()));
}

TEST(ForwardMode, TransposesThePullbackWhereNoRuleIsKnown) {
  ASSERT_EQ(served("tower_tape_test::sine", "jvp").served, "transposed vjp");
  const Tensor x = vec({0.4, 0.8}), t = vec({1, -2});
  EXPECT_TRUE(same(td::jvp(of_one(sine), {x}, {t}).second[0], t * x.cos()));
}

}  // namespace
