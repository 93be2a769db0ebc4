// Results of pointwise operators and sums of cotangents take the memory of what is used for the last time: what that
// saves, and what must not be written to.
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "support/allocated.h"
#include "support/oracles.h"
#include "support/prelude.h"

namespace {

using support::allocated_by;
using support::gradient;
using support::mapped;
using support::summed;

struct Case {
  const char* name;
  Function f;
};

Tensor through(Tensor (*op)(const Tensor&), Tensor x) {
  for (int i = 0; i < 8; ++i) x = op(x);
  return x;
}

// Cotangents that have another reader, in the order of the tape or of the rules.
std::vector<Case> with_shared_cotangents() {
  return {{"a sum's terms", of_one([](const Tensor& x) { return x.tanh() + x.sigmoid() + x.relu() + x.cos(); })},
          {"a difference's terms", of_one([](const Tensor& x) { return x.tanh() - (x.relu() - x.sigmoid()); })},
          {"one tensor twice", of_one([](const Tensor& x) {
             const Tensor y = x.tanh();
             return y + y;
           })},
          {"both factors", of_one([](const Tensor& x) { return x.tanh() * x.sigmoid().relu(); })},
          {"views of one cotangent", of_one([](const Tensor& x) {
             const Tensor y = x.tanh();
             return y.t().relu().t() + y.flatten().sigmoid().view_as(y);
           })},
          {"what the forward pass kept", of_one([](const Tensor& x) {
             const Tensor y = x.tanh(), z = y.sigmoid();
             return z * y + at::gelu(z) * x.relu();
           })},
          {"a broadcast cotangent", of_one([](const Tensor& x) { return x.relu().sum(0).tanh() + x.sigmoid(); })},
          {"a transposed factor", of_one([](const Tensor& x) { return x.t().exp().t().relu() * x.sin(); })},
          {"powers", of_one([](const Tensor& x) { return (x.square() + 1).pow(-3) * x.tanh() + x.pow(5); })},
          {"products of matrices", of_one([](const Tensor& x) {
             const Tensor m = x.t().mm(x.tanh());
             return m.mm(m).tanh() + m.relu();
           })}};
}

TEST(Temporaries, AreNotOverwrittenWhereSomebodyReadsThemLater) {
  const Tensor x = waves({5, 4});
  for (const auto& [name, f] : with_shared_cotangents()) {
    SCOPED_TRACE(name);
    const Tensor expected = support::autograd_vjp(f, {x}, {at::ones_like(f({x})[0])})[0];
    EXPECT_TRUE(same(gradient(summed(f))({x})[0], expected));
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(same(gradient(summed(f))({x.clone()})[0], expected));
    }
    {
      const c10::NoGradGuard no_grad;
      EXPECT_TRUE(same(gradient(summed(f))({x})[0], expected));
    }
    const Tensor xs = waves({3, 5, 4}, 0.4);
    EXPECT_TRUE(same(mapped(gradient(summed(f)), xs), looped(gradient(summed(f)), xs)));
    const Tensor grid = at::stack({xs, xs.flip(0)});
    EXPECT_TRUE(same(mapped(mapped(gradient(summed(f))))({grid})[0], looped(mapped(gradient(summed(f))), grid)));
  }
}

TEST(Temporaries, AreNotOverwrittenInSecondDerivatives) {
  const Tensor x = waves({5, 4}), v = waves({5, 4}, 0.7);
  for (const auto& [name, f] : with_shared_cotangents()) {
    SCOPED_TRACE(name);
    const auto slope = gradient(summed(f));
    const Tensor expected = support::directional_derivative(slope, {x}, {v})[0];
    const support::Tolerance finite{1e-7, 1e-7};
    EXPECT_EQ(support::difference(td::jvp(slope, {x}, {v}).second[0], expected, finite), "");
    EXPECT_EQ(support::difference(td::linearize(slope, {x}).second({v})[0], expected, finite), "");
    EXPECT_EQ(support::difference(td::vjp(slope, {x}).second({v})[0], expected, finite), "");  // symmetric
    const auto product = of_one([&](const Tensor& y) { return td::jvp(slope, {y}, {v}).second[0]; });
    const Tensor xs = at::stack({x, -x, x * 2});
    EXPECT_TRUE(same(mapped(product, xs), looped(product, xs)));
  }
}

TEST(Temporaries, AreNeverTheCallersTensors) {
  const auto f = of_one([](const Tensor& x) { return through(at::tanh, x); });
  const Tensor x = waves({3, 4}), before = x.clone();
  std::vector<double> memory(12, 0.5);
  Tensors cotangents(1);
  cotangents[0] = at::from_blob(memory.data(), {3, 4}, at::kDouble);
  const auto pullback = td::vjp(f, {x}).second;
  const Tensor first = pullback(cotangents)[0];
  EXPECT_EQ(memory, std::vector<double>(12, 0.5));
  EXPECT_TRUE(same(pullback(cotangents)[0], first));
  EXPECT_TRUE(same(first, support::autograd_vjp(f, {x}, {at::full({3, 4}, 0.5, at::kDouble)})[0]));
  const Tensor v = waves({3, 4}, 0.9), direction = v.clone();
  td::jvp(f, {x}, {v});
  td::linearize(f, {x}).second({v});
  EXPECT_TRUE(at::equal(v, direction));
  EXPECT_TRUE(at::equal(x, before));
}

