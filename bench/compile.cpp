// What compiled functions cost: pointwise chains as machine code, beside the same operator by operator and loops
// written by hand. One thread.
//
//   compile [--only=PART OF A NAME] [Google Benchmark's flags]
//
//   cheap   30 operators (×, +, −, abs) on 10^6 floats, forward, and with the gradients of its sum
//   mixed   the same with 12 of tanh, exp, log and sin among them; the loop by hand calls the same vector library
//   chain   that of bench/engine: 300 operators on four floats, under each transform; time for one operator
//   call    one operator on four floats
//   Newton  ten corrections of examples/material_newton, a call each; by hand: plain C++, one point at a time
//   PINN    the gradient of a squared Laplacian's mean over points, 2-64-64-1
//   RK4     200 steps of three coupled oscillators, a call each, and in one function its gradient
//   and rows of bench/workloads
//
// Below, what it takes from the trace to the first result, what two threads gain, and how long it takes a process
// without LLVM to load a saved function.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <tower/dynamic.h>
#include <tower/tower.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "compile/newton_by_hand.h"
#include "kernels/cpu.h"
#include "kernels/llvm.h"
#include "support/optimized.h"
#include "support/peak_memory.h"
#include "support/race.h"
#include "support/report.h"
#include "workloads/networks.h"
#include "workloads/physics.h"

