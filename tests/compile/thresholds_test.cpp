// On both sides of each threshold of speed, whatever the sizes, results are those of the operators.
#include "numbers/thresholds.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <limits>

#include "compile/kernels.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using td::Function;
using td::Tensors;
using tower::compiler::OtherThresholds;
using tower::compiler::Thresholds;
using T = Thresholds;

constexpr int64_t kAll = int64_t{1} << 40;

struct Number {
  const char* name;
  int64_t T::*number;
};
#define NUMBER(name) \
  Number { #name, &T::name }

void expect_the_same_with(const Thresholds& numbers, const Function& f, const Tensors& in) {
  const Tensors expected = f(in);
  const OtherThresholds others(numbers);
  const Function compiled = td::compile(f);
  for (int call = 0; call < 2; ++call) {
    const Tensors results = compiled(in);
    ASSERT_EQ(results.size(), expected.size());
    for (size_t k = 0; k < results.size(); ++k)
      EXPECT_TRUE(at::allclose(results[k], expected[k], 1e-9, 1e-9)) << "result " << k;
  }
}

void expect_the_same(const std::vector<Number>& numbers, const Function& f, const Tensors& in,
                     const Thresholds& around = {}) {
  for (const auto& [name, number] : numbers)
    for (const int64_t value : {int64_t{1}, kAll}) {
      SCOPED_TRACE(std::string(name) + " = " + std::to_string(value));
      Thresholds others = around;
      others.*number = value;
      expect_the_same_with(others, f, in);
    }
}

Tensor some(at::IntArrayRef sizes) {
  const int64_t n = c10::multiply_integers(sizes);
  return at::sin(at::arange(n, at::kDouble) * 0.7 + 0.1).view(sizes);
}

// Sums over rows and over columns, softmax both ways, what has one number for each row, in rows that are short and
// long.
Tensors of_rows(const Tensors& in) {
  const Tensor &x = in[0], &y = in[1];
  Tensor s = (x * x).sum(1, true);
  for (int i = 0; i < 6; ++i) s = s * 0.9 + at::tanh(s);
  return {x * y + s, (x * x).sum(0), at::softmax(x * y, 1), at::softmax(x * x, 0)};
}

TEST(Thresholds, OfRowsDecideOnlyWhoComputesThem) {
  TOWER_NEEDS_LLVM();
  const std::vector<Number> numbers{
      NUMBER(shortest_row),           NUMBER(most_added),      NUMBER(shortest_of_many),    NUMBER(few_rows),
      NUMBER(few_elements),           NUMBER(most_of_row),     NUMBER(most_for_one_thread), NUMBER(most_calls),
      NUMBER(few_rows_for_any_depth), NUMBER(few_accesses),    NUMBER(most_together),       NUMBER(shortest_walked_row),
      NUMBER(longest_walked_row),     NUMBER(most_of_formulas)};
  for (const int64_t length : {7, 32, 80}) expect_the_same(numbers, of_rows, {some({70, length}), some({70, 1})});
}

TEST(Thresholds, OfExamplesDecideOnlyWhoComputesThem) {
  TOWER_NEEDS_LLVM();
  const Function f = td::vmap(
      [](const Tensors& in) -> Tensors {
        const Tensor &a = in[0], &b = in[1];
        return {at::linalg_solve(a, b), at::tanh(at::mv(a, b)), (b * b).sum(0),
                (a.unsqueeze(2) * a.unsqueeze(0)).sum(1)};
      },
      {0, 0}, {0, 0, 0, 0});
  const Tensors in{some({200, 6, 6}) + 7 * at::eye(6, at::kDouble), some({200, 6})};
  const std::vector<Number> numbers{NUMBER(most_of_lane),    NUMBER(most_of_call), NUMBER(of_move),
                                    NUMBER(of_function),     NUMBER(fewest_terms), NUMBER(few_of_example),
                                    NUMBER(most_operations), NUMBER(few_accesses), NUMBER(most_written_out)};
  expect_the_same(numbers, f, in);
  Thresholds in_lanes;
  in_lanes.most_of_lane = in_lanes.most_of_call = in_lanes.few_of_example = kAll;
  expect_the_same(numbers, f, in, in_lanes);
}

TEST(Thresholds, OfOneExampleDecideOnlyWhoComputesIt) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) -> Tensors {
    return {at::avg_pool2d(in[0], {2, 2}) * 2, at::mm(in[0][0], in[0][0]).flip(0) + 1};
  };
  expect_the_same({NUMBER(most_of_one_lane), NUMBER(most_of_lone_call), NUMBER(most_operations)}, f, {some({1, 6, 6})});
}

