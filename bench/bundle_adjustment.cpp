// Bundle adjustment beside Ceres (Debian: libceres-dev), on two threads each: Levenberg–Marquardt with the points
// eliminated first, to the same cost.
//
//   bundle_adjustment [FILE...]
//
// A file is a problem of Bundle Adjustment in the Large (grail.cs.washington.edu/projects/bal), or, where its name ends
// in .bin, one of libmv's, as Ceres's sources have them (data/libmv-ba-problems): many frames of a film, whose lens is
// known, and few points. Without a file, two that are made here, in BAL's form: cameras on a circle, each point of a
// ball seen by some that follow each other, with noise of half a pixel, and a start that is off. What there is more of
// is eliminated first, points or cameras. No camera is held, so that both programs go on along the seven directions
// that change nothing. They end by the change of the cost alone, at 1e-8 of it. Ceres
// differentiates by its jets and has SuiteSparse's factors (SPARSE_SCHUR). Times are the least of three rounds, in
// which the programs take turns.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/block_least_squares.h>
#include <tower/tower.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
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

// Focal length, two numbers of radial distortion.
using Lens = std::array<double, 3>;

// A camera: rotation, translation, and its lens, if that is not known.
Tensor projected(const Tensor& camera, const Tensor& point, const std::optional<Lens>& known) {
  const Tensor moved = bundle_adjustment::rotated(camera.slice(0, 0, 3), point) + camera.slice(0, 3, 6);
  const Tensor flat = -moved.slice(0, 0, 2) / moved[2];
  const Tensor radius = flat.square().sum();
  if (known) return (*known)[0] * (1 + radius * ((*known)[1] + (*known)[2] * radius)) * flat;
  return camera[6] * (1 + radius * (camera[7] + camera[8] * radius)) * flat;
}

struct Problem {
  std::string name;
  Tensor cameras, points, camera_of, point_of, seen;
  std::optional<Lens> lens = std::nullopt;  // of all cameras, where it is known

  bool points_first() const { return points.size(0) >= cameras.size(0); }
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

// Numbers that follow each other in a file, of this machine's order of bytes.
class Numbers {
 public:
  explicit Numbers(const std::string& path) : in_(path, std::ios::binary), path_(path) {}

  template <class T>
  T next() {
    T value{};
    if (!in_.read(reinterpret_cast<char*>(&value), sizeof value)) refuse();
    return value;
  }
  Tensor floats(int64_t count) {
    Tensor all = at::empty({count}, at::kDouble);
    for (int64_t k = 0; k < count; ++k) all.mutable_data_ptr<double>()[k] = next<float>();
    return all;
  }
  [[noreturn]] void refuse() const { throw std::runtime_error(path_ + " is no problem of libmv's that is read here"); }

