// Operators that change what a tensor is rather than its values, raw memory, and what the autograd's own switches and
// queries mean inside of transformed functions.
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/prelude.h"

namespace {

using tower::MutationError;

// ---- storage and metadata ------------------------------------------------------------------------------------------

TEST(OperatorsThatReplaceMemory, AreRefusedByName) {
  struct Attempt {
    const char* op;
    void (*act)(const Tensor& t, const Tensor& x);
    bool constants_too = true;  // set_ of what nothing tracks: given_memory_test.cpp
  };
  const Attempt attempts[] = {
      {"aten::set_", [](const Tensor& t, const Tensor&) { t.set_(); }, false},
      {"aten::set_.source_Tensor", [](const Tensor& t, const Tensor& x) { t.set_(x); }},
      {"aten::set_.source_Storage",
       [](const Tensor& t, const Tensor&) { t.set_(at::zeros({3}, at::kDouble).storage()); }, false},
      {"aten::resize_", [](const Tensor& t, const Tensor&) { t.resize_({7}); }},
      {"aten::resize_as_",
       [](const Tensor& t, const Tensor&) {
         t.resize_as_(at::zeros({2, 7}));
       }},
  };
  for (const auto& attempt : attempts)
    for (bool fresh : {false, true}) {
      if (fresh && !attempt.constants_too) continue;
      const auto f = of_one([&](const Tensor& x) {
        attempt.act(fresh ? at::zeros({3}, at::kDouble) : x * 1, x);
        return x.sum();
      });
      EXPECT_TRUE(says(refusal<MutationError>([&] {
                         td::vmap(f, {0}, {0})({numbers({2, 3})});
                       }),
                       {"vmap (level 1): ", attempt.op, "Double [3]"}));
      EXPECT_TRUE(says(refusal<MutationError>([&] {
                         td::grad(f, {0})({vec({1, 2, 3})});
                       }),
                       {"grad (level 1): ", attempt.op}));
    }
}

TEST(OperatorsThatReplaceMemory, SetDataIsRefusedByName) {
  const auto f = of_one([](const Tensor& x) {
    x.set_data(at::zeros({3}, at::kDouble));
    return x.sum();
  });
  EXPECT_TRUE(says(refusal<tower::Error>([&] {
                     td::grad(f, {0})({vec({1, 2, 3})});
                   }),
                   {"grad (level 1)", "set_data", "copy_"}));
}

TEST(Resize, ToTheSameShapeOrFewerElementsOrFromNoneIsWhatItIsPlainly) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor own = x * 2, empty = at::empty({0}, at::kDouble), gone = x * 3;
    own.resize_({3});
    own.resize_({2}).mul_(x[0]);
    empty.resize_({2}).fill_(1);
    empty.add_(x.slice(0, 1));
    gone.resize_({0});
    Tensor out = gone;
    at::mul_out(out, own, empty);
    return out;
  });
  EXPECT_EQ(disagreement(f, {waves({3, 3}, 0.3)}, {.libtorch = false}), "");
}

TEST(RawMemory, OfAConstantIsReadAndWrittenLikeThatOfAnyTensor) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor table = at::zeros({3}, at::kDouble), part = table.narrow(0, 1, 2);
    for (int64_t i = 0; i < 3; ++i) table.data_ptr<double>()[i] = static_cast<double>(i + 1);
    part.accessor<double, 1>()[1] *= 10;
    EXPECT_EQ(table[2].item<double>(), 30);
    table.mul_(2);
    EXPECT_EQ(part.data_ptr<double>()[0], 4);  // the memory that the write gave it
    return x * table;
  });
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({numbers({2, 3})})[0], numbers({2, 3}) * vec({2, 4, 60})));
}

TEST(RawMemory, OfAConstantIsGoneWhenSomethingTrackedWasWrittenToItOrToItsBase) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor table = at::zeros({3}, at::kDouble), part = table.narrow(0, 1, 2);
    table.add_(x);
    return x * part.data_ptr<double>()[0];
  });
  EXPECT_TRUE(says(refusal<c10::Error>([&] {
                     td::vmap(f, {0}, {0})({numbers({2, 3})});
                   }),
                   {"vmap (level 1): raw memory of a tensor that the transform tracks"}));
}

// ---- no_grad and detach --------------------------------------------------------------------------------------------

