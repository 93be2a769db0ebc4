// Named axes in one process: the collectives against plain code over the batch dimension, under transforms around and
// inside.
#include <map>

#include "mesh/programs.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using mesh_programs::Program;

TEST(NamedAxes, AreWhatPlainCodeOverTheBatchDimensionIsUnderEveryNesting) {
  int64_t compared = 0;
  for (const Program& program : mesh_programs::programs())
    for (const std::string& outside : mesh_programs::nestings(2))
      for (const std::string& inside : mesh_programs::nestings(2)) {
        if (outside.size() + inside.size() > 3) continue;
        const auto actual = mesh_programs::run(program, outside, inside, {}, {.axis = "data"});
        const auto expected = mesh_programs::run(program, outside, inside, {}, {}, /*by_batch=*/true);
        ASSERT_EQ(actual.values.size(), expected.values.size());
        for (size_t k = 0; k < actual.values.size(); ++k, ++compared)
          EXPECT_TRUE(same(actual.values[k], expected.values[k]))
              << program.name << ", outside " << outside << ", inside " << inside << ", result " << k;
      }
  EXPECT_GT(compared, 1000);
}

TEST(NamedAxes, AreWhatPlainCodeIsUnderThreeTransformsAround) {
  for (const Program& program : mesh_programs::programs())
    for (const std::string& outside : mesh_programs::nestings(3)) {
      if (outside.size() != 3) continue;
      const auto actual = mesh_programs::run(program, outside, "", {}, {.axis = "data"});
      const auto expected = mesh_programs::run(program, outside, "", {}, {}, /*by_batch=*/true);
      for (size_t k = 0; k < actual.values.size(); ++k)
        EXPECT_TRUE(same(actual.values[k], expected.values[k])) << program.name << ", " << outside << ", result " << k;
    }
}

TEST(NamedAxes, NestAndAreFoundFromInside) {
  const Tensor x = waves({3, 4, 2});
  const auto f = [](const Tensor& e) {
    return tower::psum(e.sin(), "outer") + tower::psum(e * e, "inner") + tower::psum(tower::psum(e, "inner"), "outer") +
           tower::axis_index("outer") * 10 + tower::axis_index("inner");
  };
  const Tensor actual = tower::vmap(tower::vmap(f, {.axis = "inner"}), {.axis = "outer"})(x);
  const Tensor expected = x.sin().sum(0, true) + (x * x).sum(1, true) + x.sum(at::IntArrayRef{0, 1}, true) +
                          at::arange(3).view({3, 1, 1}) * 10 + at::arange(4).view({1, 4, 1});
  EXPECT_TRUE(same(actual, expected));
  const auto shadowed = [](const Tensor& e) { return tower::psum(e, "same"); };
  EXPECT_TRUE(same(tower::vmap(tower::vmap(shadowed, {.axis = "same"}), {.axis = "same"})(x),
                   x.sum(1, true).expand({3, 4, 2})));
}

TEST(NamedAxes, AreSeenThroughAVmapWithoutAName) {
  const Tensor x = waves({3, 4, 2}), total = x.sin().sum(0, true) * x;
  const auto f = [](const Tensor& e) { return tower::psum(e.sin(), "batch") * e; };
  EXPECT_TRUE(same(tower::vmap(tower::vmap(f), {.axis = "batch"})(x), total));
  const Tensor other = x.transpose(0, 1);
  EXPECT_TRUE(same(tower::vmap(tower::vmap(f, {.axis = "batch"}))(other.contiguous()), total.transpose(0, 1)));
}

TEST(NamedAxes, SumsOfAllExamplesMayHaveNoOutDim) {
  const Tensor x = waves({4, 3});
  const auto f = [](const Tensor& e) { return tower::psum(e, "batch"); };
  EXPECT_TRUE(same(tower::vmap(f, {.out_dims = std::nullopt, .axis = "batch"})(x), x.sum(0)));
}

TEST(NamedAxes, TakeTreesOfSeveralTypes) {
  const Tensor x = waves({4, 3}), y = at::arange(4);
  const auto f = [](const Tensor& e, const Tensor& i) {
    return tower::psum(std::map<std::string, Tensor>{{"e", e}, {"i", i}, {"c", at::complex(e, e)}}, "batch");
  };
  const auto sums = tower::vmap(f, {.out_dims = std::nullopt, .axis = "batch"})(x, y);
  EXPECT_TRUE(same(sums.at("e"), x.sum(0)));
  EXPECT_TRUE(same(sums.at("i"), y.sum()));
  EXPECT_TRUE(same(sums.at("c"), at::complex(x, x).sum(0)));
}

TEST(NamedAxes, ShareADerivativeAmongTheLargestEvenly) {
  const Tensor x = vec({1, 3, 3, 2});
  const auto largest = [&](const Tensor& all) {
    return tower::vmap([](const Tensor& e) { return tower::pmax(e, "batch"); },
                       {.out_dims = std::nullopt, .axis = "batch"})(all);
  };
  EXPECT_TRUE(same(tower::grad(largest)(x), vec({0, 0.5, 0.5, 0})));
}

