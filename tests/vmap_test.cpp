// vmap: batches of every size and layout, chunks, random numbers, and types.
#include <torch/library.h>

#include <cmath>

#include "support/prelude.h"
#include "support/warnings.h"

namespace {

using tower::Randomness;

TEST(BatchSizes, OfZeroGiveEmptyResultsOfTheRightShapeAndType) {
  const auto f = of_one([](const Tensor& x) { return at::mm(x, x.t()).to(at::kFloat); });
  EXPECT_TRUE(same(td::vmap(f, {0}, {1})({at::zeros({0, 2, 3}, at::kDouble)})[0], at::zeros({2, 0, 2}, at::kFloat)));
  const auto loss = of_one([](const Tensor& x) { return (x * x).sum(); });
  EXPECT_TRUE(same(td::vmap(td::grad(loss, {0}), {0}, {0})({at::zeros({0, 3}, at::kDouble)})[0],
                   at::zeros({0, 3}, at::kDouble)));
  EXPECT_TRUE(same(td::vmap(loss, {0}, {0}, {.chunk_size = 2})({at::zeros({0, 3}, at::kDouble)})[0],
                   at::zeros({0}, at::kDouble)));
}

TEST(BatchSizes, OfOneDoNotBroadcastByAccident) {
  const auto f = of_one([](const Tensor& x) { return x + numbers({4, 3}); });
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({numbers({1, 4, 3})})[0], 2 * numbers({1, 4, 3})));
  const auto wrong = of_one([](const Tensor& x) { return at::mv(numbers({4, 3}), x); });
  EXPECT_THROW(td::vmap(wrong, {0}, {0})({numbers({1, 1})}), c10::Error);
  support::expect_intact();
}

TEST(Chunks, OfAnySizeGiveTheSameAsTheWholeBatch) {
  const auto f = [](const Tensors& in) { return Tensors{at::mv(in[0], in[1]).sin(), in[1].sum()}; };
  const Tensor a = numbers({2, 7, 3}) / 10, w = vec({1, -1, 2});
  const Tensors whole = td::vmap(f, {1, std::nullopt}, {1, std::nullopt})({a, w});
  for (const int64_t chunk : {1, 2, 3, 7, 100}) {
    const Tensors parts = td::vmap(f, {1, std::nullopt}, {1, std::nullopt}, {.chunk_size = chunk})({a, w});
    EXPECT_TRUE(same(parts[0], whole[0])) << chunk;
    EXPECT_TRUE(same(parts[1], whole[1])) << chunk;
  }
}

TEST(Chunks, BoundHowManyExamplesRunAtOnce) {
  std::vector<int64_t> sizes;
  const auto f = of_one([&](const Tensor& x) {
    sizes.push_back(x.numel());
    return x;
  });
  td::vmap(f, {0}, {0}, {.chunk_size = 3})({numbers({8, 2})});
  EXPECT_EQ(sizes, (std::vector<int64_t>{2, 2, 2}));  // three runs, each of which sees one example's two numbers
}

TEST(Layouts, DoNotChangeAnything) {
  const Tensor images = numbers({5, 2, 3, 4, 4}) / 100, kernel = numbers({2, 3, 2, 2}) / 50;
  const auto f = of_one([&](const Tensor& x) { return at::conv2d(x, kernel).relu() - x.mean(); });
  const Tensor expected = looped(f, images);
  const Tensor channels_last = images.flatten(0, 1).contiguous(at::MemoryFormat::ChannelsLast).unflatten(0, {5, 2});
  ASSERT_FALSE(channels_last.is_contiguous());
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({images})[0], expected));
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({channels_last})[0], expected));
  EXPECT_TRUE(same(td::vmap(f, {2}, {0})({images.movedim(0, 2)})[0], expected));
  EXPECT_TRUE(same(td::vmap(f, {-1}, {0})({images.movedim(0, -1).contiguous()})[0], expected));
  EXPECT_TRUE(same(td::vmap(of_one([&](const Tensor& x) {
                              return at::conv2d(x.contiguous(at::MemoryFormat::ChannelsLast), kernel).relu() - x.mean();
                            }),
                            {0}, {0})({images})[0],
                   expected));
}

