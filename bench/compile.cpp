// What compiled functions cost: pointwise chains as machine code, beside the same operator by operator and loops
// written by hand. One thread.
//
//   compile [Google Benchmark's flags]
//
//   cheap   30 operators (×, +, −, abs) on 10^6 floats, forward, and with the gradients of its sum
//   mixed   the same with 12 of tanh, exp, log and sin among them; the loop by hand calls the same vector library
//   chain   that of bench/engine: 300 operators on four floats, under each transform; time for one operator
//   call    one operator on four floats
//
// Below, what it takes from the trace to the first result.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "compile/llvm.h"
#include "support/race.h"
#include "support/report.h"

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

[[gnu::target_clones("avx512f", "avx2", "default"), gnu::optimize("O3")]] void cheap_by_hand(const float* x,
                                                                                             const float* y, float* out,
                                                                                             int64_t n) {
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
[[gnu::target_clones("avx512f", "avx2", "default"), gnu::optimize("O3")]] void cheap_gradients_by_hand(
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
[[gnu::target("avx512f"), gnu::optimize("O3")]] void mixed_by_hand(const Library& l, const float* x, const float* y,
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

struct Row {
  std::string name;
  double operators = 1;          // that one call counts for
  std::optional<double> budget;  // of the loop by hand; else absolute, in ns for one operator
  Function compiled, plain;
  std::function<void()> by_hand;
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

void expect_close(const std::string& name, const Tensors& a, const Tensors& b) {
  for (size_t k = 0; k < a.size(); ++k)
    if (!a[k].allclose(b[k], 1e-4, 1e-5)) throw std::runtime_error(name + ": results differ");
}

std::string in_unit(double ns) {
  return ns >= 1e5   ? fmt::format("{:.2f} ms", ns / 1e6)
         : ns >= 1e3 ? fmt::format("{:.2f} µs", ns / 1e3)
                     : fmt::format("{:.1f} ns", ns);
}

int run(int argc, char** argv) {
  at::set_num_threads(1);
  Race race(argc, argv);
  const tower::compiler::Llvm* llvm = nullptr;
  const double loading = milliseconds([&] { llvm = &tower::compiler::Llvm::get(); });
  if (!llvm->works()) {
    fmt::print("there is no LLVM: {}\n", llvm->why_not());
    return 0;
  }
  fmt::print("{}, loaded in {:.0f} ms; vectors of {} bytes\n\n", llvm->library(), loading, llvm->vector_bytes());

  const Tensor x = at::rand({kMany}) + 0.5, y = at::rand({kMany}) + 0.25, out = at::empty_like(x),
               also = at::empty_like(x);
  const float *px = x.const_data_ptr<float>(), *py = y.const_data_ptr<float>();
  float *po = out.mutable_data_ptr<float>(), *pa = also.mutable_data_ptr<float>();
  const auto of_two = [](Tensor (*f)(Tensor, const Tensor&)) {
    return Function([f](const Tensors& in) { return Tensors{f(in[0], in[1])}; });
  };
  const auto gradients = [&](Tensor (*f)(Tensor, const Tensor&)) {
    return td::grad([f](const Tensors& in) { return Tensors{f(in[0], in[1]).sum()}; }, {0, 1});
  };
  const auto on = [](Function f, Tensors args) {
    return Function([f = std::move(f), args = std::move(args)](const Tensors&) { return f(args); });
  };
  std::vector<Row> rows;
  const auto add = [&](std::string name, double operators, std::optional<double> budget, const Function& f,
                       const Tensors& args, std::function<void()> by_hand) {
    rows.push_back({std::move(name), operators, budget, on(td::compile(f), args), on(f, args), std::move(by_hand)});
  };
  add("cheap", 1, 1.3, of_two(cheap), {x, y}, [=] { cheap_by_hand(px, py, po, kMany); });
  add("cheap, gradients", 1, 1.3, gradients(cheap), {x, y}, [=] { cheap_gradients_by_hand(px, py, po, pa, kMany); });
  const auto sleef = library();
  std::function<void()> mixed_loop;
  if (sleef) mixed_loop = [=] { mixed_by_hand(*sleef, px, py, po, kMany); };
  add("mixed", 1, 1.5, of_two(mixed), {x, y}, mixed_loop);
  add("mixed, gradients", 1, std::nullopt, gradients(mixed), {x, y}, {});

  const Tensor four = at::rand({4}), a = at::rand({4}), b = at::rand({4});
  const auto mapped = [](Function f) { return td::vmap(std::move(f), {0, 0, 0}, {0}); };
  const auto gradient = [](Function f) { return td::grad(std::move(f), {0}); };
  const auto along = [](Function f, Tensor t) {
    return Function(
        [f = std::move(f), t = std::move(t)](const Tensors& in) { return td::jvp(f, in, {t, {}, {}}).second; });
  };
  const Tensor direction = at::rand({4});
  const std::vector<std::pair<std::string, Function>> chains = {
      {"chain", chain},
      {"chain, vmap", mapped(chain)},
      {"chain, grad", gradient(chain_sum)},
      {"chain, vmap(grad)", mapped(gradient(chain_sum))},
      {"chain, jvp", along(chain, direction)},
      {"chain, jvp(grad)", along(gradient(chain_sum), direction)},
  };
  for (const auto& [name, f] : chains) add(name, 300, 20, f, {four, a, b}, {});
  add("call", 1, 2000, [](const Tensors& in) { return Tensors{in[0].sin()}; }, {four}, {});

  report::Table compiling({"to the first result", "kernels' ms", "eager, ms"});
  for (const Row& row : rows) {
    Tensors expected, actual;
    const double eager = milliseconds([&] { expected = row.plain({}); });
    row.compiled({});  // traces
    const double first = milliseconds([&] { actual = row.compiled({}); });
    expect_close(row.name, actual, expected);
    compiling.add({row.name, fmt::format("{:.1f}", first), fmt::format("{:.1f}", eager)});
    race.add(row.name, [&row] { row.compiled({}); });
    race.add(row.name + ", eager", [&row] { row.plain({}); });
    if (row.by_hand) race.add(row.name + ", by hand", row.by_hand);
  }
  auto ns = race.run();
  report::Table table({"", "compiled", "eager", "by hand", "budget", ""});
  for (const Row& row : rows) {
    const double compiled = ns[row.name] / row.operators, eager = ns[row.name + ", eager"] / row.operators;
    const double by_hand = row.by_hand ? ns[row.name + ", by hand"] : 0;
    std::string budget = "-", verdict;
    if (row.budget && row.by_hand) {
      budget = fmt::format("{:.1f} × by hand", *row.budget);
      verdict = fmt::format("{:.2f} × {}", compiled / by_hand, report::verdict(compiled / by_hand, *row.budget));
    } else if (row.budget && row.operators > 1) {
      budget = fmt::format("{:.0f} ns an operator", *row.budget);
      verdict = report::verdict(compiled, *row.budget);
    } else if (row.budget && row.name == "call") {
      budget = in_unit(*row.budget);
      verdict = report::verdict(compiled, *row.budget);
    }
    table.add({row.name, in_unit(compiled), in_unit(eager), row.by_hand ? in_unit(by_hand) : "-", budget, verdict});
  }
  table.print();
  fmt::print("\n");
  compiling.print();
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
