// User functions one behaviour at a time: what the context does, what is refused and with which words, what forward may
// write to. Rules here are often deliberately not the derivatives of what is computed, so that a test sees which was
// used.
#include "tower/function.h"

#include <torch/csrc/autograd/autograd.h>

#include "support/prelude.h"
#include "tower/transforms.h"

namespace {

using tower::Context;
using tower::Function;

auto sum_of(auto f) {
  return [f](const auto&... args) { return f(args...).sum(); };
}

// ---- refusals
// --------------------------------------------------------------------------------------------------------

struct GradientOfWrongShape : Function<GradientOfWrongShape> {
  static Tensor forward(const Tensor& x, const Tensor& y) { return x * y; }
  static auto backward(Context&, const Tensor& grad) { return std::tuple(grad, at::cat({grad, grad})); }
};

TEST(UserFunction, AGradientOfTheWrongShapeIsAnErrorThatNamesFunctionArgumentAndShapes) {
  const auto f = sum_of([](const Tensor& x, const Tensor& y) { return GradientOfWrongShape::apply(x, y); });
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::grad<0>(f)(x, x), at::ones_like(x)));  // the wrong one was not asked for
  const std::string text = refusal<tower::DerivativeError>([&] { tower::grad<0, 1>(f)(x, x); });
  EXPECT_TRUE(says(text, {"GradientOfWrongShape", "argument 1", "Double [6]", "Double [3]"})) << text;
  const std::string mapped = refusal<tower::DerivativeError>([&] {
    tower::grad<0, 1>(sum_of(tower::vmap([](const Tensor& x, const Tensor& y) {
      return GradientOfWrongShape::apply(x, y);
    })))(numbers({2, 3}), numbers({2, 3}));
  });
  EXPECT_TRUE(says(mapped, {"GradientOfWrongShape", "argument 1", "Double [6]", "Double [3]"})) << mapped;
  const Tensor leaf = vec({1, 2, 3}).requires_grad_();
  const std::string outside = refusal<tower::DerivativeError>(
      [&] { torch::autograd::grad({GradientOfWrongShape::apply(x, leaf).sum()}, {leaf}); });
  EXPECT_TRUE(says(outside, {"GradientOfWrongShape", "argument 1", "Double [6]", "Double [3]"})) << outside;
}

struct GradientOfWrongDtype : Function<GradientOfWrongDtype> {
  static Tensor forward(const Tensor& x) { return x * 1; }
  static Tensor backward(Context&, const Tensor& grad) { return grad.to(at::kFloat); }
};

struct TangentOfWrongShape : Function<TangentOfWrongShape> {
  static Tensor forward(const Tensor& x) { return x * 1; }
  static Tensor jvp(Context&, const Tensor& t) { return t.sum(); }
};

TEST(UserFunction, OtherMisfitsOfDerivativesAreErrorsToo) {
  const Tensor x = vec({1, 2, 3});
  const std::string dtype = refusal<tower::DerivativeError>(
      [&] { tower::grad([](const Tensor& x) { return GradientOfWrongDtype::apply(x).sum(); })(x); });
  EXPECT_TRUE(says(dtype, {"GradientOfWrongDtype", "argument 0", "Float [3]", "Double [3]"})) << dtype;
  const std::string shape = refusal<tower::DerivativeError>(
      [&] { tower::jvp([](const Tensor& x) { return TangentOfWrongShape::apply(x); }, x, x); });
  EXPECT_TRUE(says(shape, {"TangentOfWrongShape", "output 0", "Double []", "Double [3]"})) << shape;
}

struct TooFewGradients : Function<TooFewGradients> {
  static Tensor forward(AutogradContext*, const Tensor& x, const Tensor& y, int64_t) { return x * y; }
  static tensor_list backward(AutogradContext*, tensor_list grads) { return {grads[0], grads[0]}; }
};

struct TreeOfWrongLength : Function<TreeOfWrongLength> {
  static Tensor forward(const Tensors& xs) { return xs[0] * xs[1]; }
  static std::tuple<Tensors> backward(Context&, const Tensor& grad) { return {{grad, grad, grad}}; }
};

