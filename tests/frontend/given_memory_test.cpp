// set_: tensors that are given memory which lies elsewhere, as libraries do that load or copy tables.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "support/compositions.h"
#include "support/expect.h"
#include "support/functions.h"
#include "support/intact.h"
#include "tower/tower.h"

namespace {

using at::Tensor;
using support::message_of, support::says, support::same, support::vec;
using tower::MutationError;

// `give` makes a tensor inside whose values are 1, 2, 3; the function multiplies by it.
void expect_a_table(const std::function<Tensor()>& give) {
  const auto f = [&](const Tensor& x) { return (give() * x * x).sum(); };
  const Tensor x = vec({1, -1, 2}), weights = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::grad(f)(x), 2 * weights * x));
  EXPECT_TRUE(same(tower::vmap(f)(at::stack({x, 2 * x})), vec({15, 60})));
  EXPECT_TRUE(same(tower::vmap(tower::grad(f))(at::stack({x, 2 * x})), at::stack({2 * weights * x, 4 * weights * x})));
  EXPECT_TRUE(same(tower::jvp(f, x, x).second, at::full({}, 30.0, at::kDouble)));
  support::expect_intact();
}

Tensor fresh() { return at::empty({0}, at::kDouble); }

TEST(MemoryGivenToATensor, OfAStorage) {
  const Tensor table = vec({1, 2, 3});
  expect_a_table([&] { return fresh().set_(table.storage()); });
}

TEST(MemoryGivenToATensor, OfAPartOfAStorage) {
  const Tensor table = vec({9, 1, 8, 2, 7, 3});
  expect_a_table([&] { return fresh().set_(table.storage(), 1, {3}, {2}); });
}

TEST(MemoryGivenToATensor, OfATensorFromOutside) {
  const Tensor table = vec({1, 2, 3});
  expect_a_table([&] { return fresh().set_(table); });
  EXPECT_TRUE(same(table, vec({1, 2, 3})));
}

TEST(MemoryGivenToATensor, OfAConstantMadeInside) {
  expect_a_table([] {
    const Tensor made = vec({1, 2, 2}), taken = fresh().set_(made);
    made[2].add_(1);  // both are the same memory
    return taken;
  });
}

TEST(MemoryGivenToATensor, None) {
  expect_a_table([] {
    const Tensor t = at::zeros({5}, at::kDouble);
    t.set_();
    EXPECT_EQ(t.numel(), 0);
    return t.set_(vec({1, 2, 3}));
  });
}

TEST(MemoryGivenToATensor, IsWrittenToWhereItLies) {
  const Tensor table = at::zeros({3}, at::kDouble);
  expect_a_table([&] {
    const Tensor t = fresh().set_(table.storage(), 0, {3}, {1});
    t.copy_(vec({1, 2, 2}));
    t[2].add_(1);
    return t;
  });
  EXPECT_TRUE(same(table, vec({1, 2, 3})));
}

TEST(MemoryGivenToATensor, TakesNoValueThatALevelTracks) {
  const Tensor table = at::zeros({3}, at::kDouble);
  for (const bool part : {false, true}) {
    const auto f = [&](const Tensor& x) {
      const Tensor t = fresh().set_(table);
      if (part) t[0].add_(x[0]);
      else t.add_(x);
      return t.sum();
    };
    const Tensor x = vec({1, 2, 3});
    EXPECT_TRUE(says(message_of<MutationError>([&] { tower::grad(f)(x); }), {"grad (level 1)", "set_", "clone()"}));
    EXPECT_TRUE(says(message_of<MutationError>([&] { tower::vmap(f)(at::stack({x, x})); }), {"vmap (level 1)"}));
  }
  EXPECT_TRUE(same(table, at::zeros({3}, at::kDouble)));
}

TEST(MemoryGivenToATensor, IsRefusedWhereViewsOrTheCallerCouldNotFollow) {
  const Tensor x = vec({1, 2, 3}), table = vec({4, 5, 6});
  const auto refused = [&](auto f) { return message_of<MutationError>([&] { tower::grad(f)(x); }); };
  EXPECT_TRUE(says(refused([&](const Tensor& v) {
                     const Tensor made = at::zeros({3}, at::kDouble), view = made[0];
                     made.set_(table);
                     return (v * view).sum();
                   }),
                   {"grad (level 1)", "aten::set_", "views"}));
  EXPECT_TRUE(says(refused([&](const Tensor& v) {
                     at::zeros({3}, at::kDouble).slice(0, 1).set_(table);
                     return v.sum();
                   }),
                   {"aten::set_", "view"}));
  const auto argument = [&](const tower::dynamic::Tensors& in) {
    in[1].set_(table);
    return tower::dynamic::Tensors{in[0] * in[1]};
  };
  EXPECT_TRUE(says(message_of<MutationError>([&] {
                     tower::dynamic::jvp(argument, {x, x * 1}, {x, Tensor()});
                   }),
                   {"argument 1", "set_"}));
}

// set_data copies the implementation of a tensor: of one made inside, that is no memory.
TEST(MemoryGivenToATensor, ThatWasMadeOutsideIsRefused) {
  const Tensor outside = vec({1, 2});
  const auto with = [&](const std::function<Tensor(const Tensor&)>& made) {
    return [&outside, made](const Tensor& x) {
      outside.set_data(made(x));
      return x.sum();
    };
  };
  const Tensor x = vec({1, -1, 2});
  const auto twice = with([](const Tensor& t) { return 2 * t; });
  const auto constant = with([](const Tensor&) { return vec({1, 2, 3}); });
  EXPECT_TRUE(says(message_of<tower::UnsupportedError>([&] { tower::grad(twice)(x); }),
                   {"grad (level 1)", "set_data", "copy_"}));
  EXPECT_TRUE(says(message_of<tower::UnsupportedError>([&] { tower::vmap(twice)(x); }),
                   {"vmap (level 1)", "set_data", "copy_"}));
  EXPECT_TRUE(says(message_of<tower::UnsupportedError>([&] { tower::jvp(constant, x, x); }),
                   {"jvp (level 1)", "set_data", "copy_"}));
  EXPECT_TRUE(same(outside, vec({1, 2})));
  support::expect_intact();
}

}  // namespace
