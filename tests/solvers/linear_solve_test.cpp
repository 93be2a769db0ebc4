// linear_solve under transforms. Oracle: LibTorch's dense solver, with a loop over the examples for vmap.
#include "tower/linear_solve.h"

#include <cmath>

#include "support/nestings.h"
#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/transforms.h"

namespace {

using tower::LinearMethod;
using Options = tower::LinearSolveOptions<Tensors>;
using Complex = c10::complex<double>;

Function times(const Tensor& a) {
  return of_one([a](const Tensor& v) { return at::mv(a, v); });
}
Tensor dominant(const Tensor& m) { return m + 4 * at::eye(m.size(-1), m.options()); }
Tensor definite(const Tensor& m) { return at::mm(m.t(), m) + at::eye(m.size(-1), m.options()); }

// Gauss and Jordan's elimination on numbers: no operator sees it.
Tensor by_numbers(const Function& apply, const Tensor& b) {
  const int64_t n = b.numel();
  std::vector<std::vector<double>> rows(static_cast<size_t>(n), std::vector<double>(static_cast<size_t>(n) + 1));
  for (int64_t j = 0; j < n; ++j) {
    const Tensor column = apply({at::eye(n, b.options())[j]})[0];
    for (int64_t i = 0; i < n; ++i) rows[size_t(i)][size_t(j)] = column[i].item<double>();
    rows[size_t(j)][size_t(n)] = b[j].item<double>();
  }
  for (size_t p = 0; p < size_t(n); ++p)
    for (size_t i = 0; i < size_t(n); ++i) {
      if (i == p) continue;
      const double factor = rows[i][p] / rows[p][p];
      for (size_t j = p; j <= size_t(n); ++j) rows[i][j] -= factor * rows[p][j];
    }
  std::vector<double> x;
  for (size_t i = 0; i < size_t(n); ++i) x.push_back(rows[i][size_t(n)] / rows[i][i]);
  return at::tensor(x, at::kDouble);
}

const auto eliminate = [](const Function& apply, const Tensors& b) { return Tensors{by_numbers(apply, b[0])}; };

struct Case {
  const char* name;
  Tensor (*matrix)(const Tensor&);
  Options options;
};
std::vector<Case> cases() {
  const tower::IterativeOptions<Tensors> tight{.tolerance = 1e-13};
  return {
      {"dense", dominant, {.method = LinearMethod::dense}},
      {"cg", definite, {.method = LinearMethod::cg, .symmetric = true, .iteration = tight}},
      {"bicgstab", dominant, {.method = LinearMethod::bicgstab, .iteration = tight}},
      {"gmres", dominant, {.method = LinearMethod::gmres, .iteration = tight}},
      {"a user's solver of each example",
       dominant,
       {.solve = eliminate, .solve_transposed = eliminate, .per_example = true}},
      {"a user's solver of a symmetric system", definite, {.symmetric = true, .solve = eliminate, .per_example = true}},
  };
}

TEST(LinearSolve, EveryMethodInEveryNestingIsAsByTheMatrix) {
  for (const Case& one : cases()) {
    const Function by_matrix = [&](const Tensors& in) { return Tensors{at::linalg_solve(one.matrix(in[0]), in[1])}; };
    const Function by_function = [&](const Tensors& in) {
      return td::linear_solve(times(one.matrix(in[0])), {in[1]}, one.options);
    };
    for (const std::string& kinds : support::nestings()) {
      const Tensors inputs = support::inputs_of({{3, 3}, {3}}, kinds);
      const Tensors expected = support::transformed(kinds, by_matrix, /*by_loop=*/true)(inputs);
      try {
        EXPECT_EQ(support::difference(support::transformed(kinds, by_function, false)(inputs), expected, {1e-9, 1e-9}),
                  "")
            << one.name << " under " << kinds;
      } catch (const std::exception& error) {
        ADD_FAILURE() << one.name << " under " << kinds << ": " << error.what();
      }
    }
  }
}

TEST(LinearSolve, AgreesWithFiniteDifferences) {
  const Tensors inputs{waves({3, 3}), waves({3}, 2)}, along = support::directions(inputs, 0.3);
  for (const Case& one : cases()) {
    const Function solve = [&](const Tensors& in) {
      return td::linear_solve(times(one.matrix(in[0])), {in[1]}, one.options);
    };
    const Tensors expected = support::directional_derivative(solve, inputs, along);
    EXPECT_EQ(support::difference(td::jvp(solve, inputs, along).second, expected, {1e-7, 1e-7}), "") << one.name;
    const auto [x, pullback] = td::vjp(solve, inputs);
    EXPECT_NEAR(support::inner(pullback({vec({1, -2, 3})}), along), support::inner({vec({1, -2, 3})}, expected), 1e-7)
        << one.name;
  }
}

TEST(LinearSolve, OfComplexNumbersDerivativesHaveLibTorchsConvention) {
  const Tensor m = at::complex(waves({4, 4}), waves({4, 4}, 2)), b = at::complex(waves({4}, 3), waves({4}, 4));
  const auto matrix = [](const Tensor& t) { return t + 3 * at::eye(4, t.options()); };
  const Function by_matrix = [&](const Tensors& in) { return Tensors{at::linalg_solve(matrix(in[0]), in[1])}; };
  const Tensors expected = support::autograd_vjp(by_matrix, {m, b}, {b});
  for (const auto method : {LinearMethod::dense, LinearMethod::bicgstab, LinearMethod::gmres}) {
    const Function solve = [&](const Tensors& in) {
      return td::linear_solve(times(matrix(in[0])), {in[1]}, {.method = method, .iteration = {.tolerance = 1e-13}});
    };
    EXPECT_EQ(support::difference(td::vjp(solve, {m, b}).second({b}), expected, {1e-10, 1e-10}), "");
    EXPECT_EQ(support::difference(td::jvp(solve, {m, b}, {m, b}).second, td::jvp(by_matrix, {m, b}, {m, b}).second,
                                  {1e-10, 1e-10}),
              "");
  }
  // Hermitian and positive definite.
  const auto hermitian = [](const Tensor& t) { return at::mm(t.conj().t(), t) + at::eye(4, t.options()); };
  const Function dense = [&](const Tensors& in) { return Tensors{at::linalg_solve(hermitian(in[0]), in[1])}; };
  const Function by_cg = [&](const Tensors& in) {
    return td::cg(times(hermitian(in[0])), {in[1]}, {.tolerance = 1e-14}).x;
  };
  EXPECT_EQ(
      support::difference(td::vjp(by_cg, {m, b}).second({b}), support::autograd_vjp(dense, {m, b}, {b}), {1e-9, 1e-9}),
      "");
}

TEST(LinearSolve, AutomaticIsDenseWhereThereAreFew) {
  const auto calls_of = [](int64_t limit) {
    int64_t calls = 0;
    const auto apply = [&calls](const Tensor& v) { return ++calls, 3 * v; };
    EXPECT_TRUE(same(tower::linear_solve(apply, waves({20}), {.dense_up_to = limit}), waves({20}) / 3));
    return calls;
  };
  EXPECT_EQ(calls_of(20), 3);  // looked at, mapped, checked
  EXPECT_GT(calls_of(19), 3);
}

TEST(LinearSolve, UnknownsAreATreeAndSolversGetIt) {
  using Pair = std::pair<Tensor, Tensor>;
  const Tensor a = waves({2, 2}) + 3 * at::eye(2, at::kDouble);
  const auto solve = [](const Tensor& matrix, const Pair& b, const tower::LinearSolveOptions<Pair>& options) {
    return tower::linear_solve(
        [matrix](const Pair& v) { return Pair(at::mv(matrix, v.first) + v.second, v.second * 2); }, b, options);
  };
  const Pair b(vec({1, 2}), vec({3, 4}));
  const Pair x = solve(a, b, {});
  EXPECT_TRUE(same(x.second, vec({1.5, 2})));
  EXPECT_TRUE(same(at::mv(a, x.first), vec({-0.5, 0})));
  int called = 0;
  const Pair y = solve(a, b, {.solve = [&](const auto& apply, const Pair& side) {
                         ++called;
                         return tower::gmres(apply, side, {.tolerance = 1e-13}).x;
                       }});
  EXPECT_EQ(called, 1);
  EXPECT_LT((y.first - x.first).abs().max().item<double>(), 1e-11);
}

TEST(LinearSolve, WhatTheFunctionCapturedIsDifferentiatedWhateverTheSolverDoes) {
  const auto solve = [](const Tensor& a) {
    // Knows the inverse without asking for it.
    return tower::linear_solve([a](const Tensor& v) { return a * v; }, vec({2, 8}),
                               {.solve =
                                    [](const auto&, const Tensor&) {
                                      return vec({1, 2});
                                    }})
        .sum();
  };
  EXPECT_TRUE(same(tower::grad(solve)(vec({2, 4})), vec({-0.5, -0.5})));
}

TEST(LinearSolve, ATransposedSystemIsSolvedByWhatIsKnownToSolveIt) {
  int solved = 0, transposed = 0;
  const Tensor a = at::tensor({2.0, 1.0, 0.0, 4.0}, at::kDouble).view({2, 2});
  const auto gradient = [&](bool both) {
    tower::LinearSolveOptions<Tensor> options{.solve = [&](const auto&, const Tensor& b) {
      return ++solved, at::linalg_solve(a, b);  // does not heed the function
    }};
    if (both)
      options.solve_transposed = [&](const auto&, const Tensor& b) { return ++transposed, at::linalg_solve(a.t(), b); };
    return tower::grad([&](const Tensor& b) {
      return tower::linear_solve([a](const Tensor& v) { return at::mv(a, v); }, b, options)[0];
    })(vec({1, 1}));
  };
  const Tensor expected = at::linalg_solve(a.t(), vec({1, 0}));
  EXPECT_TRUE(same(gradient(false), expected));
  EXPECT_EQ(solved, 1);
  EXPECT_TRUE(same(gradient(true), expected));
  EXPECT_EQ(solved, 2);
  EXPECT_EQ(transposed, 1);
}

TEST(LinearSolve, AUsersSolverGetsBatchesOrExamples) {
  const Tensor as = waves({3, 2, 2}) + 3 * at::eye(2, at::kDouble), bs = waves({3, 2}, 1);
  int calls = 0;
  const auto run = [&](bool per_example, const Tensor& matrices, const Tensor& sides) {
    return tower::vmap([&](const Tensor& a, const Tensor& b) {
      return tower::linear_solve(
          [a](const Tensor& v) { return at::mv(a, v); }, b,
          {.solve = [&, a](const auto&, const Tensor& side) { return ++calls, at::linalg_solve(a, side); },
           .per_example = per_example});
    })(matrices, sides);
  };
  EXPECT_TRUE(same(run(false, as, bs), at::linalg_solve(as, bs)));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(same(run(true, as, bs), at::linalg_solve(as, bs)));
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(run(true, as.narrow(0, 0, 1), bs.narrow(0, 0, 1)).sizes(), (at::IntArrayRef{1, 2}));
  EXPECT_EQ(run(false, as.narrow(0, 0, 0), bs.narrow(0, 0, 0)).sizes(), (at::IntArrayRef{0, 2}));
}

TEST(LinearSolve, WhatIsNotLinearIsRefused) {
  const Tensor b = vec({1, 2});
  const auto affine = [](const Tensor& v) { return 2 * v + 1; };
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] { tower::linear_solve(affine, b); }),
                       "linear_solve: the function is not linear"));
  const auto conjugates = [](const Tensor& v) { return v.conj() + 3 * v; };
  EXPECT_TRUE(
      contains(message_of<tower::ArgumentError>([&] { tower::linear_solve(conjugates, at::complex(b, b.flip(0))); }),
               "linear_solve: the function is not linear"));
}

