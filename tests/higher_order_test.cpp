// Higher-order operators. Rules here are deliberately not the derivatives of what the operators compute, so that a test
// sees whether the rule was used or the implementation was differentiated.
#include "tower/higher_order.h"

#include <torch/csrc/autograd/autograd.h>

#include "support/libtorch_duals.h"
#include "support/prelude.h"

namespace {

using support::along_ones;
using support::gradient;
using support::mapped;
using support::summed;
using tower::Attributes;
using tower::HigherOrderOperator;
using tower::HigherOrderRules;
using tower::Residuals;

// x², whose vjp is said to be 3x.
HigherOrderRules square() {
  HigherOrderRules rules;
  rules.name = "square";
  rules.forward = [](const Tensors& x, const Attributes&) { return Tensors{x[0] * x[0]}; };
  rules.vjp = [](const Residuals& saved, const Tensors& ct, const std::vector<bool>&, const Attributes&) {
    return Tensors{3 * saved.tensors[0] * ct[0]};
  };
  return rules;
}

// And whose jvp is said to be 5x.
HigherOrderRules square_with_jvp() {
  HigherOrderRules rules = square();
  rules.jvp = [](const Residuals& saved, const Tensors& t, const Attributes&) {
    return Tensors{5 * saved.tensors[0] * t[0]};
  };
  return rules;
}

// And whose value for a batch is said to be x² + 1000.
HigherOrderRules square_with_vmap() {
  HigherOrderRules rules = square_with_jvp();
  rules.vmap = [](const tower::VmapInfo&, const Dims& dims, const Tensors& x, const Attributes&) {
    return std::pair(Tensors{x[0] * x[0] + 1000}, dims);
  };
  return rules;
}

Function function_of(HigherOrderRules rules) {
  return [op = HigherOrderOperator(std::move(rules))](const Tensors& in) { return op(in); };
}

TEST(HigherOrder, AVjpRuleIsHonouredHoweverManyLevelsLieAboveIt) {
  const Function f = function_of(square());
  const Tensor x = vec({1, 2, 3}), xs = numbers({2, 3});
  EXPECT_TRUE(same(f({x})[0], x * x));
  EXPECT_TRUE(same(gradient(summed(f))({x})[0], 3 * x));
  EXPECT_TRUE(same(mapped(gradient(f))({x})[0], 3 * x));
  EXPECT_TRUE(same(gradient(summed(mapped(f)))({x})[0], 3 * x));
  EXPECT_TRUE(same(gradient(summed(mapped(mapped(f))))({xs})[0], 3 * xs));
  EXPECT_TRUE(same(mapped(gradient(summed(mapped(f))))({xs})[0], 3 * xs));
  EXPECT_TRUE(same(mapped(mapped(gradient(f)))({xs})[0], 3 * xs));
}

TEST(HigherOrder, SecondDerivativesDifferentiateTheRule) {
  const Function f = function_of(square());
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(gradient(gradient(f))({number(2)})[0], number(3)));
  EXPECT_TRUE(same(mapped(gradient(gradient(f)))({x})[0], at::full_like(x, 3)));
  EXPECT_TRUE(same(gradient(summed(mapped(gradient(f))))({x})[0], at::full_like(x, 3)));
  EXPECT_TRUE(same(gradient(summed(gradient(summed(mapped(f)))))({x})[0], at::full_like(x, 3)));
}

TEST(HigherOrder, AJvpRuleIsHonouredHoweverManyLevelsLieAboveIt) {
  const Function f = function_of(square_with_jvp());
  const Tensor x = vec({1, 2, 3}), xs = numbers({2, 3});
  EXPECT_TRUE(same(along_ones(f)({x})[0], 5 * x));
  EXPECT_TRUE(same(along_ones(mapped(f))({x})[0], 5 * x));
  EXPECT_TRUE(same(mapped(along_ones(f))({x})[0], 5 * x));
  EXPECT_TRUE(same(along_ones(mapped(mapped(f)))({xs})[0], 5 * xs));
  EXPECT_TRUE(same(along_ones(along_ones(f))({x})[0], at::full_like(x, 5)));
  EXPECT_TRUE(same(gradient(summed(along_ones(f)))({x})[0], at::full_like(x, 5)));
  EXPECT_TRUE(same(along_ones(gradient(summed(mapped(f))))({x})[0], at::full_like(x, 3)));
}

TEST(HigherOrder, AVmapRuleIsHonouredAndSoAreTheDerivativeRulesBesideIt) {
  const Function f = function_of(square_with_vmap());
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(mapped(f)({x})[0], x * x + 1000));
  EXPECT_TRUE(same(gradient(summed(mapped(f)))({x})[0], 3 * x));
  EXPECT_TRUE(same(along_ones(mapped(f))({x})[0], 5 * x));
  const auto [y, pullback] = td::vjp(mapped(f), {x});
  EXPECT_TRUE(same(y[0], x * x + 1000));
  const Function value_beside_gradient = [f](const Tensors& in) {
    return Tensors{td::grad_and_value(f, {0})(in).second[0]};
  };
  EXPECT_TRUE(same(mapped(value_beside_gradient)({x})[0], x * x + 1000));
}

