// The engine's own cost: a chain of 100 × (sin, mul, add) on four floats, where arithmetic is nearly free, run under
// each transform and divided by the same chain on plain tensors in the same run.
//
//   engine [--json=build/bench/engine.json] [Google Benchmark's flags]
//
// A ratio of 2 means that an operator under the transform costs as much as two plain operators. A gradient is
// charged its forward and its backward pass, over the operators of the forward pass alone.
//
// The ratio is to be the engine's, so the kernels get the same four floats in every row: the mapped rows map x, a and b
// over four examples of one number each (or two of two examples). One row more has a and b captured and not mapped;
// there kernels broadcast [1, 4] with [4], which by itself costs more than [4] with [4].
//
// Beside Tower stand LibTorch's autograd, where it has the transform, and LibTorch's functorch internals. All engines
// must agree on the result before anything is timed.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <tower/dynamic.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/libtorch_peers.h"
#include "support/race.h"
#include "support/report.h"

namespace {

namespace td = tower::dynamic;
using td::Function;
using td::Tensors;

constexpr int kSteps = 100;
constexpr int kOperators = 3 * kSteps;
constexpr const char* kCaptured = "vmap, a and b captured";

struct Variant {
  std::string name;
  std::optional<double> budget;  // ratio to plain that Tower must not exceed
  Tensors arguments;
  Function tower;
  Function autograd;   // empty: LibTorch's autograd has no such transform
  Function functorch;  // empty: built without it
};

Tensors chain(const Tensors& arguments) {
  const at::Tensor &a = arguments[1], &b = arguments[2];
  at::Tensor y = arguments[0];
  for (int step = 0; step < kSteps; ++step) y = at::add(at::mul(at::sin(y), a), b);
  return {y};
}

Function sum_of(Function f) {
  return [f = std::move(f)](const Tensors& arguments) -> Tensors { return {f(arguments)[0].sum()}; };
}

Function mapped(Function f) { return td::vmap(std::move(f), {0, 0, 0}, {0}); }
Function gradient(Function f) { return td::grad(std::move(f), {0}); }
/// The derivative along a tangent of the first argument.
Function along(Function f, at::Tensor tangent) {
  return [f = std::move(f), tangent = std::move(tangent)](const Tensors& arguments) {
    return td::jvp(f, arguments, {tangent, {}, {}}).second;
  };
}

std::vector<Variant> variants() {
  const at::Tensor x = at::rand({4}), a = at::rand({4}), b = at::rand({4}), tangent = at::rand({4});
  const Function loss = sum_of(chain);
  const Function captured = [a, b](const Tensors& arguments) { return chain({arguments[0], a, b}); };

  const Tensors vectors{x, a, b}, matrices{x.view({2, 2}), a.view({2, 2}), b.view({2, 2})};
  std::vector<Variant> all = {
      {"plain", {}, vectors, chain, {}, {}},
      {"vmap", 1.35, vectors, mapped(chain), {}, {}},
      {"vmap_vmap", 1.7, matrices, mapped(mapped(chain)), {}, {}},
      {"grad", 2.6, vectors, gradient(loss), {}, {}},
      {"vmap_grad", 3.4, vectors, mapped(gradient(loss)), {}, {}},
      {"jvp", 2.7, vectors, along(chain, tangent), {}, {}},
      {"jvp_grad", 7.5, vectors, along(gradient(loss), tangent), {}, {}},
      {"grad_grad", 7.5, vectors, gradient(sum_of(gradient(loss))), {}, {}},
      {kCaptured, {}, {x.view({1, 4})}, td::vmap(captured, {0}, {0}), {}, {}},
  };
  const auto variant = [&](std::string_view name) -> Variant& {
    for (Variant& v : all)
      if (v.name == name) return v;
    throw std::logic_error(fmt::format("no variant {}", name));
  };

  namespace ag = peer::autograd;
  variant("grad").autograd = ag::grad(loss);
  variant("jvp").autograd = ag::jvp(chain, tangent);
  variant("jvp_grad").autograd = ag::jvp_of_grad(loss, tangent);
  variant("grad_grad").autograd = ag::grad(sum_of(ag::grad(loss, ag::Order::higher)));

#if TOWER_BENCH_FUNCTORCH
  namespace ft = peer::functorch;
  variant("vmap").functorch = ft::vmap(chain);
  variant("vmap_vmap").functorch = ft::vmap(ft::vmap(chain));
  variant("grad").functorch = ft::grad(loss);
  variant("vmap_grad").functorch = ft::vmap(ft::grad(loss));
  variant("jvp").functorch = ft::jvp(chain, {tangent});
  variant("jvp_grad").functorch = ft::jvp(ft::grad(loss), {tangent});
  variant("grad_grad").functorch = ft::grad(sum_of(ft::grad(loss)));
  variant(kCaptured).functorch = ft::vmap(captured);
#endif
  return all;
}

void check_that_engines_agree(const std::vector<Variant>& all) {
  for (const Variant& v : all) {
    const at::Tensor expected = v.tower(v.arguments)[0];
    for (const Function& other : {v.autograd, v.functorch})
      if (other && !at::allclose(other(v.arguments)[0], expected, 1e-4, 1e-6))
        throw std::runtime_error(fmt::format("the engines disagree about {}", v.name));
  }
}

/// What was measured: Google Benchmark's own --benchmark_filter may leave rows out.
using Times = std::map<std::string, double>;

double plain_time(const Times& ns) {
  const auto found = ns.find("plain/tower");
  if (found == ns.end()) throw std::runtime_error("every ratio needs the row plain/tower: let the filter pass it");
  return found->second;
}

void write_json(const std::filesystem::path& path, const std::vector<Variant>& all, const Times& ns) {
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  const double plain = plain_time(ns);
  std::string separator = "{";
  for (const Variant& v : all) {
    const auto time = ns.find(v.name + "/tower");
    if (time == ns.end() || v.name == kCaptured) continue;
    file << fmt::format("{}\"{}\": {{\"ns\": {:.1f}, \"ratio\": {:.3f}}}", separator, v.name, time->second / kOperators,
                        time->second / plain);
    separator = ",\n ";
  }
  file << "}\n";
  if (!file) throw std::runtime_error(fmt::format("cannot write {}", path.string()));
}

void print_table(const std::vector<Variant>& all, const Times& ns) {
  const double plain = plain_time(ns);
  const auto ratio = [&](const std::string& name) {
    const auto time = ns.find(name);
    return time == ns.end() ? std::string("-") : fmt::format("{:.2f}", time->second / plain);
  };
  report::Table table({"chain of sin, mul, add", "ns/operator", "× plain", "budget", "", "autograd ×", "functorch ×"});
  for (const Variant& v : all) {
    const auto time = ns.find(v.name + "/tower");
    if (time == ns.end()) continue;
    table.add({v.name, fmt::format("{:.0f}", time->second / kOperators), ratio(v.name + "/tower"),
               v.budget ? fmt::format("{:.2f}", *v.budget) : "",
               v.budget ? report::verdict(time->second / plain, *v.budget) : "", ratio(v.name + "/autograd"),
               ratio(v.name + "/functorch")});
  }
  table.print();
}

/// Takes `--json=path` out of the arguments.
std::filesystem::path json_path(int& argc, char** argv) {
  constexpr std::string_view flag = "--json=";
  std::filesystem::path path = "build/bench/engine.json";
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with(flag)) {
      path = arg.substr(flag.size());
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return path;
}

}  // namespace

int main(int argc, char** argv) try {
  const auto path = json_path(argc, argv);
  Race race(argc, argv);

  const std::vector<Variant> all = variants();
  check_that_engines_agree(all);
  for (const Variant& v : all) {
    race.add(v.name + "/tower", [&v] { v.tower(v.arguments); });
    if (v.autograd) race.add(v.name + "/autograd", [&v] { v.autograd(v.arguments); });
    if (v.functorch) race.add(v.name + "/functorch", [&v] { v.functorch(v.arguments); });
  }
  const auto ns = race.run();
  print_table(all, ns);
  write_json(path, all, ns);
  fmt::print("written to {}\n", path.string());
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "engine: {}\n", error.what());
  return EXIT_FAILURE;
}
