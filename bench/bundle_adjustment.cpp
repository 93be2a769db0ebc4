// Bundle adjustment beside Ceres (Debian: libceres-dev), on two threads each: Levenberg–Marquardt with the points
// eliminated first, to the same cost.
//
//   bundle_adjustment [FILE.txt]      a problem of Bundle Adjustment in the Large
//   (grail.cs.washington.edu/projects/bal)
//
// Without a file, two that are made here, in the same form: cameras on a circle, each point of a ball seen by some that
// follow each other, with noise of half a pixel, and a start that is off. No camera is held, so that both programs go
// on along the seven directions that change nothing. They end by the change of the cost alone, at 1e-8 of it. Ceres
// differentiates by its jets and has SuiteSparse's factors (SPARSE_SCHUR). Times are the least of three rounds, in
// which the programs take turns.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/block_least_squares.h>
#include <tower/tower.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#if TOWER_BENCH_CERES
#include <ceres/ceres.h>
#include <ceres/rotation.h>
#endif

#include "solvers/block_terms.h"
#include "support/bundle_adjustment.h"
#include "support/report.h"

namespace {

using at::Tensor;

constexpr double kTolerance = 1e-8;
constexpr int kRounds = 3;

// A camera: rotation, translation, focal length, two numbers of radial distortion.
Tensor projected(const Tensor& camera, const Tensor& point) {
  const Tensor moved = bundle_adjustment::rotated(camera.slice(0, 0, 3), point) + camera.slice(0, 3, 6);
  const Tensor flat = -moved.slice(0, 0, 2) / moved[2];
  const Tensor radius = flat.square().sum();
  return camera[6] * (1 + radius * (camera[7] + camera[8] * radius)) * flat;
}
Tensor error(const Tensor& camera, const Tensor& point, const Tensor& seen) { return projected(camera, point) - seen; }

struct Problem {
  std::string name;
  Tensor cameras, points, camera_of, point_of, seen;
};

Problem from_file(const std::string& path) {
  std::ifstream in(path);
  int64_t cameras = 0, points = 0, observations = 0;
  in >> cameras >> points >> observations;
  Problem p{path,
            at::empty({cameras, 9}, at::kDouble),
            at::empty({points, 3}, at::kDouble),
            at::empty({observations}, at::kLong),
            at::empty({observations}, at::kLong),
            at::empty({observations, 2}, at::kDouble)};
  for (int64_t k = 0; k < observations; ++k)
    in >> p.camera_of.mutable_data_ptr<int64_t>()[k] >> p.point_of.mutable_data_ptr<int64_t>()[k] >>
        p.seen.mutable_data_ptr<double>()[2 * k] >> p.seen.mutable_data_ptr<double>()[2 * k + 1];
  for (Tensor* t : {&p.cameras, &p.points})
    for (int64_t k = 0; k < t->numel(); ++k) in >> t->mutable_data_ptr<double>()[k];
  if (!in) throw std::runtime_error(path + " is no problem of BAL's");
  return p;
}

// Each point is seen by `views` cameras that follow each other on the circle.
Problem made(int64_t cameras, int64_t points, int64_t views) {
  const auto f64 = at::dtype(at::kDouble);
  const Tensor angle = at::arange(cameras, f64) * (2 * M_PI / static_cast<double>(cameras)),
               zero = at::zeros_like(angle);
  // Turned about the second axis, a camera on the circle looks, along its negative third one, to the middle.
  const Tensor truth = at::stack({zero, -angle, zero, zero, zero, at::full_like(angle, -10), at::full_like(angle, 800),
                                  at::full_like(angle, -0.05), at::full_like(angle, 0.01)},
                                 1);
  const Tensor where = at::randn({points, 3}, f64);
  const Tensor ball = where / where.norm(2, {1}, true) * 3 * at::rand({points, 1}, f64).pow(1. / 3);
  const Tensor first = at::randint(0, cameras, {points, 1}, at::kLong);
  const Tensor camera_of = ((first + at::arange(views)) % cameras).reshape({-1});
  const Tensor point_of = at::arange(points).unsqueeze(1).expand({points, views}).reshape({-1});
  const auto all = tower::vmap([](const Tensor& c, const Tensor& p) { return projected(c, p); })(
      truth.index_select(0, camera_of), ball.index_select(0, point_of));
  const Tensor off = at::tensor({0.01, 0.01, 0.01, 0.05, 0.05, 0.05, 5., 0.01, 0.005}, f64);
  return {fmt::format("{} cameras, {} points, {} observations", cameras, points, camera_of.numel()),
          truth + off * at::randn({cameras, 9}, f64),
          ball + 0.05 * at::randn({points, 3}, f64),
          camera_of,
          point_of,
          all + 0.5 * at::randn({camera_of.numel(), 2}, f64)};
}

struct Took {
  double first = 0, whole = std::numeric_limits<double>::infinity(), processor = whole, jacobian = whole, cost = 0;
  int64_t steps = 0;
};

// Of both threads.
double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class ByTower {
 public:
  explicit ByTower(const Problem& p)
      : p_(p),
        term_(tower::fit_term(error, {{0, p.camera_of}, {1, p.point_of}}, p.seen)),
        functions_(term_, {{.x0 = p.cameras}, {.x0 = p.points}}, 2) {
    took_.first = seconds_of([&] {
      const tower::BlockFitOptions options{.eliminate = 1, .ftol = kTolerance, .xtol = 0, .gtol = 0};
      solve_ = std::make_unique<tower::BlockLeastSquares>(
          std::vector<tower::FitUnknowns>{{.x0 = p.cameras}, {.x0 = p.points}}, std::vector{term_}, options);
      (*solve_)();
    });
    for (int call = 0; call < 3; ++call) jacobian();
  }

  void round() {
    tower::BlockFit fit;
    const double processor = processor_seconds();
    took_.whole = std::min(took_.whole, seconds_of([&] { fit = (*solve_)(); }));
    took_.processor = std::min(took_.processor, processor_seconds() - processor);
    at::set_num_threads(1);
    for (int k = 0; k < 5; ++k) took_.jacobian = std::min(took_.jacobian, seconds_of([&] { jacobian(); }));
    at::set_num_threads(2);
    took_.cost = fit.cost.item<double>();
    took_.steps = fit.steps.item<int64_t>();
  }
  const Took& took() const { return took_; }

 private:
  void jacobian() const { functions_.jacobians({p_.cameras, p_.points}, {p_.seen}); }

  const Problem& p_;
  tower::FitTerm term_;
  tower::solvers::BlockFunctions functions_;
  std::unique_ptr<tower::BlockLeastSquares> solve_;
  Took took_;
};

#if TOWER_BENCH_CERES
// The same projection, as Ceres's own example of bundle adjustment has it.
struct Reprojection {
  double u, v;
  template <class T>
  bool operator()(const T* camera, const T* point, T* residuals) const {
    T moved[3];
    ceres::AngleAxisRotatePoint(camera, point, moved);
    for (int i = 0; i < 3; ++i) moved[i] += camera[3 + i];
    const T x = -moved[0] / moved[2], y = -moved[1] / moved[2], radius = x * x + y * y;
    const T scale = camera[6] * (1.0 + radius * (camera[7] + camera[8] * radius));
    residuals[0] = scale * x - u;
    residuals[1] = scale * y - v;
    return true;
  }
};

class ByCeres {
 public:
  explicit ByCeres(const Problem& p) : p_(p), entries_(at::empty({p.seen.size(0), 26}, at::kDouble)) {}

