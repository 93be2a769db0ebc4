// Every program of the database in every nesting of three transforms, held against the same program with loops written
// by hand, where a loop over the examples stands for vmap.
#include <gtest/gtest.h>

#include <cmath>

#include "loops/programs.h"
#include "support/oracles.h"
#include "support/prelude.h"

namespace {

using loops::by_hand;
using loops::by_tower;
using loops::Loops;
using loops::Program;
using tower::Checkpoints;

constexpr int64_t kExamples = 3;
constexpr support::Tolerance kRounding{1e-9, 1e-9};

Function looped_over_examples(const Function& f) {
  return [f](const Tensors& in) {
    std::vector<Tensors> all;
    for (int64_t i = 0; i < kExamples; ++i) {
      Tensors example;
      for (const Tensor& t : in) example.push_back(t[i]);
      all.push_back(f(example));
    }
    Tensors result;
    for (size_t k = 0; k < all[0].size(); ++k) {
      Tensors parts;
      for (const Tensors& outs : all) parts.push_back(outs[k]);
      result.push_back(at::stack(parts));
    }
    return result;
  };
}

Tensors directions(const Tensors& like, double phase) {
  Tensors result;
  for (const Tensor& t : like) result.push_back(waves(t.sizes(), phase + static_cast<double>(result.size())));
  return result;
}

// `kinds`: from the outermost, v for vmap, j for jvp, r for reverse mode.
Function transformed(const std::string& kinds, Function f, bool by_loop) {
  for (auto kind = kinds.rbegin(); kind != kinds.rend(); ++kind) {
    const double phase = static_cast<double>(kind - kinds.rbegin());
    if (*kind == 'v') {
      f = by_loop ? looped_over_examples(f)
                  : [f](const Tensors& in) { return td::vmap(f, Dims(in.size(), 0), {0})(in); };
    } else if (*kind == 'j') {
      f = [f, phase](const Tensors& in) { return td::jvp(f, in, directions(in, phase)).second; };
    } else {
      f = [f, phase](const Tensors& in) {
        const auto [outs, pullback] = td::vjp(f, in);
        return pullback(directions(outs, phase + 0.5));
      };
    }
  }
  return f;
}

Function as_function(const Program& program, const Loops& loops) {
  return [&program, &loops](const Tensors& in) { return program.run(loops, in); };
}

Tensors inputs_of(const Program& program, const std::string& kinds) {
  Tensors inputs;
  for (std::vector<int64_t> shape : program.shapes) {
    shape.insert(shape.begin(), static_cast<size_t>(std::count(kinds.begin(), kinds.end(), 'v')), kExamples);
    inputs.push_back(waves(shape, 0.7 * static_cast<double>(inputs.size()) + 0.1));
  }
  return inputs;
}

std::vector<std::string> nestings() {
  std::vector<std::string> all;
  for (const char a : std::string("vjr"))
    for (const char b : std::string("vjr"))
      for (const char c : std::string("vjr")) all.push_back({a, b, c});
  return all;
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