TEST(UserFunction, AWrongNumberOfGradientsIsAnError) {
  const Tensor x = vec({1, 2, 3});
  const std::string list = refusal<tower::DerivativeError>(
      [&] { tower::grad([](const Tensor& x) { return TooFewGradients::apply(x, x, int64_t{1}).sum(); })(x); });
  EXPECT_TRUE(says(list, {"TooFewGradients", "backward", "2 tensors", "3 are due"})) << list;
  const std::string tree = refusal<tower::DerivativeError>([&] {
    tower::grad([](const Tensor& x) { return TreeOfWrongLength::apply(Tensors{x, x}).sum(); })(x);
  });
  EXPECT_TRUE(says(tree, {"TreeOfWrongLength", "3 tensors", "argument 0", "2 tensors"})) << tree;
}

struct Clipped : Function<Clipped> {
  static Tensor forward(const Tensor& x) { return x * 1; }
  static Tensor backward(Context&, const Tensor& grad) { return grad.clamp(-1, 1); }
};

TEST(UserFunction, ForwardModeNeedsARuleOrALinearBackward) {
  const std::string text = refusal<tower::DerivativeError>(
      [] { tower::jvp([](const Tensor& x) { return Clipped::apply(x); }, number(1), number(1)); });
  EXPECT_TRUE(says(text, {"jvp", "Clipped", "linear_backward"})) << text;
}

struct Once : Function<Once> {
  static constexpr bool once_differentiable = true;
  static Tensor forward(const Tensor& x) { return x.sin(); }
  static void setup_context(Context& ctx, const auto& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(Context& ctx, const Tensor& grad) { return grad * ctx.saved_tensors()[0].cos(); }
};

TEST(UserFunction, ASecondDerivativeOfAOnceDifferentiableFunctionIsAnErrorAndNeverZero) {
  const auto f = [](const Tensor& x) { return Once::apply(x).sum(); };
  const auto gradient = tower::grad(f);
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(gradient(x), x.cos()));
  EXPECT_TRUE(same(tower::vmap(gradient)(x), x.cos()));
  EXPECT_TRUE(same(tower::grad(sum_of(tower::vmap(f)))(x), x.cos()));
  const auto expect_refused = [&](const char* what, auto call) {
    const std::string text = refusal<tower::DerivativeError>(call);
    EXPECT_TRUE(says(text, {"Once", "once_differentiable"})) << what << ": " << text;
  };
  expect_refused("grad(grad)", [&] { tower::grad(sum_of(gradient))(x); });
  expect_refused("vmap(grad(grad))", [&] { tower::vmap(tower::grad(gradient))(x); });
  expect_refused("grad(vmap(grad))", [&] { tower::grad(sum_of(tower::vmap(gradient)))(x); });
  expect_refused("jacrev(grad)", [&] { tower::jacrev(gradient)(x); });
  const Tensor leaf = vec({1, 2, 3}).requires_grad_();
  const Tensor first = torch::autograd::grad({f(leaf)}, {leaf}, {}, std::nullopt, /*create_graph=*/true)[0];
  EXPECT_TRUE(same(first.detach(), x.cos()));
  expect_refused("LibTorch's autograd, twice", [&] { torch::autograd::grad({first.sum()}, {leaf}); });
}

struct OutDimOutOfRange : Function<OutDimOutOfRange> {
  static Tensor forward(const Tensor& x) { return x * 1; }
  static auto vmap(tower::VmapInfo, const tower::InDims&, const Tensor& x) { return std::pair(x, 5); }
};
struct NoVmap : Function<NoVmap> {
  static constexpr bool generate_vmap_rule = false;
  static constexpr const char* name = "no vmap, please";
  static Tensor forward(const Tensor& x) { return x * 1; }
};

TEST(UserFunction, AVmapRuleIsToldOfTheBatch) {
  std::vector<tower::VmapInfo> seen;
  const auto f = tower::custom([](const Tensor& x) {
                   return x * 1;
                 }).vmap([&](tower::VmapInfo info, const tower::InDims&, const Tensor& x) {
    seen.push_back(info);
    return std::pair(x * 1, 0);
  });
  tower::vmap(f, {.randomness = tower::Randomness::different})(vec({1, 2, 3}));
  tower::vmap(f)(vec({1, 2}));
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].batch_size, 3);
  EXPECT_EQ(seen[0].randomness, tower::Randomness::different);
  EXPECT_EQ(seen[1].batch_size, 2);
  EXPECT_EQ(seen[1].randomness, tower::Randomness::error);
}

