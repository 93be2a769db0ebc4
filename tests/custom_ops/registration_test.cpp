// When and by whom rules are registered: before or after the operator, by several parts of a program, for a time.
#include <dlfcn.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>
#include <tower/coverage.h>
#include <tower/tower.h>

#include <thread>

#include "custom_ops/names.h"
#include "support/prelude.h"

namespace {

using Unary = Tensor(const Tensor&);

// A backward of `factor` times x.
auto times_x(double factor) {
  return [factor](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
    return {{"x", factor * saved[0] * grads[0]}};
  };
}

Tensor call(const char* name, const Tensor& x) {
  torch::jit::Stack stack{x};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack[0].toTensor();
}
auto summed(const char* name) {
  return [name](const Tensor& x) { return call(name, x).sum(); };
}
Tensor gradient(const char* name, const Tensor& x) { return tower::grad(summed(name))(x); }
Tensor libtorch_gradient(const char* name, const Tensor& at) {
  const Tensor x = at.detach().clone().requires_grad_();
  return torch::autograd::grad({call(name, x).sum()}, {x})[0];
}

// `factor` times x, from Tower and from LibTorch's autograd.
void expect_gradient(const char* name, double factor) {
  const Tensor x = vec({0.5, -1, 2});
  EXPECT_TRUE(same(gradient(name, x), factor * x));
  EXPECT_TRUE(same(libtorch_gradient(name, x), factor * x));
}

// How coverage() says that the operator is served.
std::vector<std::string> served(const std::string& op) {
  std::vector<std::string> result;
  for (const auto& row : tower::coverage())
    if (row.op == op) result.push_back(row.transform + ": " + row.served);
  return result;
}

TEST(CustomOpRegistration, TwiceIsAnErrorThatSaysWhereTheFirstOneWas) {
  const int first = __LINE__ + 1;
  const auto op = custom_op("twice::op(Tensor x) -> Tensor");
  std::string text =
      refusal<tower::ArgumentError>([] { static_cast<void>(custom_op("twice::op(Tensor x) -> Tensor")); });
  EXPECT_TRUE(says(text, {"twice::op is defined already", "registration_test.cpp"}));
  EXPECT_TRUE(support::contains(text, ":" + std::to_string(first))) << text;

  const int second = __LINE__ + 1;
  op.kernel(at::kCPU, [](const Tensor& x) { return x * x; }).backward(times_x(3));
  text = refusal<tower::ArgumentError>([&] { op.backward(times_x(5)); });
  EXPECT_TRUE(says(text, {"twice::op has a backward already", "registration_test.cpp"}));
  EXPECT_TRUE(support::contains(text, ":" + std::to_string(second))) << text;
  // By another part of the program, too.
  EXPECT_EQ(refusal<tower::ArgumentError>([&] { custom_op("twice::op").backward(times_x(5)); }), text);
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { op.kernel(at::kCPU, [](const Tensor& x) { return x * 1; }); }),
                   {"twice::op has a kernel for CPU already"}));
  EXPECT_TRUE(same(gradient("twice::op", vec({1, 2})), vec({3, 6})));
}

TEST(CustomOpRegistration, ADefinitionIsTakenBackAndAnotherMayFollow) {
  for (int round = 0; round < 3; ++round) {
    {
      const auto op =
          custom_op("again::op(Tensor x) -> Tensor").kernel([](const Tensor& x) { return x * x; }).backward(times_x(3));
      EXPECT_TRUE(same(gradient("again::op", vec({1, 2})), vec({3, 6})));
      EXPECT_FALSE(served("again::op").empty());
    }
    EXPECT_FALSE(c10::Dispatcher::singleton().findSchema({"again::op", ""}).has_value());
    EXPECT_TRUE(served("again::op").empty());
    const auto op =
        custom_op("again::op(Tensor x, float by) -> Tensor")
            .kernel([](const Tensor& x, double by) { return x * by; })
            .backward([](const BackwardContext& call, const ValueList&, const ValueList& grads) -> Gradients {
              return {{"x", call.get<double>("by") * grads[0]}};
            });
    const auto f = op.typed<Tensor(const Tensor&, double)>();
    EXPECT_TRUE(same(tower::grad([&](const Tensor& x) { return f(x, 4.0).sum(); })(vec({1, 2})), vec({4, 4})));
  }
}

