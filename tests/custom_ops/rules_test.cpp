// What custom operators promise: a rule is the meaning of its transform at every level, whatever the kernel computes.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>
#include <tower/check_grads.h>
#include <tower/tower.h>

#include "custom_ops/names.h"
#include "support/libtorch_duals.h"
#include "support/prelude.h"
#include "support/warnings.h"

namespace {

using Unary = Tensor(const Tensor&);

auto lab(const char* name) { return custom_op(std::string("lab::") + name).typed<Unary>(); }

template <class F>
auto summed(F f) {
  return [f](const Tensor& x) { return f(x).sum(); };
}
template <class F>
auto along_ones(F f) {
  return [f](const Tensor& x) { return tower::jvp(f, x, at::ones_like(x)).second; };
}

// ---- every nesting -------------------------------------------------------------------------------------------------

Function transformed(char transform, const Function& f) {
  switch (transform) {
    case 'v':
      return support::mapped(f);
    case 'g':
      return support::gradient(support::summed(f));
    default:
      return support::along_ones(f);
  }
}

std::vector<std::string> nestings() {
  std::vector<std::string> all = {""};
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].size() < 3)
      for (const char t : {'v', 'g', 'j'}) all.push_back(all[i] + t);
  return all;
}

// The operator computes x² and says that the derivative is 3x. So does x² with what 1.5 x² lacks of it held constant.
void expect_honoured_in_every_nesting(const char* name) {
  const Function op = of_one(lab(name));
  const Function reference = of_one([](const Tensor& x) {
    const Tensor said = 1.5 * x * x;
    return said + (x * x - said).detach();
  });
  const Tensor x = numbers({2, 2, 2, 2}) / 7;
  for (const std::string& nesting : nestings()) {
    Function actual = op, expected = reference;
    for (const char t : nesting) {
      actual = transformed(t, actual);
      expected = transformed(t, expected);
    }
    EXPECT_TRUE(same(actual({x})[0], expected({x})[0])) << name << " under " << nesting << " (the innermost first)";
  }
}

TEST(CustomOpRules, ABackwardIsHonouredInEveryNestingOfThreeTransforms) { expect_honoured_in_every_nesting("said_3x"); }
TEST(CustomOpRules, SoIsThatOfAKernelThatReadsMemory) { expect_honoured_in_every_nesting("said_3x_raw"); }

TEST(CustomOpRules, EachTransformHasItsOwnRule) {
  const auto f = lab("said_many");
  const Tensor x = vec({1, 2, 3}), xs = numbers({2, 3});
  EXPECT_TRUE(same(f(x), x * x));
  EXPECT_TRUE(same(tower::vmap(f)(x), x * x + 1000));
  EXPECT_TRUE(same(tower::grad(summed(f))(x), 3 * x));
  EXPECT_TRUE(same(along_ones(f)(x), 5 * x));
  EXPECT_TRUE(same(tower::vmap(tower::grad(f))(x), 3 * x));
  EXPECT_TRUE(same(tower::grad(summed(tower::vmap(f)))(x), 3 * x));
  EXPECT_TRUE(same(along_ones(tower::vmap(f))(x), 5 * x));
  EXPECT_TRUE(same(tower::vmap(along_ones(f))(x), 5 * x));
  EXPECT_TRUE(same(along_ones(tower::vmap(tower::vmap(f)))(xs), 5 * xs));
  EXPECT_TRUE(same(tower::vmap(tower::grad(tower::grad(f)))(x), at::full_like(x, 3)));
  EXPECT_TRUE(same(tower::grad(summed(along_ones(f)))(x), at::full_like(x, 5)));
  EXPECT_TRUE(same(along_ones(tower::grad(summed(f)))(x), at::full_like(x, 3)));
  const auto [y, pullback] = tower::vjp(tower::vmap(f), x);
  EXPECT_TRUE(same(y, x * x + 1000));
}

