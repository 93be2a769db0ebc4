// What a compiled function cannot do is an error that says so, and what depends on more than arguments is done at each
// call.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <tower/compile.h>
#include <tower/cond.h>
#include <tower/function.h>
#include <tower/substitution.h>
#include <tower/transforms.h>

#include "support/libtorch_duals.h"
#include "support/prelude.h"

namespace {

TEST(CompileRefusals, ValuesThatAreRead) {
  const Tensor x = vec({1, 2, 3});
  const auto refused = [&](auto f) { return refusal<tower::UnsupportedError>([&] { tower::compile(f)(x); }); };
  const auto item = refused([](const Tensor& v) { return v * v.sum().item<double>(); });
  EXPECT_TRUE(says(item, {"compile (level 1)", "aten::_local_scalar_dense", "tower::cond"})) << item;
  const auto random = refused([](const Tensor& v) { return at::equal(at::rand_like(v), v) ? v : -v; });
  EXPECT_TRUE(says(random, {"aten::equal", "reads a value"})) << random;
  const auto shape = refused([](const Tensor& v) { return v.nonzero().sum(); });
  EXPECT_TRUE(says(shape, {"aten::nonzero", "shape depends on values", "where()"})) << shape;
  const auto masked = refused([](const Tensor& v) { return v.index({v > 1}); });
  EXPECT_TRUE(says(masked, {"aten::index.Tensor", "shape depends on values"})) << masked;
  const auto of_captured = refused([&](const Tensor& v) { return v * (x[0] * 2).item<double>(); });
  EXPECT_TRUE(says(of_captured, {"aten::_local_scalar_dense", "reads a value"})) << of_captured;
  const auto inside = refused(
      [&](const Tensor& v) { return tower::vmap([&](const Tensor& e) { return e * x.sum().item<double>(); })(v); });
  EXPECT_TRUE(says(inside, {"aten::_local_scalar_dense", "reads a value"})) << inside;
  const std::string memory =
      message_of<c10::Error>([&] { tower::compile([](const Tensor& v) { return v * v.data_ptr<double>()[0]; })(x); });
  EXPECT_TRUE(says(memory, {"compile (level 1)", "raw memory"})) << memory;
}

TEST(CompileRefusals, AConstantMayBeRead) {
  const auto f = tower::compile([](const Tensor& x) { return x * at::ones({3}, at::kDouble).sum().item<double>(); });
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(same(f(waves({3}) + i), (waves({3}) + i) * 3));
}

// What a function does about an error is done once, when it is traced: another call's values may raise none.
TEST(CompileRefusals, ErrorsThatAreCaught) {
  const auto factor = [](const Tensor& m) {
    try {
      return at::linalg_cholesky(m);
    } catch (const c10::Error&) {
      return at::linalg_cholesky(m + 9 * at::eye(2, at::kDouble));
    }
  };
  const Tensor indefinite = vec({1, 2, 2, 1}).reshape({2, 2}), definite = vec({2, 1, 1, 2}).reshape({2, 2});
  const std::string caught =
      refusal<tower::UnsupportedError>([&] { tower::compile(tower::vmap(factor))(indefinite.unsqueeze(0)); });
  EXPECT_TRUE(says(caught, {"compile (level 1)", "caught what aten::", "raised", "tower::cond"})) << caught;
  EXPECT_TRUE(same(tower::compile(factor)(definite), at::linalg_cholesky(definite)));
  const auto divide = [](const Tensor& n) {
    try {
      return n.div(n, "floor");
    } catch (const c10::Error&) {
      return n;
    }
  };
  const Tensor numbers = at::arange(3);
  refusal<tower::UnsupportedError>([&] { tower::compile(divide)(numbers); });
  refusal<tower::UnsupportedError>([&] {
    tower::compile(tower::grad([&](const Tensor& x) { return (x * divide(numbers * (x > 9))).sum(); }))(vec({1, 2, 3}));
  });

  // What only constants decide is the same at each call.
  const auto constant = tower::compile([](const Tensor& x) {
    try {
      return x * at::zeros({2}).dot(at::zeros({3}));
    } catch (const c10::Error&) {
      return x + 1;
    }
  });
  EXPECT_TRUE(same(constant(vec({1, 2})), vec({2, 3})));
}

TEST(CompileRefusals, LibtorchsAutogradInside) {
  const auto f = tower::compile([](const Tensor& x) {
    const Tensor y = x.square().sum();
    return torch::autograd::grad({y}, {x})[0];
  });
  const Tensor x = waves({3}).requires_grad_();
  const std::string text = message_of<std::exception>([&] { f(x); });
  EXPECT_TRUE(says(text, {"compile", "tower::grad"})) << text;
}

TEST(CompileRefusals, LibtorchsForwardModeRunsUncompiled) {
  const support::LibtorchForwardMode mode;
  const auto f = tower::compile([](const Tensor& x) { return x.sin(); });
  const Tensor x = waves({3}), t = waves({3}, 0.5);
  EXPECT_TRUE(same(mode.tangent(f(mode.dual(x, t))), x.cos() * t));
}

TEST(CompileRandom, NumbersAreDrawnAtEachCall) {
  const auto draw = [](const Tensor& x) { return x + at::rand_like(x) + at::rand({3}, at::kDouble); };
  const auto f = tower::compile(draw);
  const Tensor x = waves({3});
  for (int i = 0; i < 3; ++i) {
    at::manual_seed(7 + i);
    const Tensor expected = draw(x);
    at::manual_seed(7 + i);
    EXPECT_TRUE(same(f(x), expected));
  }
  EXPECT_FALSE(same(f(x), f(x)));
}

TEST(CompileRandom, AnUnusedDrawMovesTheGenerator) {
  const auto draw = [](const Tensor& x) {
    at::rand({3});
    return x + at::rand_like(x);
  };
  const auto f = tower::compile(draw);
  const Tensor x = waves({3});
  for (int i = 0; i < 2; ++i) {
    at::manual_seed(7);
    const Tensor expected = draw(x);
    at::manual_seed(7);
    EXPECT_TRUE(same(f(x), expected));
  }
}

TEST(CompileRandom, ExamplesDrawAsVmapSays) {
  const auto draw = [](const Tensor& x) {
    return x * 0 + at::rand({2}, at::kDouble) + at::dropout(at::ones_like(x), 0.5, true);
  };
  const Tensor xs = waves({64, 2});
  const auto different = tower::compile(tower::vmap(draw, {.randomness = tower::Randomness::different}));
  const auto shared = tower::compile(tower::vmap(draw, {.randomness = tower::Randomness::same}));
  Tensor before_different, before_shared;
  for (int i = 0; i < 2; ++i) {
    const Tensor d = different(xs), s = shared(xs);
    EXPECT_FALSE(same(d[0], d[1])) << i;
    EXPECT_TRUE(same(s, s[0].expand_as(s))) << i;
    if (i > 0) {
      EXPECT_FALSE(same(d, before_different));
      EXPECT_FALSE(same(s, before_shared));
    }
    before_different = d;
    before_shared = s;
  }
  const std::string text = refusal<tower::RandomnessError>([&] { tower::compile(tower::vmap(draw))(xs); });
  EXPECT_TRUE(says(text, {"vmap", "draws random numbers"})) << text;
  // Outside: the vmap around says it.
  const auto inside = tower::compile(draw);
  const Tensor d = tower::vmap(inside, {.randomness = tower::Randomness::different})(xs);
  EXPECT_FALSE(same(d[0], d[1]));
}

TEST(CompileRandom, ChunksThatShareADrawAreRefused) {
  const auto f = tower::compile(tower::vmap([](const Tensor& x) { return x + at::rand_like(x); },
                                            {.randomness = tower::Randomness::same, .chunk_size = 2}));
  const std::string text = refusal<tower::UnsupportedError>([&] { f(waves({4, 2})); });
  EXPECT_TRUE(says(text, {"aten::rand_like", "chunks", "compiled"})) << text;
}

TEST(CompileModes, GradModeAndAutocastAreThoseOfTheCall) {
  const auto f = [](const Tensor& x) { return x.mm(x).sum(); };
  const auto compiled = tower::compile(f);
  const Tensor x = waves({3, 3}).to(at::kFloat).requires_grad_();
  EXPECT_TRUE(compiled(x).requires_grad());
  {
    const at::NoGradGuard guard;
    EXPECT_FALSE(compiled(x).requires_grad());
    EXPECT_FALSE(compiled(x).requires_grad());
  }
  {
    const c10::InferenceMode guard;
    EXPECT_TRUE(compiled(x).is_inference());
  }
  for (int i = 0; i < 2; ++i) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Tensor expected = f(x), actual = compiled(x);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_TRUE(same(actual.detach(), expected.detach()));
    EXPECT_TRUE(same(compiled(x).detach(), f(x).detach()));
  }
  const auto detached = [](const Tensor& v) {
    const at::NoGradGuard guard;
    return v * 3;
  };
  const auto product = [&](const Tensor& v) { return (detached(v) * v).sum(); };
  const auto both = tower::compile(product);
  const Tensor v = waves({3});
  both(v + 1);
  EXPECT_TRUE(same(tower::grad(both)(v), 3 * v));
}