TEST(Thresholds, OfALoopOfOneExampleDecideOnlyWhoMakesItsSteps) {
  TOWER_NEEDS_LLVM();
  for (const int64_t n : {5, 150}) {  // the larger one in tiles, where it is in no kernel
    const Function loop = [](const Tensors& in) {
      return td::fori_loop(0, 9, [&](int64_t, const Tensors& x) -> Tensors { return {at::tanh(x[0]) * in[1]}; },
                           {in[0]});
    };
    const Function gradient = td::grad([=](const Tensors& in) -> Tensors { return {loop(in)[0].sum()}; }, {0, 1});
    for (const Function& f : {loop, gradient}) expect_the_same({NUMBER(most_of_lone_loop)}, f, {some({n}), some({n})});
  }
}

TEST(Thresholds, OfDirectionsDecideOnlyWhichLanesThereAre) {
  TOWER_NEEDS_LLVM();
  const Function each =
      td::vmap([](const Tensors& in) -> Tensors { return {at::tanh(in[0]) * in[0].square().sum()}; }, {0}, {0});
  const Function f = [each](const Tensors& in) {
    return td::vmap(td::linearize(each, {in[0]}).second, {0}, {0})({in[1]});
  };
  expect_the_same({NUMBER(most_directions), NUMBER(most_of_lane), NUMBER(most_operations)}, f,
                  {some({300, 4}), some({5, 300, 4})});
}

TEST(Thresholds, OfSumsOverExamplesDecideOnlyWhoAddsUp) {
  TOWER_NEEDS_LLVM();
  const Function each = td::vmap(
      [](const Tensors& in) -> Tensors {
        return {at::tanh(at::mv(in[0], in[1])), in[1].square().sum()};
      },
      {0, 0}, {0, 0});
  const Function f = [each](const Tensors& in) -> Tensors {
    const Tensors of_each = each(in);
    return {of_each[0].sum(0), of_each[1].sum()};
  };
  expect_the_same({NUMBER(fewest_summed)}, f, {some({300, 6, 6}), some({300, 6})});
}

TEST(Thresholds, OfKernelsDecideOnlyHowTheyRun) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) -> Tensors { return {at::tanh(in[0] * 2) + at::exp(in[0])}; };
  expect_the_same({NUMBER(grain_of_kernel), NUMBER(most_together), NUMBER(most_of_formulas)}, f, {some({1003})});
  for (const int64_t together : {1, 2, 8}) {
    Thresholds others;
    others.together = together;
    expect_the_same_with(others, f, {some({1003})});
    expect_the_same_with(others, of_rows, {some({70, 80}), some({70, 1})});
  }
}

