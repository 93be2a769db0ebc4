// TorchScript functions under the transforms, before and after LibTorch has specialized them. The oracle is the same
// function in C++.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include "support/compositions.h"
#include "support/expect.h"
#include "support/functions.h"
#include "support/intact.h"
#include "tower/tower.h"

namespace torch::jit {
std::shared_ptr<CompilationUnit> compile(const std::string& source);
}

namespace {

using at::Tensor;
using support::same, support::vec;

constexpr char kSource[] = R"(
def f(x, w):
    h = (x * w).sin() + w.exp() * x
    return (h * h.sigmoid()).sum()

def cut(x, w):
    return (x.detach() * w * x).sum()
)";

Tensor f(const Tensor& x, const Tensor& w) {
  const Tensor h = (x * w).sin() + w.exp() * x;
  return (h * h.sigmoid()).sum();
}

class Script {
 public:
  explicit Script(const char* name) : unit_(torch::jit::compile(kSource)), name_(name) {}

  Tensor operator()(const Tensor& x, const Tensor& w) const { return unit_->get_function(name_)({x, w}).toTensor(); }
  // Until LibTorch has replaced it by a graph of its own.
  void train(bool by_x) const {
    for (int k = 0; k < 4; ++k) {
      const Tensor x = vec({0.1, 0.2, 0.3}).requires_grad_(by_x), w = vec({1, 2, 3}).requires_grad_();
      (*this)(x, w).backward();
    }
  }

 private:
  std::shared_ptr<torch::jit::CompilationUnit> unit_;
  const char* name_;
};

void expect_all_transforms(const Script& script, const Tensor& w) {
  const Tensor x = vec({0.5, -1, 2}), u = vec({1, 0.3, -2}), batch = at::stack({x, u});
  const auto scripted = [&](const Tensor& v) { return script(v, w); };
  const auto plain = [&](const Tensor& v) { return f(v, w); };
  for (int call = 0; call < 3; ++call) {
    EXPECT_TRUE(same(tower::grad(scripted)(x), tower::grad(plain)(x))) << call;
    EXPECT_TRUE(same(tower::vmap(scripted)(batch), tower::vmap(plain)(batch))) << call;
    EXPECT_TRUE(same(tower::jvp(scripted, x, u).second, tower::jvp(plain, x, u).second)) << call;
    EXPECT_TRUE(same(tower::vmap(tower::grad(scripted))(batch), tower::vmap(tower::grad(plain))(batch))) << call;
    EXPECT_TRUE(same(tower::hessian(scripted)(x), tower::hessian(plain)(x))) << call;
    EXPECT_TRUE(same(tower::grad<1>(script)(x, w), tower::grad<1>(f)(x, w))) << call;
    EXPECT_TRUE(same(tower::jvp(script, std::tuple(x, w), std::tuple(u, x)).second,
                     tower::jvp(f, std::tuple(x, w), std::tuple(u, x)).second))
        << call;
  }
  support::expect_intact();
}

TEST(TorchScript, IsTransformedTheSameInEveryCall) { expect_all_transforms(Script("f"), vec({1, -0.5, 2})); }

TEST(TorchScript, IsTransformedTheSameAfterLibTorchHasTrainedIt) {
  for (const bool by_x : {false, true})
    for (const bool recorded : {false, true}) {
      const Script script("f");
      script.train(by_x);
      expect_all_transforms(script, vec({1, -0.5, 2}).requires_grad_(recorded));
    }
}

TEST(TorchScript, LibTorchsAutogradOutsideFollowsItThroughATransform) {
  const Script script("f");
  script.train(false);
  const Tensor x = vec({0.5, -1, 2}), batch = at::stack({x, 2 * x});
  const auto gradient_of = [&](const auto& function) {
    const Tensor w = vec({1, -0.5, 2}).requires_grad_();
    tower::vmap([&](const Tensor& v) { return function(v, w); })(batch).sum().backward();
    return w.grad();
  };
  EXPECT_TRUE(same(gradient_of(script), gradient_of(f)));
}

TEST(TorchScript, DetachInItsSourceCuts) {
  const Script script("cut");
  const Tensor x = vec({1, 2, 3}), w = vec({1, -0.5, 2});
  const auto scripted = [&](const Tensor& v) { return script(v, w); };
  EXPECT_TRUE(same(tower::grad(scripted)(x), x * w));
  script.train(true);
  EXPECT_TRUE(same(tower::grad(scripted)(x), x * w));
}

TEST(TorchScript, IsSpecializedOutsideAsEver) {
  const Script script("f");
  tower::grad([&](const Tensor& v) { return script(v, v); })(vec({1, 2, 3}));
  EXPECT_TRUE(torch::jit::getGraphExecutorOptimize());
  tower::vmap([](const Tensor& v) {
    {
      const tower::Suspended outside;
      tower::vmap([](const Tensor& inner) { return inner * 2; })(at::ones({2}));
    }
    EXPECT_FALSE(torch::jit::getGraphExecutorOptimize());
    return v;
  })(vec({1, 2}));
  EXPECT_TRUE(torch::jit::getGraphExecutorOptimize());
}

}  // namespace
