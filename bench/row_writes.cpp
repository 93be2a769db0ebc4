// What writing the rows of a buffer one by one costs, as integrators do: the gradient of a trajectory that is written
// into a tensor, against the same with a list and stack at the end, and against LibTorch's autograd. Rows are only
// recorded, or read back from the buffer for the next step. The other transforms are measured beside.
//
//   row_writes [STEPS...]
//
// Times are those of the thread's own clock, the fastest of some rounds in which the list and all ways to write take
// turns. Memory is that of tensors at its peak, in sizes of the buffer. The budget is 3, or what the function itself
// must have, however its rows are written (d: a tangent or cotangent):
//
//   grad, vmap(grad)   3   the states, which cos keeps; rows, which square keeps; d(rows)
//   jvp                4   rows and their square, each with a tangent (the list: its states and their tangents besides)
//   linearize          4   the states, rows; d(rows) and d(square)
//   grad(grad)         5   of every step the state, its sine and the cotangent that the inner gradient multiplied;
//   rows;
//                          d(rows) of the inner gradient
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <tower/dynamic.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/peak_memory.h"
#include "support/report.h"

namespace {

using at::Tensor;
using tower::dynamic::Function;
using tower::dynamic::Tensors;
namespace td = tower::dynamic;

constexpr int64_t kWidth = 100;
constexpr double kTimeBudget = 2;

Tensor step(const Tensor& x) { return x + 0.01 * (x.cos() - x); }

Tensor with_list(const Tensor& x0, int64_t steps) {
  Tensors rows{x0};
  for (int64_t i = 0; i < steps; ++i) rows.push_back(step(rows.back()));
  return at::stack(rows).square().sum();
}

Tensor recorded(const Tensor& x0, int64_t steps) {
  const Tensor rows = at::zeros({steps + 1, kWidth}, at::kDouble);
  Tensor x = x0;
  rows.select(0, 0).copy_(x);
  for (int64_t i = 0; i < steps; ++i) {
    x = step(x);
    rows.select(0, i + 1).copy_(x);
  }
  return rows.square().sum();
}

Tensor read_back(const Tensor& x0, int64_t steps) {
  const Tensor rows = at::zeros({steps + 1, kWidth}, at::kDouble);
  rows.select(0, 0).copy_(x0);
  for (int64_t i = 0; i < steps; ++i) rows.select(0, i + 1).copy_(step(rows.select(0, i)));
  return rows.square().sum();
}

Tensor by_slices(const Tensor& x0, int64_t steps) {
  const Tensor rows = at::zeros({steps + 1, kWidth}, at::kDouble);
  rows.slice(0, 0, 1).copy_(x0);
  for (int64_t i = 0; i < steps; ++i) rows.slice(0, i + 1, i + 2).copy_(step(rows.slice(0, i, i + 1)));
  return rows.square().sum();
}

Tensor by_columns(const Tensor& x0, int64_t steps) {
  const Tensor rows = at::zeros({kWidth, steps + 1}, at::kDouble);
  rows.select(1, 0).copy_(x0);
  for (int64_t i = 0; i < steps; ++i) rows.select(1, i + 1).copy_(step(rows.select(1, i)));
  return rows.square().sum();
}

Tensor by_index(const Tensor& x0, int64_t steps) {
  Tensor rows = at::zeros({steps + 1, kWidth}, at::kDouble), x = x0;
  rows.index_put_({at::zeros({1}, at::kLong)}, x);
  for (int64_t i = 0; i < steps; ++i) {
    x = step(x);
    rows.index_put_({at::full({1}, i + 1, at::kLong)}, x);
  }
  return rows.square().sum();
}

using Trajectory = Tensor (*)(const Tensor&, int64_t);

Function of(Trajectory f, int64_t steps) {
  return [=](const Tensors& in) { return Tensors{f(in[0], steps)}; };
}

struct Transform {
  const char* name;
  double memory_budget;
  Tensors (*run)(const Function& f, const Tensor& x0);
};

const Transform kTransforms[] = {
    {"grad", 3, [](const Function& f, const Tensor& x) { return td::grad(f, {0})({x}); }},
    {"vmap(grad)", 3,
     [](const Function& f, const Tensor& x) {
       return td::vmap(td::grad(f, {0}), {0}, {0})({at::stack({x, -x})});
     }},
    {"jvp", 4, [](const Function& f, const Tensor& x) { return td::jvp(f, {x}, {at::ones_like(x)}).second; }},
    {"linearize", 4,
     [](const Function& f, const Tensor& x) { return td::linearize(f, {x}).second({at::ones_like(x)}); }},
    {"grad(grad)", 5,
     [](const Function& f, const Tensor& x) {
       const Function g = td::grad(f, {0});
       return td::grad([g](const Tensors& in) { return Tensors{g(in)[0].square().sum()}; }, {0})({x});
     }},
};

Tensors autograd(const Function& f, const Tensor& x0) {
  const Tensor x = x0.detach().requires_grad_();
  return torch::autograd::grad(f({x}), {x});
}

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The fastest time of each, of rounds in which all take turns.
std::vector<double> fastest(const std::vector<std::function<void()>>& runs) {
  std::vector<double> seconds(runs.size(), std::numeric_limits<double>::infinity());
  double total = 0;
  for (int round = 0; round < 15 && (round < 3 || total < 3); ++round)
    for (size_t k = 0; k < runs.size(); ++k) {
      const double start = thread_seconds();
      runs[k]();
      const double time = thread_seconds() - start;
      seconds[k] = std::min(seconds[k], time);
      total += time;
    }
  return seconds;
}

void demand_equal(const std::string& name, const Tensors& a, const Tensors& b) {
  if (!at::allclose(a[0], b[0], 1e-8, 1e-10)) throw std::runtime_error(name + ": another result than with a list");
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
  if (sizes.empty()) sizes = {2'000, 4'000, 20'000};
  const Tensor x0 = at::linspace(0.1, 1, kWidth, at::kDouble);
  struct Variant {
    const char* name;
    Trajectory f;
  };
  const Variant variants[] = {{"recorded", recorded},
                              {"read back", read_back},
                              {"slices", by_slices},
                              {"columns", by_columns},
                              {"index_put_", by_index}};
  report::Table table(
      {"transform", "steps", "write", "ms", "list ms", "× list", "autograd ms", "MiB", "list MiB", "× buffer", ""});
  const auto ms = [](double seconds) { return fmt::format("{:.1f}", seconds * 1e3); };
  const auto mebibytes = [](int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20)); };
  for (const Transform& t : kTransforms)
    for (const int64_t n : sizes) {
      const Function list = of(with_list, n);
      const Tensors expected = t.run(list, x0);
      std::vector<std::function<void()>> runs{[&] { t.run(list, x0); }};
      for (const Variant& v : variants) {
        demand_equal(std::string(t.name) + ", " + v.name, t.run(of(v.f, n), x0), expected);
        runs.emplace_back([&, f = of(v.f, n)] { t.run(f, x0); });
      }
      const std::vector<double> seconds = fastest(runs);
      const int64_t of_list = peak_memory(runs[0]);
      const double copies = std::string(t.name).starts_with("vmap") ? 2 : 1;
      const double buffer = static_cast<double>((n + 1) * kWidth * 8) * copies;
      for (size_t k = 1; k < runs.size(); ++k) {
        const Variant& v = variants[k - 1];
        const int64_t bytes = peak_memory(runs[k]);
        // LibTorch's autograd refuses rows that are read back: the buffer was modified since.
        const bool plain = t.name == std::string("grad") && n <= 4'000 && (v.f == recorded || v.f == by_index);
        const double theirs = plain ? fastest({[&] { autograd(of(v.f, n), x0); }})[0] : 0;
        const bool met =
            seconds[k] <= kTimeBudget * seconds[0] && static_cast<double>(bytes) <= 1.02 * t.memory_budget * buffer;
        table.add({t.name, std::to_string(n), v.name, ms(seconds[k]), ms(seconds[0]),
                   fmt::format("{:.2f}", seconds[k] / seconds[0]), plain ? ms(theirs) : "-", mebibytes(bytes),
                   mebibytes(of_list), fmt::format("{:.2f}", static_cast<double>(bytes) / buffer),
                   met ? "met" : "MISSED"});
      }
    }
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "row_writes: {}\n", error.what());
  return EXIT_FAILURE;
}