TEST(UserFunction, AWrongOrMissingVmapRuleIsAnError) {
  const Tensor x = vec({1, 2, 3});
  const std::string dim = refusal<tower::ArgumentError>(
      [&] { tower::vmap([](const Tensor& x) { return OutDimOutOfRange::apply(x); })(x); });
  EXPECT_TRUE(says(dim, {"vmap (level 1)", "OutDimOutOfRange", "dimension 5"})) << dim;
  const std::string none =
      refusal<tower::UnsupportedError>([&] { tower::vmap([](const Tensor& x) { return NoVmap::apply(x); })(x); });
  EXPECT_TRUE(says(none, {"vmap (level 1)", "no vmap, please"})) << none;
}

// ---- writes
// ----------------------------------------------------------------------------------------------------------

struct AddInPlace : Function<AddInPlace> {
  static constexpr std::array mutates{0};
  static std::pair<Tensor, Tensor> forward(Tensor x, const Tensor& y) {
    x.add_(y);
    return {x, x * 2};
  }
  static auto backward(Context&, const Tensor& of_x, const Tensor& of_double) {
    return std::tuple(3 * of_x, 5 * of_x + 7 * of_double);
  }
};

TEST(UserFunction, ADeclaredWriteReachesTheCallersTensorAtEveryLevel) {
  const Tensor y = vec({10, 20, 30});
  const Tensor x = vec({1, 2, 3});
  const auto [written, twice] = AddInPlace::apply(x, y);
  EXPECT_TRUE(written.is_same(x));
  EXPECT_TRUE(same(x, vec({11, 22, 33})));
  EXPECT_TRUE(same(twice, vec({22, 44, 66})));

  const auto through_an_alias = [](const Tensor& x, const Tensor& y) {
    const Tensor z = x * 1, view = z.select(0, 0);
    AddInPlace::apply(z, y);
    return view;
  };
  const Tensor a = vec({1, 2, 3});
  EXPECT_TRUE(same(through_an_alias(a, y), number(11)));
  const auto [ga, gy] = tower::grad<0, 1>(through_an_alias)(a, y);
  EXPECT_TRUE(same(ga, vec({3, 0, 0})));
  EXPECT_TRUE(same(gy, vec({5, 0, 0})));
  EXPECT_TRUE(same(tower::vmap(through_an_alias)(numbers({2, 3}), numbers({2, 3}) * 10), vec({11, 44})));
  const auto [va, vy] = tower::vmap(tower::grad<0, 1>(through_an_alias))(numbers({2, 3}), numbers({2, 3}));
  EXPECT_TRUE(same(va, vec({3, 0, 0}).expand({2, 3})));
  EXPECT_TRUE(same(vy, vec({5, 0, 0}).expand({2, 3})));
}

TEST(UserFunction, AWriteOfATrackedValueIntoACapturedTensorIsRefused) {
  const Tensor captured = vec({1, 2, 3});
  const std::string text = refusal<tower::MutationError>([&] {
    tower::vmap([&](const Tensor& y) { return AddInPlace::apply(captured, y).first; })(numbers({2, 3}));
  });
  EXPECT_TRUE(says(text, {"vmap"})) << text;
  EXPECT_TRUE(same(captured, vec({1, 2, 3})));
}

struct UndeclaredWrite : Function<UndeclaredWrite> {
  static Tensor forward(const Tensor& x, Tensor y) { return y.mul_(x); }
};
struct WritesAndForgets : Function<WritesAndForgets> {
  static constexpr std::array mutates{0};
  static Tensor forward(Tensor x) { return x.mul_(2) * 1; }
};
struct MarksAnother : Function<MarksAnother> {
  static constexpr std::array mutates{0};
  static Tensor forward(Context& ctx, Tensor x, const Tensor& y) {
    ctx.mark_dirty({y});
    return x.mul_(y);
  }
};
struct MarksUndeclared : Function<MarksUndeclared> {
  static Tensor forward(const Tensor& x) { return x * 1; }
  static void setup_context(Context& ctx, const std::tuple<Tensor>& inputs, const Tensor&) {
    ctx.mark_dirty({std::get<0>(inputs)});
  }
  static Tensor backward(Context&, const Tensor& grad) { return grad; }
};