TEST(Thresholds, OfFormulasDecideOnlyWhereTheyStand) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) -> Tensors {
    const Tensor &x = in[0], &y = in[1];
    return {at::exp(x),           at::exp2(x),     at::expm1(x),    at::log(x),
            at::log2(x),          at::log10(x),    at::log1p(x),    at::sin(x),
            at::asin(x),          at::acos(x),     at::atan(x),     at::sinh(x),
            at::cosh(x),          at::tanh(x),     at::asinh(x),    at::acosh(x),
            at::atanh(x),         at::erf(x),      at::erfc(x),     at::lgamma(x),
            at::pow(x, y),        at::atan2(x, y), at::hypot(x, y), at::fmod(x, y),
            at::softplus(x),      at::gelu(x),     at::silu(x),     at::softmax(at::exp(x), 1),
            at::log_softmax(x, 1)};
  };
  Tensor special = at::tensor({0.0, -0.0, 1.0, -1.0, 1e-30, 87.0, -745.0, 1e4, 1e300}, at::kDouble);
  special = at::cat({special, at::full({1}, std::numeric_limits<double>::infinity(), at::kDouble),
                     at::full({1}, std::numeric_limits<double>::quiet_NaN(), at::kDouble)});
  const Tensor all = at::cat({some({169}) * 3, special});
  // In place of NaN, whose sign is the machine's affair, zeros.
  const auto bits = [&](int64_t most, const Tensors& in) {
    Thresholds numbers;
    numbers.most_of_formulas = most;
    const OtherThresholds others(numbers);
    const Function compiled = td::compile(f);
    compiled(in);
    Tensors results = compiled(in);
    for (Tensor& t : results) {
      const at::ScalarType as = t.scalar_type() == at::kDouble  ? at::kLong
                                : t.scalar_type() == at::kFloat ? at::kInt
                                                                : at::kShort;
      t = at::stack({t.isnan().to(as), at::where(t.isnan(), 0, t).view(as)});
    }
    return results;
  };
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf}) {
    const Tensors in{all.to(dtype).view({2, 90}), all.roll(7).to(dtype).view({2, 90})};
    const Tensors called = bits(1, in), written_out = bits(kAll, in);
    for (size_t k = 0; k < called.size(); ++k) EXPECT_TRUE(at::equal(called[k], written_out[k])) << k << " " << dtype;
  }
}

TEST(Thresholds, OfProductsDecideOnlyWhoComputesThem) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) -> Tensors {
    return {at::mm(in[0], in[1]), at::mv(in[0], in[1].select(1, 0)), at::addmm(in[2], in[0], in[1])};
  };
  const Tensors in{some({37, 41}), some({41, 35}), some({37, 35})};
  const std::vector<Number> numbers{NUMBER(most_of_vector),   NUMBER(few_columns),        NUMBER(few_of_sum),
                                    NUMBER(most_of_panel),    NUMBER(most_of_square),     NUMBER(most_of_product),
                                    NUMBER(grain_of_product), NUMBER(fewest_wide_vectors)};
  expect_the_same(numbers, f, in);
  Thresholds large;
  large.few_columns = large.few_of_sum = large.most_of_panel = large.most_of_square = large.most_of_product = 0;
  expect_the_same(numbers, f, in, large);
}

TEST(Thresholds, OfOperatorsDecideOnlyHowTheyAreComputed) {
  const Tensor x = some({300, 3}), images = some({4, 2, 10, 6, 6});
  const Tensor sums = x.sum(1), pooled = at::max_pool2d(images.flatten(0, 1), {2, 2}).view({4, 2, 10, 3, 3});
  const Function sum = td::vmap([](const Tensors& in) { return Tensors{in[0].sum(0)}; }, {0}, {0});
  const Function pool = td::vmap([](const Tensors& in) { return Tensors{at::max_pool2d(in[0], {2, 2})}; }, {0}, {0});
  for (const auto& [name, number] : {NUMBER(longest_short_row), NUMBER(fewest_short_rows), NUMBER(fewest_channels)})
    for (const int64_t value : {int64_t{0}, kAll}) {
      SCOPED_TRACE(std::string(name) + " = " + std::to_string(value));
      Thresholds others;
      others.*number = value;
      const OtherThresholds in_use(others);
      EXPECT_TRUE(at::allclose(sum({x})[0], sums, 1e-12, 1e-12));
      EXPECT_TRUE(at::equal(pool({images})[0], pooled));
    }
}

}  // namespace