TEST(CustomOpRules, ABackwardThatIsNotLinearServesReverseModeOnly) {
  const auto clip = custom_op("lab::clip_gradient").typed<Tensor(const Tensor&, double)>();
  const auto f = [&](const Tensor& x) { return (10 * clip(x, 0.5)).sum(); };
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::grad(f)(x), at::full_like(x, 0.5)));
  EXPECT_TRUE(same(tower::vmap(tower::grad(f))(x), at::full_like(x, 0.5)));
  EXPECT_TRUE(same(tower::grad([&](const Tensor& x) { return tower::vmap(f)(x).sum(); })(x), at::full_like(x, 0.5)));
  EXPECT_TRUE(says(refusal<tower::DerivativeError>([&] { along_ones(f)(x); }),
                   {"jvp", "lab::clip_gradient", "jvp rule", "linear_backward"}));
}

TEST(CustomOpRules, RandomNumbersInsideAreDrawnAsTheVmapSays) {
  const auto f = lab("jitter");
  const Tensor x = at::zeros({4, 1000}, at::kDouble);
  const Tensor different = tower::vmap(f, {.randomness = tower::Randomness::different})(x);
  const Tensor one = tower::vmap(f, {.randomness = tower::Randomness::same})(x);
  EXPECT_FALSE(at::equal(different[0], different[1]));
  EXPECT_TRUE(at::equal(one[0], one[1]));
  EXPECT_TRUE(says(refusal<tower::RandomnessError>([&] { tower::vmap(f)(x); }), {"vmap (level 1)", "random"}));
  const auto g = tower::vmap(tower::grad(summed(f)), {.randomness = tower::Randomness::different});
  EXPECT_TRUE(same(g(x), at::full_like(x, 7)));
}

TEST(CustomOpRules, AKernelThatReadsMemoryRunsForEachExampleWithOneWarningAndTheCustomDerivative) {
  int calls = 0;
  const auto op =
      custom_op("once::raw(Tensor x) -> Tensor")
          .kernel(at::kCPU,
                  [&](const Tensor& x) {
                    Tensor y = at::empty_like(x);
                    *y.mutable_data_ptr<double>() = 10 * *x.const_data_ptr<double>();
                    ++calls;
                    return y;
                  })
          .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
            return {{"x", 3 * saved[0] * grads[0]}};
          });
  const auto f = op.typed<Unary>();
  const Tensor x = vec({1, 2, 3});
  const support::Warnings warnings;
  EXPECT_TRUE(same(tower::vmap(f)(x), 10 * x));
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(same(tower::grad(summed(tower::vmap(f)))(x), 3 * x));
  EXPECT_TRUE(same(tower::vmap(tower::grad(f))(x), 3 * x));
  EXPECT_EQ(calls, 9);
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_TRUE(says(warnings.texts[0], {"vmap (level 1)", "once::raw", "once for each example"}));
}

TEST(CustomOpRules, TheAbstractImplementationServesMetaTensorsInTransforms) {
  const auto f = lab("cube");
  const auto meta = [](at::IntArrayRef sizes) { return at::empty(sizes, at::TensorOptions(at::kMeta)); };
  const auto expect_meta = [](const Tensor& t, at::IntArrayRef sizes) {
    EXPECT_TRUE(t.is_meta());
    EXPECT_EQ(t.sizes(), sizes);
  };
  expect_meta(f(meta({2, 3})), {2, 3});
  expect_meta(tower::vmap(f)(meta({2, 3})), {2, 3});
  expect_meta(tower::grad(summed(f))(meta({2, 3})), {2, 3});
  expect_meta(tower::vmap(tower::grad(summed(f)))(meta({2, 3})), {2, 3});
}

TEST(CustomOpRules, GradientsOfUnbatchedArgumentsAreSummedOverTheBatch) {
  const auto mul = custom_op("lab::mul").typed<Tensor(const Tensor&, const Tensor&)>();
  const Tensor a = vec({1, 2, 3}), b = numbers({4, 3});
  const auto f = [&](const Tensor& a, const Tensor& b) {
    return tower::vmap(mul, {.in_dims = {std::nullopt, 0}})(a, b).sum();
  };
  const auto [of_a, of_b] = tower::grad<0, 1>(f)(a, b);
  EXPECT_TRUE(same(of_a, b.sum(0)));
  EXPECT_TRUE(same(of_b, a.expand({4, 3})));
}

