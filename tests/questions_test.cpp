// What code inside a transform may ask of a tensor: is_batched, is_tracked, requires_grad of what LibTorch's autograd
// outside records, and the words in which messages answer.
#include <torch/csrc/autograd/autograd.h>

#include "support/prelude.h"
#include "tower/detail/spellings.h"
#include "tower/tower.h"

namespace {

using tower::is_batched;
using tower::is_tracked;

const Tensor x = vec({1, 2, 3});

TEST(Questions, PlainTensorsAndConstantsAreNeitherBatchedNorTracked) {
  EXPECT_FALSE(is_batched(x) || is_tracked(x));
  tower::vmap(tower::grad([](const Tensor& each) {
    EXPECT_FALSE(is_batched(x) || is_tracked(x));
    const Tensor made = at::ones({2});
    EXPECT_FALSE(is_batched(made) || is_tracked(made));
    return each.sin();
  }))(x);
}

TEST(Questions, EachTransformAnswersForWhatItFollows) {
  tower::vmap([](const Tensor& each) {
    EXPECT_TRUE(is_batched(each) && is_batched(each * 2));
    EXPECT_FALSE(is_tracked(each));
    return each;
  })(x);
  const auto sum = [](const Tensor& each) {
    EXPECT_TRUE(is_tracked(each) && is_tracked(each * 2));
    EXPECT_FALSE(is_batched(each) || is_tracked(each.detach()));
    return each.sum();
  };
  tower::grad(sum)(x);
  tower::vjp(sum, x);
  tower::jvp(sum, x, x);
  tower::linearize(sum, x);
}

TEST(Questions, TransformsAboveHideNothing) {
  tower::vmap(tower::grad([](const Tensor& each) {
    EXPECT_TRUE(is_batched(each) && is_tracked(each));
    return each.sin();
  }))(x);
  const auto outer = [](const Tensor& outer) {
    const auto sine = [&](const Tensor& inner) {
      EXPECT_TRUE(is_batched(outer) && !is_tracked(outer) && !is_batched(inner) && is_tracked(inner));
      return inner.sin();
    };
    return tower::grad(sine)(number(1)) * outer;
  };
  tower::vmap(outer)(x);
}

TEST(Questions, AWriteChangesTheAnswer) {
  tower::vmap([](const Tensor& each) {
    const Tensor made = at::zeros({2}, at::kDouble), view = made.select(0, 1);
    EXPECT_FALSE(is_batched(view));
    made.fill_(each);
    EXPECT_TRUE(is_batched(made) && is_batched(view));
    return made;
  })(x);
}

TEST(Questions, ATransformThatHasEndedFollowsNothing) {
  Tensor kept;
  tower::vmap([&](const Tensor& each) {
    kept = each;
    return each;
  })(x);
  EXPECT_FALSE(is_batched(kept));
}

// ---- LibTorch's autograd outside -----------------------------------------------------------------------------------

TEST(OuterHistory, WhatLibTorchRecordsOutsideRequiresGradInside) {
  const Tensor w = vec({4, 5, 6}).requires_grad_();
  tower::vmap([&](const Tensor& each) {
    const Tensor product = w * each;
    EXPECT_TRUE(product.requires_grad());
    EXPECT_FALSE(product.is_leaf());
    EXPECT_FALSE(each.requires_grad());
    EXPECT_FALSE(product.detach().requires_grad());
    {
      const at::NoGradGuard off;
      EXPECT_FALSE((w * each).requires_grad());
    }
    Tensor written = w * each;
    written.copy_(each.detach());
    return product;
  })(x)
      .sum()
      .backward();
  EXPECT_TRUE(same(w.grad(), at::full_like(w, 6)));
}

TEST(OuterHistory, LibTorchsEngineStartedInsideSaysWhatToUse) {
  const Tensor w = vec({4, 5, 6}).requires_grad_();
  const auto refused = [&](auto transformed) {
    const std::string text = refusal<tower::UnsupportedError>(transformed);
    EXPECT_TRUE(says(text, {"(level ", "backward()", "tower::grad"})) << text;
    support::expect_intact();
  };
  const auto backward = [&](const Tensor& each) {
    (w * each).sum().backward();
    return each;
  };
  const auto gradient = [&](const Tensor& each) { return torch::autograd::grad({(w * each).sum()}, {w})[0]; };
  refused([&] { tower::vmap(backward)(x); });
  refused([&] { tower::vmap(gradient)(x); });
  refused([&] { tower::jvp(backward, x, x); });
  refused([&] { tower::vmap(tower::vmap(backward))(at::stack({x, x})); });
  // Nothing of the transform's own is in it.
  refused([&] {
    tower::vmap([&](const Tensor& each) {
      (w * 2).sum().backward();
      return each;
    })(x);
  });
}

// ---- spellings -----------------------------------------------------------------------------------------------------

TEST(Spellings, MessagesUseTheWordsOfTheSurface) {
  const auto draws = [] {
    return refusal<tower::RandomnessError>(
        [] { tower::vmap([](const Tensor& each) { return each + at::rand({}); })(x); });
  };
  const std::string cpp = draws();
  EXPECT_TRUE(contains(cpp, "{.randomness = Randomness::different} draws for each example")) << cpp;
  const tower::detail::Spellings before = tower::detail::spellings();
  tower::detail::Spellings other = before;
  other.different_draws = "RANDOMNESS DIFFERENT";
  tower::detail::set_spellings(other);
  const std::string text = draws();
  tower::detail::set_spellings(before);
  EXPECT_TRUE(contains(text, "RANDOMNESS DIFFERENT draws for each example")) << text;
  EXPECT_FALSE(contains(text, "Randomness::different")) << text;
}

}  // namespace