namespace {

using at::Tensor;
using tower::dynamic::Function;
using tower::dynamic::Tensors;
namespace td = tower::dynamic;

constexpr int64_t kMany = 1000000;
constexpr int kOperators = 30;

Tensor cheap(Tensor x, const Tensor& y) {
  for (int i = 0; i < kOperators; i += 5) x = ((x * 0.99 + y).abs() - 0.1) * y;
  return x;
}

Tensor mixed(Tensor x, const Tensor& y) {
  for (int i = 0; i < kOperators; i += 10) x = (((x.tanh() * 0.5).exp() + y).abs() + 1).log().mul(y).sin() - 0.1;
  return x;
}

// ---- by hand ----

using V = float __attribute__((vector_size(64)));
constexpr int64_t kLanes = 16;

[[gnu::target_clones("avx512f", "avx2", "default"), TOWER_BENCH_OPTIMIZED]] void cheap_by_hand(const float* x,
                                                                                               const float* y,
                                                                                               float* out, int64_t n) {
  for (int64_t at = 0; at < n; at += kLanes) {
    V v, w;
    __builtin_memcpy(&v, x + at, sizeof v);
    __builtin_memcpy(&w, y + at, sizeof w);
    for (int i = 0; i < kOperators; i += 5) {
      v = v * 0.99f + w;
      v = v < 0 ? -v : v;
      v = (v - 0.1f) * w;
    }
    __builtin_memcpy(out + at, &v, sizeof v);
  }
}

// The gradients of the sum.
[[gnu::target_clones("avx512f", "avx2", "default"), TOWER_BENCH_OPTIMIZED]] void cheap_gradients_by_hand(
    const float* x, const float* y, float* dx, float* dy, int64_t n) {
  constexpr int kRounds = kOperators / 5;
  for (int64_t at = 0; at < n; at += kLanes) {
    V v, w, before[kRounds], after[kRounds];
    __builtin_memcpy(&v, x + at, sizeof v);
    __builtin_memcpy(&w, y + at, sizeof w);
    for (int i = 0; i < kRounds; ++i) {
      before[i] = v * 0.99f + w;
      after[i] = (before[i] < 0 ? -before[i] : before[i]) - 0.1f;
      v = after[i] * w;
    }
    V g = V{} + 1, h = V{};
    for (int i = kRounds; i-- > 0;) {
      h += g * after[i];
      g = g * w;
      g = before[i] < 0 ? -g : g;
      h += g;
      g = g * 0.99f;
    }
    __builtin_memcpy(dx + at, &g, sizeof g);
    __builtin_memcpy(dy + at, &h, sizeof h);
  }
}

// The vector library's functions, where LibTorch has them for this CPU.
struct Library {
  using F = V (*)(V);
  F tanh, exp, log, sin;
};
std::optional<Library> library() {
  if (!__builtin_cpu_supports("avx512f")) return std::nullopt;
  const auto find = [](const char* name) { return reinterpret_cast<Library::F>(dlsym(RTLD_DEFAULT, name)); };
  const Library l{find("Sleef_tanhf16_u10avx512f"), find("Sleef_expf16_u10avx512f"), find("Sleef_logf16_u10avx512f"),
                  find("Sleef_sinf16_u10avx512f")};
  if (!l.tanh || !l.exp || !l.log || !l.sin) return std::nullopt;
  return l;
}

// Four vectors at a time, which hides how long the calls take one after the other.
[[gnu::target("avx512f"), TOWER_BENCH_OPTIMIZED]] void mixed_by_hand(const Library& l, const float* x, const float* y,
                                                                     float* out, int64_t n) {
  constexpr int kTogether = 4;
  for (int64_t at = 0; at < n; at += kLanes * kTogether) {
    V v[kTogether], w[kTogether];
    __builtin_memcpy(&v, x + at, sizeof v);
    __builtin_memcpy(&w, y + at, sizeof w);
    for (int i = 0; i < kOperators; i += 10) {
      for (int k = 0; k < kTogether; ++k) v[k] = l.tanh(v[k]);
      for (int k = 0; k < kTogether; ++k) v[k] = l.exp(v[k] * 0.5f) + w[k];
      for (int k = 0; k < kTogether; ++k) v[k] = l.log((v[k] < 0 ? -v[k] : v[k]) + 1);
      for (int k = 0; k < kTogether; ++k) v[k] = l.sin(v[k] * w[k]) - 0.1f;
    }
    __builtin_memcpy(out + at, &v, sizeof v);
  }
}

// ---- the race ----

using Work = std::function<Tensors()>;

struct Row {
  std::string name;
  Work compiled, eager;
  std::function<void()> by_hand = {};
  // What the compiled function may take: a multiple of one of the others, or so many ns an operator.
  enum Of { nothing, hand, operators, time } of = nothing;
  double budget = 0;
  double count = 1;         // operators that one call counts for
  double tolerance = 1e-4;  // relative to the greatest number
};

Tensors chain(const Tensors& in) {
  Tensor y = in[0];
  for (int step = 0; step < 100; ++step) y = at::add(at::mul(at::sin(y), in[1]), in[2]);
  return {y};
}
Tensors chain_sum(const Tensors& in) { return {chain(in)[0].sum()}; }

double milliseconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void expect_close(const Row& row, const Tensors& a, const Tensors& b) {
  for (size_t k = 0; k < a.size(); ++k) {
    const double scale = b[k].abs().max().item<double>(), apart = (a[k] - b[k]).abs().max().item<double>();
    if (!(apart <= row.tolerance * scale + 1e-6))
      throw std::runtime_error(fmt::format("{}: result {} differs by {:.1e} of {:.1e}", row.name, k, apart, scale));
  }
}

std::string in_unit(double ns) {
  return ns >= 1e5   ? fmt::format("{:.2f} ms", ns / 1e6)
         : ns >= 1e3 ? fmt::format("{:.2f} µs", ns / 1e3)
                     : fmt::format("{:.1f} ns", ns);
}

// ---- rows ----

Function of_two(Tensor (*f)(Tensor, const Tensor&)) {
  return [f](const Tensors& in) { return Tensors{f(in[0], in[1])}; };
}

std::vector<Row> pointwise_rows() {
  const Tensor x = at::rand({kMany}) + 0.5, y = at::rand({kMany}) + 0.25, out = at::empty_like(x),
               also = at::empty_like(x);
  const float *px = x.const_data_ptr<float>(), *py = y.const_data_ptr<float>();
  float *po = out.mutable_data_ptr<float>(), *pa = also.mutable_data_ptr<float>();
  const auto gradients = [](Tensor (*f)(Tensor, const Tensor&)) {
    return td::grad([f](const Tensors& in) { return Tensors{f(in[0], in[1]).sum()}; }, {0, 1});
  };
  std::vector<Row> rows;
  const auto add = [&](std::string name, double budget, const Function& f, std::function<void()> by_hand) {
    rows.push_back({std::move(name),
                    [f = td::compile(f), x, y] {
                      return f({x, y});
                    },
                    [f, x, y] {
                      return f({x, y});
                    },
                    std::move(by_hand), budget > 0 ? Row::hand : Row::nothing, budget});
  };
  add("cheap", 1.3, of_two(cheap), [=, keep = out] { cheap_by_hand(px, py, po, kMany); });
  add("cheap, gradients", 1.3, gradients(cheap), [=, keep = also] { cheap_gradients_by_hand(px, py, po, pa, kMany); });
  const auto sleef = library();
  std::function<void()> mixed_loop;
  if (sleef) mixed_loop = [=, keep = out] { mixed_by_hand(*sleef, px, py, po, kMany); };
  add("mixed", sleef ? 1.5 : 0, of_two(mixed), mixed_loop);
  add("mixed, gradients", 0, gradients(mixed), {});
  return rows;
}

std::vector<Row> small_rows() {
  const Tensor four = at::rand({4}), a = at::rand({4}), b = at::rand({4}), direction = at::rand({4});
  const auto mapped = [](Function f) { return td::vmap(std::move(f), {0, 0, 0}, {0}); };
  const auto gradient = [](Function f) { return td::grad(std::move(f), {0}); };
  const auto along = [&](Function f) {
    return Function([f = std::move(f), direction](const Tensors& in) {
      return td::jvp(f, in, {direction, {}, {}}).second;
    });
  };
  const std::vector<std::pair<std::string, Function>> chains = {
      {"chain", chain},
      {"chain, vmap", mapped(chain)},
      {"chain, grad", gradient(chain_sum)},
      {"chain, vmap(grad)", mapped(gradient(chain_sum))},
      {"chain, jvp", along(chain)},
      {"chain, jvp(grad)", along(gradient(chain_sum))},
  };
  std::vector<Row> rows;
  const Tensors args{four, a, b};
  for (const auto& [name, f] : chains)
    rows.push_back({name,
                    [f = td::compile(f), args] { return f(args); },
                    [f = f, args] { return f(args); },
                    {},
                    Row::operators,
                    20,
                    300});
  const Function one = [](const Tensors& in) { return Tensors{in[0].sin()}; };
  rows.push_back({"call",
                  [f = td::compile(one), four] { return f({four}); },
                  [one, four] { return one({four}); },
                  {},
                  Row::time,
                  2000});
  return rows;
}

// What the correction of a batch is called with: unknowns, and the step of each point.
Tensors newton_arguments(const material_newton::Material& material, int64_t points) {
  using namespace material_newton;
  const Cycles cycles = Cycles::random(points, 1);
  const at::TensorOptions f64 = at::dtype(at::kDouble);
  const Step step{cycles.strain(0.1), cycles.period / 10, at::zeros({points, 6}, f64), at::zeros({points}, f64)};
  return {first_guess_by_hand(material, step), step.strain_increment, step.duration, step.stress, step.plastic_strain};
}

Function newton_correction(const std::shared_ptr<const material_newton::Material>& material, bool forward) {
  using material_newton::Step;
  return td::vmap(
      [=](const Tensors& a) {
        const Function residual = [&](const Tensors& x) -> Tensors {
          return {material->residual(x[0], Step{a[1], a[2], a[3], a[4]})};
        };
        const Tensor r = residual(a)[0];
        const Tensor jacobian = forward ? td::jacfwd(residual, {0})({a[0]})[0] : td::jacrev(residual, {0})({a[0]})[0];
        return Tensors{a[0] - at::linalg_solve(jacobian, r), r.norm()};
      },
      {0, 0, 0, 0, 0}, {0});
}

constexpr int kCorrections = 10;

Work corrected(const Function& correct, const Tensors& arguments) {
  return [=] {
    Tensors a = arguments;
    for (int i = 0; i < kCorrections; ++i) a[0] = correct(a)[0];
    return Tensors{a[0]};
  };
}

Row newton_row(int64_t points, bool forward) {
  const auto material = std::make_shared<const material_newton::Material>(material_newton::Constants{});
  const Tensors args = newton_arguments(*material, points);
  const Function correct = newton_correction(material, forward);
  std::vector<scalar::Point> given(static_cast<size_t>(points));
  for (size_t n = 0; n < given.size(); ++n) {
    const auto at = static_cast<int64_t>(n);
    std::copy_n(args[1][at].const_data_ptr<double>(), 6, given[n].strain_increment);
    std::fill_n(given[n].stress, 6, 0);
    given[n].duration = args[2][at].item<double>();
    given[n].plastic_strain = 0;
  }
  const auto by_hand = [=, newton = scalar::Newton(*material), x = args[0].clone(),
                        norms = at::empty_like(args[2])]() mutable {
    x.copy_(args[0]);
    auto* px = x.mutable_data_ptr<double>();
    auto* norm = norms.mutable_data_ptr<double>();
    for (size_t n = 0; n < given.size(); ++n)
      for (int i = 0; i < kCorrections; ++i) norm[n] = newton.correct(given[n], px + 7 * n);
    return x;
  };
  const double apart =
      (at::Tensor(std::function<at::Tensor()>(by_hand)()) - corrected(correct, args)()[0]).abs().max().item<double>();
  if (!(apart < 1e-6)) throw std::runtime_error(fmt::format("Newton by hand differs by {:.1e}", apart));
  const bool one = points == 1;
  return {fmt::format("Newton, {} point{}, {}", points, one ? "" : "s", forward ? "jacfwd" : "jacrev"),
          corrected(td::compile(correct), args),
          corrected(correct, args),
          std::function<void()>(by_hand),
          one ? Row::time : Row::hand,
          one ? 10e3 : 0.5,
          1,
          1e-8};
}

Row pinn_row() {
  constexpr int64_t kPoints = 10'000;
  Tensors args = workloads::dense_layers({2, 64, 64, 1});
  args.push_back(at::rand({kPoints, 2}));
  const Function loss = [](const Tensors& a) -> Tensors {
    const Tensors params(a.begin(), a.begin() + 6);
    const Function u = [&](const Tensors& x) -> Tensors {
      return {workloads::perceptron(params, 3, x[0], at::tanh).squeeze(-1)};
    };
    const Function laplacian = [&](const Tensors& x) -> Tensors {
      const Tensor hessian = td::jacfwd(td::jacrev(u, {0}), {0})(x)[0];
      return {hessian.select(0, 0).select(0, 0) + hessian.select(0, 1).select(0, 1)};
    };
    return {td::vmap(laplacian, {0}, {0})({a[6]})[0].square().mean()};
  };
  const Function gradient = td::grad(loss, workloads::first_arguments(6));
  return {"PINN, 10,000 points",
          [f = td::compile(gradient), args] { return f(args); },
          [gradient, args] { return gradient(args); },
          {},
          Row::operators,
          0.6};
}

// All of a workload's work is traced: its tensors are captured.
Row workload_row(const workloads::Workload& w, double budget) {
  const Work eager = w.with(workloads::tower_engine());
  const Function compiled = td::compile([eager](const Tensors&) { return eager(); });
  return {w.name, [compiled] { return compiled({}); }, eager, {}, Row::operators, budget, 1, w.tolerance};
}

Row integrator_row() {
  constexpr int kSteps = 200;
  const Tensors args{at::randn({4096, 6}), at::rand({4096, 3}) + 0.5};
  const Function step = td::vmap(
      [](const Tensors& a) {
        const auto slope = [&](const Tensor& y) {
          const Tensor q = y.slice(0, 0, 3), v = y.slice(0, 3, 6);
          return at::cat({v, -a[1] * q - 0.1 * q * q * q + 0.2 * q.roll(1)});
        };
        constexpr double h = 0.02;
        const Tensor& y = a[0];
        const Tensor k1 = slope(y), k2 = slope(y + h / 2 * k1), k3 = slope(y + h / 2 * k2), k4 = slope(y + h * k3);
        return Tensors{y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)};
      },
      {0, 0}, {0});
  const auto many = [=](const Function& f) {
    return [=] {
      Tensors a = args;
      for (int i = 0; i < kSteps; ++i) a[0] = f(a)[0];
      return Tensors{a[0]};
    };
  };
  return {"RK4, 200 steps, 4,096 lanes, vmap", many(td::compile(step)), many(step), {}, Row::operators, 0.15};
}

