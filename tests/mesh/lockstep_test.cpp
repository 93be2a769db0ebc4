// Named axes by an oracle of their own: random programs of collectives, branches and loops, under transforms, beside
// their interpreter on plain tensors (mesh/lockstep.h), LibTorch's autograd of it, and differences.
//
// TOWER_LOCKSTEP_PROGRAMS=from:count tries other programs than the usual ones, each under all transforms.
#include "mesh/lockstep.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "mesh/differences.h"
#include "mesh/harness.h"
#include "support/prelude.h"
#include "support/seeds.h"
#include "tower/tower.h"

namespace {

using lockstep::Arguments;
using lockstep::Program;
using OfVector = std::function<Tensor(const Tensor&)>;

constexpr support::Tolerance kTolerance{1e-9, 1e-11};

// All arguments as one vector.
Tensor flat(const Arguments& a) { return at::cat({a.x.flatten(), a.u.flatten(), a.w}); }
Arguments arguments_in(const Program& program, const Tensor& all) {
  const auto [data, inner] = program.grid;
  const auto parts = at::split_with_sizes(all, {data * inner * 2, data * 2, 2});
  return {parts[0].view({data, inner, 2}), parts[1].view({data, 2}), parts[2]};
}

// The rows of LibTorch's Jacobian.
Tensor jacobian(const OfVector& f, const Tensor& at) {
  const Tensor x = at.detach().clone().requires_grad_(), y = f(x).flatten();
  Tensors rows;
  for (int64_t k = 0; k < y.numel(); ++k) {
    const Tensor row = y.requires_grad() ? torch::autograd::grad({y[k]}, {x}, {}, true, false, true)[0] : Tensor();
    rows.push_back(row.defined() ? row.detach() : at::zeros_like(at));
  }
  return at::stack(rows);
}
OfVector gradient(const OfVector& f) {
  return [f](const Tensor& at) {
    const Tensor x = at.requires_grad() ? at * 1 : at.detach().clone().requires_grad_(), y = f(x);
    const Tensor found = y.requires_grad() ? torch::autograd::grad({y}, {x}, {}, true, true, true)[0] : Tensor();
    return found.defined() ? found : at::zeros_like(x);
  };
}

// What Tower gives, each beside the interpreter's: where one differs, its name and how.
class Comparison {
 public:
  explicit Comparison(Program program) : program_(std::move(program)), all_(flat(lockstep::arguments(program_))) {}

  std::string difference(bool compiled) {
    const OfVector oracle = [this](const Tensor& v) {
      return lockstep::interpreted(program_, arguments_in(program_, v)).flatten();
    };
    const OfVector tested = [this](const Tensor& v) {
      return lockstep::mapped(program_, arguments_in(program_, v)).flatten();
    };
    const OfVector sum = [&](const Tensor& v) { return lockstep::weighted(oracle(v)); };
    const OfVector sum_tested = [&](const Tensor& v) { return lockstep::weighted(tested(v)); };
    const Tensor direction = (at::arange(all_.numel(), at::kDouble) * 0.9).cos();

    expect(
        "value", [&] { return tested(all_); }, oracle(all_));
    const Tensor rows = jacobian(oracle, all_);
    expect(
        "jacfwd", [&] { return tower::jacfwd(tested)(all_); }, rows);
    expect(
        "jacrev", [&] { return tower::jacrev(tested)(all_); }, rows);
    expect(
        "jvp", [&] { return tower::jvp(tested, all_, direction).second; }, rows.mv(direction));
    expect(
        "linearize", [&] { return tower::linearize(tested, all_).second(direction); }, rows.mv(direction));
    const Tensor slope = gradient(sum)(all_).detach();
    expect(
        "grad", [&] { return tower::grad(sum_tested)(all_); }, slope);
    expect(
        "grad of a psum",
        [&] {
          return tower::grad(
              [&](const Tensor& v) { return lockstep::weighted_sum(program_, arguments_in(program_, v)); })(all_);
        },
        slope);
    const OfVector inside = [&](const Tensor& v) {
      return arguments_in(program_, gradient([&](const Tensor& w) { return oracle(w).sum(); })(v)).x.flatten();
    };
    expect(
        "vmap(grad)", [&] { return lockstep::gradients_inside(program_, arguments_in(program_, all_)).flatten(); },
        inside(all_).detach());
    const Tensor curvature = jacobian(gradient(sum), all_);
    expect(
        "jacfwd(grad)", [&] { return tower::jacfwd(tower::grad(sum_tested))(all_); }, curvature);
    expect(
        "jacrev(grad)", [&] { return tower::jacrev(tower::grad(sum_tested))(all_); }, curvature);
    expect(
        "jacfwd(jacfwd)", [&] { return tower::jacfwd(tower::jacfwd(sum_tested))(all_); }, curvature);
    expect(
        "jacrev(jacfwd)", [&] { return tower::jacrev(tower::jacfwd(sum_tested))(all_); }, curvature);
    if (compiled) {
      expect(
          "compiled value", [&] { return tower::compile(tested)(all_); }, oracle(all_));
      expect(
          "compiled grad", [&] { return tower::compile(tower::grad(sum_tested))(all_); }, slope);
      expect(
          "grad of compiled", [&] { return tower::grad(tower::compile(sum_tested))(all_); }, slope);
      expect(
          "compiled hessian", [&] { return tower::compile(tower::hessian(sum_tested))(all_); }, curvature);
    }
    return found_;
  }