TEST(CustomOpRules, AnOperatorWithoutDerivativeRulesIsAnErrorWhereItIsDifferentiated) {
  const auto op = custom_op("once::halve(Tensor x) -> Tensor").kernel([](const Tensor& x) { return x / 2; });
  const auto f = op.typed<Unary>();
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::vmap(f)(x), x / 2));
  // Whether or not a vmap lies above: that its kernel is written with operators is not a derivative.
  for (const auto& text : {refusal<tower::DerivativeError>([&] { tower::grad(summed(f))(x); }),
                           refusal<tower::DerivativeError>([&] { tower::grad(summed(tower::vmap(f)))(x); }),
                           refusal<tower::DerivativeError>([&] { tower::vmap(tower::grad(f))(x); }),
                           refusal<tower::DerivativeError>([&] { along_ones(f)(x); })})
    EXPECT_TRUE(says(text, {"once::halve", "no derivative is known", "detach()"}));
}

TEST(CustomOpRules, SecondDerivativesMayBeRulesThatAreRegisteredForTheBackwardsOperator) {
  // The backward is an operator, with a backward of its own that is not its derivative.
  const auto slope = custom_op("once::slope(Tensor x) -> Tensor")
                         .kernel([](const Tensor& x) { return 3 * x; })
                         .backward([](const BackwardContext&, const ValueList&, const ValueList& grads) -> Gradients {
                           return {{"x", 11 * grads[0]}};
                         });
  const auto f_slope = slope.typed<Unary>();
  const auto op =
      custom_op("once::curve(Tensor x) -> Tensor")
          .kernel([](const Tensor& x) { return x * x; })
          .backward([f_slope](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
            return {{"x", f_slope(saved[0]) * grads[0]}};
          });
  const auto f = op.typed<Unary>();
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::vmap(tower::grad(tower::grad(f)))(x), at::full_like(x, 11)));
  EXPECT_TRUE(same(tower::grad(summed(tower::grad(summed(tower::vmap(f)))))(x), at::full_like(x, 11)));
}

TEST(CustomOpRules, AutocastReachesTheKernelInsideTransformsAsOutside) {
  const auto multiply = [](const Tensor& a, const Tensor& b) { return at::mm(a, b); };
  // Backward passes run without autocast.
  const auto op =
      custom_op("once::matmul(Tensor a, Tensor b) -> Tensor")
          .kernel(multiply)
          .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
            const Tensor g = grads[0].to(at::kFloat);
            return {{"a", g.mm(saved[1].t())}, {"b", saved[0].t().mm(g)}};
          });
  const auto mm = op.typed<Tensor(const Tensor&, const Tensor&)>();
  torch::Library library(torch::Library::DEF, "others", std::nullopt, __FILE__, __LINE__);
  library.def("matmul(Tensor a, Tensor b) -> Tensor");
  library.impl("matmul", c10::DispatchKey::CPU, torch::CppFunction(multiply));
  const auto theirs = custom_op("others::matmul").typed<Tensor(const Tensor&, const Tensor&)>();

  const Tensor a = at::rand({3, 2, 4}), b = at::rand({3, 4, 2});
  struct Autocast {
    Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
    ~Autocast() {
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
    }
  } autocast;
  for (const auto& f : {mm, theirs}) {
    const Tensor batch = tower::vmap(f)(a, b);
    EXPECT_EQ(batch.scalar_type(), at::kBFloat16);
    for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(batch[i], f(a[i], b[i]), 1e-2, 1e-2));
  }
  const auto loss = [&](const Tensor& a, const Tensor& b) { return mm(a, b).to(at::kFloat).sum(); };
  const auto [of_a, of_b] = tower::vmap(tower::grad<0, 1>(loss))(a, b);
  EXPECT_EQ(of_a.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(of_a, b.sum(2).unsqueeze(1).expand_as(a), 2e-2, 2e-2));
  EXPECT_TRUE(at::allclose(of_b, a.sum(1).unsqueeze(2).expand_as(b), 2e-2, 2e-2));
}

// ---- LibTorch's autograd -------------------------------------------------------------------------------------------