TEST(UserFunction, WritesThatAreNotAsDeclaredAreErrorsThatSayWhatToDeclare) {
  const Tensor x = vec({1, 2, 3});
  const std::string undeclared = refusal<tower::MutationError>([&] { UndeclaredWrite::apply(x, x.clone()); });
  EXPECT_TRUE(says(undeclared, {"UndeclaredWrite", "argument 1", "mutates{1}"})) << undeclared;
  const std::string mapped = refusal<tower::MutationError>(
      [&] { tower::vmap([](const Tensor& x) { return UndeclaredWrite::apply(x, x * 1); })(x); });
  EXPECT_TRUE(says(mapped, {"UndeclaredWrite", "argument 1", "mutates{1}"})) << mapped;
  const std::string forgotten = refusal<tower::MutationError>([&] { WritesAndForgets::apply(x); });
  EXPECT_TRUE(says(forgotten, {"WritesAndForgets", "argument 0", "return it"}) ||
              says(forgotten, {"WritesAndForgets", "argument 0", "Return it"}))
      << forgotten;
  EXPECT_TRUE(same(x, vec({1, 2, 3})));
  const std::string another = refusal<tower::MutationError>([&] { MarksAnother::apply(x, x.clone()); });
  EXPECT_TRUE(says(another, {"MarksAnother", "mark_dirty names argument 1", "mutates{1}"})) << another;
  const std::string marked = refusal<tower::MutationError>(
      [&] { tower::grad([](const Tensor& x) { return MarksUndeclared::apply(x).sum(); })(x); });
  EXPECT_TRUE(says(marked, {"MarksUndeclared", "mark_dirty names argument 0", "mutates{0}"})) << marked;
}

// ---- the context
// -----------------------------------------------------------------------------------------------------

struct NotAnOutput : Function<NotAnOutput> {
  static Tensor forward(const Tensor& x) { return x * 1; }
  static void setup_context(Context& ctx, const std::tuple<Tensor>& inputs, const Tensor&) {
    ctx.mark_non_differentiable({std::get<0>(inputs)});
  }
  static Tensor backward(Context&, const Tensor& grad) { return grad; }
};

TEST(UserFunction, OnlyOutputsCanBeMarkedNonDifferentiable) {
  const std::string text = refusal<tower::DerivativeError>(
      [] { tower::grad([](const Tensor& x) { return NotAnOutput::apply(x); })(number(1)); });
  EXPECT_TRUE(says(text, {"NotAnOutput", "mark_non_differentiable", "not an output"})) << text;
}

struct WhatIsNeeded : Function<WhatIsNeeded> {
  inline static std::vector<bool> seen;
  static Tensor forward(const Tensor& x, double, const Tensors& ys) { return x + ys[0] + ys[1]; }
  static auto backward(Context& ctx, const Tensor& grad) {
    seen = {ctx.needs_input_grad(0), ctx.needs_input_grad(1), ctx.needs_input_grad(2)};
    return std::tuple(grad, std::nullopt, Tensors{grad, grad});
  }
};

TEST(UserFunction, BackwardKnowsWhichArgumentsNeedAGradient) {
  const auto f = [](const Tensor& x, const Tensor& y) { return WhatIsNeeded::apply(x, 1.0, Tensors{x.detach(), y}); };
  tower::grad<0>(f)(number(1), number(2));
  EXPECT_EQ(WhatIsNeeded::seen, (std::vector<bool>{true, false, false}));
  tower::grad<1>(f)(number(1), number(2));
  EXPECT_EQ(WhatIsNeeded::seen, (std::vector<bool>{false, false, true}));
  const Tensor leaf = number(2).requires_grad_();
  torch::autograd::grad({f(number(1), leaf)}, {leaf});
  EXPECT_EQ(WhatIsNeeded::seen, (std::vector<bool>{false, false, true}));
}

struct TellsWhatArrives : Function<TellsWhatArrives> {
  inline static std::vector<bool> defined;
  inline static bool materialize = true;
  static std::tuple<Tensor, Tensor> forward(const Tensor& x) { return {x * 1, at::cat({x, x})}; }
  static void setup_context(Context& ctx, const auto&, const auto&) { ctx.set_materialize_grads(materialize); }
  static Tensor backward(Context&, const Tensor& a, const Tensor& b) {
    defined = {a.defined(), b.defined()};
    if (b.defined()) {
      EXPECT_TRUE(same(b, at::zeros({6}, at::kDouble)));
    }
    return a;
  }
};

