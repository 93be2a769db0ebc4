// What calling a transformed function costs when the function itself does nothing: entering the level, wrapping the
// argument, unwrapping the result. (A gradient of the identity also makes its seed, the number one; that operator of
// LibTorch's is in the cost, and in the peers'.)
//
//   call_cost [Google Benchmark's flags]
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>
#include <tower/dynamic.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "support/libtorch_peers.h"
#include "support/race.h"
#include "support/report.h"

namespace {

namespace td = tower::dynamic;
using td::Function;
using td::Tensors;

constexpr double kBudgetNanoseconds = 2000;

struct Call {
  std::string name;
  Tensors arguments;
  Function tower;
  Function functorch;  // empty: built without it
};

std::vector<Call> calls() {
  const Function identity = [](const Tensors& x) { return x; };
  const at::Tensor scalar = at::rand({}), batch = at::rand({4}), tangent = at::rand({});
  std::vector<Call> all = {
      {"vmap", {batch}, td::vmap(identity, {0}, {0}), {}},
      {"grad", {scalar}, td::grad(identity, {0}), {}},
      {"jvp", {scalar}, [=](const Tensors& x) { return td::jvp(identity, x, {tangent}).second; }, {}},
  };
#if TOWER_BENCH_FUNCTORCH
  all[0].functorch = peer::functorch::vmap(identity);
  all[1].functorch = peer::functorch::grad(identity);
  all[2].functorch = peer::functorch::jvp(identity, {tangent});
#endif
  return all;
}

}  // namespace

int main(int argc, char** argv) try {
  Race race(argc, argv);
  const std::vector<Call> all = calls();
  const at::Tensor scalar = at::rand({});
  race.add("ones_like", [&] { at::ones_like(scalar); });
  for (const Call& call : all) {
    race.add(call.name + "/tower", [&call] { call.tower(call.arguments); });
    if (call.functorch) race.add(call.name + "/functorch", [&call] { call.functorch(call.arguments); });
  }
  const auto ns = race.run();

  report::Table table({"call of the identity under", "ns", "budget", "", "functorch ns"});
  table.add({"(at::ones_like, for scale)", fmt::format("{:.0f}", ns.at("ones_like")), "", "", ""});
  for (const Call& call : all) {
    const double time = ns.at(call.name + "/tower");
    table.add({call.name, fmt::format("{:.0f}", time), fmt::format("{:.0f}", kBudgetNanoseconds),
               report::verdict(time, kBudgetNanoseconds),
               call.functorch ? fmt::format("{:.0f}", ns.at(call.name + "/functorch")) : "-"});
  }
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "call_cost: {}\n", error.what());
  return EXIT_FAILURE;
}