TEST(CustomOpRegistration, AHandleKeepsTheOperator) {
  const auto f = custom_op("kept::op(Tensor x) -> Tensor").kernel([](const Tensor& x) { return x * x; }).typed<Unary>();
  EXPECT_TRUE(same(f(vec({1, 2})), vec({1, 4})));
  const auto copy = f;
  EXPECT_TRUE(same(tower::vmap(copy)(vec({1, 2})), vec({1, 4})));
}

TEST(CustomOpRegistration, APullbackThatOutlivesTheRuleIsAnErrorAndNotAZero) {
  std::optional<CustomOp> op =
      custom_op("gone::op(Tensor x) -> Tensor").kernel([](const Tensor& x) { return x * x; }).backward(times_x(3));
  const auto pullback = tower::vjp([](const Tensor& x) { return call("gone::op", x); }, vec({1, 2})).second;
  EXPECT_TRUE(same(pullback(vec({1, 1})), vec({3, 6})));
  op.reset();
  EXPECT_TRUE(says(refusal<tower::DerivativeError>([&] { pullback(vec({1, 1})); }), {"vjp", "gone::op"}));
}

TEST(CustomOpRegistration, RulesOfLibTorchsOperatorsAreReplacedForATime) {
  const Tensor x = vec({0.5, 1.5});
  const auto before = served("aten::sin");
  {
    const auto rules =
        custom_op("aten::sin")
            .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
              return {{"self", 3 * saved[0] * grads[0]}};
            });
    EXPECT_TRUE(same(gradient("aten::sin", x), 3 * x));
    EXPECT_TRUE(same(tower::vmap(tower::grad([](const Tensor& v) { return v.sin(); }))(x), 3 * x));
    EXPECT_TRUE(same(
        tower::grad([](const Tensor& v) { return tower::vmap([](const Tensor& e) { return e.sin(); })(v).sum(); })(x),
        3 * x));
    EXPECT_TRUE(same(libtorch_gradient("aten::sin", x), 3 * x));
    EXPECT_TRUE(same(at::sin(x), x.to(at::kDouble).sin()));
  }
  EXPECT_EQ(served("aten::sin"), before);
  EXPECT_TRUE(same(gradient("aten::sin", x), x.cos()));
  EXPECT_TRUE(same(libtorch_gradient("aten::sin", x), x.cos()));
}

TEST(CustomOpRegistration, EachPartTakesBackItsOwn) {
  std::optional<CustomOp> whole =
      custom_op("parts::op(Tensor x) -> Tensor").kernel([](const Tensor& x) { return x * x; });
  std::optional<CustomOp> backward = custom_op("parts::op").backward(times_x(3));
  std::optional<CustomOp> linear = custom_op("parts::op").linear_backward();
  const auto tangent = [] {
    return tower::jvp([](const Tensor& x) { return call("parts::op", x); }, vec({1, 2}), vec({1, 1})).second;
  };
  EXPECT_TRUE(same(tangent(), vec({3, 6})));
  linear.reset();
  EXPECT_TRUE(says(refusal<tower::DerivativeError>(tangent), {"parts::op", "linear_backward"}));
  EXPECT_TRUE(same(gradient("parts::op", vec({1, 2})), vec({3, 6})));
  backward.reset();
  EXPECT_TRUE(says(refusal<tower::DerivativeError>([] {
                     gradient("parts::op", vec({1, 2}));
                   }),
                   {"parts::op", "no derivative"}));
  backward = custom_op("parts::op").backward(times_x(5));
  EXPECT_TRUE(same(gradient("parts::op", vec({1, 2})), vec({5, 10})));
}

TEST(CustomOpRegistration, AModeForWhichNothingIsRegisteredKeepsTheRuleOfLibTorchsOperator) {
  const Tensor x = vec({0.5, 1.5}), ones = vec({1, 1});
  const auto sine = [](const Tensor& v) { return v.sin(); };
  const auto tangent = [&](const auto& f) { return tower::jvp(f, x, ones).second; };
  const auto slope = [&](const auto& f) { return tower::grad([&](const Tensor& v) { return f(v).sum(); })(x); };
  {
    const auto rules = custom_op("aten::sin")
                           .jvp([](const tower::CallContext&, const ValueList& saved,
                                   const tower::Arguments& tangents) -> std::vector<Tensor> {
                             return {5 * saved[0] * tangents.tensor("self")};
                           });
    EXPECT_TRUE(same(tangent(sine), 5 * x));
    EXPECT_TRUE(same(tangent(tower::vmap(sine)), 5 * x));
    EXPECT_TRUE(same(slope(sine), x.cos()));
    EXPECT_TRUE(same(slope(tower::vmap(sine)), x.cos()));
  }
  const auto rules =
      custom_op("aten::sin")
          .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
            return {{"self", 3 * saved[0] * grads[0]}};
          });
  EXPECT_TRUE(same(tangent(sine), x.cos()));
  EXPECT_TRUE(same(tangent(tower::vmap(sine)), x.cos()));
  rules.linear_backward();  // says that it serves forward mode
  EXPECT_TRUE(same(tangent(sine), 3 * x));
  EXPECT_TRUE(same(tangent(tower::vmap(sine)), 3 * x));
}