// The transpose of psum is psum: a gradient taken inside counts what the example did to every example's loss.
TEST(NamedAxes, CountEveryExamplesLossInAGradientTakenInside) {
  const Tensor x = waves({4});
  const auto own = [](const Tensor& e) { return tower::grad([](const Tensor& z) { return z.square(); })(e); };
  const auto all = [](const Tensor& e) {
    return tower::grad([](const Tensor& z) { return tower::psum(z.square(), "batch"); })(e);
  };
  EXPECT_TRUE(same(tower::vmap(own, {.axis = "batch"})(x), 2 * x));
  EXPECT_TRUE(same(tower::vmap(all, {.axis = "batch"})(x), 4 * 2 * x));
}

TEST(NamedAxes, WorkInCompiledFunctions) {
  const auto mapped = [](const Tensor& x) {
    return tower::vmap([](const Tensor& e) { return (tower::psum(e.sin(), "batch") * e).cos(); }, {.axis = "batch"})(x);
  };
  const auto compiled = tower::compile(mapped);
  for (const double phase : {0.1, 0.5}) {
    const Tensor x = waves({4, 3}, phase);
    EXPECT_TRUE(same(compiled(x), mapped(x)));
  }
  const auto loss = [](auto f) { return [f](const Tensor& x) { return f(x).sum(); }; };
  const Tensor x = waves({4, 3});
  EXPECT_TRUE(same(tower::grad(loss(compiled))(x), tower::grad(loss(mapped))(x)));
}

// A kept graph would speak of the vmap that it was traced in.
TEST(NamedAxes, AreRefusedInFunctionsThatAreCompiledInside) {
  const auto f = [](const Tensor& e) { return tower::psum(e.sin(), "batch") * e; };
  const auto size = [](const Tensor& e) { return e * tower::axis_size("batch"); };
  const auto refused = [](auto g) {
    return message_of<tower::UnsupportedError>([&] {
      tower::vmap(tower::compile(g), {.axis = "batch"})(waves({4, 3}));
    });
  };
  EXPECT_TRUE(contains(refused(f), "psum speaks of axis 'batch' in a function that is compiled inside")) << refused(f);
  EXPECT_TRUE(contains(refused(size), "axis_size speaks of axis 'batch'")) << refused(size);
  support::expect_intact();
}

TEST(NamedAxes, LetLibTorchsAutogradThrough) {
  const Tensor x = waves({4, 3}).requires_grad_(), y = waves({4, 3}).requires_grad_();
  tower::vmap([](const Tensor& e) { return tower::psum(e.sin(), "batch") * e; }, {.axis = "batch"})(x).sum().backward();
  (y.sin().sum(0, true) * y).sum().backward();
  EXPECT_TRUE(same(x.grad(), y.grad()));
}

// ---- errors --------------------------------------------------------------------------------------------------------

TEST(NamedAxes, ThatAreNotThereAreNamedWithThoseThatAre) {
  const Tensor x = waves({3});
  const auto f = [](const Tensor& e) { return tower::psum(e, "model"); };
  const std::string outside = message_of<tower::ArgumentError>([&] { f(x); });
  EXPECT_TRUE(contains(outside, "psum: there is no axis 'model' here; no vmap that is running has a named axis"))
      << outside;
  const std::string other = message_of<tower::ArgumentError>([&] { tower::vmap(f, {.axis = "data"})(x); });
  EXPECT_TRUE(contains(other, "psum: there is no axis 'model' here; the axes of running vmaps are 'data'.")) << other;
  support::expect_intact();
}

TEST(NamedAxes, RefuseChunks) {
  const std::string text = message_of<tower::ArgumentError>(
      [] { tower::vmap([](const Tensor& e) { return e; }, {.chunk_size = 2, .axis = "data"})(waves({3})); });
  EXPECT_TRUE(contains(text, "vmap: axis 'data' is to be mapped in chunks")) << text;
}

TEST(NamedAxes, SayWhatAnOperandMustBe) {
  const auto refused = [](auto f) {
    return message_of<tower::ArgumentError>([&] { tower::vmap(f, {.axis = "data"})(waves({3, 2})); });
  };
  const std::string scatter = refused([](const Tensor& e) { return tower::psum_scatter(e, "data"); });
  EXPECT_TRUE(contains(scatter,
                       "psum_scatter: dimension 0 of Double [2] is divided among the examples of axis 'data', "
                       "of which there are 3"))
      << scatter;
  const std::string outside = refused([](const Tensor& e) { return tower::ppermute(e, "data", {{0, 3}}); });
  EXPECT_TRUE(contains(outside, "ppermute: there is no example 3 of axis 'data', which has 3")) << outside;
  const std::string twice = refused([](const Tensor& e) { return tower::ppermute(e, "data", {{0, 1}, {2, 1}}); });
  EXPECT_TRUE(contains(twice, "ppermute: example 1 is the target of two pairs")) << twice;
  const std::string dim = refused([](const Tensor& e) { return tower::all_gather(e, "data", 2); });
  EXPECT_TRUE(contains(dim, "all_gather: dim is 2, but there are 2 dimensions")) << dim;
  support::expect_intact();
}

TEST(NamedAxes, RefuseToBeUsedAfterTheirVmap) {
  std::function<Tensor(const Tensor&)> kept;
  tower::vmap(
      [&](const Tensor& e) {
        auto pullback = tower::vjp([](const Tensor& z) { return tower::psum(z.sin(), "data"); }, e).second;
        kept = [pullback](const Tensor& ct) { return pullback(ct); };
        return e;
      },
      {.axis = "data"})(waves({3}));
  EXPECT_THROW(kept(number(1)), tower::EscapedTensorError);
  kept = nullptr;
  support::expect_intact();
}

}  // namespace