TEST(NoGrad, AroundAWriteChangesTheValueAndLeavesTheHistoryAlsoThroughViews) {
  const auto whole = of_one([](const Tensor& x) {
    const Tensor y = x * 3;
    {
      c10::NoGradGuard no_grad;
      y.mul_(2);
    }
    return (y * y).sum();
  });
  const auto part = of_one([](const Tensor& x) {
    const Tensor y = x * 3;
    {
      c10::NoGradGuard no_grad;
      y.narrow(0, 0, 2).mul_(2);
      y[2] = 5;
    }
    return (y * y).sum();
  });
  const Tensor x = vec({1, 2, 3});
  // d/dx of y² is 2 y · 3, with the value that y has in the end.
  EXPECT_TRUE(same(td::grad(whole, {0})({x})[0], 2 * 6 * x * 3));
  EXPECT_TRUE(same(td::grad(part, {0})({x})[0], 2 * vec({6, 12, 5}) * 3));
  // Forward mode knows no no_grad: it follows the write.
  EXPECT_TRUE(same(td::jvp(whole, {x}, {vec({1, 0, 0})}).second[0], number(2 * 6 * 6)));
  EXPECT_TRUE(same(td::jvp(part, {x}, {vec({1, 0, 1})}).second[0], number(2 * 6 * 6)));
  for (const auto& f : {whole, part}) {
    const Tensor rows = numbers({2, 3});
    const Tensor mapped = td::vmap(td::grad(f, {0}), {0}, {0})({rows})[0];
    for (int64_t i = 0; i < 2; ++i) EXPECT_TRUE(same(mapped[i], td::grad(f, {0})({rows[i]})[0]));
    const auto all = of_one([&](const Tensor& m) { return td::vmap(f, {0}, {0})({m})[0].sum(); });
    EXPECT_TRUE(same(td::grad(all, {0})({rows})[0], mapped));
  }
}

TEST(NoGrad, AroundAnUpdateOfAnArgumentIsAStepOfAnOptimizer) {
  const auto f = of_one([](const Tensor& w) {
    const Tensor before = (w * w).sum();
    {
      c10::NoGradGuard no_grad;
      w.sub_(w, 0.5);
    }
    return before + (w * w).sum();
  });
  const Tensor w = vec({2, 4});
  EXPECT_TRUE(same(td::grad(f, {0})({w})[0], vec({4 + 2, 8 + 4})));  // 2w + 2 w', w' = w / 2
  EXPECT_TRUE(same(w, vec({1, 2})));
}

TEST(Detach, SharesItsMemoryWithTheTensorThatItWasTakenFrom) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor y = x * 3, d = y.detach();
    d.mul_(2);  // changes the values of y, not its history
    d.narrow(0, 0, 1).add_(1);
    y[1] = 7;  // seen by d, too
    return (y * y).sum() + 100 * (d * x).sum();
  });
  const Tensor x = vec({1, 2, 3}), y = vec({7, 7, 18});
  EXPECT_TRUE(same(f({x})[0], ((y * y).sum() + 100 * (y * x).sum())));
  const Tensor expected = 2 * y * vec({3, 0, 3}) + 100 * y;
  EXPECT_TRUE(same(td::grad(f, {0})({x})[0], expected));
  EXPECT_TRUE(same(td::jvp(f, {x}, {vec({1, 10, 100})}).second[0], (expected * vec({1, 10, 100})).sum()));
  EXPECT_TRUE(same(td::vmap(td::grad(f, {0}), {0}, {0})({at::stack({x, x})})[0], at::stack({expected, expected})));
}

TEST(Data, IsTheTensorItselfWithoutItsHistoryAndSharesItsMemory) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor y = x * 3, kept = x.data() * x;
    EXPECT_FALSE(y.data().requires_grad());
    y.data().mul_(2);
    return (kept + y.variable_data() * x + y).sum();
  });
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(f({x})[0], (x * x + 6 * x * x + 6 * x).sum()));
  const Tensor expected = x + 6 * x + 3;
  EXPECT_TRUE(same(td::grad(f, {0})({x})[0], expected));
  EXPECT_TRUE(same(td::jvp(f, {x}, {x}).second[0], (expected * x).sum()));
  EXPECT_TRUE(
      same(td::vmap(td::grad(f, {0}), {0}, {0})({at::stack({x, 2 * x})})[0], at::stack({expected, 7 * 2 * x + 3})));
}

TEST(Detach, KeepsTheHistoryOfWhatIsWrittenToItWhenItsBaseIsWrittenAfterwards) {
  const Tensor square = vec({1, 2, 3});
  const std::function<Tensor(const Tensor&, const Tensor&)> bodies[] = {
      [](const Tensor& x, const Tensor& y) {
        const Tensor d = y.detach();
        d.mul_(x);
        y.add_(1);
        return (d * 3).sum();
      },
      [](const Tensor& x, const Tensor& y) {
        const Tensor d = y.detach();
        d[0].mul_(x[1]);
        y.narrow(0, 0, 2).add_(1);
        return (d * d * y).sum();
      },
      [](const Tensor& x, const Tensor& y) {
        const Tensor d = y.view({3, 1}).detach(), part = d[2];
        d.copy_((x * x.unsqueeze(1)).narrow(1, 0, 1));
        y.mul_(2);
        return (d * d).sum() + part.sum() + (y * x).sum();
      }};
  for (const auto& body : bodies) {
    for (bool of_x : {false, true}) {
      const auto f =
          of_one([&](const Tensor& x) { return body(x, of_x ? x * 2 : at::ones({3}, at::kDouble).detach()); });
      const Tensor leaf = square.clone().requires_grad_(true);
      const Tensor out = f({leaf})[0];
      const Tensor expected = torch::autograd::grad({out}, {leaf})[0];
      EXPECT_TRUE(same(td::grad(f, {0})({square})[0], expected));
      EXPECT_TRUE(same(td::vmap(td::grad(f, {0}), {0}, {0})({at::stack({square, square})})[0],
                       at::stack({expected, expected})));
    }
  }
}

