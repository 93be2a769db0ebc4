// Bundle adjustment: cameras and points from where the ones saw the others, for the small problem that is here, or any
// of Bundle Adjustment in the Large by its file's name.
//
//   projection.h     the camera, for one point
//   problem.h        what such a file has
//   make_problem.py  makes problem.txt, and the cost that SciPy comes to, reference.csv
//   picture.h        the scene from above
//   main.cpp         fits, what they are worth, held against what knows better
//
//   bundle_adjustment --file problem-49-7776-pre.txt
//
// Writes scene.svg and cost.svg. Exits non-zero when a check fails.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <tower/block_least_squares.h>
#include <tower/tower.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "picture.h"
#include "problem.h"
#include "projection.h"
#include "support/checks.h"
#include "support/command_line.h"
#include "support/plot.h"

namespace bundle_adjustment {
namespace {

using support::Checks;
using support::seconds_of;

struct Options {
  std::string file;
  std::string folder = "bundle_adjustment_results";
  int64_t steps = 100;
  double seen_to = 0.5;  // what noise problem.txt has, in pixels
  bool brief = false;
};

tower::FitTerm observations(const Problem& p, const tower::Loss& loss = tower::Loss::squares()) {
  tower::FitTerm term = tower::fit_term(error, {{0, p.camera_of}, {1, p.point_of}}, p.seen);
  term.loss = loss;
  return term;
}

/// What is left of an observation, in pixels, for as many numbers as the observations determine: all but a rotation, a
/// translation and a scale.
double left_of_a_pixel(const Problem& p, double cost) {
  const auto freedom = static_cast<double>(p.seen.numel() - p.cameras.numel() - p.points.numel() + 7);
  return std::sqrt(2 * cost / freedom);
}

const char* text_of(const Tensor& status) {
  switch (static_cast<tower::FitStatus>(status.item<int64_t>())) {
    case tower::FitStatus::small_gradient:
      return "the gradient is small";
    case tower::FitStatus::small_change:
      return "the cost does not change";
    case tower::FitStatus::small_step:
      return "steps are small";
    case tower::FitStatus::max_steps:
      return "all steps were made";
    case tower::FitStatus::stuck:
      return "no step leads to a smaller cost";
    case tower::FitStatus::not_finite:
      return "residuals are not finite";
  }
  return "";
}

struct Fitted {
  tower::BlockFit fit;
  std::vector<std::pair<double, double>> costs;  // by steps
};

/// The whole problem, with points eliminated first.
Fitted fit_all(const Problem& p, const Options& options, tower::FitSolver solver, bool aloud) {
  Fitted found;
  const auto progress = [&](int64_t step, double cost) {
    found.costs.emplace_back(step, cost);
    if (!aloud || (step > 10 && step % 10 != 0)) return;
    fmt::print("  step {:3}   cost {:.10g}   {:.3f} pixels\n", step, cost, left_of_a_pixel(p, cost));
    std::fflush(stdout);
  };
  const tower::BlockLeastSquares solve(
      {{.x0 = p.cameras}, {.x0 = p.points}}, {observations(p)},
      {.eliminate = 1, .solver = solver, .max_steps = options.steps, .progress = progress});
  if (aloud)
    fmt::print("  {} unknowns, of which {} are left when the points are eliminated\n", solve.num_unknowns(),
               solve.factored().first);
  const double seconds = seconds_of([&] { found.fit = solve(); });
  fmt::print("  {} steps, to a cost of {:.10g}: {}; {:.2f} s, with what is compiled\n", found.fit.steps.item<int64_t>(),
             found.fit.cost.item<double>(), text_of(found.fit.status), seconds);
  return found;
}

double cost_by_scipy() {
  std::ifstream in(std::filesystem::path(TOWER_EXAMPLES_DIR) / "bundle_adjustment/reference.csv");
  std::string name;
  double cost = 0;
  std::getline(in, name, ',') >> cost;
  return cost;
}

/// What a wrong match does, and what a loss makes of it.
void check_outliers(const Problem& p, const Fitted& clean, Checks& check) {
  fmt::print("\nOne observation in thirty is wrong by a hundred pixels\n");
  Problem spoilt = p;
  const Tensor wrong = at::arange(p.seen.size(0)) % 30 == 7;
  spoilt.seen = p.seen + 100 * wrong.unsqueeze(1);
  const auto error_of = [&](const tower::Loss& loss) {
    const auto fit = tower::BlockLeastSquares({{.x0 = p.cameras}, {.x0 = p.points}}, {observations(spoilt, loss)},
                                              {.eliminate = 1})();
    // Of those that are right.
    const Tensor left =
        tower::vmap(error)(fit.x[0].index_select(0, p.camera_of), fit.x[1].index_select(0, p.point_of), p.seen);
    return left.square().masked_select(wrong.logical_not().unsqueeze(1)).mean().sqrt().item<double>();
  };
  const double as_squares = error_of(tower::Loss::squares()), by_cauchy = error_of(tower::Loss::cauchy(1));
  fmt::print("  the others are off by {:.2f} pixels by squares, and by {:.2f} by Cauchy's loss\n", as_squares,
             by_cauchy);
  check(by_cauchy < 1.2 * left_of_a_pixel(p, clean.fit.cost.item<double>()), "the loss forgives the wrong ones");
}

/// How a distance depends on what was seen: the implicit derivative, against fits to other data.
void check_sensitivity(const Problem& p, const Fitted& found, Checks& check) {
  fmt::print("\nHow the height of the tower depends on the observations\n");
  // Two cameras are held, so that there is a place, a direction and a scale.
  const Tensor held = at::arange(p.cameras.size(0)) < 2;
  const tower::BlockLeastSquares solve({{.x0 = found.fit.x[0], .held = held}, {.x0 = found.fit.x[1]}},
                                       {observations(p)}, {.eliminate = 1, .ftol = 0, .xtol = 0, .gtol = 1e-13});
  const Tensor heights = found.fit.x[1].select(1, 1);
  const Tensor lowest = heights.argmin(), highest = heights.argmax();
  const auto height = [&](const Tensor& seen) {
    const Tensor points = solve({seen}).x[1].select(1, 1);
    return points.index_select(0, highest.unsqueeze(0))[0] - points.index_select(0, lowest.unsqueeze(0))[0];
  };
  Tensor by_seen, value;
  const double seconds = seconds_of([&] { std::tie(value, by_seen) = tower::value_and_grad(height)(p.seen); });
  const Tensor along = (1.7 * at::arange(p.seen.numel(), at::kDouble)).sin().view_as(p.seen);
  constexpr double kChange = 1e-3;
  const double difference =
      ((height(p.seen + kChange * along) - height(p.seen - kChange * along)) / (2 * kChange)).item<double>();
  const double derivative = (by_seen * along).sum().item<double>();
  fmt::print("  {:.4f}, and its gradient by {} numbers: {:.2f} s\n", value.item<double>(), by_seen.numel(), seconds);
  check(std::abs(derivative / difference - 1) < 1e-5,
        fmt::format("along a direction {:.8f}, differences of fits agree to {:.1e}", derivative,
                    std::abs(derivative / difference - 1)));
  // Of noise that each observation has by itself.
  const double deviation = left_of_a_pixel(p, found.fit.cost.item<double>()) * by_seen.norm().item<double>();
  fmt::print("  noise makes it uncertain by {:.4f}\n", deviation);
}

void draw(const Problem& p, const Fitted& found, const std::filesystem::path& folder) {
  Picture scene(found.fit.x[0], found.fit.x[1]);
  scene.add_points(p.points, "#cccccc");
  scene.add_cameras(p.cameras, "#f2b8b8");
  scene.add_points(found.fit.x[1], "#1f77b4");
  scene.add_cameras(found.fit.x[0], "#d62728");
  std::ofstream(folder / "scene.svg") << scene.svg("Points and cameras from above; pale, where they started");
  const plot::Line costs{"Levenberg–Marquardt", "#1f77b4", found.costs, false, true};
  std::ofstream(folder / "cost.svg") << plot::svg(
      {{"The cost", "steps", "half of the sum of squared pixels", {costs}, /*log_y=*/true, /*whole_x=*/true}});
}

int run_demo(const Options& options) {
  at::set_num_threads(2);
  std::filesystem::create_directories(options.folder);
  Checks check;
  const bool is_ours = options.file.empty();
  const std::string ours = (std::filesystem::path(TOWER_EXAMPLES_DIR) / "bundle_adjustment/problem.txt").string();
  const Problem p = read(is_ours ? ours : options.file);
  fmt::print("{} cameras, {} points, {} observations\n", p.cameras.size(0), p.points.size(0), p.seen.size(0));
  const Fitted found = fit_all(p, options, tower::FitSolver::cholesky, true);
  const double cost = found.fit.cost.item<double>();
  check(std::isfinite(cost) && cost < found.costs.front().second, "the cost is less than at the start");
  if (is_ours) {
    const double pixels = left_of_a_pixel(p, cost), reference = cost_by_scipy();
    check(std::abs(cost / reference - 1) < 1e-6, fmt::format("SciPy comes to the same cost, {:.10g}", reference));
    check(std::abs(pixels / options.seen_to - 1) < 0.05,
          fmt::format("what is left is the noise: {:.3f} of {} pixels", pixels, options.seen_to));
  }
  if (!options.brief) {
    fmt::print("\nWithout the Schur complement: conjugate gradients\n");
    const Fitted again = fit_all(p, options, tower::FitSolver::conjugate_gradients, false);
    check(again.fit.cost.item<double>() < cost * (1 + 1e-5), "they come to the same cost");
  }
  if (is_ours) check_outliers(p, found, check);
  if (is_ours && !options.brief) check_sensitivity(p, found, check);
  draw(p, found, options.folder);
  fmt::print("\nWritten to {}: scene.svg, cost.svg\n", options.folder);
  if (check.failed() > 0) fmt::print("{} checks failed\n", check.failed());
  return check.failed() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace bundle_adjustment

int main(int argc, char** argv) {
  bundle_adjustment::Options options;
  support::CommandLine line("bundle_adjustment", "Cameras and points from images, by sparse least squares");
  line.option("--file", options.file,
              "a problem of Bundle Adjustment in the Large, instead of the small one that is here")
      .option("--steps", options.steps, "at most", {1, 10'000})
      .option("--out", options.folder, "folder for the results")
      .flag("--short", options.brief, "one solver, and no derivatives");
  return line.run(argc, argv, [&] { return bundle_adjustment::run_demo(options); });
}
