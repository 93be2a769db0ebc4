// Branches, loops and modes of exported models. Those that are families of their own are in families_test.cpp.
#include <ATen/autocast_mode.h>

#include "compile/files.h"
#include "exported/models.h"
#include "exported/rewritten.h"
#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/exported.h"
#include "tower/tower.h"

namespace {

using exported_models::expected;
using exported_models::Exported;
using exported_models::file;
using exported_models::numbered;
using exported_models::with_graph_changed;

TEST_F(Exported, ABranchBySizesIsTakenForEachSize) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("by_size"));
  for (const int64_t n : {1, 3, 4, 9}) {
    const Tensor x = at::randn({n, 3});
    EXPECT_TRUE(same(model(x), n > 3 ? x.sin() : x.cos())) << n;
    EXPECT_TRUE(same(tower::vmap(model)(at::stack({x, x + 1})), at::stack({model(x), model(x + 1)}))) << n;
  }
}

TEST_F(Exported, ABranchOfPythonsIsOfTheSizesThatWentThatWay) {
  // The graph has the sine alone, which is that of sizes whose sum is even.
  const auto model = tower::load_exported<Tensor(Tensor, std::pair<Tensor, Tensor>)>(file("by_parity"));
  for (const auto& [n, m] : {std::pair(4, 6), std::pair(9, 3), std::pair(2, 8)}) {
    const Tensor x = at::randn({n, 3});
    EXPECT_TRUE(same(model(x, {x, at::zeros({m, 3})}), x.sin())) << n;
    EXPECT_TRUE(same(tower::vmap([&](const Tensor& x) {
                       return model(x, {x, at::zeros({m, 3})});
                     })(x.expand({2, n, 3})),
                     x.sin().expand({2, n, 3})));
  }
  const Tensor x = at::randn({5, 3});
  const auto text = message_of<tower::ArgumentError>([&] { model(x, {x, at::zeros({6, 3})}); });
  EXPECT_TRUE(contains(text, "it was exported for arguments where")) << text;
  EXPECT_TRUE(contains(text, "x.size()[0] % 2) == 0") || contains(text, "pair[1].size()[0]")) << text;
}

TEST_F(Exported, ABranchIsTakenByEachExampleForItself) {
  const auto model = td::load_exported(file("experts"));
  const Tensor x = at::randn({40, 3}, at::kDouble);
  Tensors one_by_one;
  for (const Tensor& example : x.unbind()) one_by_one.push_back(model({example})[0]);
  const Function batched = td::vmap(std::cref(model), {0}, {0});
  EXPECT_TRUE(same(batched({x})[0], at::stack(one_by_one)));
  const Function compiled = td::compile(batched);
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(same(compiled({x})[0], at::stack(one_by_one)));
}

TEST_F(Exported, ACheckpointHasTheDerivativesOfItsBody) {
  // The block without gradients, as the body of a checkpoint: -2/4 of the cotangents' sum comes back through its mean.
  const auto model = td::load_exported(with_graph_changed(
      "no_grad",
      {{"torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.tag_activation_checkpoint"},
       {R"({"name": "", "arg": {"as_bool": false}, "kind": 1}, )", ""}}));
  const auto all = expected("no_grad");
  const Tensor x = all.at("0.arg.0"), cotangent = all.at("0.cot.0");
  EXPECT_TRUE(same(model({x})[0], all.at("0.out.0")));
  const auto [out, pullback] = td::vjp(std::cref(model), {x});
  EXPECT_TRUE(same(pullback({cotangent})[0], all.at("0.grad.0") - 0.5 * cotangent.sum()));

  // Also of a compiled function, and of one that was saved: the body is a graph in its file.
  const auto gradient = [model](const Tensors& given) {
    return Tensors{td::vjp(std::cref(model), {given[0]}).second({given[1]})[0]};
  };
  const Function compiled = td::compile(td::vmap(gradient, {0, 0}, {0}));
  const Tensors both{at::stack({x, 2 * x}), at::stack({cotangent, cotangent})};
  const Tensor expected_of_both =
      at::stack({all.at("0.grad.0") - 0.5 * cotangent.sum(), gradient({2 * x, cotangent})[0]});
  EXPECT_TRUE(same(compiled(both)[0], expected_of_both));
  const support::Folder folder;
  td::save(compiled, folder / "f");
  EXPECT_TRUE(same(td::load(folder / "f")(both)[0], expected_of_both));
}