TEST(UserFunction, ZeroGradientsArriveAsTensorsUnlessTheFunctionSaysOtherwise) {
  const auto f = [](const Tensor& x) { return std::get<0>(TellsWhatArrives::apply(x)).sum(); };
  const Tensor x = vec({1, 2, 3});
  tower::grad(f)(x);
  EXPECT_EQ(TellsWhatArrives::defined, (std::vector<bool>{true, true}));
  TellsWhatArrives::materialize = false;
  tower::grad(f)(x);
  EXPECT_EQ(TellsWhatArrives::defined, (std::vector<bool>{true, false}));
  const Tensor leaf = vec({1, 2, 3}).requires_grad_();
  torch::autograd::grad({f(leaf)}, {leaf});
  EXPECT_EQ(TellsWhatArrives::defined, (std::vector<bool>{true, false}));
  TellsWhatArrives::materialize = true;
  torch::autograd::grad({f(leaf)}, {leaf});
  EXPECT_EQ(TellsWhatArrives::defined, (std::vector<bool>{true, true}));
}

struct Dropout : Function<Dropout> {
  inline static int forwards = 0;
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ++forwards;
    const Tensor mask = at::rand_like(x) < 0.5;
    ctx->save_for_backward({mask});
    return x * mask;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    return {grads[0] * ctx->get_saved_variables()[0]};
  }
};

// A mask drawn a second time would be another one.
TEST(UserFunction, WhatForwardDrewAndSavedIsWhatBackwardSeesOrTheNestingIsRefused) {
  const auto value_and_gradient = [](const Tensor& x) {
    return tower::vjp([](const Tensor& x) { return Dropout::apply(x); }, x);
  };
  const Tensor x = at::ones({64}, at::kDouble);
  Dropout::forwards = 0;
  const auto [y, pullback] = value_and_gradient(x);
  EXPECT_TRUE(same(pullback(x), y));
  EXPECT_EQ(Dropout::forwards, 1);
  const auto mapped = tower::vmap(
      [&](const Tensor& x) {
        const auto [y, pullback] = value_and_gradient(x);
        return y - pullback(at::ones_like(x));
      },
      {.randomness = tower::Randomness::different});
  EXPECT_TRUE(same(mapped(at::ones({4, 16}, at::kDouble)), at::zeros({4, 16}, at::kDouble)));

  const Tensor leaf = x.clone().requires_grad_();
  const Tensor out = Dropout::apply(leaf);
  EXPECT_TRUE(same(torch::autograd::grad({out.sum()}, {leaf})[0], out.detach()));

  const std::string text = refusal<tower::UnsupportedError>([&] {
    tower::grad([&](const Tensor& x) {
      return tower::grad([](const Tensor& x) { return Dropout::apply(x).sum(); })(x).sum();
    })(x);
  });
  EXPECT_TRUE(says(text, {"Dropout", "random"})) << text;
}