TEST(CustomOpRegistration, AFormulaForWhatIsDeclaredToHaveNoDerivativeIsUsed) {
  const Tensor x = vec({0.5, -1.5});
  const auto sign = [](const Tensor& v) { return v.sign().sum(); };
  const auto before = served("aten::sign");
  {
    const auto straight_through =
        custom_op("aten::sign")
            .backward([](const BackwardContext&, const ValueList&, const ValueList& grads) -> Gradients {
              return {{"self", grads[0]}};
            });
    EXPECT_TRUE(same(tower::grad(sign)(x), vec({1, 1})));
    // Not a silent zero: forward mode has no rule any more.
    EXPECT_TRUE(
        says(refusal<tower::DerivativeError>([&] { tower::jvp(sign, x, x); }), {"aten::sign", "linear_backward"}));
  }
  EXPECT_EQ(served("aten::sign"), before);
  EXPECT_TRUE(same(tower::grad(sign)(x), vec({0, 0})));
}

TEST(CustomOpRegistration, FormulasMayComeBeforeTheDefinitionAndTheKernel) {
  std::optional<CustomOp> formula = custom_op("early::op").backward(times_x(3)).linear_backward();
  const auto definition = custom_op("early::op(Tensor x) -> Tensor");
  definition.kernel([](const Tensor& x) { return x * x; });
  const Tensor x = vec({1, 2});
  expect_gradient("early::op", 3);
  EXPECT_TRUE(same(tower::vmap(tower::grad([](const Tensor& x) { return call("early::op", x); }))(x), 3 * x));
  formula.reset();
  EXPECT_TRUE(says(support::message_of<tower::DerivativeError>([&] { libtorch_gradient("early::op", x); }),
                   {"autograd is not implemented for early::op"}));
  EXPECT_TRUE(says(refusal<tower::DerivativeError>([&] { gradient("early::op", x); }), {"early::op"}));
}

// ---- operators of other libraries ----------------------------------------------------------------------------------

TEST(CustomOpRegistration, RulesMayComeBeforeTheOperator) {
  const auto rules = custom_op("later::op").backward(times_x(3)).linear_backward();
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { rules.typed<Unary>(); }), {"no operator later::op yet"}));
  for (int round = 0; round < 2; ++round) {  // the library is loaded, unloaded, and loaded again
    torch::Library library(torch::Library::DEF, "later", std::nullopt, __FILE__, __LINE__);
    library.def("op(Tensor x) -> Tensor");
    library.impl("op", c10::DispatchKey::CPU, torch::CppFunction([](const Tensor& x) { return x * x; }));
    EXPECT_TRUE(same(gradient("later::op", vec({1, 2})), vec({3, 6})));
    EXPECT_TRUE(same(libtorch_gradient("later::op", vec({1, 2})), vec({3, 6})));
    const Tensor x = vec({1, 2});
    EXPECT_TRUE(same(tower::jvp([](const Tensor& x) { return call("later::op", x); }, x, vec({1, 1})).second, 3 * x));
  }
  // A rule that does not fit is an error where the operator is first met.
  const auto wrong = custom_op("later::op").no_gradient({"y"});
  torch::Library library(torch::Library::DEF, "later", std::nullopt, __FILE__, __LINE__);
  library.def("op(Tensor x) -> Tensor");
  library.impl("op", c10::DispatchKey::CPU, torch::CppFunction([](const Tensor& x) { return x * x; }));
  EXPECT_TRUE(says(support::message_of<tower::ArgumentError>([] {
                     gradient("later::op", vec({1, 2}));
                   }),
                   {"no_gradient names 'y'", "later::op"}));
}

