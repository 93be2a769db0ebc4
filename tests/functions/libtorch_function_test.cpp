// torch::autograd::Function, LibTorch's own, inside transforms: refused where a derivative would be lost, and the same
// text works with another base class.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "support/prelude.h"
#include "tower/function.h"
#include "tower/transforms.h"

namespace {

using namespace torch::autograd;  // as code written for LibTorch has it

// The same text twice, but for the base class.
struct LibTorchs : torch::autograd::Function<LibTorchs> {
  static Variable forward(AutogradContext* ctx, Variable x, double scale) {
    ctx->save_for_backward({x});
    ctx->saved_data["scale"] = scale;
    return x * x * scale;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {10 * grads[0] * saved[0] * ctx->saved_data["scale"].toDouble(), Variable()};
  }
};

struct Ported : tower::Function<Ported> {
  static Variable forward(AutogradContext* ctx, Variable x, double scale) {
    ctx->save_for_backward({x});
    ctx->saved_data["scale"] = scale;
    return x * x * scale;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {10 * grads[0] * saved[0] * ctx->saved_data["scale"].toDouble(), Variable()};
  }
};

Tensor libtorchs(const Tensor& x) { return LibTorchs::apply(x, 3.0).sum(); }
Tensor ported(const Tensor& x) { return Ported::apply(x, 3.0).sum(); }

TEST(LibTorchFunction, IsRefusedWhereItsBackwardWouldBeLost) {
  const Tensor x = vec({1, 2, 3});
  const auto expect_refused = [&](const char* level, auto call) {
    const std::string text = refusal<tower::UnsupportedError>(call);
    EXPECT_TRUE(says(text, {level, "torch::autograd::Function", "tower::Function"})) << text;
  };
  expect_refused("grad (level 1)", [&] { tower::grad(libtorchs)(x); });
  expect_refused("vjp (level 1)", [&] { tower::vjp(libtorchs, x); });
  expect_refused("jvp (level 1)", [&] { tower::jvp(libtorchs, x, x); });
  expect_refused("linearize (level 1)", [&] { tower::linearize(libtorchs, x); });
  expect_refused("vmap (level 1)", [&] { tower::vmap(libtorchs)(x); });
  expect_refused("grad (level 2)", [&] { tower::vmap(tower::grad(libtorchs))(x); });
  expect_refused("grad (level 1)",
                 [&] { tower::grad([](const Tensor& x) { return tower::vmap(libtorchs)(x).sum(); })(x); });
  expect_refused("jacrev", [&] { tower::hessian(libtorchs)(x); });
}

TEST(LibTorchFunction, WorksWhereNoDerivativeIsWanted) {
  const Tensor x = vec({1, 2, 3});
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(same(tower::vmap(libtorchs)(x), 3 * x * x));
  const auto beside = [](const Tensor& x) { return (x * x).sum() + libtorchs(x); };
  EXPECT_TRUE(same(tower::vmap(beside)(x), 4 * x * x));
}

TEST(LibTorchFunction, UnderNoGradGuardItsResultIsAConstantAsUsual) {
  const auto f = [](const Tensor& x) {
    Tensor constant;
    {
      const at::NoGradGuard no_grad;
      constant = libtorchs(x);
    }
    return (x * constant).sum();
  };
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::grad(f)(x), at::full_like(x, 42)));
}

TEST(LibTorchFunction, WorksOutsideTransformsAsBefore) {
  const auto expect_works = [] {
    const Tensor x = vec({1, 2, 3}).requires_grad_();
    EXPECT_TRUE(same(torch::autograd::grad({libtorchs(x)}, {x})[0], 30 * x.detach()));
  };
  expect_works();
  tower::grad(ported)(vec({1, 2, 3}));
  expect_works();
  EXPECT_THROW(tower::grad(libtorchs)(vec({1, 2, 3})), tower::UnsupportedError);
  expect_works();
}

// Its forward runs on plain tensors, below all levels: what it calls there is its own business.
TEST(LibTorchFunction, MayBeCalledInTheForwardOfATowerFunction) {
  const auto f = tower::custom_vjp([](const Tensor& x) { return LibTorchs::apply(x, 3.0); },
                                   [](const Tensor& x) { return std::pair(LibTorchs::apply(x, 3.0), x); },
                                   [](const Tensor& x, const Tensor& grad) { return 7 * grad * x; });
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::grad([&](const Tensor& x) { return f(x).sum(); })(x), 7 * x));
}

TEST(LibTorchFunction, PortedByItsBaseClassAloneItComposes) {
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::grad(ported)(x), 30 * x));
  EXPECT_TRUE(same(tower::vmap(tower::grad(ported))(x), 30 * x));
  EXPECT_TRUE(same(tower::grad([](const Tensor& x) { return tower::vmap(ported)(x).sum(); })(x), 30 * x));
  EXPECT_TRUE(same(tower::vmap(tower::grad(tower::grad(ported)))(x), at::full_like(x, 30)));
  const Tensor leaf = vec({1, 2, 3}).requires_grad_();
  EXPECT_TRUE(same(torch::autograd::grad({ported(leaf)}, {leaf})[0], 30 * x));
}

}  // namespace