TEST(Layouts, WithTheBatchInTheMiddleAreThoseOfEachExample) {
  const Tensor x = numbers({3, 4, 5}).transpose(0, 2);  // strides are not in order, batch in the middle
  const auto f = of_one([](const Tensor& e) { return e.t().reshape({-1}).cumsum(0).slice(0, 1, 12, 3); });
  EXPECT_TRUE(same(td::vmap(f, {1}, {0})({x})[0], looped(f, x, 1)));
  // Strides are those of an example that is alone in memory, and as_strided takes them so.
  td::vmap(of_one([](const Tensor& e) {
             EXPECT_EQ(e.strides(), (std::vector<int64_t>{1, 5}));
             EXPECT_EQ(e.t().strides(), (std::vector<int64_t>{5, 1}));
             EXPECT_TRUE(e.t().is_contiguous());
             return e;
           }),
           {1}, {0})({x});
  const auto by_strides = of_one([](const Tensor& e) { return e.as_strided(e.sizes(), e.strides()); });
  for (int64_t dim : {0, 1, 2}) EXPECT_TRUE(same(td::vmap(by_strides, {dim}, {0})({x})[0], x.movedim(dim, 0)));
  const auto columns = of_one([](const Tensor& e) { return e.as_strided({2}, {e.stride(1)}); });
  for (int64_t dim : {0, 1, 2})
    EXPECT_TRUE(same(td::vmap(columns, {dim}, {0})({x})[0], x.movedim(dim, 0).select(1, 0).slice(1, 0, 2)));
}

TEST(InDims, DifferPerArgumentAndAreCountedFromTheEnd) {
  const auto f = [](const Tensors& in) { return Tensors{at::mm(in[0], in[1]) + in[2]}; };
  const Tensor a = numbers({2, 3, 5}), b = numbers({3, 5, 2}), c = numbers({5});
  Tensors expected;
  for (int64_t i = 0; i < 5; ++i) expected.push_back(at::mm(a.select(2, i), b.select(1, i)) + c[i]);
  EXPECT_TRUE(same(td::vmap(f, {-1, 1, 0}, {-1})({a, b, c})[0], at::stack(expected, -1)));
}

// Type promotion goes by the rank that an example has.

TEST(TypePromotion, GoesByTheRankOfAnExample) {
  const Tensor floats = at::ones({3}, at::kFloat), doubles = at::ones({3, 2}, at::kDouble), longs = at::arange(3);
  const auto type = [](auto f, const Tensors& x, const Dims& dims) {
    return td::vmap(f, dims, {0})(x)[0].scalar_type();
  };
  const auto add = [](const Tensors& in) { return Tensors{in[0] + in[1]}; };
  // A double scalar for each example does not widen a float vector.
  EXPECT_EQ(type(add, {vec({1, 2, 3}), at::ones({3, 2}, at::kFloat)}, {0, 0}), at::kFloat);
  EXPECT_EQ(type(add, {vec({1, 2, 3}), at::ones({2}, at::kFloat)}, {0, std::nullopt}), at::kFloat);
  EXPECT_EQ(type(add, {at::ones({}, at::kDouble), floats}, {std::nullopt, 0}), at::kDouble);  // two scalars: the wider
  EXPECT_EQ(type(add, {doubles, floats}, {0, 0}), at::kDouble);
  // Integers and numbers of C++.
  EXPECT_EQ(type(of_one([](const Tensor& x) { return x + 1.5; }), {longs}, {0}), at::kFloat);
  EXPECT_EQ(type(of_one([](const Tensor& x) { return x * 2; }), {longs.to(at::kInt)}, {0}), at::kInt);
  EXPECT_EQ(type(of_one([](const Tensor& x) { return x + at::ones({2}, at::kInt); }), {longs}, {0}), at::kInt);
  EXPECT_EQ(type(of_one([](const Tensor& x) { return at::where(x > 0, x, 0.5); }), {floats}, {0}), at::kFloat);
}

TEST(TypePromotion, LeavesTangentsAndGradientsInThePrimalsType) {
  const auto f = [](const Tensors& in) { return Tensors{(in[0] * in[1]).sum()}; };
  const Tensors x{vec({1, 2, 3}), at::ones({3, 2}, at::kFloat)};
  const Tensors g = td::vmap(td::grad(f, {0, 1}), {0, 0}, {0})(x);
  EXPECT_TRUE(same(g[0], vec({2, 2, 2})));
  EXPECT_TRUE(same(g[1], vec({1, 2, 3}).to(at::kFloat).unsqueeze(1).expand({3, 2})));
  const auto [y, dy] =
      td::jvp([](const Tensors& in) { return Tensors{in[0] * in[1]}; },
              {at::ones({2}, at::kFloat), at::ones({2}, at::kDouble)}, {at::ones({2}, at::kFloat), Tensor()});
  EXPECT_EQ(y[0].scalar_type(), at::kDouble);
  EXPECT_EQ(dy[0].scalar_type(), at::kDouble);
}

// Random numbers.

