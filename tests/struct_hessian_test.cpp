// Hessians by structs: a tree of the struct's fields, each of which is the struct again.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "support/expect.h"
#include "support/functions.h"
#include "tower/tower.h"

namespace {

using at::Tensor;
using support::number, support::same, support::vec;

struct State {
  Tensor position, velocity;
  int steps = 3;
};
constexpr auto tower_fields(const State&) { return std::tuple(&State::position, &State::velocity); }

struct Pair {
  State first;
  Tensor scale;
};
constexpr auto tower_fields(const Pair&) { return std::tuple(&Pair::first, &Pair::scale); }

Tensor energy(const State& s) { return (s.position.pow(3) * s.velocity).sum() * s.steps; }

const State kState{vec({1, 2}), vec({3, 4})};

TEST(HessianByAStruct, IsFoundByTheStructsMembers) {
  const auto h = tower::hessian(energy)(kState);
  EXPECT_TRUE(same(h[&State::position].position, at::diag(vec({54, 144}))));
  EXPECT_TRUE(same(h[&State::position].velocity, at::diag(vec({9, 36}))));
  EXPECT_TRUE(same(h[&State::velocity].position, at::diag(vec({9, 36}))));
  EXPECT_TRUE(same(h[&State::velocity].velocity, at::zeros({2, 2}, at::kDouble)));
  EXPECT_EQ(h[&State::position].steps, 3);
}

TEST(HessianByAStruct, OfNestedStructsNestsLikeThem) {
  const auto f = [](const Pair& p) { return energy(p.first) * p.scale; };
  const auto h = tower::hessian(f)(Pair{kState, number(2)});
  EXPECT_TRUE(same(h[&Pair::first][&State::position].first.velocity, at::diag(vec({18, 72}))));
  EXPECT_TRUE(same(h[&Pair::first][&State::position].scale, vec({27, 144})));
  EXPECT_TRUE(same(h[&Pair::scale].first.position, vec({27, 144})));
  EXPECT_TRUE(same(h[&Pair::scale].scale, number(0)));
}

TEST(HessianByAStruct, IsATreeThatTransformsReturn) {
  const State batch{at::stack({kState.position, 2 * kState.position}), at::stack({kState.velocity, kState.velocity})};
  const auto h = tower::vmap(tower::hessian(energy))(batch);
  EXPECT_TRUE(same(h[&State::position].velocity, at::stack({at::diag(vec({9, 36})), at::diag(vec({36, 144}))})));
}

TEST(JacobianOfAStruct, ByAStructIsFoundTheSameWay) {
  const auto f = [](const State& s) { return State{s.position * s.velocity, s.velocity.square()}; };
  for (const bool reverse : {true, false}) {
    const auto j = reverse ? tower::jacrev(f)(kState) : tower::jacfwd(f)(kState);
    EXPECT_TRUE(same(j[&State::position].position, at::diag(kState.velocity)));
    EXPECT_TRUE(same(j[&State::position].velocity, at::diag(kState.position)));
    EXPECT_TRUE(same(j[&State::velocity].velocity, at::diag(2 * kState.velocity)));
  }
}

TEST(HessianByAStruct, HasOnlyTheFieldsThatItNames) {
  const auto h = tower::hessian(energy)(kState);
  EXPECT_TRUE(support::contains(support::message_of<tower::ArgumentError>([&] { h[&State::steps]; }), "tower_fields"));
}

}  // namespace