TEST(LinearSolve, WhatDoesNotFitIsNamed) {
  const Tensor b = vec({1, 2});
  const auto refusal_of = [](const Function& f, const Tensors& side, const Options& options = {}) {
    return message_of<tower::ArgumentError>([&] { td::linear_solve(f, side, options); });
  };
  EXPECT_TRUE(contains(refusal_of(of_one([](const Tensor& v) { return v.unsqueeze(0); }), {b}),
                       "the function gave Double [1, 2] for tensor 0 of the unknowns, which is Double [2]"));
  EXPECT_TRUE(contains(refusal_of(
                           [](const Tensors& v) {
                             return Tensors{v[0], v[0]};
                           },
                           {b}),
                       "the function gave 2 tensors, but there are 1 unknown ones"));
  EXPECT_TRUE(contains(refusal_of(times(b), {at::ones({2}, at::kLong)}), "Long [2]. Only floating point numbers"));
  EXPECT_TRUE(contains(refusal_of([](const Tensors& v) { return v; }, {b, b.to(at::kFloat)}),
                       "All unknowns must be of one dtype"));
  EXPECT_TRUE(contains(refusal_of(times(b), {}), "there are no tensors to solve for"));
  const Options wrong{.solve = [](const Function&, const Tensors&) { return Tensors{vec({1})}; }};
  EXPECT_TRUE(
      contains(refusal_of(of_one([](const Tensor& v) { return v; }), {b}, wrong), "the solver gave Double [1]"));
}

TEST(LinearSolve, LibTorchsBackwardGoesThroughOperandsAndIsRefusedForCapturedTensors) {
  const Tensor a = definite(waves({3, 3}));
  const Tensor b = waves({3}).requires_grad_(true);
  td::linear_solve(times(a), {b})[0].sum().backward();
  EXPECT_TRUE(same(b.grad(), at::linalg_solve(a, at::ones({3}, at::kDouble))));
  const Tensor w = a.clone().requires_grad_(true);
  for (const Tensor& side : {b, b.detach()}) {
    const std::string text = message_of<tower::UnsupportedError>([&] { td::linear_solve(times(w), {side}); });
    EXPECT_TRUE(contains(text, "linear_solve: the function uses a tensor that it captured and that requires grad"))
        << text;
  }
}

TEST(LinearSolve, NoUnknownsAreSolved) {
  const Tensor none = at::empty({0}, at::kDouble);
  for (const Case& one : cases()) {
    if (one.options.solve) continue;
    EXPECT_EQ(td::linear_solve(of_one([](const Tensor& v) { return 2 * v; }), {none}, one.options)[0].numel(), 0)
        << one.name;
  }
}

}  // namespace