std::vector<Row> all_rows() {
  at::manual_seed(7);
  std::vector<Row> rows = pointwise_rows();
  for (Row& row : small_rows()) rows.push_back(std::move(row));
  for (const int64_t points : {10'000, 1})
    for (const bool forward : {true, false}) rows.push_back(newton_row(points, forward));
  rows.push_back(pinn_row());
  rows.push_back(workload_row(workloads::dp_perceptron(64), 0.35));
  rows.push_back(workload_row(workloads::hessian_500(), 0.6));
  rows.push_back(workload_row(workloads::hessian_vector_product(), 0.7));
  rows.push_back(integrator_row());
  rows.push_back(workload_row(workloads::integrator(4096), 0.2));
  return rows;
}

// ---- beside the race ----

constexpr const char* kTwoThreads = "Newton, 10000 points, two threads";
constexpr const char* kLoaded = "Newton, 10000 points, loaded";
constexpr const char* kLoadFlag = "--load=";

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// One thread by its processor time, two by the clock: what others run on the machine makes the gain less, never more.
void compare_threads() {
  const Work work = newton_row(10'000, true).compiled;
  const auto fastest = [&](const std::function<double()>& now) {
    double least = std::numeric_limits<double>::infinity();
    for (int repetition = 0; repetition < 50; ++repetition) {
      const double began = now();
      work();
      least = std::min(least, now() - began);
    }
    return least;
  };
  work();  // traces
  work();  // compiles
  const double one = fastest(processor_seconds);
  at::set_num_threads(2);
  const double two = fastest(
      [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); });
  at::set_num_threads(1);
  const double gain = one / two;
  report::Table table({"", "one thread", "two threads", "budget", "", ""});
  table.add({kTwoThreads, in_unit(one * 1e9), in_unit(two * 1e9), "1.8 × as fast", fmt::format("{:.2f} ×", gain),
             report::verdict(1.8, gain)});
  fmt::print("\n");
  table.print();
}

// In another process, which has no LLVM: from a file to the first result, in processor time.
int load_and_call(const std::string& path) {
  at::set_num_threads(1);
  const auto material = std::make_shared<const material_newton::Material>(material_newton::Constants{});
  const Tensors args = newton_arguments(*material, 10'000);
  Function step;
  Tensors result;
  const double began = processor_seconds();
  step = td::load(path);
  const double loaded = processor_seconds();
  result = step(args);
  const double first = processor_seconds();
  result = step(args);
  const double second = processor_seconds();
  if (!at::allclose(result[0], newton_correction(material, true)(args)[0], 1e-10, 1e-10))
    throw std::runtime_error("the loaded correction differs");
  report::Table table({"without LLVM", "load", "first call", "second"});
  table.add(
      {kLoaded, in_unit((loaded - began) * 1e9), in_unit((first - loaded) * 1e9), in_unit((second - first) * 1e9)});
  table.print();
  return 0;
}

void load_elsewhere() {
  const auto material = std::make_shared<const material_newton::Material>(material_newton::Constants{});
  const Function step = td::compile(newton_correction(material, true));
  for (const int64_t points : {100, 200, 200}) step(newton_arguments(*material, points));
  const std::filesystem::path path = std::filesystem::temp_directory_path() / fmt::format("newton_{}.tower", getpid());
  td::save(step, path);
  fmt::print("\n");
  std::fflush(stdout);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const int status = std::system(fmt::format("TOWER_LLVM=none '{}' '{}{}'", program, kLoadFlag, path.string()).c_str());
  std::filesystem::remove(path);
  if (status != 0) throw std::runtime_error("what was saved could not be loaded");
}

std::string megabytes(int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6); }

int run(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]).starts_with(kLoadFlag))
    return load_and_call(argv[1] + std::strlen(kLoadFlag));
  const std::string wanted = only(argc, argv);
  at::set_num_threads(1);
  Race race(argc, argv);
  const tower::compiler::Llvm* llvm = nullptr;
  const double loading = milliseconds([&] { llvm = &tower::compiler::Llvm::get(); });
  if (!llvm->works()) {
    fmt::print("there is no LLVM: {}\n", llvm->why_not());
    return 0;
  }
  fmt::print("{}, loaded in {:.0f} ms; vectors of {} bytes\n\n", llvm->library(), loading,
             tower::compiler::Cpu::get().vector_bytes());

  std::vector<Row> rows;
  for (Row& row : all_rows())
    if (row.name.find(wanted) != std::string::npos) rows.push_back(std::move(row));
  report::Table compiling({"", "first call, ms", "second, with kernels", "eager", "peak, MB", "eager"});
  for (const Row& row : rows) {
    Tensors expected, actual;
    const double eager = milliseconds([&] { expected = row.eager(); });
    const double traced = milliseconds([&] { row.compiled(); });
    const double first = milliseconds([&] { actual = row.compiled(); });
    expect_close(row, actual, expected);
    compiling.add({row.name, fmt::format("{:.1f}", traced), fmt::format("{:.1f}", first), fmt::format("{:.1f}", eager),
                   megabytes(peak_memory([&] { row.compiled(); })), megabytes(peak_memory([&] { row.eager(); }))});
    race.add(row.name, [&row] { row.compiled(); });
    race.add(row.name + "/eager", [&row] { row.eager(); });
    if (row.by_hand) race.add(row.name + "/by hand", row.by_hand);
  }
  auto ns = race.run();
  report::Table table({"one thread", "compiled", "operator by operator", "by hand", "budget", "", ""});
  for (const Row& row : rows) {
    const double compiled = ns[row.name] / row.count, eager = ns[row.name + "/eager"] / row.count;
    const double by_hand = row.by_hand ? ns[row.name + "/by hand"] : 0;
    std::string budget = "-";
    double measured = compiled;
    if (row.of == Row::time) {
      budget = in_unit(row.budget);
    } else if (row.of == Row::operators && row.count > 1) {
      budget = fmt::format("{:.0f} ns an operator", row.budget);
    } else if (row.of == Row::operators) {
      measured = compiled / eager;
      budget = fmt::format("{:.2f} × operators", row.budget);
    } else if (row.of == Row::hand) {
      measured = compiled / by_hand;
      budget = fmt::format("{:.1f} × by hand", row.budget);
    }
    const bool ratio = row.of == Row::hand || (row.of == Row::operators && row.count == 1);
    table.add({row.name, in_unit(compiled), in_unit(eager), row.by_hand ? in_unit(by_hand) : "-", budget,
               ratio ? fmt::format("{:.2f} ×", measured) : "",
               row.of == Row::nothing ? "" : report::verdict(measured, row.budget)});
  }
  table.print();
  fmt::print("\n");
  compiling.print();
  const auto is_wanted = [&](const char* name) { return std::string_view(name).find(wanted) != std::string::npos; };
  if (is_wanted(kTwoThreads)) compare_threads();
  if (is_wanted(kLoaded)) load_elsewhere();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "compile: {}\n", e.what());
    return 1;
  }
}
