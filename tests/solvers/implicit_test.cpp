// implicit_root and fixed_point. Oracles: the iteration unrolled to a tight tolerance, with a loop over the examples
// for vmap; finite differences; closed forms.
#include "tower/implicit.h"

#include <cmath>

#include "support/nestings.h"
#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/loops.h"
#include "tower/transforms.h"

namespace {

using tower::ImplicitOptions;
using tower::LinearMethod;

// x = b + tanh(a x) / 10, a contraction for |a| ≤ 1.
Tensor map(const Tensor& x, const Tensor& a, const Tensor& b) { return b + at::tanh(at::mv(a, x)) / 10; }
constexpr int kIterations = 30;

Tensor unrolled(const Tensor& a, const Tensor& b) {
  Tensor x = b;
  for (int i = 0; i < kIterations; ++i) x = map(x, a, b);
  return x;
}

// Asks for values: neither vmap nor a derivative can go through it.
Tensors by_numbers(const Tensors& params) {
  const auto a = params[0].contiguous(), b = params[1].contiguous();
  const auto n = static_cast<size_t>(b.numel());
  std::vector<double> x(b.const_data_ptr<double>(), b.const_data_ptr<double>() + n);
  for (int i = 0; i < kIterations; ++i) {
    std::vector<double> next(n);
    for (size_t r = 0; r < n; ++r) {
      double sum = 0;
      for (size_t c = 0; c < n; ++c) sum += a.const_data_ptr<double>()[r * n + c] * x[c];
      next[r] = b.const_data_ptr<double>()[r] + std::tanh(sum) / 10;
    }
    x = next;
  }
  return {at::tensor(x, at::kDouble)};
}

Tensors by_loop(const Tensors& params) {
  return td::while_loop([&](const Tensors& s) { return (s[0] - map(s[0], params[0], params[1])).abs().max() > 1e-15; },
                        [&](const Tensors& s) { return Tensors{map(s[0], params[0], params[1])}; }, {params[1]},
                        {.max_steps = 60});
}

ImplicitOptions solved_by(LinearMethod method) {
  return {.linear = {.method = method, .iteration = {.tolerance = 1e-13}}};
}

struct Case {
  std::string name;
  Function solve;  // of a and b
};

std::vector<Case> cases() {
  const auto root = [](const Tensors& x, const Tensors& p) { return Tensors{x[0] - map(x[0], p[0], p[1])}; };
  const auto image = [](const Tensors& x, const Tensors& p) { return Tensors{map(x[0], p[0], p[1])}; };
  std::vector<Case> all;
  for (const auto& [name, method] : {std::pair("dense", LinearMethod::dense),
                                     {"gmres", LinearMethod::gmres},
                                     {"bicgstab", LinearMethod::bicgstab}}) {
    ImplicitOptions batched = solved_by(method), single = batched;
    single.per_example = true;
    all.push_back({std::string("a root by a loop, ") + name,
                   [=](const Tensors& in) { return td::implicit_root(root, by_loop, in, batched); }});
    all.push_back({std::string("a root by numbers, ") + name,
                   [=](const Tensors& in) { return td::implicit_root(root, by_numbers, in, single); }});
  }
  all.push_back({"a fixed point by a loop", [=](const Tensors& in) { return td::fixed_point(image, by_loop, in); }});
  all.push_back({"a fixed point by numbers",
                 [=](const Tensors& in) { return td::fixed_point(image, by_numbers, in, {.per_example = true}); }});
  all.push_back({"captured parameters", [](const Tensors& in) {
                   const Tensor a = in[0];
                   return td::implicit_root(
                       [a](const Tensors& x, const Tensors& p) { return Tensors{x[0] - map(x[0], a, p[0])}; },
                       [a](const Tensors& p) {
                         return Tensors{by_loop({a, p[0]})};
                       },
                       {in[1]});
                 }});
  ImplicitOptions preconditioned = solved_by(LinearMethod::gmres);
  preconditioned.preconditioner = [](const Tensors& x, const Tensors& p) -> Function {
    const Tensor slope = 1 - (1 - at::tanh(at::mv(p[0], x[0])).square()) * p[0].diagonal() / 10;
    return of_one([slope](const Tensor& v) { return v / slope; });
  };
  all.push_back(
      {"a preconditioner", [=](const Tensors& in) { return td::implicit_root(root, by_loop, in, preconditioned); }});
  ImplicitOptions every = solved_by(LinearMethod::dense);
  every.per_example = every.linear.per_example = true;
  all.push_back(
      {"all of each example", [=](const Tensors& in) { return td::implicit_root(root, by_numbers, in, every); }});
  return all;
}

TEST(ImplicitFunctions, EveryCaseInEveryNestingIsAsUnrolled) {
  const Function expected_of = [](const Tensors& in) { return Tensors{unrolled(in[0], in[1])}; };
  for (const std::string& kinds : support::nestings()) {
    const Tensors inputs = support::inputs_of({{3, 3}, {3}}, kinds);
    const Tensors expected = support::transformed(kinds, expected_of, /*by_loop=*/true)(inputs);
    for (const Case& one : cases()) {
      try {
        EXPECT_EQ(support::difference(support::transformed(kinds, one.solve, false)(inputs), expected, {1e-9, 1e-9}),
                  "")
            << one.name << " under " << kinds;
      } catch (const std::exception& error) {
        ADD_FAILURE() << one.name << " under " << kinds << ": " << error.what();
      }
    }
  }
}

TEST(ImplicitFunctions, AgreeWithFiniteDifferences) {
  const Tensors inputs{waves({3, 3}), waves({3}, 2)}, along = support::directions(inputs, 0.3);
  for (const Case& one : cases()) {
    const Tensors expected = support::directional_derivative(one.solve, inputs, along);
    EXPECT_EQ(support::difference(td::jvp(one.solve, inputs, along).second, expected, {1e-7, 1e-7}), "") << one.name;
    const auto [x, pullback] = td::vjp(one.solve, inputs);
    EXPECT_NEAR(support::inner(pullback({vec({1, -2, 3})}), along), support::inner({vec({1, -2, 3})}, expected), 1e-7)
        << one.name;
  }
}

// x² = a
const auto root_of = [](const Tensor& a) {
  return tower::implicit_root([](const Tensor& x, const Tensor& p) { return x * x - p; },
                              [](const Tensor& p) { return p.sqrt(); })(a);
};

TEST(ImplicitFunctions, ClosedFormsToTheFourthOrder) {
  const Tensor a = number(4);
  const auto first = tower::grad(root_of);
  const auto second = tower::grad(first);
  const auto third = tower::grad(second);
  EXPECT_TRUE(same(root_of(a), number(2)));
  EXPECT_TRUE(same(first(a), number(1.0 / 4)));
  EXPECT_TRUE(same(second(a), number(-1.0 / 32)));
  EXPECT_TRUE(same(third(a), number(3.0 / 256)));
  EXPECT_TRUE(same(tower::grad(third)(a), number(-15.0 / 2048)));
  const auto forward = [](const auto& f) {
    return [f](const Tensor& p) { return tower::jvp(f, p, at::ones_like(p)).second; };
  };
  EXPECT_TRUE(same(forward(forward(forward(root_of)))(a), number(3.0 / 256)));
  EXPECT_TRUE(same(forward(tower::grad(forward(root_of)))(a), number(3.0 / 256)));
  const Tensor as = vec({1, 4, 9});
  EXPECT_TRUE(same(tower::vmap(tower::hessian(root_of))(as), -0.25 * as.pow(-1.5)));
}

TEST(ImplicitFunctions, TheSolverIsCalledOnceAndNeverDifferentiated) {
  int calls = 0;
  const auto solve = tower::implicit_root([](const Tensor& x, const Tensor& p) { return x * x - p; },
                                          [&](const Tensor& p) {
                                            ++calls;
                                            // A derivative of this would be wrong, and its value asks for a number.
                                            return at::scalar_tensor(std::sqrt(p.item<double>()), at::kDouble);
                                          });
  EXPECT_TRUE(same(tower::grad(tower::grad(solve))(number(4)), number(-1.0 / 32)));
  EXPECT_EQ(calls, 1);
  const auto along = [&](const Tensor& p) { return tower::jvp(solve, p, number(1)).second; };
  EXPECT_TRUE(same(tower::jvp(along, number(4), number(1)).second, number(-1.0 / 32)));
  EXPECT_EQ(calls, 2);
}

struct State {
  Tensor u, v;
  int iterations;
};
constexpr auto tower_fields(const State&) { return std::tuple(&State::u, &State::v); }

TEST(ImplicitFunctions, ForwardModeEvaluatesTheResidualOnceForAllDerivatives) {
  const auto evaluations = std::make_shared<int>(0);
  const auto residual = [evaluations](const Tensor& x, const Tensor& p) {
    ++*evaluations;
    return x.pow(3) + x - p;
  };
  const auto solver = [](const Tensor& p) {
    Tensor x = at::zeros_like(p);
    for (int i = 0; i < 50; ++i) x = x - (x.pow(3) + x - p) / (3 * x.square() + 1);
    return x;
  };
  const Tensor p = vec({0.5, 2.0, -1.0});
  const Tensor jacobian = tower::jacfwd(tower::implicit_root(residual, solver))(p);
  EXPECT_EQ(*evaluations, 2);  // one of values, where the solution is held against it
  EXPECT_TRUE(same(jacobian, (1 / (3 * solver(p).square() + 1)).diag()));
}

TEST(ImplicitFunctions, UnknownsAndParametersAreTrees) {
  using Params = std::map<std::string, Tensor>;
  // u (1 + v²) = p, v = q u, of two points each
  const auto residual = [](const State& x, const Params& p, double scale) {
    return std::pair(x.u * (1 + x.v.square()) - p.at("p"), x.v - scale * p.at("q") * x.u);
  };
  const auto solver = [](const Params& p, double scale) {
    State x{p.at("p"), p.at("p") * 0, 0};
    for (; x.iterations < 200; ++x.iterations)
      x = {(x.u + p.at("p") / (1 + x.v.square())) / 2, scale * p.at("q") * x.u, x.iterations};
    return x;
  };
  const auto solve = tower::implicit_root(residual, solver);
  const Params params{{"p", vec({0.5, 1})}, {"q", vec({0.3, 0.4})}};
  const State x = solve(params, 2.0);
  EXPECT_EQ(x.iterations, 200);
  EXPECT_LT(std::get<0>(residual(x, params, 2.0)).abs().max().item<double>(), 1e-14);
  const auto loss = [&](const Params& p) {
    const State at = solve(p, 2.0);
    return (at.u * at.v).sum();
  };
  const auto gradient = tower::grad(loss)(params);
  // Of each point: u + 4 q² u³ = p.
  const Tensor q = params.at("q"), slope = 1 / (1 + 12 * q.square() * x.u.square());
  EXPECT_TRUE(same(gradient.at("p"), 4 * q * x.u * slope));
  EXPECT_TRUE(same(gradient.at("q"), 2 * x.u.square() - 4 * q * x.u * slope * 8 * q * x.u.pow(3)));
}

TEST(ImplicitFunctions, AComplexResidualNeedNotBeHolomorphic) {
  // x + conj(x)² / 10 = a
  const auto residual = [](const Tensor& x, const Tensor& a) { return x + x.conj().square() / 10 - a; };
  const auto solver = [](const Tensor& a) {
    Tensor x = a;
    for (int i = 0; i < 60; ++i) x = a - x.conj().square() / 10;
    return x;
  };
  const auto solve = tower::implicit_root(residual, solver);
  const Tensor a = at::complex(vec({0.3, -0.2}), vec({0.5, 0.1})), along = at::complex(vec({1, 0.5}), vec({-1, 2}));
  const auto flat = [](const auto& f) { return of_one(f); };
  const Tensors expected = support::directional_derivative(flat(solver), {a}, {along});
  EXPECT_EQ(support::difference({tower::jvp(solve, a, along).second}, expected, {1e-8, 1e-8}), "");
  EXPECT_EQ(support::difference(td::vjp(flat(solve), {a}).second({along}),
                                support::autograd_vjp(flat(solver), {a}, {along}), {1e-10, 1e-10}),
            "");
}

TEST(ImplicitFunctions, ManyUnknownsNeedNoMatrix) {
  // x + x³ / 10 − neighbours / 4 = b
  const int64_t n = 20'000;
  const auto residual = [](const Tensor& x, const Tensor& b) {
    const Tensor padded = at::constant_pad_nd(x, {1, 1});
    return x + x.pow(3) / 10 - (padded.narrow(0, 0, x.numel()) + padded.narrow(0, 2, x.numel())) / 4 - b;
  };
  const auto solver = [&](const Tensor& b) {
    Tensor x = b;
    for (int i = 0; i < 200; ++i) {
      const Tensor r = residual(x, b);
      if (r.abs().max().item<double>() < 1e-13) break;
      x = x - r / (1 + 0.3 * x.square());
    }
    return x;
  };
  const auto solve = tower::implicit_root(residual, solver);
  const Tensor b = waves({n}), along = waves({n}, 3);
  const Tensor tangent = tower::jvp(solve, b, along).second;
  const double h = 1e-5;
  const Tensor difference = (solver(b + h * along) - solver(b - h * along)) / (2 * h);
  EXPECT_LT((tangent - difference).abs().max().item<double>(), 1e-7);
  const Tensor gradient = tower::grad([&](const Tensor& p) { return at::dot(solve(p), along); })(b);
  EXPECT_NEAR(at::dot(gradient, along).item<double>(), at::dot(tangent, along).item<double>(), 1e-4);
}

TEST(ImplicitFunctions, WhatDoesNotFitIsNamed) {
  const auto refusal_of = [](const td::Residual& residual, const Function& solver) {
    return message_of<tower::ArgumentError>([&] { td::implicit_root(residual, solver, {vec({1, 2})}); });
  };
  const Function itself = [](const Tensors& p) { return p; };
  EXPECT_TRUE(contains(refusal_of([](const Tensors& x, const Tensors&) { return Tensors{x[0].sum()}; }, itself),
                       "implicit_root: the residual gave Double [] for tensor 0 of the unknowns, which is Double [2]"));
  EXPECT_TRUE(contains(refusal_of([](const Tensors&, const Tensors&) { return Tensors{}; }, itself),
                       "implicit_root: the residual gave 0 tensors"));
  EXPECT_TRUE(contains(refusal_of([](const Tensors& x, const Tensors&) { return x; },
                                  [](const Tensors&) { return Tensors{at::ones({2}, at::kLong)}; }),
                       "implicit_root: tensor 0 of the unknowns is Long [2]"));
  EXPECT_TRUE(contains(
      message_of<tower::ArgumentError>([&] {
        td::fixed_point([](const Tensors& x, const Tensors&) { return Tensors{x[0].sum()}; }, itself, {vec({1, 2})});
      }),
      "fixed_point: the map gave Double []"));
}

TEST(ImplicitFunctions, LibTorchsBackwardGoesThroughParametersAndIsRefusedForCapturedTensors) {
  const Tensor a = vec({1, 4}).requires_grad_(true);
  const Tensor x = root_of(a);
  x.sum().backward();
  EXPECT_TRUE(same(a.grad(), vec({0.5, 0.25})));
  const auto captures = tower::implicit_root([a](const Tensor& y, const Tensor& p) { return y - a * p; },
                                             [a](const Tensor& p) { return (a * p).detach(); });
  EXPECT_TRUE(contains(message_of<tower::UnsupportedError>([&] {
                         captures(vec({1, 1}));
                       }),
                       "implicit_root: the residual uses a tensor that it captured and that requires grad"));
}

// Inside of both compiled functions the captured tensor is one of a vmap between them, which can be seen from neither.
TEST(ImplicitFunctions, ACompiledSolverOfACompiledFunctionUsesWhatItCapturedWhereverItStands) {
  using Product = std::function<Tensor(const Tensor& a, const Tensor& b)>;
  const std::vector<std::pair<const char*, Product>> products{
      {"second", [](const Tensor& a, const Tensor& b) { return b * a; }},
      {"first", [](const Tensor& a, const Tensor& b) { return a * b; }},
      {"alone", [](const Tensor& a, const Tensor& b) { return (2 * a) * b / 2; }},
      {"in a pullback", [](const Tensor& a, const Tensor& b) {
         return tower::grad([a](const Tensor& y) { return (a * (y * y)).sum() / 2; })(b);
       }}};
  const Tensor p = vec({1, 2}), factors = vec({1, 4, -0.5});
  for (const auto& [where, product] : products) {
    const auto one = [&, product = product](const Tensor& a) {
      const auto solver = tower::compile([a, product](const Tensor& b) { return product(a, b); });
      return tower::implicit_root([a](const Tensor& x, const Tensor& b) { return x - a * b; }, solver)(p);
    };
    const auto fast = tower::compile(tower::vmap(one));
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(same(fast(factors), at::outer(factors, p))) << where;
  }
}

TEST(ImplicitFunctions, ASingularDerivativeIsAnError) {
  const auto solve = tower::implicit_root([](const Tensor& x, const Tensor& p) { return (x - p).pow(3); },
                                          [](const Tensor& p) { return p.clone(); });
  EXPECT_THROW(tower::jvp(solve, vec({1, 2}), vec({1, 1})), c10::Error);
}

}  // namespace
