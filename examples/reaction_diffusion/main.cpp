// A front that runs through a square: implicit steps with the sparse Jacobian of the equation as it is written, solved
// by Eigen, and the gradient of a functional of the final state by the adjoint of each step.
//
//   equation.h       the equation, its residual for a step, and a closed form
//   implicit_step.h  Newton's method with a library's factors, as an implicit function
//   pictures.h       the field and the pattern, drawn
//   main.cpp         what is done with them, held against what knows better
//
// Writes front.svg and pattern.svg. Exits non-zero when a check fails. Without Eigen it says so, and does nothing.
#include <fmt/format.h>

#if __has_include(<Eigen/SparseCholesky>)

#include <ATen/Parallel.h>

#include <filesystem>
#include <fstream>

#include "implicit_step.h"
#include "pictures.h"
#include "support/checks.h"
#include "support/command_line.h"

namespace reaction_diffusion {
namespace {

using support::Checks;
using support::seconds_of;

struct Options {
  int64_t side = 320;
  int64_t steps = 3;
  int64_t finest = 80;
  std::string folder = "reaction_diffusion_results";
};

double largest(const Tensor& t) { return t.abs().max().item<double>(); }
Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }

/// How much there is in the far half of the square, per point.
Tensor amount_far_away(const Tensor& u) { return u.slice(0, u.size(0) / 2).square().mean(); }

void check_order(const Options& options, Checks& check) {
  constexpr double kEnd = 2;
  fmt::print("\nRefinement, against the closed form at time {}\n   side   steps   largest error   order\n", kEnd);
  double before = 0, order = 0;
  for (int64_t side = options.finest / 4; side <= options.finest; side *= 2) {
    Stepper stepper(Grid{side - 1});
    const Grid& grid = stepper.grid();
    const Tensor u = run(stepper, inside(front(grid, 0)), of_the_closed_form(), kEnd, side / 4);
    const double error = largest(u - inside(front(grid, kEnd)));
    order = std::log2(before / error);
    fmt::print("  {:5}   {:5}   {:13.2e}   {}\n", side, side / 4, error,
               before == 0 ? "" : fmt::format("{:.2f}", order));
    std::fflush(stdout);
    before = error;
  }
  check(order > 1.8 && order < 2.2, "the error is of second order");
}

/// The gradient by the adjoint against differences, on a small grid.
void check_gradient(Checks& check) {
  fmt::print("\nThe gradient of the amount far away, 24 × 24 unknowns, 3 steps\n");
  Stepper stepper(Grid{24});
  const Tensor start = inside(front(stepper.grid(), 0));
  const auto amount = [&](const Tensor& start, const Coefficients& c) {
    return amount_far_away(run(stepper, start, c, 1.5, 3));
  };
  const Coefficients c = of_the_closed_form();
  const auto [by_start, by_coefficients] = tower::grad<0, 1>(amount)(start, c);
  at::manual_seed(1);
  const Tensor along = at::randn(start.sizes(), at::kDouble);
  constexpr double kChange = 1e-5;
  const auto compare = [&](const char* what, double derivative, const auto& at) {
    const double difference = ((at(kChange) - at(-kChange)) / (2 * kChange)).template item<double>();
    const double relative = std::abs(derivative - difference) / std::abs(difference);
    check(relative < 1e-7, fmt::format("by {}: {:.8f}, differences agree to {:.1e}", what, derivative, relative));
  };
  compare("the start, along a direction", (by_start * along).sum().item<double>(),
          [&](double h) { return amount(start + h * along, c); });
  compare("the diffusivity", by_coefficients.diffusivity.item<double>(), [&](double h) {
    return amount(start, {number(1 + h), c.rate});
  });
  compare("the rate", by_coefficients.rate.item<double>(), [&](double h) {
    return amount(start, {c.diffusivity, number(1 + h)});
  });
  const Tensor forward = tower::jvp([&](const Tensor& start) { return amount(start, c); }, start, along).second;
  const double relative = std::abs(forward.item<double>() / (by_start * along).sum().item<double>() - 1);
  check(relative < 1e-10, fmt::format("forward mode agrees to {:.1e}", relative));
}

void run_large(const Options& options, Checks& check) {
  const Grid grid{options.side};
  fmt::print("\n{} × {} = {} unknowns, {} steps\n", grid.n, grid.n, grid.n * grid.n, options.steps);
  std::unique_ptr<Stepper> stepper;
  const double preparation = seconds_of([&] { stepper = std::make_unique<Stepper>(grid); });
  const auto& plan = stepper->plan();
  fmt::print("  pattern, colouring, order of elimination: {:.2f} s; {} entries from {} derivatives\n", preparation,
             plan.pattern().num_entries(), plan.num_colours());
  check(plan.num_colours() <= 6, "five points take at most six derivatives");
  const double end = grid.spacing() * static_cast<double>(options.steps);
  const Tensor start = inside(front(grid, 0));
  Tensor last;
  const double forward = seconds_of([&] { last = run(*stepper, start, of_the_closed_form(), end, options.steps); });
  const int corrections = stepper->factorizations();
  fmt::print("  {} corrections by Newton's method: {:.2f} s\n", corrections, forward);
  const double error = largest(last - inside(front(grid, end)));
  check(error < 0.1 * grid.spacing() * grid.spacing(), fmt::format("the closed form is met to {:.1e}", error));
  Tensor by_start, amount;
  const double both = seconds_of([&] {
    std::tie(amount, by_start) = tower::value_and_grad([&](const Tensor& start) {
      return amount_far_away(run(*stepper, start, of_the_closed_form(), end, options.steps));
    })(start);
  });
  fmt::print("  the amount far away, {:.6f}, and its gradient by {} values: {:.2f} s, {:.2f} of the run alone\n",
             amount.item<double>(), by_start.numel(), both, both / forward);
  check(stepper->factorizations() == 2 * corrections + options.steps, "the adjoint takes one linear system a step");
  const std::filesystem::path folder(options.folder);
  std::ofstream(folder / "front.svg") << picture_of_field(last, fmt::format("u at time {:.2f}", end));
  const Stepper small(Grid{12});
  std::ofstream(folder / "pattern.svg") << small.plan().pattern().svg("The Jacobian of 12 × 12 unknowns");
  fmt::print("\nWritten to {}: front.svg, pattern.svg\n", options.folder);
}

int run_demo(const Options& options) {
  at::set_num_threads(1);
  std::filesystem::create_directories(options.folder);
  Checks check;
  check_order(options, check);
  check_gradient(check);
  run_large(options, check);
  if (check.failed() > 0) fmt::print("{} checks failed\n", check.failed());
  return check.failed() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace reaction_diffusion

int main(int argc, char** argv) {
  reaction_diffusion::Options options;
  bool brief = false;
  support::CommandLine line("reaction_diffusion",
                            "A front in a reacting medium, by implicit steps with Tower and Eigen");
  line.option("--side", options.side, "unknowns along a side", {16, 2000})
      .option("--steps", options.steps, "of the large run", {1, 1000})
      .option("--out", options.folder, "folder for the results")
      .flag("--short", brief, "48 unknowns along a side, coarser grids");
  return line.run(argc, argv, [&] {
    if (brief) options.side = 48, options.finest = 40;
    return reaction_diffusion::run_demo(options);
  });
}

#else

int main() {
  fmt::print("reaction_diffusion: skipped, for Eigen was not there when it was built (Debian: libeigen3-dev)\n");
  return 0;
}

#endif