TEST(CustomOpRules, LibTorchsAutogradUsesTheSameFormulaOutsideTransforms) {
  const auto f = lab("said_3x");
  const Tensor x = vec({1, 2, 3}).requires_grad_();
  const Tensor g = torch::autograd::grad({f(x).sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  EXPECT_TRUE(same(g.detach(), 3 * x.detach()));
  EXPECT_TRUE(same(torch::autograd::grad({g.sum()}, {x})[0], at::full({3}, 3, at::kDouble)));
  // Through the dispatcher, too, and through a transformed function.
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("lab::said_3x", "");
  torch::jit::Stack stack{x};
  handle.callBoxed(stack);
  EXPECT_TRUE(same(torch::autograd::grad({stack[0].toTensor().sum()}, {x})[0], 3 * x.detach()));
  EXPECT_TRUE(same(torch::autograd::grad({tower::vmap(f)(x).sum()}, {x})[0], 3 * x.detach()));
}

TEST(CustomOpRules, ARuleOfTheOtherModeServesUnderNoGradToo) {
  const Tensor x = vec({1, 2, 3});
  const Tensor leaf = vec({1, 2, 3}).requires_grad_();
  // LibTorch's backward pass is one without history.
  EXPECT_TRUE(same(torch::autograd::grad({lab("square")(leaf).sum()}, {leaf})[0], 2 * x));
  EXPECT_TRUE(same(torch::autograd::grad({lab("sine")(leaf).sum()}, {leaf})[0], x.cos()));
  at::NoGradGuard no_grad;
  EXPECT_TRUE(same(tower::grad(summed(lab("square")))(x), 2 * x));
  EXPECT_TRUE(same(along_ones(lab("said_3x"))(x), 3 * x));
  EXPECT_TRUE(same(tower::vmap(tower::grad(lab("sine")))(x), x.cos()));
}

TEST(CustomOpRules, TheKernelRunsBelowLibTorchsAutograd) {
  bool recorded = true;
  const auto op = custom_op("once::spy(Tensor x) -> Tensor")
                      .kernel([&](const Tensor& x) {
                        const Tensor y = x * 2;
                        recorded = y.requires_grad();
                        return y;
                      })
                      .backward([](const BackwardContext&, const ValueList&, const ValueList& grads) -> Gradients {
                        return {{"x", 2 * grads[0]}};
                      });
  const Tensor x = vec({1, 2}).requires_grad_();
  const Tensor y = op.typed<Unary>()(x);
  EXPECT_FALSE(recorded);
  EXPECT_TRUE(y.requires_grad());
  at::NoGradGuard no_grad;
  EXPECT_FALSE(op.typed<Unary>()(x).requires_grad());
}

TEST(CustomOpRules, BackwardIsTheErrorUntilThereIsAFormulaAndForwardWorks) {
  const auto op = custom_op("once::late(Tensor x) -> Tensor").kernel([](const Tensor& x) { return x * x; });
  const auto f = op.typed<Unary>();
  const Tensor x = vec({1, 2, 3}).requires_grad_();
  const Tensor y = f(x);
  EXPECT_TRUE(same(y.detach(), x.detach() * x.detach()));
  const auto backward = [&] { return torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true)[0]; };
  EXPECT_TRUE(
      says(refusal<tower::DerivativeError>(backward), {"backward", "autograd is not implemented", "once::late"}));
  // Even for a call that was made before.
  op.backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
    return {{"x", 3 * saved[0] * grads[0]}};
  });
  EXPECT_TRUE(same(backward(), 3 * x.detach()));
}

TEST(CustomOpRules, ForwardModeOfLibTorchIsRefusedInsteadOfLosingTheTangent) {
  const auto f = lab("cube");
  const support::LibtorchForwardMode forward_mode;
  const Tensor dual = forward_mode.dual(vec({1, 2}), vec({1, 1}));
  for (const auto& text : {refusal<tower::DerivativeError>([&] { f(dual); }),
                           refusal<tower::DerivativeError>([&] { tower::vmap(f)(dual); })})
    EXPECT_TRUE(says(text, {"lab::cube", "forward mode", "tower::jvp"}));
}

// ---- what users of PyTorch asked for -------------------------------------------------------------------------------

