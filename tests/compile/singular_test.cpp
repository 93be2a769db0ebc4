// A matrix that cannot be solved with, inverted or factored is an error of the compiled function as it is of the
// function: in kernels and out of them, for one example of many, in loops, and whether the result is used or not.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include "compile/kernels.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using td::Function;
using td::Tensors;

struct Program {
  const char* name;
  std::function<Tensor(const Tensor& a, const Tensor& b)> f;
};

// Of symmetric positive-definite matrices and vectors all of them have results.
const std::vector<Program>& programs() {
  static const std::vector<Program> all{
      {"solve", [](auto& a, auto& b) { return at::linalg_solve(a, b); }},
      {"inv", [](auto& a, auto& b) { return at::linalg_inv(a).matmul(b); }},
      {"inverse", [](auto& a, auto& b) { return at::inverse(a).matmul(b); }},
      {"cholesky", [](auto& a, auto& b) { return at::linalg_cholesky(a).matmul(b); }},
      {"lu_factor",
       [](auto& a, auto& b) {
         const auto [lu, pivots] = at::linalg_lu_factor(a);
         return at::linalg_lu_solve(lu, pivots, b.unsqueeze(-1)).squeeze(-1);
       }},
      {"solve_ex that looks", [](auto& a, auto& b) { return std::get<0>(at::linalg_solve_ex(a, b, true, true)); }},
      {"nobody reads it",
       [](auto& a, auto& b) {
         at::linalg_inv(a);
         return b + 1;
       }},
  };
  return all;
}

Tensor regular(int64_t n, at::ScalarType dtype) {
  const Tensor i = at::arange(1, n + 1, at::kDouble);
  return (at::eye(n, at::kDouble) * 3 + 1 / (i.unsqueeze(0) + i.unsqueeze(1))).to(dtype);
}
// The last row and column are zero: singular for whatever order of the elimination.
Tensor singular(int64_t n, at::ScalarType dtype) {
  Tensor a = regular(n, dtype);
  a.select(0, n - 1).zero_();
  a.select(1, n - 1).zero_();
  return a;
}

Function of(const Program& p) {
  return [&p](const Tensors& in) { return Tensors{p.f(in[0], in[1])}; };
}
Function over_examples(const Function& f, size_t arguments) {
  return [f, arguments](const Tensors& in) { return td::vmap(f, td::Dims(arguments, 0), {0})(in); };
}

void expect_near(const Tensors& found, const Tensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t k = 0; k < expected.size(); ++k)
    EXPECT_TRUE(at::allclose(found[k], expected[k], 1e-4, 1e-5)) << found[k] << expected[k];
}

// As the function raises for `bad`, and goes on to compute for what is good.
void expect_raised(const Function& f, const Tensors& good, const Tensors& bad) {
  EXPECT_THROW(f(bad), c10::Error);
  const Tensors expected = f(good);
  const Function compiled = td::compile(f);
  for (int run = 0; run < 3; ++run) expect_near(compiled(good), expected);
  for (int run = 0; run < 3; ++run) EXPECT_THROW(compiled(bad), c10::Error) << run;
  expect_near(compiled(good), expected);
  const Function from_bad = td::compile(f);
  for (int run = 0; run < 3; ++run) EXPECT_THROW(from_bad(bad), c10::Error) << run;
  for (int run = 0; run < 3; ++run) expect_near(from_bad(good), expected);
}

TEST(Singular, MatricesAreErrors) {
  for (const Program& p : programs())
    for (const auto dtype : {at::kDouble, at::kFloat})
      for (const int64_t n : {1, 3, 11, 12, 20}) {
        SCOPED_TRACE(std::string(p.name) + " of " + std::to_string(n) + " rows, " + at::toString(dtype));
        const Tensor b = at::ones({n}, dtype);
        expect_raised(of(p), {regular(n, dtype), b}, {singular(n, dtype), b});
      }
}

// More examples than a vector has lanes, and a number that is no multiple of these.
TEST(Singular, ExamplesAreErrors) {
  for (const Program& p : programs())
    for (const auto dtype : {at::kDouble, at::kFloat})
      for (const int64_t n : {1, 3, 12}) {
        const Tensor good = regular(n, dtype).expand({21, n, n}).clone(), b = at::ones({21, n}, dtype);
        for (const int64_t at : {0, 9, 20}) {
          SCOPED_TRACE(std::string(p.name) + " of " + std::to_string(n) + " rows, example " + std::to_string(at));
          Tensor bad = good.clone();
          bad[at].copy_(singular(n, dtype));
          expect_raised(over_examples(of(p), 2), {good, b}, {bad, b});
        }
      }
}

