// What users do, on one thread, or on the device that TOWER_BENCH_DEVICE names: Tower beside functorch's C++ internals
// and, where somebody would write that, beside the same computation batched by hand. All give the same numbers before
// anything is timed.
//
//   workloads [--only=PART OF A NAME] [Google Benchmark's flags]
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <tower/memory.h>

#include <cstdlib>
#include <exception>
#include <stdexcept>

#include "support/race.h"
#include "support/report.h"
#include "workloads/networks.h"
#include "workloads/physics.h"

namespace {

using namespace workloads;

std::vector<Workload> all_workloads() {
  at::manual_seed(7);
  return {dp_perceptron(64),      dp_perceptron(512),      dp_convolutional(64),     ensemble_forward(100),
          ensemble_training(100), ensemble_forward(10),    ensemble_training(10),    newton(10'000, false),
          newton(10'000, true),   hessian_500(),           hessian_vector_product(), transformer_gradients(32),
          transformer_hvp(),      recurrent_gradients(16), integrator(256),          lennard_jones()};
}

void demand_equal(const Workload& w, const char* other, const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) throw std::runtime_error(fmt::format("{}: {} gives other results", w.name, other));
  for (size_t k = 0; k < a.size(); ++k) {
    const double scale = b[k].abs().max().item<double>(), apart = (a[k] - b[k]).abs().max().item<double>();
    if (!(apart <= w.tolerance * scale + 1e-7))
      throw std::runtime_error(
          fmt::format("{}: result {} differs from {}'s by {:.1e} of {:.1e}", w.name, k, other, apart, scale));
  }
}

/// What functorch gives, if it can: some of its rules are written in Python and missing here.
std::optional<Tensors> unless_refused(const Workload& w, const Work& functorch) try {
  return functorch();
} catch (const c10::Error& error) {
  fmt::print(stderr, "{}: not in functorch's internals: {}\n", w.name, error.what_without_backtrace());
  return std::nullopt;
}

std::string time_of(double ns) {
  return ns < 1e6 ? fmt::format("{:.0f} µs", ns / 1e3) : fmt::format("{:.2f} ms", ns / 1e6);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string wanted = only(argc, argv);
  at::set_num_threads(1);
  Race race(argc, argv);

  std::vector<Workload> chosen;
  for (Workload& w : all_workloads())
    if (w.name.find(wanted) != std::string::npos) chosen.push_back(std::move(w));
  for (const Workload& w : chosen) {
    const Work tower = w.with(tower_engine());
    const Tensors expected = tower();
    race.add(w.name + "/tower", [tower] {
      tower::set_memory_limit(tower::kDefaultMemoryLimit);
      tower();
    });
    // glibc learns from what the cache gives back to keep more itself: --benchmark_filter=/fresh is without that.
    race.add(w.name + "/fresh pages", [tower] {
      tower::set_memory_limit(0);
      tower();
    });
#if TOWER_BENCH_FUNCTORCH
    const Work functorch = w.with(functorch_engine());
    if (const auto results = unless_refused(w, functorch)) {
      demand_equal(w, "functorch", expected, *results);
      race.add(w.name + "/functorch", [functorch] { functorch(); });
    }
#endif
    if (!w.by_hand) continue;
    demand_equal(w, "the version by hand", expected, w.by_hand());
    race.add(w.name + "/by hand", [work = w.by_hand] { work(); });
  }
  const auto ns = race.run();

  const std::string where = bench::device().is_cpu() ? "one thread" : bench::device().str();
  report::Table table({where, "Tower", "without its cache", "functorch's internals", "by hand", "× functorch",
                       "× by hand", "budget", ""});
  for (const Workload& w : chosen) {
    const auto found = [&](const char* who) {
      const auto time = ns.find(w.name + "/" + who);
      return time == ns.end() ? 0.0 : time->second;
    };
    const double tower = found("tower"), functorch = found("functorch"), hand = found("by hand");
    if (tower == 0 && found("fresh pages") == 0) continue;
    const auto cell = [](double time) { return time > 0 ? time_of(time) : std::string("-"); };
    const auto ratio = [&](double time) {
      return time > 0 && tower > 0 ? fmt::format("{:.2f}", tower / time) : std::string("-");
    };
    const double peer = w.beside == Workload::hand ? hand : functorch;
    table.add({w.name, cell(tower), cell(found("fresh pages")), cell(functorch), cell(hand), ratio(functorch),
               ratio(hand), fmt::format("{:.2f} {}", w.budget, w.beside == Workload::hand ? "by hand" : "functorch"),
               peer > 0 && tower > 0 ? report::verdict(tower / peer, w.budget) : ""});
  }
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "workloads: {}\n", error.what());
  return EXIT_FAILURE;
}