// pytorch/pytorch#168393: grad over an operator with a registered backward and a number among its arguments.
TEST(CustomOpRules, GradGoesThroughAnOperatorWithANumberThatBackwardUses) {
  const auto op =
      custom_op("mylib::numpy_mul(Tensor x, float y) -> Tensor")
          .kernel(at::kCPU,
                  [](const Tensor& x, double y) {
                    Tensor z = at::empty_like(x);
                    for (int64_t i = 0; i < x.numel(); ++i)
                      z.mutable_data_ptr<float>()[i] = x.const_data_ptr<float>()[i] * static_cast<float>(y);
                    return z;
                  })
          .abstract([](const Tensor& x, double) { return at::empty_like(x); })
          .save_for_backward([](const Arguments& in, const ValueList&) -> Saved { return {in.get<double>("y")}; })
          .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
            return {{"x", grads[0] * saved.get<double>(0)}};
          });
  const auto numpy_mul = op.typed<Tensor(const Tensor&, double)>();
  const Tensor x = at::randn({3}).requires_grad_();
  const auto loss = [&](const Tensor& x) { return numpy_mul(x, 2.0).sum(); };
  EXPECT_TRUE(same(tower::grad(loss)(x).detach(), at::full({3}, 2.0f)));
}

// pytorch/pytorch#170834: the same where grad is nested, here three times.
TEST(CustomOpRules, GradsOfGradsGoThroughAnOperatorWithARegisteredBackward) {
  const auto cube = lab("cube");
  const auto f = [&](const Tensor& x) { return cube(cube(x)); };  // x⁹
  const Tensor x = vec({0.7, 1.1, -0.9});
  EXPECT_TRUE(same(tower::vmap(tower::grad(f))(x), 9 * x.pow(8)));
  EXPECT_TRUE(same(tower::vmap(tower::grad(tower::grad(f)))(x), 72 * x.pow(7)));
  EXPECT_TRUE(same(tower::vmap(tower::grad(tower::grad(tower::grad(f))))(x), 504 * x.pow(6)));
}

// pytorch/pytorch#179652: a Jacobian by reverse mode, in which the backward runs for a batch of cotangents.
TEST(CustomOpRules, JacrevOfAnOperatorWithARegisteredBackward) {
  const auto op = custom_op("mylib::solve(Tensor x) -> Tensor")
                      .kernel([](const Tensor& x) { return x * 2; })
                      .backward([](const BackwardContext&, const ValueList&, const ValueList& grads) -> Gradients {
                        return {{"x", grads[0] * 2}};
                      })
                      .linear_backward();
  const auto solve = op.typed<Unary>();
  const Tensor x = vec({1, 2});
  EXPECT_TRUE(same(tower::jacrev(solve)(x), 2 * at::eye(2, at::kDouble)));
  EXPECT_TRUE(same(tower::jacfwd(solve)(x), 2 * at::eye(2, at::kDouble)));
  EXPECT_TRUE(
      same(tower::vmap(tower::jacrev(solve))(numbers({3, 2})), (2 * at::eye(2, at::kDouble)).expand({3, 2, 2})));
}

// ml-explore/mlx: grad(sum(vmap(custom))), where the custom rule is lost.
TEST(CustomOpRules, TheGradientOfASumOverAMappedOperatorIsItsBackward) {
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::grad(summed(tower::vmap(lab("said_3x"))))(x), 3 * x));
  EXPECT_TRUE(
      same(tower::grad(summed(tower::vmap(tower::vmap(lab("said_3x")))))(numbers({2, 3})), 3 * numbers({2, 3})));
}

// torch 2.13 gives zero for the jvp of an operator with a registered backward alone, without a word.
TEST(CustomOpRules, TheJvpOfAnOperatorWithABackwardAloneIsItsJvpOrAnErrorButNoZero) {
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(along_ones(lab("cube"))(x), 3 * x * x));
  EXPECT_TRUE(same(along_ones(along_ones(lab("cube")))(x), 6 * x));
  const auto op =
      custom_op("once::backward_alone(Tensor x) -> Tensor")
          .kernel([](const Tensor& x) { return x * x; })
          .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
            return {{"x", 2 * saved[0] * grads[0]}};
          });
  EXPECT_TRUE(says(refusal<tower::DerivativeError>([&] { along_ones(op.typed<Unary>())(x); }),
                   {"jvp", "once::backward_alone", "linear_backward"}));
}

TEST(CustomOpRules, CheckGradsAcceptsARightRuleAndRejectsAWrongOne) {
  EXPECT_NO_THROW(tower::check_grads(lab("cube"), vec({0.5, 1.5}), 2));
  EXPECT_THROW(tower::check_grads(lab("said_3x"), vec({0.5, 1.5})), tower::DerivativeError);
}

}  // namespace