TEST(HigherOrder, ALinearVjpServesForwardModeAndANonlinearOneIsRefused) {
  HigherOrderRules linear = square();
  linear.linear_vjp = true;
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(along_ones(function_of(linear))({x})[0], 3 * x));
  EXPECT_TRUE(same(along_ones(mapped(function_of(linear)))({x})[0], 3 * x));
  EXPECT_TRUE(same(mapped(along_ones(function_of(linear)))({x})[0], 3 * x));
  const std::string text = refusal<tower::DerivativeError>([&] { along_ones(function_of(square()))({x}); });
  EXPECT_TRUE(support::says(text, {"jvp", "square", "linear_backward"}));
}

TEST(HigherOrder, AJvpRuleAloneServesReverseModeByTransposition) {
  HigherOrderRules rules = square_with_jvp();
  rules.vjp = nullptr;
  const Function f = function_of(rules);
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(gradient(summed(f))({x})[0], 5 * x));
  EXPECT_TRUE(same(mapped(gradient(f))({x})[0], 5 * x));
  EXPECT_TRUE(same(gradient(summed(mapped(f)))({x})[0], 5 * x));
  EXPECT_TRUE(same(mapped(gradient(gradient(f)))({x})[0], at::full_like(x, 5)));
}

TEST(HigherOrder, WithoutAnyDerivativeRuleItIsAnErrorOrTheImplementationIsDifferentiated) {
  HigherOrderRules rules = square_with_vmap();
  rules.vjp = nullptr;
  rules.jvp = nullptr;
  const Tensor x = vec({1, 2, 3});
  const std::string text = refusal<tower::DerivativeError>([&] { gradient(summed(function_of(rules)))({x}); });
  EXPECT_TRUE(support::says(text, {"vjp", "square", "no derivative is known"}));
  rules.generate_derivatives = true;
  const Function f = function_of(rules);
  EXPECT_TRUE(same(gradient(summed(f))({x})[0], 2 * x));
  EXPECT_TRUE(same(gradient(summed(mapped(f)))({x})[0], 2 * x));
  EXPECT_TRUE(same(mapped(gradient(f))({x})[0], 2 * x));
  EXPECT_TRUE(same(along_ones(mapped(f))({x})[0], 2 * x));
  EXPECT_TRUE(same(mapped(gradient(gradient(f)))({x})[0], at::full_like(x, 2)));
  EXPECT_TRUE(same(mapped(f)({x})[0], x * x + 1000));
}

TEST(HigherOrder, GradientsOfUnbatchedOperandsAreSummedOverTheBatch) {
  HigherOrderRules rules;
  rules.name = "product";
  rules.forward = [](const Tensors& x, const Attributes&) { return Tensors{x[0] * x[1]}; };
  rules.vjp = [](const Residuals& s, const Tensors& ct, const std::vector<bool>&, const Attributes&) {
    return Tensors{7 * ct[0] * s.tensors[1], 11 * ct[0] * s.tensors[0]};
  };
  const HigherOrderOperator op(rules);
  const Tensor a = vec({1, 2, 3}), b = numbers({4, 3});
  const Function f = summed(td::vmap([op](const Tensors& in) { return op(in); }, {std::nullopt, 0}, {0}));
  const Tensors g = td::grad(f, {0, 1})({a, b});
  EXPECT_TRUE(same(g[0], 7 * b.sum(0)));
  EXPECT_TRUE(same(g[1], (11 * a).expand({4, 3})));
}

TEST(HigherOrder, CapturedTensorsArePassedOnOrRefusedByName) {
  const Tensor w = number(2), xs = vec({1, 2, 3});
  // The operator computes w² x, but takes only w as an operand.
  const auto loss = [&](const Tensors& weights) {
    const Tensor w = weights[0];
    return Tensors{td::vmap(
                       [w](const Tensors& in) {
                         const Tensor x = in[0];
                         HigherOrderRules rules = square();
                         rules.forward = [x](const Tensors& y, const Attributes&) { return Tensors{y[0] * y[0] * x}; };
                         rules.vjp = [x](const Residuals& s, const Tensors& ct, const std::vector<bool>&,
                                         const Attributes&) { return Tensors{3 * s.tensors[0] * x * ct[0]}; };
                         return HigherOrderOperator(rules)({w});
                       },
                       {0}, {0})({xs})[0]
                       .sum()};
  };
  EXPECT_TRUE(same(loss({w})[0], number(24)));
  EXPECT_TRUE(same(td::grad(loss, {0})({w})[0], number(36)));
  EXPECT_TRUE(
      same(td::grad([&](const Tensors& in) { return Tensors{td::grad(loss, {0})(in)[0]}; }, {0})({w})[0], number(18)));

  const auto captures_what_is_differentiated = [](const Tensors& in) {
    const Tensor x = in[0];
    HigherOrderRules rules = square();
    rules.forward = [x](const Tensors& y, const Attributes&) { return Tensors{y[0] * x}; };
    return HigherOrderOperator(rules)({x});
  };
  const std::string text =
      refusal<tower::UnsupportedError>([&] { td::grad(captures_what_is_differentiated, {0})({w}); });
  EXPECT_TRUE(support::says(text, {"grad (level 1)", "square", "captured", "argument"}));
}

