// What is wrong with a custom operator or a rule of it is said where it shows, with what to do.
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>
#include <tower/tower.h>

#include "custom_ops/names.h"
#include "support/prelude.h"

namespace {

// An operator with a tensor, a list and a number, whose backward says what is asked for.
template <class Backward>
std::string refused_backward(Backward backward) {
  const CustomOp op =
      custom_op("wrong::op(Tensor x, Tensor[] ys, float alpha=1.0) -> (Tensor, Tensor)")
          .kernel([](const Tensor& x, at::TensorList ys, double alpha) { return std::tuple(x * alpha, ys[0] * 2); })
          .backward(backward);
  const auto f = op.typed<std::tuple<Tensor, Tensor>(const Tensor&, at::TensorList, double)>();
  const auto loss = [&](const Tensor& x) {
    const auto [a, b] = f(x, Tensors{x, x}, 2.0);
    return a.sum() + b.sum();
  };
  const std::string text = refusal<tower::DerivativeError>([&] { tower::grad(loss)(vec({1, 2})); });
  // LibTorch's autograd meets the same check.
  const Tensor x = vec({1, 2}).requires_grad_();
  EXPECT_EQ(refusal<tower::DerivativeError>([&] { torch::autograd::grad({loss(x)}, {x}); }), text);
  return text;
}

TEST(CustomOpErrors, AGradientForAnUnknownName) {
  const std::string text =
      refused_backward([](const BackwardContext&, const ValueList&, const ValueList& g) -> Gradients {
        return {{"x", g[0]}, {"ys", Tensors{g[1], g[1]}}, {"z", g[0]}};
      });
  EXPECT_TRUE(says(text, {"wrong::op", "a gradient for 'z'", "'x', 'ys', 'alpha'"}));
}

TEST(CustomOpErrors, AGradientForAnArgumentThatIsNoTensor) {
  const std::string text =
      refused_backward([](const BackwardContext&, const ValueList&, const ValueList& g) -> Gradients {
        return {{"x", g[0]}, {"ys", Tensors{g[1], g[1]}}, {"alpha", g[0].sum()}};
      });
  EXPECT_TRUE(says(text, {"wrong::op", "argument 'alpha'", "not a tensor but of type float"}));
}

TEST(CustomOpErrors, NoGradientForAnArgumentThatNeedsOne) {
  const std::string text =
      refused_backward([](const BackwardContext&, const ValueList&, const ValueList& g) -> Gradients {
        return {{"ys", Tensors{g[1], g[1]}}};
      });
  EXPECT_TRUE(says(text, {"wrong::op", "no gradient for argument 'x'", "no_gradient({\"x\"})"}));
}

TEST(CustomOpErrors, AGradientOfAWrongShape) {
  const std::string text =
      refused_backward([](const BackwardContext&, const ValueList&, const ValueList& g) -> Gradients {
        return {{"x", g[0].sum()}, {"ys", Tensors{g[1], g[1]}}};
      });
  EXPECT_TRUE(says(text, {"wrong::op", "Double []", "argument 'x'", "Double [2]"}));
}

TEST(CustomOpErrors, AGradientOfAWrongDtype) {
  const std::string text =
      refused_backward([](const BackwardContext&, const ValueList&, const ValueList& g) -> Gradients {
        return {{"x", g[0]}, {"ys", Tensors{g[1], g[1].to(at::kFloat)}}};
      });
  EXPECT_TRUE(says(text, {"wrong::op", "Float [2]", "element 1 of argument 'ys'", "Double [2]"}));
}

TEST(CustomOpErrors, AListOfGradientsThatIsTooShortOrNoList) {
  std::string text = refused_backward([](const BackwardContext&, const ValueList&, const ValueList& g) -> Gradients {
    return {{"x", g[0]}, {"ys", Tensors{g[1]}}};
  });
  EXPECT_TRUE(says(text, {"wrong::op", "1 gradients for the list 'ys'"}));
  text = refused_backward([](const BackwardContext&, const ValueList&, const ValueList& g) -> Gradients {
    return {{"x", g[0]}, {"ys", g[1]}};
  });
  EXPECT_TRUE(says(text, {"wrong::op", "a tensor for argument 'ys'", "list of tensors"}));
}

TEST(CustomOpErrors, ABackwardThatReturnsWhatIsNotAMap) {
  std::string text = refused_backward(
      [](const BackwardContext&, const ValueList&, const ValueList& g) -> c10::IValue { return g[0]; });
  EXPECT_TRUE(says(text, {"type Tensor, not a map", "names of arguments"}));
  text = refused_backward([](const BackwardContext&, const ValueList&, const ValueList& g) -> c10::IValue {
    c10::impl::GenericDict map(c10::StringType::get(), c10::AnyType::get());
    map.insert("x", g[0]);
    map.insert("ys", 3.0);
    return map;
  });
  EXPECT_TRUE(says(text, {"a gradient of type float for argument 'ys'"}));
}

TEST(CustomOpErrors, ARuleThatAsksForAnArgumentThatIsNotThere) {
  const auto op =
      custom_op("wrong::ask(Tensor x) -> Tensor")
          .kernel([](const Tensor& x) { return x * 2; })
          .save_for_backward([](const Arguments& in, const ValueList&) -> Saved { return {in.tensor("y")}; })
          .jvp([](const CallContext&, const ValueList& saved, const Arguments&) -> Tensors { return {saved[1]}; });
  const auto f = op.typed<Tensor(const Tensor&)>();
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] {
                     tower::jvp(f, vec({1, 2}), vec({1, 1}));
                   }),
                   {"wrong::ask", "argument 'y'", "it has 'x'"}));
}