Tensor draws(Randomness mode, const Function& f, const Tensor& x) {
  return td::vmap(f, {0}, {0}, {.randomness = mode})({x})[0];
}

TEST(RandomNumbers, AreDifferentOrTheSameBetweenExamplesAsAsked) {
  const std::vector<Function> functions = {
      of_one([](const Tensor& x) { return x * 0 + at::rand({4}, at::kDouble); }),
      of_one([](const Tensor& x) { return x * 0 + at::randn_like(x); }),
      of_one([](const Tensor& x) { return at::bernoulli(x * 0 + 0.5) + at::rand({4}, at::kDouble); }),
      of_one([](const Tensor& x) { return x * 0 + at::randperm(1000).slice(0, 0, 4); }),
      of_one([](const Tensor& x) { return at::zeros_like(x).uniform_() + x * 0; }),
      of_one([](const Tensor& x) { return at::empty({4}, at::kDouble).normal_() + x * 0; }),
      of_one([](const Tensor& x) { return at::normal(x * 0, 1.0); }),
  };
  for (size_t i = 0; i < functions.size(); ++i) {
    const Tensor different = draws(Randomness::different, functions[i], at::ones({3, 4}, at::kDouble));
    EXPECT_FALSE(at::equal(different[0], different[1])) << i;
    EXPECT_FALSE(at::equal(different[1], different[2])) << i;
    const Tensor shared = draws(Randomness::same, functions[i], at::ones({3, 4}, at::kDouble));
    EXPECT_TRUE(same(shared[1], shared[0])) << i;
    EXPECT_TRUE(same(shared[2], shared[0])) << i;
    EXPECT_FALSE(at::equal(shared[0], different[0])) << i;
  }
}

TEST(RandomNumbers, AreReproducedByASeed) {
  const auto f = of_one([](const Tensor& x) { return at::dropout(x, 0.5, true) + at::randn_like(x); });
  for (const Randomness mode : {Randomness::different, Randomness::same}) {
    at::manual_seed(7);
    const Tensor first = draws(mode, f, numbers({5, 6}));
    at::manual_seed(7);
    EXPECT_TRUE(same(draws(mode, f, numbers({5, 6})), first));
    at::manual_seed(8);
    EXPECT_FALSE(at::equal(draws(mode, f, numbers({5, 6})), first));
  }
}

TEST(RandomNumbers, HaveTheRightDistributionForEveryExample) {
  at::manual_seed(3);
  const Tensor p = vec({0.1, 0.5, 0.9});
  const auto f = of_one([](const Tensor& q) { return at::bernoulli(q.expand({20000})); });
  const Tensor hits = draws(Randomness::different, f, p).mean(1);
  // Five standard deviations of a mean of 20000: at most 5 · 0.5 / √20000 = 0.018.
  EXPECT_LT((hits - p).abs().max().item<double>(), 0.018);
  const Tensor z =
      draws(Randomness::different, of_one([](const Tensor& q) { return q + at::randn({20000}, at::kDouble); }), p);
  EXPECT_LT((z.mean(1) - p).abs().max().item<double>(), 5 / std::sqrt(20000.0));
  // Examples are independent: correlation of two rows.
  EXPECT_LT(std::abs(((z[0] - p[0]) * (z[1] - p[1])).mean().item<double>()), 5 / std::sqrt(20000.0));
}

TEST(RandomNumbers, OfADropoutAreTheSameForwardAndBackward) {
  at::manual_seed(5);
  const auto f = [](const Tensors& in) {
    const Tensor y = at::dropout(in[0], 0.5, true);
    return Tensors{y.sum(), y};
  };
  const Tensor x = numbers({200});
  const auto [y, pullback] = td::vjp(f, {x});
  const Tensor mask = y[1] / x;  // zero, or two
  EXPECT_TRUE(mask.eq(0).logical_or(mask.eq(2)).all().item<bool>());
  EXPECT_TRUE(mask.eq(0).any().item<bool>() && mask.eq(2).any().item<bool>());
  EXPECT_TRUE(same(pullback({at::ones({}, at::kDouble), Tensor()})[0], mask));
  const auto [both, grads] = [&] {
    const auto per_example = [&](const Tensors& in) {
      const auto [out, back] = td::vjp(f, in);
      return Tensors{out[1] / in[0], back({at::ones({}, at::kDouble), Tensor()})[0]};
    };
    const Tensors r = td::vmap(per_example, {0}, {0}, {.randomness = Randomness::different})({numbers({3, 50})});
    return std::pair(r[0], r[1]);
  }();
  EXPECT_TRUE(same(grads, both));
  EXPECT_FALSE(at::equal(both[0], both[1]));
}

