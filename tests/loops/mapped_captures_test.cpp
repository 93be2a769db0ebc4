// Tensors that a function captured, and that come to their place by no operator: mapped or differentiated by a
// transform inside of it, or returned.
#include <torch/nn/modules/linear.h>

#include "support/prelude.h"
#include "tower/nn.h"
#include "tower/tower.h"

namespace {

using OfTensor = std::function<Tensor(const Tensor&)>;
// A function of what it captures, `as`, and of an argument; and what runs it.
using Uses = Tensor (*)(const Tensor& as, const Tensor& x);
using Runs = Tensor (*)(const OfTensor& f, const Tensor& x);

struct Use {
  const char* name;
  Uses f;
};
struct Runner {
  const char* name;
  Runs run;
};

const std::vector<Use>& uses() {
  static const std::vector<Use> all{
      {"vmap",
       [](const Tensor& as, const Tensor& x) {
         return tower::vmap([x](const Tensor& a) { return (a * a * x).sum(); })(as).sum() * x;
       }},
      {"vmap over a part",
       [](const Tensor& as, const Tensor& x) {
         return tower::vmap([x](const Tensor& a) { return a.sin(); }, {.chunk_size = 2})(as).sum() * x;
       }},
      {"grad",
       [](const Tensor& as, const Tensor& x) {
         return tower::grad([x](const Tensor& a) { return (a * a * a).sum() * x.sum(); })(as).sum() * x;
       }},
      {"vjp",
       [](const Tensor& as, const Tensor& x) {
         const auto pullback = tower::vjp([](const Tensor& a) { return a; }, as).second;
         return pullback(as).sum() * x;
       }},
      {"jvp",
       [](const Tensor& as, const Tensor& x) {
         return tower::jvp([](const Tensor& a) { return (a * a).sum(); }, as, as).second * x;
       }},
      {"linearize",
       [](const Tensor& as, const Tensor& x) {
         return tower::linearize([](const Tensor& a) { return (a * a).sum(); }, as).second(as) * x;
       }},
      {"compile",
       [](const Tensor& as, const Tensor& x) {
         return tower::compile([](const Tensor& a) { return (a * a * a).sum(); })(as) * x;
       }},
      {"a loop of no steps",
       [](const Tensor& as, const Tensor& x) {
         return tower::while_loop([](const Tensor& s) { return s.sum() > 1000; }, [](const Tensor& s) { return s * 2; },
                                  as)
                    .sum() *
                x;
       }},
      {"an identity", [](const Tensor& as, const Tensor&) { return as; }},
  };
  return all;
}

const std::vector<Runner>& runs() {
  static const std::vector<Runner> all{
      {"checkpoint", [](const OfTensor& f, const Tensor& x) { return tower::checkpoint(f)(x); }},
      {"checkpoint in a checkpoint",
       [](const OfTensor& f, const Tensor& x) {
         return tower::checkpoint([f](const Tensor& y) { return tower::checkpoint(f)(y); })(x);
       }},
      {"a branch", [](const OfTensor& f, const Tensor& x) { return tower::cond(x.sum() < 100, f, f, x); }},
      {"a loop with checkpoints",
       [](const OfTensor& f, const Tensor& x) {
         return tower::fori_loop(0, 2, [f](int64_t, const Tensor& s) { return 0.01 * f(s); }, x, {.checkpoints = 1});
       }},
  };
  return all;
}

// Under vmap the branch's predicate differs.
TEST(CapturedTensors, AreReplacedWhereNoOperatorMeetsThem) {
  const Tensor as = waves({3}) + 2, x = waves({3}, 0.6) + 2;
  for (const Use& use : uses())
    for (const Runner& run : runs()) {
      SCOPED_TRACE(std::string(use.name) + " in " + run.name);
      const bool loops = run.name == std::string("a loop with checkpoints");
      const auto loss = [&](bool plain) {
        return [=](const Tensor& a) {
          const OfTensor f = [a, use](const Tensor& y) { return use.f(a, y); };
          const Tensor plainly = loops ? 0.01 * f(0.01 * f(x)) : f(x);
          return ((plain ? plainly : run.run(f, x)) * a).sum();
        };
      };
      EXPECT_TRUE(same(tower::grad(loss(false))(as), tower::grad(loss(true))(as)));
      EXPECT_TRUE(same(tower::jvp(loss(false), as, x).second, tower::jvp(loss(true), as, x).second));
      EXPECT_TRUE(same(tower::hessian(loss(false))(as), tower::hessian(loss(true))(as)));
      const Tensor batch = at::stack({as, as + 1});
      EXPECT_TRUE(same(tower::vmap(tower::grad(loss(false)))(batch), tower::vmap(tower::grad(loss(true)))(batch)));
    }
}

TEST(CapturedTensors, OfSolversMayBeMapped) {
  const Tensor as = waves({3}) + 2, b = waves({3}, 0.4);
  const auto exact = [b](const Tensor& a) { return (b / (2 + a * a)).sin().sum(); };
  const auto system = [](const Tensor& as) -> OfTensor {
    return [as](const Tensor& v) {
      return tower::vmap([](const Tensor& a, const Tensor& e) { return (2 + a * a) * e; })(as, v);
    };
  };
  const std::vector<OfTensor> solved{
      [=](const Tensor& a) { return tower::cg(system(a), b, {.tolerance = 1e-14}).x.sin().sum(); },
      [=](const Tensor& a) { return tower::bicgstab(system(a), b, {.tolerance = 1e-14}).x.sin().sum(); },
      [=](const Tensor& a) { return tower::gmres(system(a), b, {.tolerance = 1e-14}).x.sin().sum(); },
      [=](const Tensor& a) { return tower::linear_solve(system(a), b).sin().sum(); },
  };
  for (const OfTensor& f : solved) {
    const auto near = [](const Tensor& a, const Tensor& b) { return support::difference(a, b, {1e-9, 1e-11}); };
    EXPECT_EQ(near(tower::grad(f)(as), tower::grad(exact)(as)), "");
    EXPECT_EQ(near(tower::hessian(f)(as), tower::hessian(exact)(as)), "");
  }
}

// A graph keeps the code of checkpoints and loops, and runs it when nothing stands for the module's tensors.
TEST(CapturedTensors, OfAModuleMayBeInCheckpointsAndLoopsOfACompiledFunction) {
  torch::nn::Linear net(3, 3);
  net->to(at::kDouble);
  const Tensor x = waves({3});
  const auto loss = [&](bool checkpoints) {
    return [=](const tower::NamedTensors& params, const Tensor& in) {
      const tower::Substitution stand_in({{net->weight, params.at("weight")}, {net->bias, params.at("bias")}});
      const OfTensor f = [net](const Tensor& t) { return net->weight.mv(t) + net->bias; };
      if (!checkpoints) return f(f(f(in)).sin()).square().sum();
      const Tensor once = tower::checkpoint([f](const Tensor& t) { return tower::checkpoint(f)(t); })(in);
      const Tensor twice = tower::fori_loop(
          0, 2, [f](int64_t k, const Tensor& s) { return k == 0 ? f(s).sin() : f(s); }, once, {.checkpoints = 1});
      return tower::cond(
          twice.sum() < 1e9, [](const Tensor& t) { return t.square().sum(); },
          [net](const Tensor& t) { return (t * net->bias).sum(); }, twice);
    };
  };
  const auto compiled = tower::compile(tower::grad(loss(true)));
  for (const double scale : {1.0, 0.5}) {
    tower::NamedTensors params = tower::parameters_of(net);
    for (auto& [name, t] : params) t = t.detach() * scale;
    const auto expected = tower::grad(loss(false))(params, x), actual = compiled(params, x);
    for (const auto& [name, t] : expected) EXPECT_TRUE(same(actual.at(name), t)) << name;
  }
}

}  // namespace
