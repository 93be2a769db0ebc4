// jet of every differentiable sample in the operators' database, held against three nested jvp along the same curve;
// and the sums of second and third derivatives along two directions that differential operators are made of, against
// jet along each.
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
#include "taylor/along.h"
#include "taylor/growth.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using op_db::Entry;
using op_db::Sample;
using support::Tensors;

constexpr size_t kOrder = 3;
constexpr int kSums = 3;  // of the samples of an operator

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

// What jet gives along a direction for that order.
Tensors highest_along(const Curve& curve, const Tensors& direction, size_t order, double weight = 1) {
  std::vector<Tensors> series(order);
  series[0] = direction;
  at::manual_seed(1);
  Tensors result = td::jet(curve.f, curve.x, series).second.back();
  for (Tensor& t : result)
    if (t.is_floating_point() || t.is_complex()) t = t * weight;
  return result;
}

// Of a sample that draws random numbers which the derivative depends on, both say so; true where they gave the sums.
// `also_third`: those of order three, too.
bool check_sums(const Curve& curve, const tower::Operator& op, bool also_third) {
  Tensors directions;
  std::vector<int64_t> argnums;
  for (size_t i = 0; i < curve.x.size(); ++i) {
    argnums.push_back(static_cast<int64_t>(i));
    directions.push_back(at::stack({curve.series[0][i], curve.series[1][i]}));
  }
  const auto is = [&](const Tensors& expected, const char* what, const auto& sum) {
    at::manual_seed(1);
    try {
      EXPECT_EQ(support::difference(sum(), expected, {1e-8, 1e-10}), "") << what;
      return true;
    } catch (const tower::UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find("Draw outside"), std::string::npos) << op.name() << error.what();
      return false;
    }
  };
  const Tensors second =
      support::plus(highest_along(curve, curve.series[0], 2), highest_along(curve, curve.series[1], 2));
  const bool has_laplacian = is(
      second, "laplacian", [&] { return td::laplacian(curve.f, argnums, {.directions = directions})(curve.x).second; });
  if (!also_third) return has_laplacian;
  // Of order three, with weights and a direction along which the first derivative is added.
  tower::taylor::Along along{3, directions};
  along.weights = at::tensor({1.5, -0.5}, at::kDouble);
  along.drift = curve.series[2];
  const Tensors third = support::plus(
      support::plus(highest_along(curve, curve.series[0], 3, 1.5), highest_along(curve, curve.series[1], 3, -0.5)),
      highest_along(curve, curve.series[2], 1));
  const bool has_third = is(third, "of order three",
                            [&] { return tower::taylor::sum_along(curve.f, curve.x, argnums, along, "test").second; });
  EXPECT_EQ(has_laplacian, has_third) << op.name();
  return has_laplacian;
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
          if (dtype == at::kDouble && real(curve.x) && ++of_entry <= kSums)
            sums += check_sums(curve, op, of_entry == 1);
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
  std::printf("%d samples, %d refused by both, %d with sums; operators that grow", samples, refused, sums);
  for (const auto& [how, names] : operators) std::printf("\n  %s: %zu", how.c_str(), names.size());
  std::printf("\n");
}

}  // namespace
