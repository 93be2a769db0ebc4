// The engine's own cost: a chain of 100 × (sin, mul, add) on four floats, where arithmetic is nearly free, run under
// each transform and divided by the same chain on plain tensors in the same run.
//
//   engine [--json=build/bench/engine.json] [Google Benchmark's flags]
//
// A ratio of 2 means that an operator under the transform costs as much as two plain operators. A gradient is
// charged its forward and its backward pass, over the operators of the forward pass alone. "On four floats" counts
// what a kernel sees: the mapped variants map over one example of four floats, so every row does the same arithmetic.
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
#include "support/tower_functions.h"

namespace {

namespace tf = tower_functions;
using peer::Function;

constexpr int kSteps = 100;
constexpr int kOperators = 3 * kSteps;

struct Variant {
  std::string name;
  std::optional<double> budget;  // ratio to plain that Tower must not exceed
  at::Tensor input;
  Function tower;
  Function autograd;   // empty: LibTorch's autograd has no such transform
  Function functorch;  // empty: built without it
};

std::vector<Variant> variants() {
  const at::Tensor x = at::rand({4}), tangent = at::rand({4}), a = at::rand({4}), b = at::rand({4});

  const Function chain = [a, b](const at::Tensor& input) {
    at::Tensor y = input;
    for (int step = 0; step < kSteps; ++step) y = at::add(at::mul(at::sin(y), a), b);
    return y;
  };
  const Function loss = [chain](const at::Tensor& input) { return chain(input).sum(); };
  const auto sum_of = [](Function f) { return [f = std::move(f)](const at::Tensor& input) { return f(input).sum(); }; };
  const at::Tensor one_example = x.view({1, 4}), one_of_one = x.view({1, 1, 4});

  std::vector<Variant> all = {
      {"plain", {}, x, chain, {}, {}},
      {"vmap", 1.35, one_example, tf::vmap(chain), {}, {}},
      {"vmap_vmap", 1.7, one_of_one, tf::vmap(tf::vmap(chain)), {}, {}},
      {"grad", 2.6, x, tf::grad(loss), {}, {}},
      {"vmap_grad", 3.4, one_example, tf::vmap(tf::grad(loss)), {}, {}},
      {"jvp", 2.7, x, tf::jvp(chain, tangent), {}, {}},
      {"jvp_grad", 7.5, x, tf::jvp(tf::grad(loss), tangent), {}, {}},
      {"grad_grad", 7.5, x, tf::grad(sum_of(tf::grad(loss))), {}, {}},
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
  variant("jvp").functorch = ft::jvp(chain, tangent);
  variant("jvp_grad").functorch = ft::jvp(ft::grad(loss), tangent);
  variant("grad_grad").functorch = ft::grad(sum_of(ft::grad(loss)));
#endif
  return all;
}

void check_that_engines_agree(const std::vector<Variant>& all) {
  for (const Variant& v : all) {
    const at::Tensor expected = v.tower(v.input);
    for (const Function& other : {v.autograd, v.functorch})
      if (other && !at::allclose(other(v.input), expected, 1e-4, 1e-6))
        throw std::runtime_error(fmt::format("the engines disagree about {}", v.name));
  }
}

void write_json(const std::filesystem::path& path, const std::vector<Variant>& all,
                const std::map<std::string, double>& ns) {
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  const double plain = ns.at("plain/tower");
  std::string separator = "{";
  for (const Variant& v : all) {
    const double time = ns.at(v.name + "/tower");
    file << fmt::format("{}\"{}\": {{\"ns\": {:.1f}, \"ratio\": {:.3f}}}", separator, v.name, time / kOperators,
                        time / plain);
    separator = ",\n ";
  }
  file << "}\n";
  if (!file) throw std::runtime_error(fmt::format("cannot write {}", path.string()));
}

void print_table(const std::vector<Variant>& all, const std::map<std::string, double>& ns) {
  const double plain = ns.at("plain/tower");
  const auto ratio = [&](const std::string& name) {
    const auto found = ns.find(name);
    return found == ns.end() ? std::string("-") : fmt::format("{:.2f}", found->second / plain);
  };
  report::Table table({"chain of sin, mul, add", "ns/operator", "× plain", "budget", "", "autograd ×", "functorch ×"});
  for (const Variant& v : all) {
    const double time = ns.at(v.name + "/tower");
    table.add({v.name, fmt::format("{:.0f}", time / kOperators), fmt::format("{:.2f}", time / plain),
               v.budget ? fmt::format("{:.2f}", *v.budget) : "",
               v.budget ? report::verdict(time / plain, *v.budget) : "", ratio(v.name + "/autograd"),
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
    race.add(v.name + "/tower", [&v] { v.tower(v.input); });
    if (v.autograd) race.add(v.name + "/autograd", [&v] { v.autograd(v.input); });
    if (v.functorch) race.add(v.name + "/functorch", [&v] { v.functorch(v.input); });
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