TEST(CompileCond, AChoiceIsMadeAtEachCall) {
  const auto f = [](const Tensor& x) {
    return tower::cond(
        x.sum() > 0, [](const Tensor& v) { return v.sqrt(); }, [](const Tensor& v) { return v * 3; }, x);
  };
  const auto compiled = tower::compile(f);
  const auto total = [&](const Tensor& v) { return compiled(v).sum(); };
  const Tensor x = vec({1, 4, 9});
  for (const Tensor& v : {x, Tensor(-x), x}) EXPECT_TRUE(same(compiled(v), f(v)));
  EXPECT_TRUE(same(tower::grad(total)(x), 0.5 / x.sqrt()));
  EXPECT_TRUE(same(tower::grad(total)(-x), at::full_like(x, 3)));
  const auto inside = tower::compile(tower::grad([&](const Tensor& v) { return f(v).sum(); }));
  for (const Tensor& v : {x, Tensor(-x), x})
    EXPECT_TRUE(same(inside(v), v[0].item<double>() > 0 ? 0.5 / v.sqrt() : at::full_like(v, 3)));
  const auto each = tower::compile(tower::vmap(f));
  for (const double sign : {1.0, -1.0}) {
    const Tensor batch = sign * vec({1, -4, 9}).view({3, 1});
    EXPECT_TRUE(same(each(batch), at::where(batch > 0, batch.clamp_min(0).sqrt(), batch * 3)));
  }
}