TEST(NoGrad, AroundAViewThatIsWrittenToInGradModeIsRefusedAsInLibTorch) {
  const auto writes = [](bool write_recorded) {
    return of_one([=](const Tensor& x) {
      const Tensor y = at::ones({3}, at::kDouble);
      Tensor part;
      {
        c10::NoGradGuard no_grad;
        part = y.narrow(0, 0, 2);
      }
      part.mul_(3);  // nothing to record
      const c10::AutoGradMode mode(write_recorded);
      part[0].mul_(x[0]);
      return (y * x.detach()).sum();
    });
  };
  const Tensor x = vec({1, 2, 3});
  for (const auto& transform : {td::grad(writes(true), {0}), td::jacrev(writes(true), {0})})
    EXPECT_TRUE(says(refusal<MutationError>([&] { transform({x}); }),
                     {"(level 1): aten::mul_.Tensor", "aten::slice", "no_grad mode", "Make the view outside"}))
        << support::message_of<MutationError>([&] { transform({x}); });
  EXPECT_TRUE(same(td::grad(writes(false), {0})({x})[0], vec({0, 0, 0})));
  // Forward mode does not heed no_grad, and neither do values.
  EXPECT_TRUE(same(td::jvp(writes(true), {x}, {vec({1, 0, 0})}).second[0], number(3)));
  EXPECT_TRUE(same(td::vmap(writes(true), {0}, {0})({at::stack({x, x})})[0], vec({12, 12})));
}

TEST(Detach, InPlaceCutsTheHistoryAndOfAViewIsRefused) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor y = x * 3;
    y.detach_();
    return (y * x).sum();
  });
  EXPECT_TRUE(same(td::grad(f, {0})({vec({1, 2})})[0], vec({3, 6})));
  const auto view = of_one([](const Tensor& x) {
    const Tensor y = x * 3;
    y.select(0, 0).detach_();
    return y.sum();
  });
  EXPECT_TRUE(says(refusal<MutationError>([&] {
                     td::grad(view, {0})({vec({1, 2})});
                   }),
                   {"grad (level 1): aten::detach_", "Double []", "is a view", "Use detach()"}));
}

TEST(GradMode, InsideMeansWhatItMeansInLibTorch) {
  const auto f = of_one([](const Tensor& x) {
    EXPECT_TRUE(c10::GradMode::is_enabled());
    Tensor constant, recorded;
    {
      c10::AutoGradMode off(false);
      constant = x * x;
      {
        c10::AutoGradMode on(true);
        recorded = x * x;
      }
    }
    return (constant * x + recorded).sum();
  });
  const Tensor x = vec({1, 2});
  EXPECT_TRUE(same(td::grad(f, {0})({x})[0], x * x + 2 * x));
}

// ---- queries -------------------------------------------------------------------------------------------------------

TEST(Queries, SayWhatLibTorchSaysOfShapesTypesAndMemory) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor t = x.t();
    EXPECT_EQ(x.dim(), 2);
    EXPECT_EQ(x.numel(), 6);
    EXPECT_EQ(t.size(0), 3);
    EXPECT_EQ(t.stride(0), 1);
    EXPECT_EQ(t.stride(1), 3);
    EXPECT_FALSE(t.is_contiguous());
    EXPECT_TRUE(t.contiguous().is_contiguous());
    EXPECT_TRUE(x.is_floating_point());
    EXPECT_EQ(x.options().dtype(), at::kDouble);
    EXPECT_EQ(x.element_size(), 8U);
    EXPECT_TRUE(x.device().is_cpu());
    return x.sum();
  });
  td::vmap(f, {0}, {0})({numbers({4, 2, 3})});
  td::grad(f, {0})({numbers({2, 3})});
  td::jvp(f, {numbers({2, 3})}, {numbers({2, 3})});
}