TEST_F(Exported, AnAssociativeScanIsTowers) {
  // The product of a row and a number of each column, as what joins two rows.
  const auto model = tower::load_exported<Tensor(Tensor, Tensor)>(
      with_graph_changed("products", {{"torch.ops.higher_order.map_impl", "torch.ops.higher_order.associative_scan"},
                                      {R"({"as_tensors": [{"name": "scale"}]})", R"({"as_tensors": []})"}}));
  const Tensor rows = at::randn({4, 3}), scale = at::ones({3});
  EXPECT_TRUE(same(model(rows, scale), rows.cumprod(0)));
  const auto loss = [&](const Tensor& x) { return model(x, scale).square().sum(); };
  EXPECT_TRUE(
      same(tower::grad(loss)(rows), tower::grad([](const Tensor& x) { return x.cumprod(0).square().sum(); })(rows)));
}

TEST_F(Exported, AutocastIsThatOfTheModel) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("autocast"));
  const auto all = expected("autocast");
  EXPECT_TRUE(at::equal(model(all.at("arg")), all.at("out")));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  // What the exporter asserts of dtypes is no call that a batch would be looped over for.
  const bool before = tower::set_fallback_is_error(true);
  EXPECT_EQ(tower::vmap(model)(all.at("arg").expand({2, 4, 3})).scalar_type(), at::kFloat);
  tower::set_fallback_is_error(before);
}

TEST_F(Exported, ListsOfResultsAreTakenApart) {
  using Model = std::tuple<Tensor, Tensor, Tensor>(Tensor);
  const auto model = tower::load_exported<Model>(file("lists"));
  const Tensor x = at::randn({4, 3});
  const auto [sum, largest, places] = model(x);
  EXPECT_TRUE(same(sum, std::get<0>(x.sort(-1)).slice(1, 1).sum()));
  EXPECT_TRUE(same(largest, x.amax(0)));
  EXPECT_TRUE(at::equal(places, std::get<1>(x.sort(-1))));
}

TEST_F(Exported, RandomNumbersAreThoseOfTheLevel) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("dropout"));
  const Tensor ones = at::ones({2, 4, 3});
  EXPECT_THROW(tower::vmap(model)(ones), tower::RandomnessError);
  const auto drawn = [&](tower::Randomness randomness) { return tower::vmap(model, {.randomness = randomness})(ones); };
  const Tensor same_for_all = drawn(tower::Randomness::same);
  EXPECT_TRUE(at::equal(same_for_all[0], same_for_all[1]));
  Tensor different = drawn(tower::Randomness::different);
  for (int n = 0; n < 20 && at::equal(different[0], different[1]); ++n) different = drawn(tower::Randomness::different);
  EXPECT_FALSE(at::equal(different[0], different[1]));
}

TEST_F(Exported, ACompiledFunctionWithAModelIsSaved) {
  const auto model = td::load_exported(file("perceptron"));
  const auto all = expected("perceptron");
  const auto energy = [&](const Tensor& x) { return model({x})[0].sum(); };
  const auto gradient = tower::compile(tower::grad(energy));
  const Tensor x = all.at("0.arg.0"), g = gradient(x);
  const std::string path = testing::TempDir() + "tower_exported_compiled";
  gradient.save(path);
  EXPECT_TRUE(same(tower::load<Tensor(Tensor)>(path)(x), g));
}

}  // namespace