TEST(CustomOpErrors, AWrongCountOrShapeOfTangents) {
  const auto op = custom_op("wrong::two(Tensor x) -> (Tensor, Tensor)").kernel([](const Tensor& x) {
    return std::tuple(x * 2, x * 3);
  });
  const auto f = op.typed<std::tuple<Tensor, Tensor>(const Tensor&)>();
  const auto differentiate = [&] { tower::jvp(f, vec({1, 2}), vec({1, 1})); };
  const auto one = [](const CallContext&, const ValueList&, const Arguments& t) -> Tensors { return {t.tensor("x")}; };
  const auto narrow = [](const CallContext&, const ValueList&, const Arguments& t) -> Tensors {
    return {t.tensor("x"), t.tensor("x")[0]};
  };
  {
    const auto with_rule = custom_op("wrong::two").jvp(one);
    EXPECT_TRUE(says(refusal<tower::DerivativeError>(differentiate), {"wrong::two", "1 tangents", "2 outputs"}));
  }
  const auto with_rule = custom_op("wrong::two").jvp(narrow);
  EXPECT_TRUE(
      says(refusal<tower::DerivativeError>(differentiate), {"wrong::two", "output 1", "Double []", "Double [2]"}));
}

TEST(CustomOpErrors, SavingWhatCannotBeSaved) {
  const auto op = custom_op("wrong::keep(Tensor x) -> Tensor")
                      .kernel([](const Tensor& x) { return x * 2; })
                      .save_for_backward([](const Arguments& in, const ValueList&) -> Saved {
                        return {std::tuple(in.tensor("x"), 2.0)};
                      })
                      .backward([](const BackwardContext&, const ValueList&, const ValueList& g) -> Gradients {
                        return {{"x", g[0]}};
                      });
  const auto f = op.typed<Tensor(const Tensor&)>();
  EXPECT_TRUE(
      says(refusal<tower::ArgumentError>([&] { tower::grad([&](const Tensor& x) { return f(x).sum(); })(vec({1})); }),
           {"save_for_backward of wrong::keep", "type (Tensor, float)", "lists of numbers"}));
}

TEST(CustomOpErrors, ASavedTensorThatIsWrittenToBeforeTheBackward) {
  const auto op =
      custom_op("wrong::alias(Tensor x) -> Tensor")
          .kernel([](const Tensor& x) { return x * x; })
          .save_for_backward([](const Arguments& in, const ValueList&) -> Saved { return {in.tensor("x").view({-1})}; })
          .backward([](const BackwardContext&, const ValueList& saved, const ValueList& g) -> Gradients {
            return {{"x", 2 * saved[0] * g[0]}};
          });
  const auto f = op.typed<Tensor(const Tensor&)>();
  const Tensor x = vec({1, 2, 3});
  const auto pullback = tower::vjp(f, x).second;
  x.mul_(2);
  EXPECT_TRUE(says(refusal<tower::DerivativeError>([&] { pullback(at::ones({3}, at::kDouble)); }),
                   {"wrong::alias", "modified by an in-place operation"}));
  const Tensor leaf = vec({1, 2, 3}).requires_grad_();
  const Tensor inner = leaf * 1;
  const Tensor y = f(inner);
  inner.mul_(2);
  EXPECT_TRUE(says(support::message_of<c10::Error>([&] { torch::autograd::grad({y.sum()}, {leaf}); }),
                   {"modified by an inplace operation"}));
}

