// One large stiff system: Fisher's equation of examples/reaction_diffusion, by five points in space, integrated by
// rodas5p, beside CVODE (Debian: libsundials-dev), on one thread each.
//
//   large_ode [--side=N]
//
// Tower's systems are solved by gmres, and by Eigen's sparse Cholesky factors of the sparse Jacobian, which is
// symmetric. CVODE has BDF with its own GMRES, by products with the Jacobian, and with KLU's factors of the Jacobian;
// slope, products and Jacobian are C++ by hand. Errors are the largest beside a solution of tsit5 at 1e-11; a library's
// tolerances are as tight as it takes to be about as accurate as Tower. Times are the least of two rounds.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/odeint.h>
#include <tower/tower.h>

#include <Eigen/SparseCholesky>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#if TOWER_BENCH_CVODE
#include <cvode/cvode.h>
#include <nvector/nvector_serial.h>
#include <sundials/sundials_context.h>
#include <sunlinsol/sunlinsol_klu.h>
#include <sunlinsol/sunlinsol_spgmr.h>
#include <sunmatrix/sunmatrix_sparse.h>
#endif

#include "support/report.h"

namespace {

using at::Tensor;

constexpr double kLength = 20, kAngle = 0.5, kEnd = 2;

double spacing(int64_t n) { return kLength / static_cast<double>(n + 1); }

// The front of reaction_diffusion/equation.h at points x and y.
Tensor front(const Tensor& x, const Tensor& y, const Tensor& t) {
  const Tensor s = std::cos(kAngle) * x + std::sin(kAngle) * y - 0.4 * kLength;
  return (1 + ((s - 5 * t / std::sqrt(6)) / std::sqrt(6)).exp()).pow(-2);
}
double front(double x, double y, double t) {
  const double s = std::cos(kAngle) * x + std::sin(kAngle) * y - 0.4 * kLength;
  return std::pow(1 + std::exp((s - 5 * t / std::sqrt(6)) / std::sqrt(6)), -2);
}

// u_t for u {n, n} inside of walls that have the front.
Tensor slope(const Tensor& t, const Tensor& u) {
  const int64_t n = u.size(0);
  const double h = spacing(n);
  const Tensor zero = at::zeros({}, u.options()), far = zero + kLength;
  const Tensor places = h * at::arange(1, n + 1, u.options());
  const auto row = [&](const Tensor& x) { return front(x, places, t).unsqueeze(0); };
  const auto column = [&](const Tensor& y) { return front(places, y, t).unsqueeze(1); };
  const Tensor up = at::cat({row(zero), u.slice(0, 0, n - 1)}, 0), down = at::cat({u.slice(0, 1), row(far)}, 0);
  const Tensor left = at::cat({column(zero), u.slice(1, 0, n - 1)}, 1),
               right = at::cat({u.slice(1, 1), column(far)}, 1);
  return (up + down + left + right - 4 * u) / (h * h) + u * (1 - u);
}

struct Run {
  std::string name;
  std::function<std::pair<Tensor, int64_t>()> run;
};

// ---- Tower ----

Tensor start(int64_t n) {
  const Tensor places = spacing(n) * at::arange(1, n + 1, at::kDouble);
  return front(places.unsqueeze(1), places, at::zeros({}, at::kDouble));
}

std::pair<Tensor, int64_t> by_tower(const std::function<Tensor(const Tensor&, const Tensor&)>& f, int64_t n,
                                    const tower::OdeOptions& options) {
  const auto found = tower::odeint(f, start(n), at::tensor({0., kEnd}, at::kDouble), options);
  if (found.status.item<int64_t>() != 0) throw std::runtime_error("a system did not arrive");
  return {found.ys[1], found.steps.item<int64_t>()};
}

// Factors that are kept for as long as the matrix is the same.
class Factors {
 public:
  explicit Factors(int64_t n)
      : plan_(tower::jacobian_sparsity([](const Tensor& u) { return slope(at::zeros({}, at::kDouble), u); }, start(n)),
              {.layout = at::kSparseCsc}, /*symmetric=*/false) {}