TEST(HigherOrder, LibTorchsAutogradRecordsTheRuleOutsideTransforms) {
  const HigherOrderOperator op(square());
  const Tensor x = vec({1, 2, 3}).requires_grad_();
  const Tensor y = op({x})[0];
  const Tensor g = torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  EXPECT_TRUE(same(g.detach(), 3 * x.detach()));
  EXPECT_TRUE(same(torch::autograd::grad({g.sum()}, {x})[0], at::full({3}, 3, at::kDouble)));
  const Tensor batched = mapped([op](const Tensors& in) { return op(in); })({x})[0];
  EXPECT_TRUE(same(torch::autograd::grad({batched.sum()}, {x})[0], 3 * x.detach()));
}

TEST(HigherOrder, LibTorchsForwardModeIsRefusedForItCannotFollowTheRule) {
  const HigherOrderOperator op(square());
  const support::LibtorchForwardMode mode;
  const Tensor x = mode.dual(vec({1, 2, 3}), vec({1, 1, 1}));
  const std::initializer_list<const char*> words = {"square", "forward mode", "tower::jvp"};
  EXPECT_TRUE(support::says(refusal<tower::DerivativeError>([&] { op({x}); }), words));
  EXPECT_TRUE(support::says(
      refusal<tower::DerivativeError>([&] { mapped([op](const Tensors& in) { return op(in); })({x}); }), words));
}

TEST(HigherOrder, ResidualsMayComeWithTheForward) {
  int forwards = 0;
  HigherOrderRules rules;
  rules.name = "cube";
  rules.forward = [](const Tensors& x, const Attributes&) { return Tensors{x[0] * x[0] * x[0]}; };
  rules.forward_and_save = [&forwards](const Tensors& x, const Attributes&) {
    ++forwards;
    const Tensor square = x[0] * x[0];
    return std::pair(Tensors{square * x[0]}, Residuals{{square}, {}});
  };
  rules.vjp = [](const Residuals& s, const Tensors& ct, const std::vector<bool>&, const Attributes&) {
    return Tensors{7 * s.tensors[0] * ct[0]};
  };
  const Function f = function_of(rules);
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(gradient(summed(f))({x})[0], 7 * x * x));
  EXPECT_EQ(forwards, 1);
  EXPECT_TRUE(same(gradient(summed(mapped(f)))({x})[0], 7 * x * x));
  EXPECT_TRUE(same(mapped(gradient(gradient(f)))({x})[0], 14 * x));
}

TEST(HigherOrder, AttributesReachEveryRule) {
  HigherOrderRules rules;
  rules.name = "scale";
  rules.forward = [](const Tensors& x, const Attributes& a) { return Tensors{x[0] * tower::attributes_as<double>(a)}; };
  rules.vjp = [](const Residuals&, const Tensors& ct, const std::vector<bool>&, const Attributes& a) {
    return Tensors{ct[0] * (tower::attributes_as<double>(a) + 1)};
  };
  rules.linear_vjp = true;
  const HigherOrderOperator op(rules);
  const Function f = [op](const Tensors& in) { return op(in, tower::attributes(4.0)); };
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(mapped(f)({x})[0], 4 * x));
  EXPECT_TRUE(same(gradient(summed(mapped(f)))({x})[0], at::full_like(x, 5)));
  EXPECT_TRUE(same(mapped(along_ones(f))({x})[0], at::full_like(x, 5)));
}

TEST(HigherOrder, AWrongRuleIsAnErrorThatNamesTheOperator) {
  HigherOrderRules rules = square();
  rules.vjp = [](const Residuals&, const Tensors&, const std::vector<bool>&, const Attributes&) { return Tensors{}; };
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(support::says(refusal<tower::DerivativeError>([&] { gradient(summed(function_of(rules)))({x}); }),
                            {"square", "returned 0 tensors", "1 operands"}));
  rules = square_with_vmap();
  rules.vmap = [](const tower::VmapInfo&, const Dims&, const Tensors& in, const Attributes&) {
    return std::pair(in, Dims{3});
  };
  EXPECT_TRUE(support::says(refusal<tower::ArgumentError>([&] { mapped(function_of(rules))({x}); }),
                            {"vmap (level 1)", "square", "dimension 3"}));
  rules = square();
  rules.generate_vmap = false;
  EXPECT_TRUE(support::says(refusal<tower::UnsupportedError>([&] { mapped(function_of(rules))({x}); }),
                            {"vmap (level 1)", "square", "no vmap rule"}));
}

}  // namespace