TEST(CompileCond, BranchesReadWhatTheyCapture) {
  const auto f = [](const Tensor& x) {
    const Tensor y = x * 2, z = at::ones_like(x);
    return tower::cond(
        x.sum() > 0, [=](const Tensor& v) { return v + y; }, [=](const Tensor& v) { return v * y + z; }, x);
  };
  const auto compiled = tower::compile(f);
  const Tensor x = vec({1, 4, 9});
  for (const Tensor& v : {x, Tensor(-x), x}) EXPECT_TRUE(same(compiled(v), f(v)));
  const auto total = [&](const Tensor& v) { return compiled(v).sum(); };
  EXPECT_TRUE(same(tower::grad(total)(x), at::full_like(x, 3)));
  EXPECT_TRUE(same(tower::grad(total)(-x), -4 * x));
}

TEST(CompileCond, OtherShapesAreRefused) {
  const auto f = tower::compile([](const Tensor& x) {
    return tower::cond(
        x.sum() > 0, [](const Tensor& v) { return v; }, [](const Tensor& v) { return v[0]; }, x);
  });
  f(vec({1, 2}));
  const std::string text = refusal<tower::UnsupportedError>([&] { f(vec({-1, -2})); });
  EXPECT_TRUE(says(text, {"compile", "cond", "other shapes"})) << text;
}

// The derivative is three times the true one, so that it is seen whose rule ran.
struct Loud : tower::Function<Loud> {
  static Tensor forward(tower::Context& ctx, const Tensor& x) {
    ctx.save_for_backward({x});
    return x * x;
  }
  static Tensor backward(tower::Context& ctx, const Tensor& ct) { return ct * 6 * ctx.saved_tensors()[0]; }
};

TEST(CompileFunctions, RulesOfUsersAreHonoured) {
  const auto f = [](const Tensor& x) { return Loud::apply(x).sum(); };
  const auto compiled = tower::compile(f);
  for (const double shift : {0.0, 0.5}) {
    const Tensor x = waves({3}) + shift, xs = waves({2, 3}) + shift;
    EXPECT_TRUE(same(compiled(x), x.square().sum()));
    EXPECT_TRUE(same(tower::grad(compiled)(x), 6 * x));
    EXPECT_TRUE(same(tower::compile(tower::grad(f))(x), 6 * x));
    EXPECT_TRUE(same(tower::compile(tower::vmap(tower::grad(f)))(xs), 6 * xs));
    EXPECT_TRUE(same(tower::vmap(tower::grad(compiled))(xs), 6 * xs));
    const auto total = [&](const Tensor& v) { return tower::vmap(compiled)(v).sum(); };
    EXPECT_TRUE(same(tower::grad(total)(xs), 6 * xs));
    const Tensor leaf = x.clone().requires_grad_();
    compiled(leaf).backward();
    EXPECT_TRUE(same(leaf.grad(), 6 * x));
  }
}

TEST(CompileFunctions, AreRefusedWhereTensorsStandForAModules) {
  const Tensor w = waves({3}), stands = waves({3}, 0.5);
  const auto f = tower::compile([&](const Tensor& x, const Tensor& v) {
    const tower::Substitution stand_in({{w, v}});
    return Loud::apply(x) * w;
  });
  const std::string text = refusal<tower::UnsupportedError>([&] { f(waves({3}), stands); });
  EXPECT_TRUE(says(text, {"compile (level 1)", "Loud", "functional_call", "arguments"})) << text;
}

TEST(CompileFunctions, TensorsThatStandForOthersAroundTheCallAreReadAtEachCall) {
  const Tensor w = waves({3}), x = waves({3}, 0.3);
  const auto f = tower::compile([&](const Tensor& v) { return v * w; });
  for (const double phase : {0.5, 0.6}) {
    const Tensor stands = waves({3}, phase);
    {
      const tower::Substitution stand_in({{w, stands}});
      EXPECT_TRUE(same(f(x), x * stands));
    }
    EXPECT_TRUE(same(f(x), x * w));
  }
  const auto gradient = tower::grad([&](const Tensor& v) {
    const tower::Substitution stand_in({{w, v}});
    return f(x).sum();
  });
  EXPECT_TRUE(same(gradient(waves({3}, 0.9)), x));
}

}  // namespace