TEST(CustomOpErrors, AKernelThatWritesToItsArgumentOrReturnsIt) {
  const auto writes = custom_op("wrong::writes(Tensor x) -> Tensor").kernel([](const Tensor& x) {
    x.mul_(2);
    return x + 1;
  });
  const auto view = custom_op("wrong::view(Tensor x) -> Tensor").kernel([](const Tensor& x) { return x.view({-1}); });
  // Inside a vmap, too, where there is no memory to look at.
  const auto refused = [](const CustomOp& op) {
    const auto f = op.typed<Tensor(const Tensor&)>();
    const std::string text = refusal<tower::MutationError>([&] { f(vec({1})); });
    EXPECT_EQ(refusal<tower::MutationError>([&] { tower::vmap(f)(numbers({2, 3})); }), text);
    return text;
  };
  EXPECT_TRUE(says(refused(writes), {"wrong::writes", "argument 'x' was written to", "clone()"}));
  EXPECT_TRUE(says(refused(view), {"wrong::view", "argument 'x' shares memory", "clone()"}));
}

TEST(CustomOpErrors, AFormulaForASchemaThatWritesOrReturnsViews) {
  EXPECT_TRUE(
      says(refusal<tower::ArgumentError>([] { static_cast<void>(custom_op("wrong::in_place(Tensor(a!) x) -> ()")); }),
           {"wrong::in_place", "writes to its arguments", "fresh tensors"}));
  EXPECT_TRUE(says(
      refusal<tower::ArgumentError>([] { static_cast<void>(custom_op("wrong::slice(Tensor(a) x) -> Tensor(a)")); }),
      {"wrong::slice", "returns views"}));
  const auto backward = [](const BackwardContext&, const ValueList&, const ValueList& g) -> Gradients {
    return {{"self", g[0]}};
  };
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { custom_op("aten::relu_").backward(backward); }),
                   {"aten::relu_", "writes to its arguments"}));
  EXPECT_EQ(tower::coverage().empty(), false);
}

TEST(CustomOpErrors, ASchemaThatDoesNotParse) {
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([] { static_cast<void>(custom_op("wrong::op(Tensor x -> Tensor")); }),
                   {"\"wrong::op(Tensor x -> Tensor\" does not parse", "mylib::foo(Tensor x"}));
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([] { static_cast<void>(custom_op("wrong::op(Tensr x) -> Tensor")); }),
                   {"does not parse", "Tensr"}));
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([] { static_cast<void>(custom_op("op(Tensor x) -> Tensor")); }),
                   {"\"op\" has no namespace", "mylib::op"}));
}

TEST(CustomOpErrors, AKernelWhoseTypeDoesNotFitTheSchema) {
  const auto op = custom_op("wrong::typed(Tensor x, float alpha) -> Tensor");
  EXPECT_TRUE(
      says(refusal<tower::ArgumentError>([&] { op.kernel(at::kCPU, [](const Tensor& x) { return x * 1; }); }),
           {"the kernel for CPU does not fit wrong::typed(Tensor x, float alpha) -> Tensor", "number of arguments"}));
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { op.kernel([](const Tensor& x, int64_t) { return x * 1; }); }),
                   {"the kernel for all devices does not fit", "float", "int"}));
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { op.abstract([](const Tensor&, double) { return 1.0; }); }),
                   {"the kernel for META does not fit"}));
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { op.typed<Tensor(const Tensor&)>(); }),
                   {"the type asked for does not fit wrong::typed"}));
  const auto two = custom_op("wrong::outputs(Tensor x) -> (Tensor, Tensor)");
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { two.kernel([](const Tensor& x) { return x * 1; }); }),
                   {"the kernel for all devices does not fit wrong::outputs", "returns"}));
  // Nothing of it was registered: the right one can be.
  op.kernel(at::kCPU, [](const Tensor& x, double alpha) { return x * alpha; });
  EXPECT_TRUE(support::same(op.typed<Tensor(const Tensor&, double)>()(vec({1}), 2.0), vec({2})));
}

