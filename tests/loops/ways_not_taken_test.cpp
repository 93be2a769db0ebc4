// Compiled functions whose branches and loops go other ways at a later call than at the first: a branch that was not
// taken, a loop that made no step, each of which captures a tensor. Beside LibTorch's autograd of an `if` or a `while`.
#include <torch/csrc/autograd/autograd.h>

#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using OfTensor = std::function<Tensor(const Tensor&)>;

// A function of `x` and of what it captures, `w`.
struct Way {
  const char* name;
  Tensor (*tower)(const Tensor& x, const Tensor& w);
  Tensor (*plain)(const Tensor& x, const Tensor& w);
};

Tensor steps_by_hand(const Tensor& x, const Tensor& w) {
  Tensor s = x;
  while (s.sum().item<double>() < 1) s = s + (s * w).sin().square() + 0.2;
  return s;
}

Tensor steps(const Tensor& x, const Tensor& w, tower::Checkpoints few) {
  return tower::while_loop([](const Tensor& s) { return s.sum() < 1; },
                           [w](const Tensor& s) { return s + (s * w).sin().square() + 0.2; }, x, {.checkpoints = few});
}

const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {"a branch",
       [](const Tensor& x, const Tensor& w) {
         return tower::cond(
             x.sum() < 1, [w](const Tensor& t) { return (t * w).sin() * w; }, [](const Tensor& t) { return t.cos(); },
             x);
       },
       [](const Tensor& x, const Tensor& w) { return x.sum().item<double>() < 1 ? (x * w).sin() * w : x.cos(); }},
      {"a loop", [](const Tensor& x, const Tensor& w) { return steps(x, w, tower::Checkpoints::all()); },
       steps_by_hand},
      {"a loop with checkpoints", [](const Tensor& x, const Tensor& w) { return steps(x, w, 2); }, steps_by_hand},
  };
  return all;
}

struct Around {
  const char* name;
  Tensor (*run)(const OfTensor& f, const Tensor& x);
};

const std::vector<Around>& arounds() {
  static const std::vector<Around> all{
      {"nothing", [](const OfTensor& f, const Tensor& x) { return f(x); }},
      {"a checkpoint", [](const OfTensor& f, const Tensor& x) { return tower::checkpoint(f)(x); }},
      {"a checkpoint in a checkpoint",
       [](const OfTensor& f, const Tensor& x) {
         return tower::checkpoint([f](const Tensor& y) { return tower::checkpoint(f)(y); })(x);
       }},
      {"a checkpoint that keeps",
       [](const OfTensor& f, const Tensor& x) {
         return tower::checkpoint([f](const Tensor& y) { return f(y).sin().exp(); }, {.keep = {"aten::sin"}})(x);
       }},
      {"a loop with checkpoints",
       [](const OfTensor& f, const Tensor& x) {
         return tower::fori_loop(0, 2, [f](int64_t, const Tensor& s) { return f(s) - 0.1; }, x, {.checkpoints = 1});
       }},
  };
  return all;
}

Tensor by_hand(const Around& around, const OfTensor& f, const Tensor& x) {
  const std::string name = around.name;
  if (name == "a checkpoint that keeps") return f(x).sin().exp();
  if (name == "a loop with checkpoints") return f(f(x) - 0.1) - 0.1;
  return f(x);
}

TEST(WaysNotTaken, OfACompiledFunctionCaptureAsThoseThatAre) {
  const Tensor w = vec({1.1, 0.6});
  // The sums are above and below 1, and below 0.
  const std::vector<Tensor> starts{vec({0.9, 0.7}), vec({0.2, 0.3}), vec({-0.9, 0.1}), vec({1.5, -0.4})};
  for (const Way& way : ways())
    for (const Around& around : arounds()) {
      SCOPED_TRACE(std::string(way.name) + " in " + around.name);
      // What is captured is a value of the function's own.
      const auto loss = [&](const Tensor& x, const Tensor& w) {
        const Tensor v = w * w;
        const OfTensor f = [v, run = way.tower](const Tensor& t) { return run(t, v); };
        return (around.run(f, x) * w).sum();
      };
      for (size_t first = 0; first < 2; ++first) {
        const auto gradients = tower::compile(tower::grad<0, 1>(loss));
        const auto curvature = tower::compile(tower::hessian<1>(loss));
        for (size_t k = 0; k < starts.size(); ++k) {
          const Tensor& at = starts[(first + k) % starts.size()];
          const Tensor x = at.clone().requires_grad_(), own = w.clone().requires_grad_(), v = own * own;
          const OfTensor f = [&](const Tensor& t) { return way.plain(t, v); };
          const Tensor expected = (by_hand(around, f, x) * own).sum();
          // Where a way does not use it.
          const auto or_zeros = [](const Tensor& t) { return t.defined() ? t : at::zeros({2}, at::kDouble); };
          const auto slopes = torch::autograd::grad({expected}, {x, own}, {}, true, true, /*allow_unused=*/true);
          const auto [by_x, by_w] = gradients(at, w);
          const auto near = [](const Tensor& a, const Tensor& b) {
            return support::difference(a, b.detach(), {1e-10, 1e-12});
          };
          EXPECT_EQ(near(by_x, or_zeros(slopes[0])), "") << at;
          EXPECT_EQ(near(by_w, or_zeros(slopes[1])), "") << at;
          std::vector<Tensor> rows;
          for (int64_t i = 0; i < 2; ++i)
            rows.push_back(slopes[1].requires_grad()
                               ? or_zeros(torch::autograd::grad({slopes[1][i]}, {own}, {}, true, false, true)[0])
                               : or_zeros({}));
          EXPECT_EQ(near(curvature(at, w), at::stack(rows)), "") << at;
        }
      }
    }
}

}  // namespace