TEST(CustomOpRegistration, ACompositeOperatorThatIsLoadedAfterItsRulesIsCompositeWithoutThem) {
  std::optional<CustomOp> rules = custom_op("after::square").backward(times_x(3));
  torch::Library library(torch::Library::DEF, "after", std::nullopt, __FILE__, __LINE__);
  library.def("square(Tensor x) -> Tensor", [](const Tensor& x) { return x * x; });
  expect_gradient("after::square", 3);
  rules.reset();
  expect_gradient("after::square", 2);
  EXPECT_EQ(served("after::square"), (std::vector<std::string>{"vmap: composite", "vjp: composite", "jvp: composite"}));
}

TEST(CustomOpRegistration, AnOperatorWithAnAutogradKernelOfItsOwnKeepsItUntilItGetsAFormula) {
  torch::Library library(torch::Library::DEF, "theirs", std::nullopt, __FILE__, __LINE__);
  library.def("op(Tensor x) -> Tensor");
  library.impl("op", c10::DispatchKey::CPU, torch::CppFunction([](const Tensor& x) { return x * x; }));
  library.impl("op", c10::DispatchKey::AutogradCPU, torch::CppFunction([](const Tensor& x) { return x * x; }));
  const Tensor x = vec({1, 2});
  EXPECT_TRUE(same(gradient("theirs::op", x), 2 * x));
  {
    const auto mapping =
        custom_op("theirs::op").vmap([](const tower::VmapInfo&, const tower::BatchDims& dims, const Tensor& x) {
          return std::pair(x * x + 1000, dims["x"]);
        });
    EXPECT_TRUE(same(tower::vmap([](const Tensor& x) { return call("theirs::op", x); })(x), x * x + 1000));
    EXPECT_TRUE(same(gradient("theirs::op", x), 2 * x));
    EXPECT_TRUE(same(tower::grad([](const Tensor& x) {
                       return tower::vmap([](const Tensor& e) { return call("theirs::op", e); })(x).sum();
                     })(x),
                     2 * x));
    const auto rules = custom_op("theirs::op").backward(times_x(3));
    expect_gradient("theirs::op", 3);
  }
  expect_gradient("theirs::op", 2);
}

TEST(CustomOpRegistration, ALibraryLoadedAtRunTimeIsExtended) {
  // For one of the operators before the library is there.
  const auto cube_rules =
      custom_op("plain::cube")
          .backward([](const BackwardContext&, const ValueList& saved, const ValueList& grads) -> Gradients {
            return {{"x", 3 * saved[0] * saved[0] * grads[0]}};
          })
          .linear_backward();
  ASSERT_NE(dlopen(TOWER_PLAIN_LIBRARY, RTLD_NOW), nullptr) << dlerror();
  const auto cube = cube_rules.typed<Unary>();
  const Tensor x = vec({0.5, -1, 2}), xs = numbers({2, 3}) / 3;
  EXPECT_TRUE(same(tower::vmap(cube)(xs), xs.pow(3)));
  EXPECT_TRUE(same(tower::vmap(tower::grad(cube))(x), 3 * x * x));
  EXPECT_TRUE(same(tower::vmap(tower::grad(tower::grad(cube)))(x), 6 * x));
  EXPECT_TRUE(same(tower::vmap(tower::hessian(cube))(x), 6 * x));
  EXPECT_TRUE(same(libtorch_gradient("plain::cube", x), 3 * x * x));

  // A composite one has derivatives already; a rule is then what it means.
  EXPECT_TRUE(same(gradient("plain::square", x), 2 * x));
  {
    const auto rules = custom_op("plain::square").backward(times_x(5));
    expect_gradient("plain::square", 5);
    EXPECT_TRUE(same(tower::grad([](const Tensor& x) {
                       return tower::vmap([](const Tensor& e) { return call("plain::square", e); })(x).sum();
                     })(x),
                     5 * x));
  }
  expect_gradient("plain::square", 2);

  // One with a formula of its own for LibTorch's autograd keeps it, in transforms, too, until it gets another.
  EXPECT_TRUE(same(gradient("plain::own", x), 7 * x));
  {
    const auto rules = custom_op("plain::own").backward(times_x(5));
    expect_gradient("plain::own", 5);
  }
  expect_gradient("plain::own", 7);
}

TEST(CustomOpRegistration, RulesServeEveryThread) {
  const auto op =
      custom_op("threads::op(Tensor x) -> Tensor").kernel([](const Tensor& x) { return x * x; }).backward(times_x(3));
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) right += same(gradient("threads::op", vec({1, 2})), vec({3, 6})) ? 1 : 0;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

}  // namespace
