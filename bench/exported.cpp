// A model that Python exported, in C++: a SchNet-like potential of ten atoms, of which 64 molecules' energies and
// forces, and Hessians, are wanted; beside TorchScript with LibTorch's autograd in C++, and Python. How long such a
// file takes to load, and one with 100 MB of weights, and how much memory. All on one thread, by processor time.
//
// The exported model is of one molecule, as it was written. The others get it for a batch, and each the faster of what
// there is for it: pairs of atoms or all with all, TorchScript frozen, Python's autograd or torch.func.
//
//   exported [--report]     what became of the compiled functions, behind the table
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <tower/compile.h>
#include <tower/exported.h>
#include <tower/tower.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/medians.h"
#include "support/peak_memory.h"
#include "support/report.h"

namespace {

using at::Tensor;
using torch::jit::Module;

struct Budgets {
  static constexpr double load = 50e-3, load_large = 0.5;  // seconds
  static constexpr double memory = 1.05;                   // of the weights
  static constexpr double forces = 3, hessians = 5;        // times as fast as TorchScript
};

std::filesystem::path make_models() {
  const std::string python = TOWER_BENCH_PYTHON;
  if (python.empty()) throw std::runtime_error("LibTorch is that of no Python, which could export models");
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "tower_bench_exported";
  std::filesystem::create_directories(folder);
  const std::string command =
      fmt::format("OMP_NUM_THREADS=1 '{}' '{}/exported/models.py' '{}'", python, TOWER_BENCH_DIR, folder.string());
  if (std::system(command.c_str()) != 0) throw std::runtime_error("models.py failed");
  return folder;
}

std::map<std::string, Tensor> read_tensors(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::map<std::string, Tensor> tensors;
  for (const auto& entry : torch::jit::pickle_load(bytes).toGenericDict())
    tensors.emplace(entry.key().toStringRef(), entry.value().toTensor());
  return tensors;
}

/// The least of several calls that take turns, the first of each not counted.
std::vector<double> least_seconds(const std::vector<std::function<void()>>& contenders, int rounds = 15) {
  std::vector<double> best(contenders.size(), std::numeric_limits<double>::infinity());
  for (int round = -2; round < rounds; ++round)
    for (size_t k = 0; k < contenders.size(); ++k) {
      const double took = thread_seconds(contenders[k]);
      if (round >= 0) best[k] = std::min(best[k], took);
    }
  return best;
}

/// Gradients by places, which are a leaf of their own.
std::pair<Tensor, Tensor> energies_and_gradient(Module& model, const Tensor& leaf, const Tensor& kinds, bool again) {
  const Tensor energies = model.forward({leaf, kinds}).toTensor();
  return {energies, torch::autograd::grad({energies.sum()}, {leaf}, {}, again, again)[0]};
}

Tensor leaf_of(const Tensor& places) { return places.detach().requires_grad_(); }

std::pair<Tensor, Tensor> scripted_forces(Module& model, const Tensor& places, const Tensor& kinds) {
  const auto [energies, gradient] = energies_and_gradient(model, leaf_of(places), kinds, false);
  return {energies, -gradient};
}

/// A pass for each row, of all molecules at once.
Tensor scripted_hessians(Module& model, const Tensor& places, const Tensor& kinds) {
  const Tensor leaf = leaf_of(places);
  const Tensor rows = energies_and_gradient(model, leaf, kinds, true).second.flatten(1);
  std::vector<Tensor> found;
  for (int64_t k = 0; k < rows.size(1); ++k)
    found.push_back(torch::autograd::grad({rows.select(1, k).sum()}, {leaf}, {}, true)[0]);
  const int64_t n = places.size(1);
  return at::stack(found, 1).view({places.size(0), n, 3, n, 3});
}

void check(const std::string& what, const Tensor& found, const Tensor& expected) {
  const double error = ((found.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  if (!(error < 1e-4)) throw std::runtime_error(fmt::format("{} are {:.1e} from those of Python", what, error));
}

std::string times(double seconds) { return fmt::format("{:.2f} ms", 1e3 * seconds); }

void loading(report::Table& table, const std::filesystem::path& folder) {
  const auto row = [&](const std::string& name, const char* file, const char* scripted, double budget) {
    const auto exported = (folder / file).string(), script = (folder / scripted).string();
    const auto seconds =
        least_seconds({[&] { tower::dynamic::load_exported(exported); }, [&] { torch::jit::load(script); }}, 5);
    table.add({name, times(seconds[0]), times(budget), report::verdict(seconds[0], budget), times(seconds[1]), ""});
    return exported;
  };
  row("load a small model", "potential.pt2", "one.ts", Budgets::load);
  const std::string large = row("load 100 MB of weights", "large.pt2", "large.ts", Budgets::load_large);
  int64_t weights = 0;
  const auto peak = static_cast<double>(peak_memory([&] {
    const auto model = tower::dynamic::load_exported(large);
    for (const auto& [name, weight] : model.parameters()) weights += static_cast<int64_t>(weight.nbytes());
  }));
  const double part = peak / static_cast<double>(weights);
  table.add({"  peak memory, of the weights'", fmt::format("{:.3f}", part), fmt::format("{:.2f}", Budgets::memory),
             report::verdict(part, Budgets::memory), "", ""});
}

void derivatives(report::Table& table, const std::filesystem::path& folder, bool reports) {
  const auto known = read_tensors(folder / "expected.pt");
  const Tensor &places = known.at("places"), &kinds = known.at("kinds");
  const auto model = tower::load_exported<Tensor(Tensor, Tensor)>((folder / "potential.pt2").string());
  const auto forces = tower::compile(tower::vmap([&](const Tensor& x, const Tensor& of) {
    auto [energy, gradient] = tower::value_and_grad<0>([&](const Tensor& y) { return model(y, of); })(x);
    return std::pair(energy, -gradient);
  }));
  // A Hessian's rows are mapped over, too: of so many molecules at once that what lies between kernels stays in a
  // cache.
  constexpr int64_t kMoleculesAtOnce = 16;
  const auto hessians = tower::compile(
      tower::vmap([&](const Tensor& x,
                      const Tensor& of) { return tower::hessian([&](const Tensor& y) { return model(y, of); })(x); },
                  {.chunk_size = kMoleculesAtOnce}));
  std::vector<Module> scripts{torch::jit::load((folder / "one.ts").string()),
                              torch::jit::load((folder / "dense.ts").string())};

  check("Tower's energies", forces(places, kinds).first, known.at("energies"));
  check("Tower's forces", forces(places, kinds).second, known.at("forces"));
  check("Tower's Hessians", hessians(places, kinds), known.at("hessians"));
  for (Module& script : scripts) {
    check("TorchScript's energies", scripted_forces(script, places, kinds).first, known.at("energies"));
    check("TorchScript's forces", scripted_forces(script, places, kinds).second, known.at("forces"));
    check("TorchScript's Hessians", scripted_hessians(script, places, kinds), known.at("hessians"));
  }

  const auto row = [&](const std::string& name, const std::string& python, double budget,
                       const std::vector<std::function<void()>>& contenders) {
    const auto seconds = least_seconds(contenders);
    const double script = std::min(seconds[1], seconds[2]), ratio = script / seconds[0];
    const double eager =
        std::min(known.at(python + ".autograd").item<double>(), known.at(python + ".func").item<double>());
    table.add({name, times(seconds[0]), fmt::format("{} x TorchScript", budget),
               fmt::format("{:.1f} x, {}", ratio, report::verdict(budget, ratio)), times(script), times(eager)});
  };
  row("energies and forces of 64 molecules", "python.forces", Budgets::forces,
      {[&] { forces(places, kinds); }, [&] { scripted_forces(scripts[0], places, kinds); },
       [&] { scripted_forces(scripts[1], places, kinds); }});
  row("Hessians of 64 molecules", "python.hessians", Budgets::hessians,
      {[&] { hessians(places, kinds); }, [&] { scripted_hessians(scripts[0], places, kinds); },
       [&] { scripted_hessians(scripts[1], places, kinds); }});
  if (reports) fmt::print("{}\n{}\n", forces.report(), hessians.report());
}

}  // namespace

int main(int argc, char** argv) {
  const bool reports = argc > 1 && std::string_view(argv[1]) == "--report";
  try {
    at::set_num_threads(1);
    const auto folder = make_models();
    report::Table table({"", "Tower", "budget", "", "TorchScript in C++", "Python"});
    loading(table, folder);
    derivatives(table, folder, reports);
    table.print();
    std::filesystem::remove_all(folder);
  } catch (const std::exception& e) {
    fmt::print(stderr, "exported: {}\n", e.what());
    return 1;
  }
}
