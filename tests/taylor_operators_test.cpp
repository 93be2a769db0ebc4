// jet of every differentiable sample in the operators' database, held against three nested jvp along the same curve;
// and the sum of second derivatives along two directions that laplacian gives, against jet along each.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/errors.h>
#include <tower/taylor.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "core/operator.h"
#include "interpreters/derivatives.h"
#include "matrix/matrix.h"
#include "op_db/op_db.h"
#include "support/compare.h"
#include "taylor/growth.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using op_db::Entry;
using op_db::Sample;
using support::Tensors;

constexpr size_t kOrder = 3;
constexpr int kLaplacians = 3;  // of the samples of an operator

struct Curve {
  td::Function f;
  Tensors x;
  std::vector<Tensors> series;  // its derivatives
  bool bends_only = false;      // the first of them is zero
};

// f(x(t)) and its derivatives, by nesting.
std::vector<Tensors> nested(const Curve& curve) {
  const auto along = [&](const Tensors& t) {
    Tensors x = curve.x;
    double factorial = 1;
    Tensor power = t[0];
    for (size_t k = 0; k < kOrder; ++k, power = power * t[0]) {
      factorial *= static_cast<double>(k + 1);
      for (size_t i = 0; i < x.size() && !(curve.bends_only && k == 0); ++i)
        x[i] = x[i] + curve.series[k][i] * (power / factorial);
    }
    return curve.f(x);
  };
  td::Function f = along;
  const Tensors zero{at::zeros({}, at::kDouble)}, one{at::ones({}, at::kDouble)};
  // Each gives what the one inside gives, and behind it the derivative of the last part of that.
  size_t outputs = 0;
  for (size_t k = 0; k < kOrder; ++k)
    f = [f, one, k, &outputs](const Tensors& t) {
      auto [all, derivatives] = td::jvp(f, t, one);
      outputs = all.size() / (k + 1);
      all.insert(all.end(), derivatives.end() - static_cast<std::ptrdiff_t>(outputs), derivatives.end());
      return all;
    };
  at::manual_seed(1);
  const Tensors all = f(zero);
  std::vector<Tensors> result;
  for (size_t k = 0; k <= kOrder; ++k)
    result.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(k * outputs),
                        all.begin() + static_cast<std::ptrdiff_t>((k + 1) * outputs));
  return result;
}

std::vector<Tensors> by_jet(const Curve& curve) {
  at::manual_seed(1);
  std::vector<Tensors> series = curve.series;
  if (curve.bends_only) series[0].clear();
  auto [value, derivatives] = td::jet(curve.f, curve.x, series);
  derivatives.insert(derivatives.begin(), value);
  return derivatives;
}

bool real(const Tensors& tensors) {
  return std::none_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.is_complex(); });
}

// Of a sample that draws random numbers which the derivative depends on, laplacian says so; true where it gave the
// sums.
bool check_laplacian(const Curve& curve, const tower::Operator& op) {
  constexpr size_t kDirections = 2;
  tower::LaplacianOptions options;
  std::vector<int64_t> argnums;
  for (size_t i = 0; i < curve.x.size(); ++i) {
    argnums.push_back(static_cast<int64_t>(i));
    options.directions.push_back(at::stack({curve.series[0][i], curve.series[1][i]}));
  }
  Tensors expected;
  for (size_t d = 0; d < kDirections; ++d) {
    at::manual_seed(1);
    const Tensors along = td::jet(curve.f, curve.x, {curve.series[d], {}}).second[1];
    expected = d == 0 ? along : support::plus(expected, along);
  }
  at::manual_seed(1);
  try {
    const Tensors found = td::laplacian(curve.f, argnums, options)(curve.x).second;
    EXPECT_EQ(support::difference(found, expected, {1e-8, 1e-10}), "") << "laplacian";
    return true;
  } catch (const tower::UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("Draw outside"), std::string::npos) << op.name() << error.what();
    return false;
  }
}

// How a call of the operator with all these arguments followed grows.
std::string growth_of(const tower::Operator& op, tower::Mask tracked) {
  using tower::taylor::Growth;
  if (op.opens_up() && !op.has_jvp(tracked) && op.decomposes()) return "as the operators it is made of";
  if (tower::served_jvp(op, tracked) != tower::Served::own_rule) return "by LibTorch's or a transposed formula";
  switch (tower::taylor::growth_of(op, tracked, op.nondifferentiable_outs)) {
    case Growth::termwise:
      return "termwise";
    case Growth::product:
    case Growth::quotient:
    case Growth::factored:
      return "as a product";
    default:
      return "by the derivative rule on series";
  }
}

TEST(TaylorOfOperators, IsThatOfNestedDerivativesAndTheirSums) {
  const char* folder = std::getenv("TOWER_OP_DB");
  std::map<std::string, std::set<std::string>> operators;
  int samples = 0, refused = 0, sums = 0;
  for (const Entry& entry : op_db::load(folder ? folder : TOWER_OP_DB_DIR)) {
    const tower::Operator& op = tower::Operator::of(*entry.op);
    if (entry.unspecified || op.no_derivative() || entry.has("no_samples") || entry.refuses("jvp")) continue;
    if (entry.refuses("jvp(jvp)")) continue;
    int of_entry = 0;
    for (const auto dtype : {at::kDouble, at::kComplexDouble}) {
      if (dtype == at::kDouble ? !entry.real : !entry.complex) continue;
      for (const std::string& text : entry.sample_texts) {
        if (text[0] == '!') continue;
        const Sample sample = op_db::parse_sample(entry, text, dtype);
        SCOPED_TRACE(entry.name + " | " + text + " in " + c10::toString(dtype));
        matrix::Report report(entry);
        const matrix::Problem problem = matrix::differentiable_problem_of({entry, sample, dtype, report}, 1);
        if (!matrix::has_derivatives(problem) || !matrix::is_double(problem)) continue;
        Curve curve{matrix::partial_function(problem, problem.examples[0]),
                    matrix::selected(problem.examples[0], problem.differentiable),
                    {}};
        for (size_t k = 0; k < kOrder; ++k) curve.series.push_back(support::random_like(curve.x, 40 + k));
        curve.bends_only = (samples + refused) % 2 == 1;
        std::vector<Tensors> expected;
        try {
          expected = nested(curve);
        } catch (const tower::Error&) {
          ++refused;
          EXPECT_THROW(by_jet(curve), tower::Error);
          continue;
        }
        try {
          const std::vector<Tensors> found = by_jet(curve);
          ++samples;
          if (dtype == at::kDouble && real(curve.x) && ++of_entry <= kLaplacians) sums += check_laplacian(curve, op);
          tower::Mask tracked = 0;
          for (size_t i = 0; i < sample.leaves.size(); ++i)
            if (problem.differentiable[i]) tracked |= tower::Mask{1} << sample.leaves[i].arg;
          operators[growth_of(op, tracked & ~op.inactive_args)].insert(op.name());
          for (size_t k = 0; k <= kOrder; ++k)
            EXPECT_EQ(support::difference(found[k], expected[k], {1e-8, 1e-10}), "") << "order " << k;
        } catch (const std::exception& error) {
          const std::string message = error.what();
          ADD_FAILURE() << message.substr(0, message.find("\nException raised from"));
        }
      }
    }
  }
  EXPECT_GT(samples, 0);
  std::printf("%d samples, %d refused by both, %d Laplacians; operators that grow", samples, refused, sums);
  for (const auto& [how, names] : operators) std::printf("\n  %s: %zu", how.c_str(), names.size());
  std::printf("\n");
}

}  // namespace
