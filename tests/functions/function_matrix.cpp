// Every function of the database under every nesting of up to three transforms. The outermost transform's own check
// (a loop for vmap, finite differences and adjointness for the others) is applied to what the inner ones make of the
// function; and the whole nesting is held against the same nesting of the function's model.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/coverage.h>
#include <tower/errors.h>

#include <algorithm>
#include <memory>

#include "functions/function_db.h"
#include "matrix/matrix.h"
#include "op_db/tensor_spec.h"
#include "support/intact.h"
#include "support/oracles.h"

namespace {

using matrix::Problem;
using support::Tensors;

using Nesting = std::vector<std::string>;  // outer to inner

std::string name_of(const Nesting& nesting) {
  std::string name;
  for (const auto& transform : nesting) name += (name.empty() ? "" : "(") + transform;
  return name + std::string(nesting.size() - 1, ')');
}

std::vector<Nesting> nestings() {
  const std::vector<std::string> transforms{"vmap", "vjp", "jvp"};
  std::vector<Nesting> result;
  for (const auto& a : transforms) {
    result.push_back({a});
    for (const auto& b : transforms) {
      result.push_back({a, b});
      for (const auto& c : transforms) result.push_back({a, b, c});
    }
  }
  return result;
}

Problem problem_of(const function_db::Entry& entry, const tower::dynamic::Function& f, bool derivative) {
  Problem problem;
  std::vector<op_db::TensorSpec> specs;
  for (const auto& text : entry.arguments) {
    specs.push_back(op_db::parse_tensor_spec(text));
    problem.differentiable.push_back(specs.back().differentiable());
    problem.mappable.push_back(true);
  }
  for (int example = 0; example < matrix::kExamples; ++example) {
    Tensors arguments;
    for (size_t i = 0; i < specs.size(); ++i)
      arguments.push_back(op_db::make_tensor(specs[i], at::kDouble, 1000 * i + static_cast<uint64_t>(example)));
    problem.examples.push_back(arguments);
  }
  problem.f = f;
  if (derivative && !entry.differentiable_outputs.empty())
    problem.f = [f, chosen = entry.differentiable_outputs](const Tensors& x) {
      const Tensors all = f(x);
      Tensors result;
      for (const int64_t i : chosen) result.push_back(all[static_cast<size_t>(i)]);
      return result;
    };
  return problem;
}

const std::string* reason_to_refuse(const function_db::Entry& entry, const Nesting& nesting) {
  const auto maps = std::count(nesting.begin(), nesting.end(), "vmap");
  const bool jvp = std::count(nesting.begin(), nesting.end(), "jvp") != 0;
  const bool second = static_cast<long>(nesting.size()) - maps >= 2;
  for (const auto& [what, why] : entry.refuses) {
    if (what == function_db::kAnyJvp && jvp) return &why;
    if (what == function_db::kAnySecond && second) return &why;
  }
  return nullptr;
}

using Param = std::pair<size_t, size_t>;  // function, nesting

class FunctionMatrix : public testing::TestWithParam<Param> {};

TEST_P(FunctionMatrix, agrees) {
  const auto& function = function_db::all()[GetParam().first];
  const Nesting nesting = nestings()[GetParam().second];
  const bool derivative = std::count(nesting.begin(), nesting.end(), "vmap") != static_cast<long>(nesting.size());
  const Problem problem = problem_of(function, function.f, derivative);
  const auto transformed = [&](Problem p, size_t outermost) {
    for (size_t i = nesting.size(); i-- > outermost;) p = matrix::transformed(nesting[i], p);
    return p;
  };

  if (const std::string* why = reason_to_refuse(function, nesting)) {
    // Making a problem of a transform runs it, so a refusal may come early.
    const std::string text = support::refusal<tower::DerivativeError>([&] {
      const Problem whole = transformed(problem, 0);
      whole.f(whole.examples[0]);
    });
    EXPECT_NE(text, "nothing of that type was thrown") << *why;
    return;
  }

  const bool before = tower::set_fallback_is_error(!function.loops);
  op_db::Entry entry;
  entry.name = function.name;
  if (!function.true_derivative) entry.notes["no_fd"] = "its rules declare another derivative";
  op_db::Sample sample;
  matrix::Report report(entry);
  report.enter(sample, at::kDouble);
  const long compared = matrix::totals().comparisons;
  report.run(name_of(nesting), [&] {
    const matrix::Case c{entry, sample, at::kDouble, report};
    matrix::check_transform(nesting[0], transformed(problem, 1), c);
    if (!function.model) return;
    const Problem whole = transformed(problem, 0);
    const Problem model = transformed(problem_of(function, function.model, derivative), 0);
    for (size_t i = 0; i < whole.examples.size(); ++i)
      report.expect("against its model",
                    support::difference(whole.f(whole.examples[i]), model.f(whole.examples[i]), {1e-9, 1e-9}));
  });
  tower::set_fallback_is_error(before);
  EXPECT_GT(matrix::totals().comparisons, compared) << "nothing was compared: this test cannot fail";
}

// Operators behind it, enough that they are compiled under transforms, too.
tower::dynamic::Function in_company(const tower::dynamic::Function& f) {
  return [f](const Tensors& x) {
    Tensors results = f(x);
    for (auto& t : results)
      if (t.is_floating_point()) t = ((t.sin() + t) * 0.5).cos() * t;
    return results;
  };
}

TEST_P(FunctionMatrix, is_the_same_compiled) {
  const auto& function = function_db::all()[GetParam().first];
  const Nesting nesting = nestings()[GetParam().second];
  if (nesting.size() > 2 || reason_to_refuse(function, nesting)) return;  // the other test is of these
  const bool derivative = std::count(nesting.begin(), nesting.end(), "vmap") != static_cast<long>(nesting.size());
  const auto transformed = [&](const tower::dynamic::Function& f) {
    Problem problem = problem_of(function, f, derivative);
    for (size_t i = nesting.size(); i-- > 0;) problem = matrix::transformed(nesting[i], problem);
    return problem;
  };
  const matrix::FallbackIsError guard(false);
  const auto f = in_company(function.f);
  const Problem plain = transformed(f);
  const auto outside = transformed(tower::dynamic::compile(f)).f, inside = tower::dynamic::compile(plain.f);
  for (size_t i = 0; i < plain.examples.size(); ++i) {
    const Tensors& x = plain.examples[i];
    const Tensors expected = plain.f(x);
    EXPECT_EQ(support::difference(inside(x), expected, {1e-9, 1e-9}), "") << "compiled transform, call " << i;
    EXPECT_EQ(support::difference(outside(x), expected, {1e-9, 1e-9}), "") << "transformed compiled, call " << i;
  }
}

std::vector<Param> params() {
  std::vector<Param> result;
  for (size_t f = 0; f < function_db::all().size(); ++f)
    for (size_t n = 0; n < nestings().size(); ++n) result.emplace_back(f, n);
  return result;
}

std::string name_of_param(const testing::TestParamInfo<Param>& info) {
  std::string name = function_db::all()[info.param.first].name + "_under";
  const Nesting nesting = nestings()[info.param.second];
  for (const auto& transform : nesting) name += "_" + transform;
  return name;
}

INSTANTIATE_TEST_SUITE_P(functions, FunctionMatrix, testing::ValuesIn(params()), name_of_param);

// Outside transforms LibTorch's autograd records the rules; for the model it has its own.
TEST(FunctionDatabase, LibTorchsAutogradGivesTheDeclaredDerivatives) {
  int compared = 0;
  for (const auto& function : function_db::all()) {
    if (!function.model) continue;
    const Problem problem = problem_of(function, function.f, true);
    const Problem model = problem_of(function, function.model, true);
    for (const Tensors& example : problem.examples) {
      const Tensors x = matrix::selected(example, problem.differentiable);
      const auto f = matrix::partial_function(problem, example), expected = matrix::partial_function(model, example);
      const Tensors cotangents = support::random_like(expected(x), 7);
      const Tensors gradients = support::autograd_vjp(expected, x, cotangents);
      EXPECT_EQ(support::difference(support::autograd_vjp(f, x, cotangents), gradients, {1e-9, 1e-9}), "")
          << function.name << " outside transforms";
      EXPECT_EQ(support::difference(tower::dynamic::vjp(f, x).second(cotangents), gradients, {1e-9, 1e-9}), "")
          << function.name << " under vjp";
      ++compared;
    }
  }
  EXPECT_GE(compared, 60);
}

TEST(FunctionDatabase, HasAtLeastTwentyFunctions) { EXPECT_GE(function_db::all().size(), 20u); }

}  // namespace