 private:
  std::ifstream in_;
  std::string path_;
};

// The vector along the axis of a rotation, as long as its angle, which is less than π.
Tensor axis_of(const Tensor& rotation) {
  const Tensor skew = (rotation - rotation.t()) / 2, axis = at::stack({skew[2][1], skew[0][2], skew[1][0]});
  const Tensor sine = at::linalg_vector_norm(axis), cosine = (rotation.diagonal().sum() - 1) / 2;
  return at::where(sine > 0, at::atan2(sine, cosine) / sine, 1.) * axis;
}

// Frames and points have numbers of their own, and not all that were seen are there. libmv's cameras look along the
// third axis and not against it: their focal length is negative in BAL's form.
Problem from_libmv(const std::string& path) {
  Numbers in(path);
  if (in.next<char>() != 'v' || in.next<char>() != 'P') in.refuse();
  const Tensor lens = in.floats(8), middle = lens.slice(0, 1, 3);
  if (lens.slice(0, 5).count_nonzero().item<int64_t>() > 0) in.refuse();
  std::map<int32_t, int64_t> frames, tracks;
  std::vector<Tensor> cameras, points, seen;
  std::vector<int64_t> camera_of, point_of;
  for (auto left = in.next<int32_t>(); left > 0; --left) {
    frames.emplace(in.next<int32_t>(), frames.size());
    const Tensor rotation = in.floats(9).view({3, 3}).t();
    cameras.push_back(at::cat({axis_of(rotation), in.floats(3)}));
  }
  for (auto left = in.next<int32_t>(); left > 0; --left) {
    tracks.emplace(in.next<int32_t>(), tracks.size());
    points.push_back(in.floats(3));
  }
  for (auto left = in.next<int32_t>(); left > 0; --left) {
    const auto frame = frames.find(in.next<int32_t>());
    const auto track = tracks.find(in.next<int32_t>());
    const Tensor place = in.floats(2) - middle;
    if (frame == frames.end() || track == tracks.end()) continue;
    camera_of.push_back(frame->second);
    point_of.push_back(track->second);
    seen.push_back(place);
  }
  return {fmt::format("{}: {} cameras, {} points, {} observations", path, cameras.size(), points.size(), seen.size()),
          at::stack(cameras),
          at::stack(points),
          at::tensor(camera_of, at::kLong),
          at::tensor(point_of, at::kLong),
          at::stack(seen),
          Lens{-lens[0].item<double>(), lens[3].item<double>(), lens[4].item<double>()}};
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
  const auto all = tower::vmap([](const Tensor& c, const Tensor& p) { return projected(c, p, std::nullopt); })(
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
        term_(tower::fit_term([lens = p.lens](const Tensor& camera, const Tensor& point,
                                              const Tensor& seen) { return projected(camera, point, lens) - seen; },
                              {{0, p.camera_of}, {1, p.point_of}}, p.seen)),
        functions_(term_, {{.x0 = p.cameras}, {.x0 = p.points}}, 2) {
    took_.first = seconds_of([&] {
      const std::size_t first = p.points_first() ? 1 : 0;
      const tower::BlockFitOptions options{.eliminate = first, .ftol = kTolerance, .xtol = 0, .gtol = 0};
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
// The same projection, as Ceres's own example of bundle adjustment has it: of a camera of `numbers`.
template <int numbers>
struct Reprojection {
  double u, v;
  Lens known = {};

  template <class T>
  static auto lens_of(const T* camera, const Lens& known) {
    if constexpr (numbers == 6) return known;
    else return std::array<T, 3>{camera[6], camera[7], camera[8]};
  }
  template <class T>
  bool operator()(const T* camera, const T* point, T* residuals) const {
    T moved[3];
    ceres::AngleAxisRotatePoint(camera, point, moved);
    for (int i = 0; i < 3; ++i) moved[i] += camera[3 + i];
    const T x = -moved[0] / moved[2], y = -moved[1] / moved[2], radius = x * x + y * y;
    const auto lens = lens_of(camera, known);
    const T scale = lens[0] * (1.0 + radius * (lens[1] + lens[2] * radius));
    residuals[0] = scale * x - u;
    residuals[1] = scale * y - v;
    return true;
  }
};

class ByCeres {
 public:
  explicit ByCeres(const Problem& p)
      : p_(p), entries_(at::empty({p.seen.size(0), 2 * (p.cameras.size(1) + 4)}, at::kDouble)) {}

  void round() {
    ceres::Solver::Summary summary;
    const double processor = processor_seconds(), whole = seconds_of([&] { summary = solve(); });
    took_.processor = std::min(took_.processor, processor_seconds() - processor);
    if (took_.first == 0) took_.first = whole;
    took_.whole = std::min(took_.whole, whole);
    for (int k = 0; k < 5; ++k)
      took_.jacobian = std::min(took_.jacobian, seconds_of([&] { p_.lens ? jacobian<6>() : jacobian<9>(); }));
    took_.cost = summary.final_cost;
    took_.steps = summary.num_successful_steps + summary.num_unsuccessful_steps - 1;
  }
  const Took& took() const { return took_; }

 private:
  // The cost functions one after the other, as Ceres evaluates them, without what it does with the matrix.
  template <int numbers>
  void jacobian() const {
    const auto *camera_of = p_.camera_of.const_data_ptr<int64_t>(), *point_of = p_.point_of.const_data_ptr<int64_t>();
    const double *cameras = p_.cameras.const_data_ptr<double>(), *points = p_.points.const_data_ptr<double>();
    const auto* seen = p_.seen.const_data_ptr<double>();
    double* entries = entries_.mutable_data_ptr<double>();
    for (int64_t k = 0; k < p_.seen.size(0); ++k, entries += entries_.size(1)) {
      const ceres::AutoDiffCostFunction<Reprojection<numbers>, 2, numbers, 3> cost(
          new Reprojection<numbers>{seen[2 * k], seen[2 * k + 1], p_.lens.value_or(Lens{})});
      const double* parameters[] = {cameras + numbers * camera_of[k], points + 3 * point_of[k]};
      double* jacobians[] = {entries + 2, entries + 2 + 2 * numbers};
      cost.Evaluate(parameters, entries, jacobians);
    }
  }

  ceres::CostFunction* cost(double u, double v) const {
    if (p_.lens) return new ceres::AutoDiffCostFunction<Reprojection<6>, 2, 6, 3>(new Reprojection<6>{u, v, *p_.lens});
    return new ceres::AutoDiffCostFunction<Reprojection<9>, 2, 9, 3>(new Reprojection<9>{u, v});
  }

  ceres::Solver::Summary solve() const {
    Tensor cameras = p_.cameras.clone(), points = p_.points.clone();
    const auto *camera_of = p_.camera_of.const_data_ptr<int64_t>(), *point_of = p_.point_of.const_data_ptr<int64_t>();
    const auto* seen = p_.seen.const_data_ptr<double>();
    ceres::Problem problem;
    auto* ordering = new ceres::ParameterBlockOrdering;
    for (int64_t k = 0; k < p_.seen.size(0); ++k) {
      double* camera = cameras.mutable_data_ptr<double>() + cameras.size(1) * camera_of[k];
      double* point = points.mutable_data_ptr<double>() + 3 * point_of[k];
      problem.AddResidualBlock(cost(seen[2 * k], seen[2 * k + 1]), nullptr, camera, point);
      ordering->AddElementToGroup(point, p_.points_first() ? 0 : 1);
      ordering->AddElementToGroup(camera, p_.points_first() ? 1 : 0);
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
  for (int k = 1; k < argc; ++k) {
    const std::string path = argv[k];
    problems.push_back(path.ends_with(".bin") ? from_libmv(path) : from_file(path));
  }
  if (problems.empty()) problems = {made(49, 7'776, 4), made(200, 10'000, 5)};
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