  // That LibTorch's autograd of the interpreter is what differences say.
  std::string difference_of_oracle() {
    const OfVector sum = [&](const Tensor& v) {
      return lockstep::weighted(lockstep::interpreted(program_, arguments_in(program_, v)));
    };
    const Tensor differences = by_differences(sum, all_);
    return support::difference(gradient(sum)(all_).detach(), differences.detach(), {1e-5, 1e-6});
  }

  int64_t compared() const { return compared_; }

 private:
  template <class F>
  void expect(const char* what, F&& actual, const Tensor& expected) {
    ++compared_;
    std::string text;
    try {
      text = support::difference(actual(), expected.detach(), kTolerance);
    } catch (const std::exception& error) {
      text = std::string(error.what()).substr(0, 600);
    }
    if (!text.empty()) found_ += std::string(what) + ": " + text + "\n";
  }

  Program program_;
  Tensor all_;
  std::string found_;
  int64_t compared_ = 0;
};

support::Seeds usual_seeds() { return support::seeds("TOWER_LOCKSTEP_PROGRAMS", 60); }

TEST(ExamplesInLockStep, AreWhatTransformsGive) {
  const support::Seeds seeds = usual_seeds();
  int64_t programs = 0, compared = 0;
  for (const uint64_t seed : seeds) {
    Comparison comparison(lockstep::draw(seed));
    const std::string found = comparison.difference(/*compiled=*/seeds.wanted || seed % 10 == 0);
    EXPECT_TRUE(found.empty()) << "program " << seed << ":\n" << lockstep::draw(seed).text() << found;
    ++programs;
    compared += comparison.compared();
  }
  std::cout << programs << " programs in lock step, " << compared << " results compared\n";
}

// A branch that nobody takes or a loop of no steps, in a checkpoint or a loop with checkpoints: the first evaluation
// does not meet what it captures and whom it speaks to, those of derivatives and of compiled functions do.
TEST(ExamplesInLockStep, MaySpeakOnWaysThatAreNotTakenAtFirst) {
  for (const uint64_t seed : {241, 636, 767, 874, 1112}) {
    const std::string found = Comparison(lockstep::draw(seed)).difference(/*compiled=*/true);
    EXPECT_TRUE(found.empty()) << "program " << seed << ":\n" << lockstep::draw(seed).text() << found;
  }
}

TEST(ExamplesInLockStep, HaveTheDerivativesOfDifferences) {
  for (const uint64_t seed : usual_seeds()) {
    // With an inner gradient the oracle's own second derivatives are compared.
    EXPECT_EQ(Comparison(lockstep::draw(seed)).difference_of_oracle(), "") << "program " << seed << ":\n"
                                                                           << lockstep::draw(seed).text();
  }
}

}  // namespace