TEST(UserFunction, LibTorchsAutogradDifferentiatesItToAnyOrder) {
  const auto cube = tower::custom_vjp([](const Tensor& x) { return x * x * x; },
                                      [](const Tensor& x) { return std::pair(x * x * x, x); },
                                      [](const Tensor& x, const Tensor& grad) { return 7 * grad * x * x; });
  const Tensor x = vec({1, 2, 3}).requires_grad_();
  const Tensor first = torch::autograd::grad({cube(x).sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  EXPECT_TRUE(same(first.detach(), vec({7, 28, 63})));
  const Tensor second = torch::autograd::grad({first.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  EXPECT_TRUE(same(second.detach(), vec({14, 28, 42})));
  EXPECT_TRUE(same(torch::autograd::grad({second.sum()}, {x})[0], vec({14, 14, 14})));
}

// ---- captured tensors
// ------------------------------------------------------------------------------------------------

TEST(UserFunction, ACapturedBatchedTensorIsPassedOn) {
  const Tensor scales = vec({2, 3, 4});
  const auto f = [](const Tensor& w, const Tensor& scale) {
    return tower::custom_vjp([scale](const Tensor& w) { return w * scale; },
                             [scale](const Tensor& w) { return std::pair(w * scale, std::tuple()); },
                             [scale](const std::tuple<>&, const Tensor& grad) { return 10 * grad * scale; })(w);
  };
  const auto loss = [&](const Tensor& w) { return tower::vmap(f, {.in_dims = {std::nullopt, 0}})(w, scales).sum(); };
  EXPECT_TRUE(same(loss(number(1)), number(9)));
  EXPECT_TRUE(same(tower::grad(loss)(number(1)), number(90)));
}

TEST(UserFunction, ACapturedTensorIsNotKeptAliveInACycle) {
  const Tensor scales = vec({2, 3, 4});
  const auto f = [](const Tensor& w, const Tensor& scale) {
    return tower::custom_vjp([scale](const Tensor& w) { return w * scale; },
                             [scale](const Tensor& w) { return std::pair(w * scale, std::tuple()); },
                             [scale](const std::tuple<>&, const Tensor& grad) { return 10 * grad * scale; })(w);
  };
  {
    const auto [y, pullback] = tower::vjp(
        [&](const Tensor& w) {
          return tower::vmap(f, {.in_dims = {std::nullopt, 0}})(w, scales);
        },
        number(1));
    EXPECT_TRUE(same(pullback(at::ones_like(y)), number(90)));
    EXPECT_GT(scales.use_count(), 1);
  }
  EXPECT_EQ(scales.use_count(), 1);
}

TEST(UserFunction, ACapturedDifferentiatedTensorIsRefusedAndNeverZero) {
  const auto captured_by_forward = [](const Tensor& x) {
    return tower::custom_vjp([x](const Tensor& y) { return y * x; },
                             [x](const Tensor& y) { return std::pair(y * x, std::tuple()); },
                             [](const std::tuple<>&, const Tensor& grad) { return grad; })(x * 2);
  };
  const std::string forward = refusal<tower::UnsupportedError>([&] { tower::grad(captured_by_forward)(number(3)); });
  EXPECT_TRUE(says(forward, {"grad (level 1)", "custom function (function_test.cpp", "captured", "argument"}))
      << forward;
  const auto captured_by_backward = [](const Tensor& x) {
    return tower::custom_vjp([](const Tensor& y) { return y * 1; },
                             [](const Tensor& y) { return std::pair(y * 1, std::tuple()); },
                             [x](const std::tuple<>&, const Tensor& grad) { return grad * x; })(x * 2);
  };
  const std::string backward =
      refusal<tower::EscapedTensorError>([&] { tower::grad(captured_by_backward)(number(3)); });
  EXPECT_TRUE(says(backward, {"grad (level 1)"})) << backward;
  const auto captured_by_jvp = [](const Tensor& x) {
    return tower::custom_jvp([x](const Tensor& y) { return y * 1; },
                             [x](const Tensor&, const Tensor& t) { return t * x; })(x * 2);
  };
  const std::string jvp = refusal<tower::Error>([&] { tower::jvp(captured_by_jvp, number(3), number(1)); });
  EXPECT_TRUE(says(jvp, {"jvp (level 1)"})) << jvp;
}

TEST(UserFunction, ACapturedTensorThatRequiresGradIsDifferentiatedOrRefusedAndNeverZero) {
  const Tensor x = vec({0.7, -1.2}).requires_grad_(true);
  const auto mapped = tower::custom_vmap(
      [x](const Tensor& y) { return x * y; },
      [x](tower::VmapInfo, const tower::InDims& dims, const Tensor& y) { return std::pair(x * y, dims[0]); });
  EXPECT_TRUE(same(torch::autograd::grad({mapped(x).sum()}, {x})[0], 2 * x));
  const auto pulled =
      tower::custom_vjp([x](const Tensor& y) { return x * y; }, [x](const Tensor& y) { return std::pair(x * y, y); },
                        [](const Tensor& y, const Tensor& grad) { return grad * y; });
  const auto pushed =
      tower::custom_jvp([x](const Tensor& y) { return x * y; }, [](const Tensor& y, const Tensor& t) { return y * t; });
  for (const std::function<Tensor(const Tensor&)>& f :
       {std::function<Tensor(const Tensor&)>(pulled), std::function<Tensor(const Tensor&)>(pushed)}) {
    const std::string text = refusal<tower::UnsupportedError>([&] { f(x); });
    EXPECT_TRUE(says(text, {"custom function (function_test.cpp", "captured", "requires grad", "argument"})) << text;
  }
  // An operand that comes out as it went in is no captured tensor.
  const auto itself =
      tower::custom_vjp([](const Tensor& y) { return y; }, [](const Tensor& y) { return std::pair(y, std::tuple()); },
                        [](const std::tuple<>&, const Tensor& grad) { return 3 * grad; });
  EXPECT_TRUE(same(torch::autograd::grad({itself(x).sum()}, {x})[0], vec({3, 3})));
}

}  // namespace
