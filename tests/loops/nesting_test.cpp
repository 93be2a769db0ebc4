// Every program of the database in every nesting of three transforms, held against the same program with loops written
// by hand, where a loop over the examples stands for vmap.
#include <gtest/gtest.h>

#include <cmath>

#include "loops/programs.h"
#include "support/nestings.h"
#include "support/oracles.h"
#include "support/prelude.h"

namespace {

using loops::by_hand;
using loops::by_tower;
using loops::Loops;
using loops::Program;
using support::directions;
using support::nestings;
using support::transformed;
using tower::Checkpoints;

constexpr support::Tolerance kRounding{1e-9, 1e-9};

Function as_function(const Program& program, const Loops& loops) {
  return [&program, &loops](const Tensors& in) { return program.run(loops, in); };
}

Tensors inputs_of(const Program& program, const std::string& kinds) {
  return support::inputs_of(program.shapes, kinds);
}

void expect_as_by_hand(const Program& program, const std::string& kinds, const Loops& loops) {
  const Tensors inputs = inputs_of(program, kinds);
  const Tensors expected = transformed(kinds, as_function(program, by_hand()), /*by_loop=*/true)(inputs);
  ASSERT_TRUE(std::isfinite(support::magnitude(expected))) << program.name << " under " << kinds;
  try {
    const Tensors actual = transformed(kinds, as_function(program, loops), /*by_loop=*/false)(inputs);
    EXPECT_EQ(support::difference(actual, expected, kRounding), "") << program.name << " under " << kinds;
  } catch (const std::exception& error) {
    ADD_FAILURE() << program.name << " under " << kinds << ": " << error.what();
  }
}

TEST(Loops, EveryProgramInEveryNestingIsAsByHand) {
  for (const Program& program : loops::programs())
    for (const std::string& kinds : nestings()) expect_as_by_hand(program, kinds, by_tower());
}

TEST(Loops, EveryProgramWithFewCheckpointsInEveryNestingIsAsByHand) {
  for (const Program& program : loops::programs())
    for (const std::string& kinds : nestings()) expect_as_by_hand(program, kinds, by_tower(2));
}

// The derivatives of the oracle are Tower's, of plain operators; these are nobody's.
TEST(Loops, EveryProgramAgreesWithFiniteDifferences) {
  for (const Program& program : loops::programs()) {
    Tensors inputs = inputs_of(program, "v");
    const Function batch = transformed("v", as_function(program, by_tower()), false);
    const Function by_examples = transformed("v", as_function(program, by_hand()), true);
    const Tensors along = directions(inputs, 0.3);
    const Tensors expected = support::directional_derivative(by_examples, inputs, along);
    EXPECT_EQ(support::difference(td::jvp(batch, inputs, along).second, expected, {1e-6, 1e-6}), "") << program.name;
    const auto [outs, pullback] = td::vjp(batch, inputs);
    const Tensors weights = directions(outs, 0.9);
    EXPECT_NEAR(support::inner(pullback(weights), along), support::inner(weights, expected), 1e-5) << program.name;
  }
}

TEST(Loops, LinearizeReusesOneEvaluation) {
  for (const Program& program : loops::programs()) {
    const Tensors inputs = inputs_of(program, "v");
    const Function batch = transformed("v", as_function(program, by_tower()), false);
    const auto [outs, pushforward] = td::linearize(batch, inputs);
    const Tensors along = directions(inputs, 0.4);
    const auto [expected_outs, expected] =
        td::jvp(transformed("v", as_function(program, by_hand()), true), inputs, along);
    EXPECT_EQ(support::difference(outs, expected_outs, kRounding), "") << program.name;
    EXPECT_EQ(support::difference(pushforward(along), expected, kRounding), "") << program.name;
  }
}

TEST(Loops, LibTorchsBackwardGoesThroughABatchOfThem) {
  for (const Program& program : loops::programs()) {
    const Tensors inputs = inputs_of(program, "v");
    const Function batch = transformed("v", as_function(program, by_tower()), false);
    const Function by_examples = transformed("v", as_function(program, by_hand()), true);
    const Tensors weights = directions(by_examples(inputs), 0.9);
    const Tensors expected = support::autograd_vjp(by_examples, inputs, weights);
    EXPECT_EQ(support::difference(support::autograd_vjp(batch, inputs, weights), expected, kRounding), "")
        << program.name;
  }
}

}  // namespace
