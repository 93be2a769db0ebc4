// A loop of CVODE over the systems of an ensemble, for bench/odes: BDF with its dense direct solver and the Jacobian
// given, each system's state reinitialized, two threads.
//
//   loop PROBLEM N NUMBERS RTOL ATOL END ROUNDS < parameters > states
//
// PROBLEM is robertson, van_der_pol or pollu; `parameters` are N times NUMBERS doubles, `states` all the states at END,
// and a last double that is the least time of the rounds, in seconds.
#include <cvode/cvode.h>
#include <nvector/nvector_serial.h>
#include <sundials/sundials_context.h>
#include <sunlinsol/sunlinsol_dense.h>
#include <sunmatrix/sunmatrix_dense.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "loop: %s\n", what);
  std::exit(EXIT_FAILURE);
}

struct Problem {
  const char* name;
  std::vector<double> y0;
  CVRhsFn slope;
  CVLsJacFn jacobian;
};

const double* values(N_Vector v) { return N_VGetArrayPointer(v); }

int robertson(double, N_Vector state, N_Vector slope, void* given) {
  const double *k = static_cast<double*>(given), *y = values(state);
  const double slow = k[0] * y[0], middle = k[1] * y[1] * y[2], fast = k[2] * y[1] * y[1];
  double* d = N_VGetArrayPointer(slope);
  d[0] = middle - slow, d[1] = slow - middle - fast, d[2] = fast;
  return 0;
}
int robertson_by_y(double, N_Vector state, N_Vector, SUNMatrix j, void* given, N_Vector, N_Vector, N_Vector) {
  const double *k = static_cast<double*>(given), *y = values(state);
  SM_ELEMENT_D(j, 0, 0) = -k[0], SM_ELEMENT_D(j, 0, 1) = k[1] * y[2], SM_ELEMENT_D(j, 0, 2) = k[1] * y[1];
  SM_ELEMENT_D(j, 2, 0) = 0, SM_ELEMENT_D(j, 2, 1) = 2 * k[2] * y[1], SM_ELEMENT_D(j, 2, 2) = 0;
  for (int c = 0; c < 3; ++c) SM_ELEMENT_D(j, 1, c) = -SM_ELEMENT_D(j, 0, c) - SM_ELEMENT_D(j, 2, c);
  return 0;
}

int van_der_pol(double, N_Vector state, N_Vector slope, void* given) {
  const double mu = *static_cast<double*>(given), *y = values(state);
  double* d = N_VGetArrayPointer(slope);
  d[0] = y[1], d[1] = mu * (1 - y[0] * y[0]) * y[1] - y[0];
  return 0;
}
int van_der_pol_by_y(double, N_Vector state, N_Vector, SUNMatrix j, void* given, N_Vector, N_Vector, N_Vector) {
  const double mu = *static_cast<double*>(given), *y = values(state);
  SM_ELEMENT_D(j, 0, 0) = 0, SM_ELEMENT_D(j, 0, 1) = 1;
  SM_ELEMENT_D(j, 1, 0) = -2 * mu * y[0] * y[1] - 1, SM_ELEMENT_D(j, 1, 1) = mu * (1 - y[0] * y[0]);
  return 0;
}

// J. G. Verwer, Gauss–Seidel iteration for stiff ODEs from chemical kinetics, SIAM J. Sci. Comput. 15 (1994) 1243: of
// each reaction the species that react, from 1 on (0: there is no second one), and what becomes of the species.
struct Reaction {
  int first, second;
  std::array<int, 6> change;  // species, negative where it is used up; 0: none
};
constexpr std::array<Reaction, 25> kReactions{{
    {1, 0, {-1, 2, 3}},     {2, 4, {-2, -4, 1}},       {5, 2, {-5, -2, 1, 6}},
    {7, 0, {-7, 5, 5, 8}},  {7, 0, {-7, 8}},           {7, 6, {-7, -6, 5, 8}},
    {9, 0, {-9, 5, 8, 10}}, {9, 6, {-9, -6, 11}},      {11, 2, {-11, -2, 1, 10, 12}},
    {11, 1, {-11, -1, 13}}, {13, 0, {-13, 1, 11}},     {10, 2, {-10, -2, 1, 14}},
    {14, 0, {-14, 5, 7}},   {1, 6, {-1, -6, 15}},      {3, 0, {-3, 4}},
    {4, 0, {-4, 16}},       {4, 0, {-4, 3}},           {16, 0, {-16, 6, 6}},
    {16, 0, {-16, 3}},      {17, 6, {-17, -6, 5, 18}}, {19, 0, {-19, 2}},
    {19, 0, {-19, 1, 3}},   {1, 4, {-1, -4, 19}},      {19, 1, {-19, -1, 20}},
    {20, 0, {-20, 1, 19}},
}};