TEST(Queries, OfRequiresGradAndIsLeafAnswerAsInLibTorch) {
  const Tensor w = vec({1, 2}).requires_grad_(true);
  const auto ask = [&](const Tensor& x, bool differentiated) {
    EXPECT_EQ(x.requires_grad(), differentiated);
    EXPECT_TRUE(x.is_leaf());
    const Tensor y = x * 2;
    EXPECT_EQ(y.requires_grad(), differentiated);
    EXPECT_EQ(y.is_leaf(), !differentiated);
    EXPECT_EQ(y.grad_fn() != nullptr, differentiated);
    EXPECT_EQ(x[0].requires_grad(), differentiated) << "a view";
    EXPECT_FALSE(x.gt(0).requires_grad()) << "booleans";
    EXPECT_FALSE(x.detach().requires_grad());
    Tensor made = at::zeros({2}, at::kDouble);
    EXPECT_FALSE(made.requires_grad());
    made.add_(x);
    EXPECT_EQ(made.requires_grad(), differentiated);
    {
      const c10::NoGradGuard off;
      EXPECT_FALSE((x * 2).requires_grad());
    }
    EXPECT_TRUE(w.requires_grad());
    EXPECT_TRUE(w.is_leaf());
    EXPECT_FALSE(x.grad().defined());
  };
  const auto differentiated = of_one([&](const Tensor& x) {
    ask(x, true);
    return (x * w).sum();
  });
  const auto plain = of_one([&](const Tensor& x) {
    ask(x, false);
    return (x * w).sum();
  });
  const Tensor x = vec({3, 4});
  EXPECT_TRUE(td::grad(differentiated, {0})({x})[0].requires_grad());
  EXPECT_FALSE(td::grad(differentiated, {0})({x})[0].is_leaf());
  td::vmap(td::grad(differentiated, {0}), {0}, {0})({at::stack({x, x})});
  td::jacrev(td::grad(differentiated, {0}), {0})({x});
  td::vmap(plain, {0}, {0})({at::stack({x, x})});
  td::jvp(plain, {x}, {x});
  td::jacfwd(plain, {0})({x});
}

TEST(Queries, LeaveNoTraceOfATransformOutside) {
  const auto square = of_one([](const Tensor& x) { return x * x; });
  const auto [outs, pullback] = td::vjp(square, {vec({1, 2})});
  EXPECT_FALSE(outs[0].requires_grad());
  EXPECT_TRUE(outs[0].is_leaf());
  EXPECT_FALSE(pullback({vec({1, 1})})[0].requires_grad());
}

TEST(Queries, WhatNeedsLibTorchsAutogradInsideIsRefused) {
  const Tensor x = vec({1, 2});
  const auto refused = [&](const std::function<void(const Tensor&)>& ask, std::initializer_list<const char*> words) {
    const auto f = of_one([&](const Tensor& x) {
      ask(x);
      return (x * x).sum();
    });
    const std::string text = refusal<tower::UnsupportedError>([&] { td::grad(f, {0})({x}); });
    EXPECT_TRUE(says(text, {"grad (level 1)"}) && says(text, words)) << text;
    support::expect_intact();
  };
  const auto hook = [](const Tensor& gradient) { return 2 * gradient; };
  refused([](const Tensor& x) { x.requires_grad_(false); }, {"took requires_grad", "detach()"});
  refused([](const Tensor& x) { x.set_requires_grad(false); }, {"took requires_grad", "detach()"});
  refused([](const Tensor& x) { (x * 2).retain_grad(); }, {"retain_grad()", "Return the tensor"});
  refused([&](const Tensor& x) { x.register_hook(hook); }, {"registered a hook", "custom_vjp"});
  refused([&](const Tensor& x) { (x * 2).register_hook(hook); }, {"registered a hook", "custom_vjp"});
  refused([](const Tensor& x) { (x * x).sum().backward(); }, {"backward()", "tower::grad"});
  refused([](const Tensor& x) { torch::autograd::grad({(x * x).sum()}, {x}); }, {"torch::autograd::grad"});
  refused([](const Tensor& x) { torch::autograd::grad({(x * x).sum()}, {x}, {}, {}, false, true); }, {"tower::grad"});
  refused(
      [](const Tensor& x) {
        const Tensor y = x * x;
        torch::autograd::grad({y.sum()}, {y});
      },
      {"torch::autograd::grad"});
  refused([](const Tensor& x) { x.backward(at::ones_like(x)); }, {"backward()"});
  // LibTorch itself says no here, before it asks anybody.
  const auto asks = of_one([](const Tensor& x) { return (x * 2).requires_grad_(true).sum(); });
  EXPECT_TRUE(says(refusal<c10::Error>([&] { td::grad(asks, {0})({x}); }), {"requires_grad"}));
  EXPECT_TRUE(says(refusal<c10::Error>([&] { td::vmap(asks, {0}, {0})({x}); }), {"requires_grad"}));
}

}  // namespace