TEST(Singular, MatricesOfBatchesInExamplesAreErrors) {
  for (const Program& p : programs()) {
    SCOPED_TRACE(p.name);
    const Tensor good = regular(2, at::kDouble).expand({5, 3, 2, 2}).clone(), b = at::ones({5, 3, 2}, at::kDouble);
    Tensor bad = good.clone();
    bad[3][1].copy_(singular(2, at::kDouble));
    expect_raised(over_examples(over_examples(of(p), 2), 2), {good, b}, {bad, b});
  }
}

TEST(Singular, DeterminantsAreZero) {
  const Function f = [](const Tensors& in) { return Tensors{at::linalg_det(in[0])}; };
  const Function compiled = td::compile(f), of_many = td::compile(over_examples(f, 1));
  const Tensor a = singular(3, at::kDouble);
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(compiled({a})[0].item<double>(), 0);
    EXPECT_TRUE(at::equal(of_many({a.expand({5, 3, 3})})[0], at::zeros(5, at::kDouble)));
  }
}

TEST(Singular, OfOperatorsThatDoNotLookGiveWhatTheyGive) {
  const Function f = [](const Tensors& in) {
    return Tensors{std::get<1>(at::linalg_inv_ex(in[0])), std::get<1>(at::linalg_cholesky_ex(in[0]))};
  };
  const Tensor a = at::stack({singular(3, at::kDouble), regular(3, at::kDouble)});
  for (const Function& g : {f, over_examples(f, 1)}) {
    const Function compiled = td::compile(g);
    for (int run = 0; run < 3; ++run)
      for (const Tensor& info : compiled({a})) EXPECT_TRUE(at::equal(info, at::tensor({3, 0}, at::kInt))) << info;
  }
}

TEST(Singular, AreErrorsOfDerivatives) {
  for (const Program& p : programs()) {
    SCOPED_TRACE(p.name);
    const Function sum = [&p](const Tensors& in) { return Tensors{p.f(in[0], in[1]).square().sum()}; };
    const Tensor good = regular(3, at::kDouble), bad = singular(3, at::kDouble), b = at::ones({3}, at::kDouble);
    for (const Function& f : {td::grad(sum, {0, 1}), td::jacfwd(of(p), {0, 1})}) {
      expect_raised(f, {good, b}, {bad, b});
      Tensor many = good.expand({9, 3, 3}).clone(), one_bad = many.clone();
      one_bad[8].copy_(bad);
      expect_raised(over_examples(f, 2), {many, b.expand({9, 3})}, {one_bad, b.expand({9, 3})});
    }
    // The compiled function, differentiated.
    const Function compiled = td::compile(sum);
    for (int run = 0; run < 3; ++run) {
      expect_near(td::grad(compiled, {0, 1})({good, b}), td::grad(sum, {0, 1})({good, b}));
      EXPECT_THROW(td::grad(compiled, {0, 1})({bad, b}), c10::Error);
    }
  }
}

// As many steps as the last argument says.
Function loop_of(const Program& p, bool in_condition = false) {
  return [&p, in_condition](const Tensors& in) {
    const Tensor a = in[0], b = in[1], n = in[2];
    return td::while_loop(
        [&p, a, n, in_condition](const Tensors& s) {
          return in_condition ? (s[0] < n).logical_and(p.f(a, s[1]).sum() * 0 == 0) : s[0] < n;
        },
        [a, b, &p](const Tensors& s) {
          return Tensors{s[0] + 1, p.f(a, s[1]) * 0.5 + b};
        },
        {at::zeros_like(n), b});
  };
}

TEST(Singular, StepsThatAreMadeAreErrors) {
  for (const Program& p : programs())
    for (const int64_t n : {1, 3, 12}) {
      SCOPED_TRACE(std::string(p.name) + " of " + std::to_string(n));
      const Tensor b = at::ones({n}, at::kDouble), steps = at::scalar_tensor(2, at::kLong);
      const Tensor good = regular(n, at::kDouble), bad = singular(n, at::kDouble);
      expect_raised(loop_of(p), {good, b, steps}, {bad, b, steps});
      const Function compiled = td::compile(loop_of(p));
      for (int run = 0; run < 3; ++run) EXPECT_TRUE(at::equal(compiled({bad, b, at::zeros_like(steps)})[1], b));
    }
}