  void round() {
    ceres::Solver::Summary summary;
    const double processor = processor_seconds(), whole = seconds_of([&] { summary = solve(); });
    took_.processor = std::min(took_.processor, processor_seconds() - processor);
    if (took_.first == 0) took_.first = whole;
    took_.whole = std::min(took_.whole, whole);
    for (int k = 0; k < 5; ++k) took_.jacobian = std::min(took_.jacobian, seconds_of([&] { jacobian(); }));
    took_.cost = summary.final_cost;
    took_.steps = summary.num_successful_steps + summary.num_unsuccessful_steps - 1;
  }
  const Took& took() const { return took_; }

 private:
  // The cost functions one after the other, as Ceres evaluates them, without what it does with the matrix.
  void jacobian() const {
    const auto *camera_of = p_.camera_of.const_data_ptr<int64_t>(), *point_of = p_.point_of.const_data_ptr<int64_t>();
    const double *cameras = p_.cameras.const_data_ptr<double>(), *points = p_.points.const_data_ptr<double>();
    const auto* seen = p_.seen.const_data_ptr<double>();
    double* entries = entries_.mutable_data_ptr<double>();
    for (int64_t k = 0; k < p_.seen.size(0); ++k, entries += 26) {
      const ceres::AutoDiffCostFunction<Reprojection, 2, 9, 3> cost(new Reprojection{seen[2 * k], seen[2 * k + 1]});
      const double* parameters[] = {cameras + 9 * camera_of[k], points + 3 * point_of[k]};
      double* jacobians[] = {entries + 2, entries + 20};
      cost.Evaluate(parameters, entries, jacobians);
    }
  }