  Tensor solve(const tower::dynamic::Function& apply, const Tensor& b) {
    const Tensor entries = plan_.values(apply, {b});
    if (!entries_.defined() || !entries_.equal(entries)) {
      const Tensor csc = plan_.matrix(entries);
      const Eigen::Map<const Matrix> matrix(
          csc.size(0), csc.size(1), csc.values().numel(), csc.ccol_indices().const_data_ptr<int64_t>(),
          csc.row_indices().const_data_ptr<int64_t>(), csc.values().const_data_ptr<double>());
      if (!entries_.defined()) factors_.analyzePattern(matrix);
      factors_.factorize(matrix);
      entries_ = entries;
    }
    const Tensor rhs = b.contiguous();
    Tensor x = at::empty_like(rhs);
    Eigen::Map<Eigen::VectorXd>(x.mutable_data_ptr<double>(), x.numel()) =
        factors_.solve(Eigen::Map<const Eigen::VectorXd>(rhs.const_data_ptr<double>(), rhs.numel()));
    return x;
  }

 private:
  using Matrix = Eigen::SparseMatrix<double, Eigen::ColMajor, int64_t>;

  tower::dynamic::SparsePlan plan_;
  Eigen::SimplicialLDLT<Matrix> factors_;
  Tensor entries_;
};

// ---- CVODE ----

#if TOWER_BENCH_CVODE
struct Fisher {
  int64_t n;
  std::vector<double> wide;  // with the walls
};

double* of(N_Vector v) { return N_VGetArrayPointer(v); }
void require(int code) {
  if (code < 0) throw std::runtime_error(fmt::format("CVODE fails with code {}", code));
}

int slope_by_hand(double t, N_Vector state, N_Vector result, void* given) {
  auto& [n, wide] = *static_cast<Fisher*>(given);
  const double h = spacing(n), by_square = 1 / (h * h);
  const int64_t m = n + 2;
  for (int64_t k = 1; k <= n; ++k) {
    const double place = h * static_cast<double>(k);
    wide[static_cast<size_t>(k)] = front(0, place, t);
    wide[static_cast<size_t>((n + 1) * m + k)] = front(kLength, place, t);
    wide[static_cast<size_t>(k * m)] = front(place, 0, t);
    wide[static_cast<size_t>(k * m + n + 1)] = front(place, kLength, t);
    std::copy_n(of(state) + (k - 1) * n, n, wide.data() + k * m + 1);
  }
  for (int64_t i = 1; i <= n; ++i) {
    const double* u = wide.data() + i * m;
    double* out = of(result) + (i - 1) * n - 1;
    for (int64_t j = 1; j <= n; ++j)
      out[j] = by_square * (u[j - m] + u[j + m] + u[j - 1] + u[j + 1] - 4 * u[j]) + u[j] * (1 - u[j]);
  }
  return 0;
}

int product_by_hand(N_Vector v, N_Vector result, double, N_Vector state, N_Vector, void* given, N_Vector) {
  auto& [n, wide] = *static_cast<Fisher*>(given);
  const double h = spacing(n), by_square = 1 / (h * h);
  const int64_t m = n + 2;
  std::fill(wide.begin(), wide.end(), 0.);
  for (int64_t k = 1; k <= n; ++k) std::copy_n(of(v) + (k - 1) * n, n, wide.data() + k * m + 1);
  for (int64_t i = 1; i <= n; ++i) {
    const double *w = wide.data() + i * m, *u = of(state) + (i - 1) * n - 1;
    double* out = of(result) + (i - 1) * n - 1;
    for (int64_t j = 1; j <= n; ++j)
      out[j] = by_square * (w[j - m] + w[j + m] + w[j - 1] + w[j + 1] - 4 * w[j]) + (1 - 2 * u[j]) * w[j];
  }
  return 0;
}

int matrix_by_hand(double, N_Vector state, N_Vector, SUNMatrix matrix, void* given, N_Vector, N_Vector, N_Vector) {
  const int64_t n = static_cast<Fisher*>(given)->n;
  const double h = spacing(n), by_square = 1 / (h * h);
  sunindextype *starts = SUNSparseMatrix_IndexPointers(matrix), *rows = SUNSparseMatrix_IndexValues(matrix), at = 0;
  double* entries = SUNSparseMatrix_Data(matrix);
  const auto add = [&](int64_t row, double value) {
    rows[at] = row;
    entries[at++] = value;
  };
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const int64_t k = i * n + j;
      starts[k] = at;
      if (i > 0) add(k - n, by_square);
      if (j > 0) add(k - 1, by_square);
      add(k, -4 * by_square + 1 - 2 * of(state)[k]);
      if (j < n - 1) add(k + 1, by_square);
      if (i < n - 1) add(k + n, by_square);
    }
  starts[n * n] = at;
  return 0;
}