TEST(Singular, StepsOfExamplesAreErrorsWhereTheyAreMade) {
  for (const Program& p : programs())
    for (const int64_t n : {1, 3, 12})
      for (const int64_t examples : {2, 21}) {
        SCOPED_TRACE(std::string(p.name) + " of " + std::to_string(n) + ", " + std::to_string(examples));
        const Tensor good = regular(n, at::kDouble).expand({examples, n, n}).clone();
        const Tensor b = at::ones({examples, n}, at::kDouble);
        Tensor steps = at::full({examples}, 3, at::kLong), bad = good.clone();
        bad[examples - 1].copy_(singular(n, at::kDouble));
        const Function f = over_examples(loop_of(p), 3);
        expect_raised(f, {good, b, steps}, {bad, b, steps});
        // That never began.
        steps[examples - 1] = 0;
        const Tensors expected = f({good, b, steps});
        const Function compiled = td::compile(f);
        for (int run = 0; run < 3; ++run) expect_near(compiled({bad, b, steps}), expected);
      }
}

// The matrix is singular only after the last step of an example.
TEST(Singular, ExamplesThatHaveEndedAreNoErrors) {
  const Function one = [](const Tensors& in) {
    const Tensor n = in[1];
    return td::while_loop([n](const Tensors& s) { return s[0] < n; },
                          [](const Tensors& s) {
                            const Tensor m = at::diag_embed((2 - s[0]).to(at::kDouble).expand({3}));
                            return Tensors{s[0] + 1, at::linalg_solve(m, s[1]) + 1};
                          },
                          {at::zeros_like(n), in[0]});
  };
  const Function f = over_examples(one, 2);
  const Tensor x = at::ones({11, 3}, at::kDouble), steps = at::full({11}, 2, at::kLong);
  const Tensors expected = f({x, steps});
  Tensor more = steps.clone();
  more[4] = 3;
  const Function compiled = td::compile(f);
  for (int run = 0; run < 3; ++run) {
    expect_near(compiled({x, steps}), expected);
    EXPECT_THROW(compiled({x, more}), c10::Error);
  }
}

// With NaN the condition would hold for ever.
TEST(Singular, ALoopThatWouldNotEndDoes) {
  const Function one = [](const Tensors& in) {
    const Tensor a = in[0];
    return td::while_loop([](const Tensors& s) { return (s[0].sum() < 1e-3).logical_not(); },
                          [a](const Tensors& s) { return Tensors{at::linalg_solve(a, s[0])}; }, {in[1]});
  };
  const Tensor b = at::ones({3}, at::kDouble);
  expect_raised(one, {regular(3, at::kDouble), b}, {singular(3, at::kDouble), b});
}

TEST(Singular, InAConditionTheyAreErrors) {
  for (const Program& p : programs()) {
    SCOPED_TRACE(p.name);
    const Tensor b = at::ones({3}, at::kDouble), steps = at::scalar_tensor(2, at::kLong);
    expect_raised(loop_of(p, true), {regular(3, at::kDouble), b, steps}, {singular(3, at::kDouble), b, steps});
  }
}

TEST(Singular, ChecksAreNoCallsOfTheirOwn) {
  TOWER_NEEDS_LLVM();
  for (const Program& p : programs()) {
    const std::string name = p.name;
    if (name == "nobody reads it" || name == "lu_factor") continue;
    SCOPED_TRACE(name);
    const Tensor a = regular(3, at::kDouble).expand({9, 3, 3}).clone(), b = at::ones({9, 3}, at::kDouble);
    EXPECT_EQ(kernels::calls_left(over_examples(of(p), 2), {a, b}, 1e-12), 1);
    EXPECT_EQ(kernels::calls_left(over_examples(loop_of(p), 3), {a, b, at::full({9}, 3, at::kLong)}, 1e-12), 1);
  }
}

// An operator that has no result and only looks.
TEST(Singular, AssertionsAreKept) {
  const Function f = [](const Tensors& in) {
    at::_assert_async(in[0].sum() > 0, "the sum is not positive");
    return Tensors{in[0].exp() + 1};
  };
  const Function compiled = td::compile(f);
  const Tensor x = at::ones({3});
  for (int run = 0; run < 3; ++run) {
    expect_near(compiled({x}), f({x}));
    EXPECT_THROW(compiled({-x}), c10::Error);
  }
}

}  // namespace