TEST(CustomOpErrors, AKernelForADeviceOfAnOperatorThatTakesNoTensors) {
  const auto op = custom_op("wrong::make(int n) -> Tensor");
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { op.kernel(at::kCPU, [](int64_t n) { return at::ones({n}); }); }),
                   {"wrong::make", "takes no tensors", "kernel(f)"}));
  op.kernel([](int64_t n) { return at::ones({n}); });
  EXPECT_EQ(op.typed<Tensor(int64_t)>()(3).size(0), 3);
}

TEST(CustomOpErrors, ACallOnADeviceWithoutAKernel) {
  const auto op =
      custom_op("wrong::cpu_only(Tensor x) -> Tensor").kernel(at::kCPU, [](const Tensor& x) { return x * 1; });
  const Tensor x = at::empty({2}, at::TensorOptions(at::kMeta));
  EXPECT_TRUE(says(support::message_of<c10::Error>([&] { op.typed<Tensor(const Tensor&)>()(x); }),
                   {"wrong::cpu_only", "Meta"}));
  EXPECT_TRUE(says(support::message_of<c10::Error>([&] { tower::vmap(op.typed<Tensor(const Tensor&)>())(x); }),
                   {"wrong::cpu_only", "Meta"}));
}

TEST(CustomOpErrors, AVmapRuleWithAWrongOutDim) {
  const auto op = custom_op("wrong::batch(Tensor x) -> Tensor").kernel([](const Tensor& x) { return x * 1; });
  const auto f = op.typed<Tensor(const Tensor&)>();
  const auto refused = [&](auto rule) {
    const auto with_rule = custom_op("wrong::batch").vmap(rule);
    return refusal<tower::ArgumentError>([&] { tower::vmap(f)(numbers({2, 3})); });
  };
  EXPECT_TRUE(says(refused([](const VmapInfo&, const BatchDims&, const Tensor& x) { return std::pair(x * 1, 1); }),
                   {"vmap (level 1)", "wrong::batch", "output 0 is at dimension 1", "Double [2, 3]", "2 examples"}));
  EXPECT_TRUE(says(refused([](const VmapInfo&, const BatchDims&, const Tensor& x) { return std::pair(x * 1, 7); }),
                   {"vmap (level 1)", "wrong::batch", "dimension 7"}));
  EXPECT_TRUE(says(refused([](const VmapInfo&, const BatchDims&, const Tensor& x) {
                     return std::pair(x * 1, tower::dynamic::Dims{0, 0});
                   }),
                   {"vmap (level 1)", "wrong::batch", "1 outputs and 2 out_dims"}));
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] {
                     custom_op("wrong::batch").vmap([](const VmapInfo&, const BatchDims&, const Tensor& x, double) {
                       return std::pair(x * 1, 0);
                     });
                   }),
                   {"the vmap rule does not fit wrong::batch"}));
}

TEST(CustomOpErrors, ADataDependentShapeUnderVmap) {
  const auto f = custom_op("lab::positive_places").typed<Tensor(const Tensor&)>();
  EXPECT_TRUE(support::same(f(vec({1, -1, 2, 3})), at::tensor({0, 2, 3}, at::kLong)));
  const auto sum_there = [&](const Tensor& x) { return x.index_select(0, f(x)).square().sum(); };
  EXPECT_TRUE(support::same(tower::grad(sum_there)(vec({1, -1, 2, 3})), vec({2, 0, 4, 6})));
  EXPECT_TRUE(says(refusal<tower::UnsupportedError>([&] {
                     tower::vmap(f)(vec({1, -1, 2, 3}).view({2, 2}));
                   }),
                   {"vmap (level 1)", "lab::positive_places", "different shapes"}));
}

TEST(CustomOpErrors, NoGradientForWhatIsNoTensorArgument) {
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([] { custom_op("lab::softplus").no_gradient({"beta"}); }),
                   {"no_gradient names 'beta'", "lab::softplus"}));
}

}  // namespace
