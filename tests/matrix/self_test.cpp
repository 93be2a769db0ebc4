// The matrix must be able to fail: functions whose transforms are wrong on purpose, and text that is not a database.
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "matrix/matrix.h"
#include "support/oracles.h"

namespace {

using matrix::Case;
using matrix::Problem;
using support::Tensors;

// Some entry, sample and report for checks that are given a function of their own.
struct Bench {
  op_db::Entry entry;
  op_db::Sample sample;
  matrix::Report report{entry};

  Bench() {
    entry.name = "sin";
    entry.op = c10::Dispatcher::singleton().findSchema({"aten::sin", ""});
    sample = op_db::parse_sample(entry, "T{2,3}", at::kDouble);
  }
  Case in_double() { return {entry, sample, at::kDouble, report}; }
  Problem problem(tower::dynamic::Function f) {
    Problem result = matrix::problem_of(in_double());
    result.f = std::move(f);
    return result;
  }
};

TEST(matrix_self, a_right_operator_passes_every_pair) {
  Bench bench;
  for (const std::string outer : {"vmap", "vjp", "jvp"}) {
    for (const std::string inner : {"vmap", "vjp", "jvp"}) {
      matrix::check_nesting({outer, inner}, bench.in_double());
    }
  }
}

TEST(matrix_self, notices_examples_that_are_treated_differently) {
  static Bench bench;
  static int calls = 0;
  static const Problem counting = bench.problem([](const Tensors& x) { return Tensors{at::mul(x[0], ++calls)}; });
  EXPECT_NONFATAL_FAILURE(matrix::check_transform("vmap", counting, bench.in_double()), "vmap against a loop");
}

TEST(matrix_self, notices_a_derivative_that_is_too_small) {
  static Bench bench;
  static const Problem cut = bench.problem([](const Tensors& x) { return Tensors{at::mul(x[0], x[0].detach())}; });
  EXPECT_NONFATAL_FAILURE(matrix::check_transform("jvp", cut, bench.in_double()), "jvp against finite differences");
}

TEST(matrix_self, a_declared_refusal_that_does_not_happen_is_a_failure) {
  static Bench bench;
  bench.entry.notes["refuses vmap"] = "because";
  EXPECT_NONFATAL_FAILURE(bench.report.run("vmap", [] {}), "did not end in a tower::Error");
}

TEST(oracles, finite_differences_of_a_product_are_accurate) {
  const Tensors x = support::random_like({at::zeros({4}, at::kDouble)}, 1);
  const Tensors v = support::random_like(x, 2);
  const auto cube = [](const Tensors& t) { return Tensors{t[0].pow(3)}; };
  const Tensors expected = {x[0].square().mul(3).mul(v[0])};
  EXPECT_EQ(support::difference(support::directional_derivative(cube, x, v), expected, {1e-9, 1e-9}), "");
}

TEST(oracles, difference_tells_dtype_shape_and_value_apart) {
  const at::Tensor x = at::ones({2}, at::kDouble);
  EXPECT_EQ(support::difference(x, x.clone(), {0, 0}), "");
  EXPECT_NE(support::difference(x, x.to(at::kFloat), {1, 1}), "");
  EXPECT_NE(support::difference(x, at::ones({2, 1}, at::kDouble), {1, 1}), "");
  EXPECT_NE(support::difference(x, x.mul(1.01), {1e-3, 1e-3}), "");
  EXPECT_EQ(support::difference(x.div(0).sub(x.div(0)), x.mul(std::nan("")), {0, 0}), "");
  EXPECT_NE(support::difference(x.mul(std::nan("")), x, {1, 1}), "");
}

// What load() says of a file with this text.
std::string complaint_about(const std::string& text) {
  const auto folder = std::filesystem::temp_directory_path() / "tower_op_db_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "probe.ops") << text;
  std::string complaint;
  try {
    for (const auto& entry : op_db::load(folder.string())) {
      for (const auto& sample : entry.sample_texts) op_db::parse_sample(entry, sample, at::kDouble);
    }
  } catch (const std::exception& error) {
    complaint = error.what();
  }
  std::filesystem::remove_all(folder);
  return complaint;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(op_db, says_what_it_does_not_understand_and_where) {
  EXPECT_EQ(complaint_about("sin [complex] | T{2,3} | T{}\n"), "");
  expect_contains(complaint_about("\nno_such_operator | T{2}\n"),
                  "probe.ops:2: LibTorch has no operator aten::no_such_operator");
  expect_contains(complaint_about("sin [fast] | T{2}\n"), "unknown flag 'fast'");
  expect_contains(complaint_about("sin\n  - refuses vmap\n"), "a note needs a reason");
  expect_contains(complaint_about("sin | T{2}:wobbly\n"), "unknown modifier 'wobbly'");
  expect_contains(complaint_about("select.int | T{2}\n"), "lacks argument dim");
}

TEST(op_db, examples_differ_and_are_reproducible) {
  Bench bench;
  const auto first = op_db::make_leaves(bench.entry, bench.sample, at::kDouble, 0);
  EXPECT_TRUE(first[0].equal(op_db::make_leaves(bench.entry, bench.sample, at::kDouble, 0)[0]));
  EXPECT_FALSE(first[0].equal(op_db::make_leaves(bench.entry, bench.sample, at::kDouble, 1)[0]));
}

TEST(op_db, batched_examples_keep_their_strides) {
  const auto spec = op_db::parse_tensor_spec("T{2,3}:t");
  const at::Tensor example = op_db::make_tensor(spec, at::kDouble, 1);
  ASSERT_FALSE(example.is_contiguous());
  const at::Tensor batch = op_db::batch_of({example, op_db::make_tensor(spec, at::kDouble, 2)}, 0);
  EXPECT_EQ(batch.select(0, 0).strides(), example.strides());
  EXPECT_TRUE(batch.select(0, 0).equal(example));
}

}  // namespace