TEST(RandomNumbers, OfNestedMapsFollowTheModeOfEachLevel) {
  const auto draw = of_one([](const Tensor& x) { return x * 0 + at::rand({}, at::kDouble); });
  const auto nested = [&](Randomness outer, Randomness inner) {
    return td::vmap(td::vmap(draw, {0}, {0}, {.randomness = inner}), {0}, {0},
                    {.randomness = outer})({numbers({3, 4})})[0];
  };
  const auto count = [](const Tensor& t) { return std::get<0>(at::_unique(t)).numel(); };
  EXPECT_EQ(count(nested(Randomness::different, Randomness::different)), 12);
  EXPECT_EQ(count(nested(Randomness::same, Randomness::same)), 1);
  const Tensor by_row = nested(Randomness::different, Randomness::same);
  EXPECT_EQ(count(by_row), 3);
  EXPECT_TRUE(same(by_row, by_row.select(1, 0).unsqueeze(1).expand({3, 4})));
  const Tensor by_column = nested(Randomness::same, Randomness::different);
  EXPECT_EQ(count(by_column), 4);
  EXPECT_TRUE(same(by_column, by_column[0].expand({3, 4})));
  EXPECT_THROW(nested(Randomness::error, Randomness::different), tower::RandomnessError);
  EXPECT_THROW(nested(Randomness::different, Randomness::error), tower::RandomnessError);
  support::expect_intact();
}

TEST(RepeatInterleave, WithAGivenSizeTakesRepeatsOfEachExample) {
  const auto f = [](const Tensors& in) { return Tensors{at::repeat_interleave(in[0], in[1], 0, 4)}; };
  const Tensor x = numbers({3, 3}), repeats = at::tensor({2, 0, 2, 1, 2, 1, 0, 4, 0}, at::kLong).view({3, 3});
  Tensors expected;
  for (int64_t b = 0; b < 3; ++b) expected.push_back(x[b].repeat_interleave(repeats[b], 0));
  EXPECT_TRUE(same(td::vmap(f, {0, 0}, {0})({x, repeats})[0], at::stack(expected)));
  EXPECT_TRUE(same(td::vmap(f, {0, 1}, {0})({x, repeats.t()})[0], at::stack(expected)));
  const auto each = td::vmap(td::vmap(f, {0, 0}, {0}), {0, 0}, {0});
  EXPECT_TRUE(same(each({at::stack({x, -x}), at::stack({repeats, repeats})})[0],
                   at::stack({at::stack(expected), -at::stack(expected)})));
  const auto sized =
      of_one([](const Tensor& repeats) { return at::repeat_interleave(repeats, std::optional<int64_t>(5)); });
  EXPECT_THROW(td::vmap(sized, {0}, {0})({repeats}), c10::Error) << "they add up to 4";
  EXPECT_THROW(td::vmap(sized, {0}, {0})({at::tensor({-1, 6}, at::kLong).view({1, 2})}), c10::Error);
  const auto open = of_one([](const Tensor& repeats) { return at::repeat_interleave(repeats); });
  EXPECT_TRUE(says(refusal<tower::UnsupportedError>([&] { td::vmap(open, {0}, {0})({repeats}); }),
                   {"vmap (level 1): aten::repeat_interleave", "Give output_size"}));
  support::expect_intact();
}

// An operator without any rule.

Tensor plus_one(const Tensor& x) {
  EXPECT_EQ(x.dim(), 1);  // it sees one example
  return x + 1;
}
TORCH_LIBRARY(tower_vmap_test, m) { m.def("plus_one(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(tower_vmap_test, CPU, m) { m.impl("plus_one", plus_one); }

TEST(TheLoop, ServesOperatorsWithoutARuleAndWarnsOnceByName) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tower_vmap_test::plus_one", "").typed<Tensor(const Tensor&)>();
  const auto f = of_one([](const Tensor& x) { return op.call(x * 2); });
  const support::Warnings warnings;
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({numbers({4, 3})})[0], 2 * numbers({4, 3}) + 1));
  EXPECT_TRUE(same(td::vmap(f, {1}, {1})({numbers({3, 4})})[0], 2 * numbers({3, 4}) + 1));
  EXPECT_TRUE(same(td::vmap(td::vmap(f, {0}, {0}), {0}, {0})({numbers({2, 4, 3})})[0], 2 * numbers({2, 4, 3}) + 1));
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({at::zeros({0, 3}, at::kDouble)})[0], at::zeros({0, 3}, at::kDouble)));
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_TRUE(says(warnings.texts[0], {"vmap (level 1): tower_vmap_test::plus_one", "once for each example"}));
}

}  // namespace
