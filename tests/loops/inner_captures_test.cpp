// Operators with branches and loops inside of others, whose functions capture tensors of a vmap: on the way back the
// inner one is run again when the outer one's function has long returned. Modules that are called with other
// parameters, likewise.
#include <torch/nn/cloneable.h>

#include <algorithm>

#include "support/prelude.h"
#include "tower/checkpoint.h"
#include "tower/cond.h"
#include "tower/loops.h"
#include "tower/nn.h"
#include "tower/transforms.h"

namespace {

using One = std::function<Tensor(const Tensor&)>;

struct Nested {
  std::string name;
  /// `f` of `x` by an operator that has a decision to make by `x`, or none.
  Tensor (*through)(const One& f, const Tensor& x);
};

td::Function as_list(const One& f) {
  return [f](const Tensors& in) { return Tensors{f(in[0])}; };
}

const std::vector<Nested>& operators() {
  static const std::vector<Nested> all{
      {"checkpoint", [](const One& f, const Tensor& x) { return td::checkpoint(as_list(f), {x})[0]; }},
      {"cond",
       [](const One& f, const Tensor& x) {
         return td::cond(x > 0.5, as_list(f), as_list([f](const Tensor& y) { return f(y) * 0.5; }), {x})[0];
       }},
      {"while_loop",
       [](const One& f, const Tensor& x) {
         return td::while_loop([](const Tensors& s) { return s[0] < 1; },
                               [f](const Tensors& s) { return Tensors{s[0] + 0.25 + 0.01 * f(s[0]).square()}; },
                               {x})[0];
       }},
      {"while_loop with checkpoints",
       [](const One& f, const Tensor& x) {
         return td::while_loop([](const Tensors& s) { return s[0] < 1; },
                               [f](const Tensors& s) { return Tensors{s[0] + 0.25 + 0.01 * f(s[0]).square()}; }, {x},
                               {.checkpoints = tower::Checkpoints(2)})[0];
       }},
      {"scan",
       [](const One& f, const Tensor& x) {
         return td::scan(
                    [f](const Tensors& c, const Tensors& in) {
                      const Tensor next = f(c[0]) * in[0];
                      return std::pair(Tensors{next}, Tensors{next});
                    },
                    {x}, {at::ones(2, at::kDouble)}, {.checkpoints = tower::Checkpoints(1)})
             .first[0];
       }},
  };
  return all;
}

// Its derivative by the value that the function captures is asked for, too.
Tensor nested(const Nested& outer, const Nested& inner, const Tensor& x, const Tensor& w) {
  return outer.through(
      [&inner, w](const Tensor& y) { return inner.through([w](const Tensor& z) { return (z * w).sin(); }, y); }, x);
}

class InnerCaptures : public ::testing::TestWithParam<std::pair<const Nested*, const Nested*>> {};

TEST_P(InnerCaptures, AreThoseOfTheExample) {
  const auto& [outer, inner] = GetParam();
  const auto f = [&, outer = outer, inner = inner](const Tensor& x, const Tensor& w) {
    return nested(*outer, *inner, x, w);
  };
  const Tensor xs = vec({0.2, 0.45, 0.9, 1.5}), ws = vec({0.7, 1.1, 1.6, 0.4});
  const auto slopes = tower::grad<0, 1>([&](const Tensor& x, const Tensor& w) { return tower::vmap(f)(x, w).sum(); });
  const auto [by_x, by_w] = slopes(xs, ws);
  const auto mapped = tower::vmap(tower::grad<0, 1>(f));
  const auto [inside_x, inside_w] = mapped(xs, ws);
  // Only one of them is differentiated: what is captured is mapped, and followed by nothing else.
  const Tensor x_alone = tower::grad([&](const Tensor& x) { return tower::vmap(f)(x, ws).sum(); })(xs);
  const Tensor inner_alone = tower::vmap([&](const Tensor& x, const Tensor& w) {
    return tower::grad([&](const Tensor& x) { return f(x, w); })(x);
  })(xs, ws);
  for (int64_t i = 0; i < xs.size(0); ++i) {
    constexpr double h = 1e-6;
    const auto at = [&](double dx, double dw) { return f(xs[i] + dx, ws[i] + dw).item<double>(); };
    const double dx = (at(h, 0) - at(-h, 0)) / (2 * h), dw = (at(0, h) - at(0, -h)) / (2 * h);
    for (const Tensor& found : {by_x, inside_x, x_alone, inner_alone}) EXPECT_NEAR(found[i].item<double>(), dx, 1e-7);
    for (const Tensor& found : {by_w, inside_w}) EXPECT_NEAR(found[i].item<double>(), dw, 1e-7);
  }
}

std::vector<std::pair<const Nested*, const Nested*>> pairs() {
  std::vector<std::pair<const Nested*, const Nested*>> all;
  for (const Nested& outer : operators())
    for (const Nested& inner : operators()) all.emplace_back(&outer, &inner);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Loops, InnerCaptures, ::testing::ValuesIn(pairs()), [](const auto& info) {
  std::string name = info.param.first->name + "_of_" + info.param.second->name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

struct Block : torch::nn::Module {
  Block() { weight = register_parameter("weight", at::full({}, 100.0, at::kDouble)); }
  Tensor forward(const Tensor& x) {
    return tower::checkpoint([this](const Tensor& x) { return (x * weight).sin(); })(x);
  }
  Tensor weight;
};

TEST(RepeatedModules, AModuleThatIsEvaluatedAgainHasTheParametersItWasCalledWith) {
  const auto block = std::make_shared<Block>();
  const Tensor weight = number(0.7);
  const auto f = [&](const Tensor& x) { return tower::functional_call(*block, {{"weight", weight}}, {}, x); };
  const Tensor x = vec({0.3, 1.2});
  EXPECT_TRUE(same(tower::grad([&](const Tensor& x) { return f(x).sum(); })(x), weight * (x * weight).cos()));
  EXPECT_TRUE(same(tower::vmap(tower::grad(f))(x), weight * (x * weight).cos()));
}

}  // namespace
