// What an exported model costs: to load, small and with 100 MB of weights, and its derivatives, energies and forces of
// 64 molecules and their Hessians, compiled, beside the same model in TorchScript with LibTorch's autograd, which is
// written for the whole batch (exported_models.py). One thread.
//
//   exported [Google Benchmark's flags]
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/serialization/import.h>
#include <tower/exported.h>
#include <tower/tower.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/peak_memory.h"
#include "support/race.h"
#include "support/report.h"

namespace {

using at::Tensor;

constexpr int64_t kMolecules = 64;
constexpr double kSmallBudget = 0.050, kLargeBudget = 0.5;  // seconds
constexpr double kForcesBudget = 3, kHessiansBudget = 5;    // times as fast as TorchScript
constexpr const char* kWater = TOWER_EXAMPLES_DIR "/exported_potential/water.pt2";

/// The median of several loads, by the clock on the wall, as files are read.
double seconds_of_load(const std::string& file, const std::function<void(const std::string&)>& load) {
  std::vector<double> seconds;
  for (int n = 0; n < 7; ++n) {
    const auto start = std::chrono::steady_clock::now();
    load(file);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + 3, seconds.end());
  return seconds[3];
}

void load_tower(const std::string& file) { tower::dynamic::load_exported(file); }
void load_torchscript(const std::string& file) { torch::jit::load(file); }

std::string make_files() {
  const std::string folder = (std::filesystem::temp_directory_path() / "tower_bench_exported").string();
  std::filesystem::create_directories(folder);
  const std::string python = TOWER_BENCH_PYTHON;
  const std::string command =
      "'" + python + "' '" TOWER_BENCH_DIR "/exported_models.py' '" + kWater + "' '" + folder + "'";
  if (python.empty() || std::system(command.c_str()) != 0)
    throw std::runtime_error("there is no Python with torch that makes the peers' files");
  return folder;
}

struct Autograd {
  torch::jit::Module model;

  std::pair<Tensor, Tensor> forces(const Tensor& places) {
    const Tensor x = places.detach().requires_grad_();
    const Tensor energies = model.forward({x}).toTensor();
    return {energies, -torch::autograd::grad({energies.sum()}, {x})[0]};
  }
  /// Row by row, each for all molecules at once: no molecule's energy depends on another's places.
  Tensor hessians(const Tensor& places) {
    const Tensor x = places.detach().requires_grad_();
    const Tensor gradient =
        torch::autograd::grad({model.forward({x}).toTensor().sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
    std::vector<Tensor> rows;
    const Tensor flat = gradient.reshape({kMolecules, 9});
    for (int64_t i = 0; i < 9; ++i)
      rows.push_back(torch::autograd::grad({flat.select(1, i).sum()}, {x}, {}, /*retain_graph=*/true)[0]);
    return at::stack(rows, 1).view({kMolecules, 3, 3, 3, 3});
  }
};

void expect_close(const Tensor& a, const Tensor& b, const char* what) {
  if (!at::allclose(a, b, 1e-7, 1e-9))
    throw std::runtime_error(fmt::format("Tower and TorchScript differ in {}", what));
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  const std::string folder = make_files();
  report::Table loads({"loading", "tower ms", "TorchScript ms", "budget ms", ""});
  const auto add = [&](const std::string& name, const std::string& file, const std::string& peer, double budget) {
    const double ours = seconds_of_load(file, load_tower), theirs = seconds_of_load(peer, load_torchscript);
    loads.add({name, fmt::format("{:.2f}", 1000 * ours), fmt::format("{:.2f}", 1000 * theirs),
               fmt::format("{:.0f}", 1000 * budget), report::verdict(ours, budget)});
  };
  add("a small model", kWater, folder + "/water.ts", kSmallBudget);
  add("100 MB of weights", folder + "/large.pt2", folder + "/large.ts", kLargeBudget);
  loads.print();
  fmt::print("Memory for tensors while 100 MB are loaded: {:.1f} MB.\n\n",
             static_cast<double>(peak_memory([&] { load_tower(folder + "/large.pt2"); })) / 1e6);

  const auto energy = tower::load_exported<Tensor(Tensor)>(kWater);
  const auto forces = tower::compile(tower::vmap(tower::value_and_grad([&](const Tensor& x) { return -energy(x); })));
  const auto hessians = tower::compile(tower::vmap(tower::hessian(energy)));
  Autograd autograd{torch::jit::load(folder + "/water.ts")};
  const Tensor start = at::tensor({0.0, 0.0, 0.0, 1.0, 0.0, 0.0, -0.2, 0.95, 0.0}, at::kDouble).view({3, 3});
  const Tensor places = start + 0.05 * at::randn({kMolecules, 3, 3}, at::kDouble);
  for (int n = 0; n < 5; ++n) {  // TorchScript makes its code in the first calls
    expect_close(forces(places).second, autograd.forces(places).second, "forces");
    expect_close(hessians(places), autograd.hessians(places), "Hessians");
  }

  Race race(argc, argv);
  race.add("forces, tower", [&] { forces(places); });
  race.add("forces, TorchScript", [&] { autograd.forces(places); });
  race.add("Hessians, tower", [&] { hessians(places); });
  race.add("Hessians, TorchScript", [&] { autograd.hessians(places); });
  const auto ns = race.run();
  report::Table table({"of 64 molecules", "tower µs", "TorchScript µs", "times as fast", "budget", ""});
  const auto compare = [&](const std::string& what, double budget) {
    const double ours = ns.at(what + ", tower"), theirs = ns.at(what + ", TorchScript");
    table.add({what, fmt::format("{:.0f}", ours / 1000), fmt::format("{:.0f}", theirs / 1000),
               fmt::format("{:.1f}", theirs / ours), fmt::format("{:.0f}", budget),
               report::verdict(budget, theirs / ours)});
  };
  compare("forces", kForcesBudget);
  compare("Hessians", kHessiansBudget);
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "exported: {}\n", error.what());
  return EXIT_FAILURE;
}