std::pair<Tensor, int64_t> by_cvode(int64_t n, double tolerance, bool factors) {
  SUNContext context = nullptr;
  require(SUNContext_Create(nullptr, &context));
  Fisher fisher{n, std::vector<double>(static_cast<size_t>((n + 2) * (n + 2)))};
  Tensor u = start(n).contiguous();
  N_Vector state = N_VMake_Serial(n * n, u.mutable_data_ptr<double>(), context);
  void* solver = CVodeCreate(CV_BDF, context);
  require(CVodeInit(solver, slope_by_hand, 0, state));
  require(CVodeSStolerances(solver, tolerance, tolerance));
  require(CVodeSetUserData(solver, &fisher));
  require(CVodeSetMaxNumSteps(solver, 1'000'000));
  SUNMatrix matrix = factors ? SUNSparseMatrix(n * n, n * n, 5 * n * n, CSC_MAT, context) : nullptr;
  SUNLinearSolver linear =
      factors ? SUNLinSol_KLU(state, matrix, context) : SUNLinSol_SPGMR(state, SUN_PREC_NONE, 0, context);
  require(CVodeSetLinearSolver(solver, linear, matrix));
  require(factors ? CVodeSetJacFn(solver, matrix_by_hand) : CVodeSetJacTimes(solver, nullptr, product_by_hand));
  double reached = 0;
  require(CVodeSetStopTime(solver, kEnd));
  require(CVode(solver, kEnd, state, &reached, CV_NORMAL));
  long steps = 0;
  CVodeGetNumSteps(solver, &steps);
  CVodeFree(&solver);
  SUNLinSolFree(linear);
  if (matrix) SUNMatDestroy(matrix);
  N_VDestroy(state);
  SUNContext_Free(&context);
  return {u, steps};
}
#endif

int64_t side_of(int argc, char** argv) {
  const std::string option = "--side=";
  for (int k = 1; k < argc; ++k)
    if (std::string(argv[k]).starts_with(option)) return std::stoll(std::string(argv[k]).substr(option.size()));
  return 316;
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  const int64_t n = side_of(argc, argv);
  const auto f = tower::compile(slope);
  const auto compiled = [f](const Tensor& t, const Tensor& u) { return f(t, u); };
  Factors factors(n);
  tower::LinearSolveOptions<tower::dynamic::Tensors> krylov, direct;
  krylov.method = tower::LinearMethod::gmres;
  direct.symmetric = true;
  direct.solve = [&](const tower::dynamic::Function& apply, const tower::dynamic::Tensors& b) {
    return tower::dynamic::Tensors{factors.solve(apply, b[0])};
  };
  constexpr double kTolerance = 1e-5;
  const auto with = [&](const auto& linear) {
    return tower::OdeOptions{.method = tower::Ode::rodas5p, .rtol = kTolerance, .atol = kTolerance, .linear = linear};
  };
  std::vector<Run> runs{
      {"Tower, gmres", [&] { return by_tower(compiled, n, with(krylov)); }},
      {"Tower, Eigen's factors", [&] { return by_tower(compiled, n, with(direct)); }},
      {"Tower, tsit5", [&] { return by_tower(compiled, n, {.rtol = kTolerance, .atol = kTolerance}); }}};
#if TOWER_BENCH_CVODE
  for (const double tolerance : {1e-5, 1e-6, 1e-7}) {
    runs.push_back({fmt::format("CVODE, GMRES, {:.0e}", tolerance), [=] { return by_cvode(n, tolerance, false); }});
    runs.push_back({fmt::format("CVODE, KLU, {:.0e}", tolerance), [=] { return by_cvode(n, tolerance, true); }});
  }
#endif
  const Tensor exact = by_tower(compiled, n, {.rtol = 1e-11, .atol = 1e-11}).first;
  report::Table table({fmt::format("{} unknowns", n * n), "first call", "time", "steps", "largest error"});
  for (const Run& run : runs) {
    double first = 0, least = std::numeric_limits<double>::infinity();
    std::pair<Tensor, int64_t> found;
    for (int round = 0; round < 2; ++round) {
      const auto began = std::chrono::steady_clock::now();
      found = run.run();
      const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      if (round == 0) first = took;
      least = std::min(least, took);
    }
    table.add({run.name, fmt::format("{:.2f} s", first), fmt::format("{:.2f} s", least),
               fmt::format("{}", found.second),
               fmt::format("{:.1e}", (found.first - exact).abs().max().item<double>())});
  }
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "large_ode: {}\n", error.what());
  return EXIT_FAILURE;
}
