// Operators whose results have another shape for other values of their arguments: a graph cannot have them. The oracle
// is the operator itself, called with the samples of the operator database and other values.
#include <ATen/ops/_pack_padded_sequence.h>
#include <tower/compile.h>

#include <cstdlib>

#include "op_db/op_db.h"
#include "support/prelude.h"

namespace {

std::vector<std::vector<int64_t>> shapes_of(const Tensors& tensors) {
  std::vector<std::vector<int64_t>> shapes;
  for (const Tensor& t : tensors) shapes.push_back(t.defined() ? t.sizes().vec() : std::vector<int64_t>{-1});
  return shapes;
}

// Other values of the same shapes and dtypes.
std::vector<Tensors> others(const op_db::Entry& entry, const op_db::Sample& sample) {
  std::vector<Tensors> all;
  for (const int seed : {1, 2}) all.push_back(op_db::make_leaves(entry, sample, at::kDouble, seed));
  for (const double value : {0., 1.}) {
    Tensors alike;
    for (const Tensor& t : all[0]) alike.push_back(t.scalar_type() == at::kLong ? t : at::full_like(t, value));
    all.push_back(std::move(alike));
  }
  return all;
}

TEST(ShapesByValues, AreThoseThatDifferWithTheValuesOfASample) {
  const char* folder = std::getenv("TOWER_OP_DB");
  size_t samples = 0, by_values = 0;
  for (const op_db::Entry& entry : op_db::load(folder ? folder : TOWER_OP_DB_DIR)) {
    if (!entry.op || !entry.real || entry.has("no_samples") || entry.op->schema().is_mutable()) continue;
    for (const std::string& text : entry.sample_texts) {
      const op_db::Sample sample = op_db::parse_sample(entry, text, at::kDouble);
      if (sample.bad || sample.leaves.empty()) continue;
      const Function f = [&](const Tensors& leaves) { return op_db::call(*entry.op, sample, leaves); };
      const Tensors leaves = op_db::make_leaves(entry, sample, at::kDouble, 0);
      std::vector<std::vector<int64_t>> shapes;
      try {
        shapes = shapes_of(f(leaves));
      } catch (const std::exception&) {
        continue;
      }
      ++samples;
      bool differ = false;
      for (const Tensors& values : others(entry, sample)) {
        try {
          differ = differ || shapes_of(f(values)) != shapes;
        } catch (const std::exception&) {
        }
      }
      // That has a result which the derivative alone reads.
      if (!differ || entry.name == "_ctc_loss" || entry.name == "_ctc_loss.Tensor") continue;
      ++by_values;
      EXPECT_FALSE(refusal<tower::UnsupportedError>([&] { td::compile(f)(leaves); }).empty()) << entry.name << text;
    }
  }
  EXPECT_GT(samples, 2000u);
  EXPECT_GT(by_values, 10u);
}

std::string refused(const Function& f, const Tensors& in) {
  return refusal<tower::UnsupportedError>([&] { td::compile(f)(in); });
}

TEST(ShapesByValues, WithoutLibTorchsTagAreRefused) {
  const Tensor x = waves({3, 2, 2}), lengths = at::tensor({2, 1}, at::kLong);
  const auto packed = [](const Tensors& in) {
    auto [data, sizes] = at::_pack_padded_sequence(in[0], in[1], false);
    return Tensors{data, sizes};
  };
  EXPECT_TRUE(says(refused(packed, {x, lengths}), {"aten::_pack_padded_sequence", "shape depends on values"}));
  const auto ragged = [](const Tensors& in) { return Tensors{at::_padded_dense_to_jagged_forward(in[0], {in[1]})}; };
  EXPECT_TRUE(says(refused(ragged, {x, at::tensor({0, 2, 3, 4}, at::kLong)}),
                   {"aten::_padded_dense_to_jagged_forward", "shape depends on values"}));
}

// A function whose result has one shape whatever the values, though LibTorch's tag is on its operator.
void expect_compiled(const Function& f, const std::vector<Tensors>& calls) {
  const Function compiled = td::compile(f);
  for (const Tensors& in : calls)
    for (int i = 0; i < 2; ++i) EXPECT_EQ(support::difference(compiled(in), f(in), {1e-12, 1e-12}), "");
}

TEST(ShapesByValues, ThatTheArgumentsSettleAreCompiled) {
  const Tensor x = waves({4, 3});
  expect_compiled(
      [](const Tensors& in) { return Tensors{at::repeat_interleave(in[0], std::optional<int64_t>(6)) * 2}; },
      {{at::tensor({1, 2, 3}, at::kLong)}, {at::tensor({6, 0, 0}, at::kLong)}});
  expect_compiled([](const Tensors& in) { return Tensors{in[0].index({in[1]}) * 2}; },
                  {{x, at::tensor({0, 2}, at::kLong)}, {x, at::tensor({3, 3}, at::kLong)}});
  expect_compiled([](const Tensors& in) { return Tensors{at::one_hot(in[0], 5) * 2}; },
                  {{at::tensor({1, 2, 3}, at::kLong)}, {at::tensor({4, 0, 0}, at::kLong)}});
  const auto solution = [](const Tensors& in) {
    auto [solved, residuals, rank, values] = at::linalg_lstsq(in[0], in[1]);
    return Tensors{solved * 2, residuals};
  };
  expect_compiled(solution, {{x, waves({4, 2}, 0.7)}, {waves({4, 3}, 1.1), waves({4, 2})}});
  const auto by_rank = [](const Tensors& in) {
    return Tensors{std::get<1>(at::linalg_lstsq(in[0], in[1], {}, "gelsd"))};
  };
  EXPECT_TRUE(says(refused(by_rank, {x, waves({4, 2})}), {"aten::linalg_lstsq", "shape depends on values"}));
}

}  // namespace