  ceres::Solver::Summary solve() const {
    Tensor cameras = p_.cameras.clone(), points = p_.points.clone();
    const auto *camera_of = p_.camera_of.const_data_ptr<int64_t>(), *point_of = p_.point_of.const_data_ptr<int64_t>();
    const auto* seen = p_.seen.const_data_ptr<double>();
    ceres::Problem problem;
    auto* ordering = new ceres::ParameterBlockOrdering;
    for (int64_t k = 0; k < p_.seen.size(0); ++k) {
      double* camera = cameras.mutable_data_ptr<double>() + 9 * camera_of[k];
      double* point = points.mutable_data_ptr<double>() + 3 * point_of[k];
      auto* cost =
          new ceres::AutoDiffCostFunction<Reprojection, 2, 9, 3>(new Reprojection{seen[2 * k], seen[2 * k + 1]});
      problem.AddResidualBlock(cost, nullptr, camera, point);
      ordering->AddElementToGroup(point, 0);
      ordering->AddElementToGroup(camera, 1);
    }
    ceres::Solver::Options options;
    options.linear_solver_type = ceres::SPARSE_SCHUR;
    options.linear_solver_ordering.reset(ordering);
    options.num_threads = 2;
    options.max_num_iterations = 200;
    options.function_tolerance = kTolerance;
    options.parameter_tolerance = options.gradient_tolerance = 0;
    options.logging_type = ceres::SILENT;
    ceres::Solver::Summary summary;
    ceres::Solve(options, &problem, &summary);
    return summary;
  }

  const Problem& p_;
  Tensor entries_;
  Took took_;
};
#endif

std::vector<std::string> row(const std::string& name, const Took& took, const Took& beside) {
  return {name,
          fmt::format("{:.2f} s", took.first),
          fmt::format("{:.3f} s", took.whole),
          fmt::format("{:.2f} ×", took.whole / beside.whole),
          fmt::format("{:.3f} s", took.processor),
          fmt::format("{:.1f} ms", 1e3 * took.jacobian),
          fmt::format("{:.2f} ×", took.jacobian / beside.jacobian),
          fmt::format("{}", took.steps),
          fmt::format("{:.10g}", took.cost)};
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(2);
  at::manual_seed(1);
  std::vector<Problem> problems;
  if (argc > 1) problems = {from_file(argv[1])};
  else problems = {made(49, 7'776, 4), made(200, 10'000, 5)};
  for (const Problem& p : problems) {
    fmt::print("{}\n\n", p.name);
    ByTower tower(p);
#if TOWER_BENCH_CERES
    ByCeres ceres(p);
#endif
    for (int round = 0; round < kRounds; ++round) {
      tower.round();
#if TOWER_BENCH_CERES
      ceres.round();
#endif
    }
    report::Table table(
        {"", "first call", "a fit", "beside Tower", "processor", "a Jacobian", "beside Tower", "steps", "cost"});
    table.add(row("Tower", tower.took(), tower.took()));
#if TOWER_BENCH_CERES
    table.add(row("Ceres", ceres.took(), tower.took()));
#endif
    table.print();
    fmt::print("\n");
  }
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "bundle_adjustment: {}\n", error.what());
  return EXIT_FAILURE;
}