template <class Add>
void react(const double* k, const double* y, const Add& add) {
  for (size_t r = 0; r < kReactions.size(); ++r) {
    const auto& [first, second, change] = kReactions[r];
    const double a = y[first - 1], b = second ? y[second - 1] : 1;
    for (const int c : change)
      if (c != 0) add(std::abs(c) - 1, c > 0 ? k[r] : -k[r], first - 1, a, second - 1, b);
  }
}
int pollu(double, N_Vector state, N_Vector slope, void* given) {
  double* d = N_VGetArrayPointer(slope);
  std::memset(d, 0, 20 * sizeof(double));
  react(static_cast<double*>(given), values(state),
        [&](int row, double k, int, double a, int, double b) { d[row] += k * a * b; });
  return 0;
}
int pollu_by_y(double, N_Vector state, N_Vector, SUNMatrix j, void* given, N_Vector, N_Vector, N_Vector) {
  SUNMatZero(j);
  react(static_cast<double*>(given), values(state), [&](int row, double k, int i, double a, int l, double b) {
    SM_ELEMENT_D(j, row, i) += k * b;
    if (l >= 0) SM_ELEMENT_D(j, row, l) += k * a;
  });
  return 0;
}

struct Run {
  const Problem& problem;
  double rtol, atol, end;
  size_t numbers;

  void systems(double* parameters, double* states, size_t from, size_t to) const {
    const auto n = static_cast<sunindextype>(problem.y0.size());
    SUNContext context;
    require(SUNContext_Create(nullptr, &context) == 0, "no context");
    N_Vector y = N_VNew_Serial(n, context);
    SUNMatrix matrix = SUNDenseMatrix(n, n, context);
    SUNLinearSolver solver = SUNLinSol_Dense(y, matrix, context);
    void* memory = CVodeCreate(CV_BDF, context);
    const auto begin = [&] {
      std::memcpy(N_VGetArrayPointer(y), problem.y0.data(), problem.y0.size() * sizeof(double));
    };
    begin();
    require(CVodeInit(memory, problem.slope, 0, y) == 0 && CVodeSStolerances(memory, rtol, atol) == 0 &&
                CVodeSetLinearSolver(memory, solver, matrix) == 0 && CVodeSetJacFn(memory, problem.jacobian) == 0 &&
                CVodeSetMaxNumSteps(memory, 1'000'000) == 0 && CVodeSetStopTime(memory, end) == 0,
            "CVODE refuses an option");
    for (size_t k = from; k < to; ++k) {
      begin();
      double t = 0;
      const bool arrived = CVodeReInit(memory, 0, y) == 0 && CVodeSetUserData(memory, parameters + k * numbers) == 0 &&
                           CVodeSetStopTime(memory, end) == 0 && CVode(memory, end, y, &t, CV_NORMAL) >= 0;
      require(arrived, "a system does not arrive");
      std::memcpy(states + k * problem.y0.size(), values(y), problem.y0.size() * sizeof(double));
    }
    CVodeFree(&memory);
    SUNLinSolFree(solver);
    SUNMatDestroy(matrix);
    N_VDestroy(y);
    SUNContext_Free(&context);
  }
};

}  // namespace

int main(int argc, char** argv) {
  require(argc == 8, "PROBLEM N NUMBERS RTOL ATOL END ROUNDS");
  const std::vector<Problem> problems{
      {"robertson", {1, 0, 0}, robertson, robertson_by_y},
      {"van_der_pol", {2, 0}, van_der_pol, van_der_pol_by_y},
      {"pollu", {0, 0.2, 0, 0.04, 0, 0, 0.1, 0.3, 0.01, 0, 0, 0, 0, 0, 0, 0, 0.007, 0, 0, 0}, pollu, pollu_by_y}};
  const Problem* problem = nullptr;
  for (const Problem& p : problems)
    if (std::strcmp(p.name, argv[1]) == 0) problem = &p;
  require(problem != nullptr, "no such problem");
  const size_t n = std::strtoull(argv[2], nullptr, 10), numbers = std::strtoull(argv[3], nullptr, 10);
  std::vector<double> parameters(n * numbers), states(n * problem->y0.size());
  require(std::fread(parameters.data(), sizeof(double), parameters.size(), stdin) == parameters.size(),
          "no parameters");
  const Run run{*problem, std::atof(argv[4]), std::atof(argv[5]), std::atof(argv[6]), numbers};
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < std::atoi(argv[7]); ++round) {
    const auto start = std::chrono::steady_clock::now();
    std::thread other([&] { run.systems(parameters.data(), states.data(), n / 2, n); });
    run.systems(parameters.data(), states.data(), 0, n / 2);
    other.join();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::fwrite(states.data(), sizeof(double), states.size(), stdout);
  std::fwrite(&least, sizeof(double), 1, stdout);
}
