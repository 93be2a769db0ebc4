// Random programs under transforms and pairs of them compute what they compute plainly, example by example, and have
// the derivatives of difference quotients and of LibTorch's autograd.
//
// TOWER_PROGRAMS=n tries n programs instead of the usual ones.
#include "programs/program.h"
#include "support/oracles.h"
#include "support/prelude.h"

namespace programs {
namespace {

// LibTorch's autograd refuses programs that write to what it kept.
bool libtorch_differentiates(const Program& program) {
  Tensors x;
  for (const Tensor& t : examples_for(program)) x.push_back(t[0]);
  const auto on_copies = [&](const Tensors& in) {
    Tensors copies;
    for (const Tensor& t : in) copies.push_back(t.clone());
    return program(copies);
  };
  try {
    support::autograd_vjp(on_copies, x, support::random_like(on_copies(x), 1));
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

std::string disagreement(const Program& program) {
  return support::disagreement([&](const Tensors& in) { return program(in); }, examples_for(program),
                               {.libtorch = libtorch_differentiates(program)});
}

class RandomPrograms : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomPrograms, AgreeWithLoopsDifferenceQuotientsAndLibTorch) {
  expect_none(support::seeds("TOWER_PROGRAMS", 300).part(GetParam(), 10), disagreement);
}

INSTANTIATE_TEST_SUITE_P(Tenths, RandomPrograms, testing::Range<uint64_t>(0, 10));

TEST(RandomProgramsThemselves, MixAllKindsOfActionsAndAreMostlyDifferentiableByLibTorch) {
  std::vector<size_t> used(actions().size(), 0);
  size_t differentiable = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Program program = generate(seed);
    for (const Step& step : program.steps) ++used[static_cast<size_t>(step.action - actions().data())];
    differentiable += libtorch_differentiates(program);
  }
  for (size_t k = 0; k < used.size(); ++k) EXPECT_GE(used[k], 3U) << actions()[k].text;
  EXPECT_GE(differentiable, 200U);
}

TEST(RandomProgramsThemselves, AreShrunkToTheStepsThatMatter) {
  const Program program = generate(3);
  size_t writes = 0;
  const auto has_two_writes = [](const Program& p) {
    size_t n = 0;
    for (const Step& step : p.steps) n += step.action->kind == Kind::writes;
    return n >= 2;
  };
  ASSERT_TRUE(has_two_writes(program)) << program.text();
  const Program small = shrunk(program, has_two_writes);
  for (const Step& step : small.steps) writes += step.action->kind == Kind::writes;
  EXPECT_EQ(writes, 2U);
  EXPECT_LT(small.steps.size(), program.steps.size());
  EXPECT_NE(small.text().find("_("), std::string::npos) << small.text();
}

}  // namespace
}  // namespace programs