// LibTorch's autograd hands out zeros without memory.
TEST(Temporaries, ThatAreZerosWithoutMemoryAreNotWrittenTo) {
  const auto f = of_one([](const Tensor& x) { return x * 2 + x * 3; });
  const Tensor x = waves({3, 4});
  const auto pullback = td::vjp(f, {x}).second;
  EXPECT_TRUE(same(pullback({at::_efficientzerotensor({3, 4}, x.options())})[0].clone(), at::zeros_like(x)));
}

TEST(Temporaries, FollowedByLibTorchsAutogradAreLeftToIt) {
  const Tensor x = waves({3, 4}).requires_grad_();
  const auto f = [](const Tensor& y) { return y.tanh() + y.sigmoid().relu() * y; };
  gradient(summed(of_one(f)))({x})[0].square().sum().backward();
  const auto squares = of_one([&](const Tensor& y) { return gradient(summed(of_one(f)))({y})[0].square().sum(); });
  const Tensor expected = support::directional_derivative(squares, {x.detach()}, {waves({3, 4}, 0.7)})[0];
  EXPECT_NEAR((x.grad() * waves({3, 4}, 0.7)).sum().item<double>(), expected.item<double>(), 1e-7);
}

// ---- what they cost ----

// Eight operators make eight results going forward, and one cotangent for all of them going back.
TEST(Temporaries, GiveTheirMemoryToTheCotangentsThatFollow) {
  const Tensor x = waves({200});
  const std::pair<const char*, std::function<void(const Function&)>> transforms[] = {
      {"grad", [&](const Function& f) { gradient(f)({x}); }},
      {"vmap(grad)",
       [&](const Function& f) {
         mapped(gradient(f))({x.view({2, 100})});
       }},
      {"vmap(vmap(grad))",
       [&](const Function& f) {
         mapped(mapped(gradient(f)))({x.view({2, 2, 50})});
       }},
      {"grad(vmap)", [&](const Function& f) {
         gradient(summed(mapped(f)))({x.view({2, 100})});
       }}};
  const std::pair<const char*, Function> functions[] = {
      {"relu", of_one([](const Tensor& t) { return through(at::relu, t).sum(); })},
      {"tanh", of_one([](const Tensor& t) { return through(at::tanh, t).sum(); })},
      {"sigmoid", of_one([](const Tensor& t) { return through(at::sigmoid, t).sum(); })}};
  for (const auto& [transform, run] : transforms)
    for (const auto& [name, f] : functions) {
      const int64_t bytes = allocated_by([&, &run = run, &f = f] { run(f); });
      EXPECT_LE(bytes, 11 * static_cast<int64_t>(x.nbytes())) << transform << " of " << name;
    }
}

// A tensor that is read eight times: its cotangents are added in the memory of one.
TEST(Temporaries, AreAddedToInPlace) {
  const Tensor x = waves({200});
  const auto f = of_one([](const Tensor& t) {
    Tensor sum = t.cos().sum();
    for (int i = 0; i < 8; ++i) sum = sum + t.cos().sum();
    return sum;
  });
  const auto once = of_one([](const Tensor& t) { return t.cos().sum(); });
  const auto bytes = [&](const Function& g) { return allocated_by([&] { mapped(gradient(g))({x.view({2, 100})}); }); };
  // A sum in memory of its own would be one more for each of the eight.
  EXPECT_LE(bytes(f), 9 * bytes(once) + static_cast<int64_t>(x.nbytes()));
}

TEST(Temporaries, TakeTheSecondTermOfAProductsTangent) {
  const Tensor a = waves({20, 20}), da = waves({20, 20}, 0.6);
  for (const auto& product :
       {of_one([](const Tensor& x) { return x.mm(x); }), of_one([](const Tensor& x) { return at::linear(x, x); }),
        of_one([](const Tensor& x) { return x.unsqueeze(0).bmm(x.unsqueeze(0)); })}) {
    const int64_t bytes = allocated_by([&] { td::jvp(product, {a}, {da}); });
    EXPECT_EQ(bytes, 2 * static_cast<int64_t>(a.nbytes()));
    const Tensor expected = support::directional_derivative(product, {a}, {da})[0];
    EXPECT_EQ(support::difference(td::jvp(product, {a}, {da}).second[0], expected, {1e-8, 1e-8}), "");
  }
}

}  // namespace
