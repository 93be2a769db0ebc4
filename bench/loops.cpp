// Loops and checkpoints against the same written out: what a loop costs, the memory and time of a gradient that keeps
// few states, of a deep perceptron in checkpoints, a linear recurrence as a scan of either kind, and a compiled loop
// that ends for each example by itself.
//
//   loops [loop | states | perceptron | compaction | recurrence | newton]
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/compile.h>
#include <tower/tower.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "material_newton/histories.h"
#include "material_newton/newton.h"
#include "support/peak_memory.h"
#include "support/report.h"

namespace {

using at::Tensor;
using tower::Checkpoints;
using tower::dynamic::Tensors;

template <class F>
double seconds(F&& f, int runs = 3) {
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void loop_itself(report::Table& table) {
  constexpr int64_t kSteps = 20000;
  const Tensor x = at::ones({4}, at::kDouble);
  const auto step = [](const Tensor& s) { return s * 0.5 + 0.25; };
  const double by_hand = seconds([&] {
    Tensor s = x;
    for (int64_t i = 0; i < kSteps; ++i) s = step(s);
  });
  const double loop = seconds([&] {
    tower::fori_loop(
        0, kSteps, [&](int64_t, const Tensor& s) { return step(s); }, x);
  });
  table.add({"fori_loop outside of transforms, 4 floats", "time", fmt::format("{:.3f}", loop / by_hand), "", ""});
}

void few_states(report::Table& table) {
  constexpr int64_t kSteps = 10000, kWidth = 4096;
  const Tensor x = at::linspace(0, 1, kWidth, at::kDouble);
  const auto gradient = [&](Checkpoints few) {
    return tower::grad([few](const Tensor& start) {
      return tower::fori_loop(0, kSteps, [](int64_t, const Tensor& s) { return s + 0.001 * (s.cos() - s * s); }, start,
                              {.checkpoints = few})
          .sum();
    });
  };
  Tensor plain, few;
  gradient(32)(x);
  const double plain_time = seconds([&] { plain = gradient(Checkpoints::all())(x); }, 2);
  const auto plain_peak = static_cast<double>(peak_memory([&] { plain = gradient(Checkpoints::all())(x); }));
  const double state = static_cast<double>(x.nbytes());
  table.add({"10,000 steps, all kept", "states", fmt::format("{:.0f}", plain_peak / state), "", ""});
  for (const auto& [name, number] :
       {std::pair("32 checkpoints", Checkpoints(32)), std::pair("automatic checkpoints", Checkpoints::automatic())}) {
    const double time = seconds([&, number = number] { few = gradient(number)(x); }, 2) / plain_time;
    const auto peak = static_cast<double>(peak_memory([&, number = number] { few = gradient(number)(x); })) / state;
    if (!at::equal(few, plain)) throw std::runtime_error("checkpoints changed the gradient");
    const bool judged = number.number_for(kSteps) == 32;
    table.add({fmt::format("10,000 steps, {}", name), "states", fmt::format("{:.1f}", peak), judged ? "40" : "",
               judged ? report::verdict(peak, 40) : ""});
    table.add({"", "time", fmt::format("{:.2f}", time), judged ? "4" : "", judged ? report::verdict(time, 4) : ""});
  }
}

void perceptron(report::Table& table) {
  constexpr int64_t kWidth = 128, kBatch = 4096;
  // The backward pass comes to the last block first, while all blocks' inputs are kept: so it is the shortest.
  const std::vector<size_t> blocks{11, 10, 9, 8, 7, 6, 5, 4, 3, 1};
  std::vector<Tensors> weights;
  for (const size_t layers : blocks) {
    weights.emplace_back();
    for (size_t layer = 0; layer < layers; ++layer)
      weights.back().push_back(at::randn({kWidth, kWidth}) / std::sqrt(static_cast<double>(kWidth)));
  }
  const Tensor input = at::randn({kBatch, kWidth});
  const auto block = [](const Tensors& layers, const Tensor& x) {
    Tensor h = x;
    for (const Tensor& w : layers) h = h.mm(w).tanh();
    return h;
  };
  const auto gradient = [&](const auto& run_block) {
    return tower::grad([&](const std::vector<Tensors>& all) {
      Tensor h = input;
      for (const Tensors& layers : all) h = run_block(layers, h);
      return h.square().mean();
    })(weights);
  };
  const auto plain = [&] { return gradient(block); };
  // What the last block keeps is needed at once.
  const auto with_checkpoints = [&] {
    return gradient([&](const Tensors& layers, const Tensor& x) {
      return layers.size() == blocks.back() ? block(layers, x) : tower::checkpoint(block)(layers, x);
    });
  };
  const auto a = plain(), b = with_checkpoints();
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j)
      if (!at::equal(a[i][j], b[i][j])) throw std::runtime_error("checkpoint changed the gradient");
  const double time = seconds(with_checkpoints, 5) / seconds(plain, 5);
  const double memory = static_cast<double>(peak_memory(with_checkpoints)) / static_cast<double>(peak_memory(plain));
  table.add({"perceptron of 64 layers, ten checkpoints", "memory", fmt::format("{:.3f}", memory), "0.25",
             report::verdict(memory, 0.25)});
  table.add({"", "time", fmt::format("{:.2f}", time), "1.45", report::verdict(time, 1.45)});
}

// Heun's method on a pendulum of each example's own, with numbers of steps that vary by 100 ×.
void compaction(report::Table& table) {
  constexpr int64_t kExamples = 1024, kWidth = 64;
  const Tensor numbers = at::logspace(1, 3, kExamples, 10, at::kDouble).flip(0).to(at::kLong);
  const Tensor starts = at::linspace(0, 1, kExamples * kWidth, at::kDouble).view({kExamples, kWidth});
  const auto run = [&](const Tensor& xs, double compact) {
    return tower::vmap([compact](const Tensor& x, const Tensor& number) {
      using State = std::tuple<Tensor, Tensor, Tensor>;
      const State last = tower::while_loop(
          [number](const State& s) { return std::get<2>(s) < number; },
          [](const State& s) {
            const auto& [q, v, n] = s;
            const Tensor guess = q + 0.01 * v;
            return State(q + 0.01 * v - 0.00005 * q.sin(), v - 0.005 * (q.sin() + guess.sin()), n + 1);
          },
          State(x, at::zeros_like(x), at::zeros({}, at::kLong)), {.checkpoints = 30, .compact = compact});
      return std::get<0>(last);
    })(xs, numbers);
  };
  const auto gradient = [&](double compact) {
    return tower::grad([&](const Tensor& xs) { return run(xs, compact).sum(); })(starts);
  };
  Tensor whole, part;
  const double value = seconds([&] { whole = run(starts, 0); }, 1);
  const double value_part = seconds([&] { part = run(starts, 0.5); }, 1);
  if (!at::equal(whole, part)) throw std::runtime_error("compaction changed a value");
  const double backward = seconds([&] { whole = gradient(0); }, 1);
  const double backward_part = seconds([&] { part = gradient(0.5); }, 1);
  if (!at::equal(whole, part)) throw std::runtime_error("compaction changed a gradient");
  table.add({"while_loop, 10 to 1,000 steps, compacted", "value", fmt::format("{:.3f}", value_part / value), "", ""});
  table.add({"", "gradient", fmt::format("{:.3f}", backward_part / backward), "", ""});
}

void recurrence(report::Table& table) {
  constexpr int64_t kSteps = 4096, kLanes = 64;
  using Affine = std::pair<Tensor, Tensor>;
  const Affine steps{at::rand({kSteps, kLanes}, at::kDouble), at::rand({kSteps, kLanes}, at::kDouble)};
  Tensor by_scan, by_prefixes;
  const double scan = seconds([&] {
    by_scan = tower::scan(
                  [](const Tensor& h, const Affine& s) {
                    const Tensor next = s.first * h + s.second;
                    return std::pair(next, next);
                  },
                  at::zeros({kLanes}, at::kDouble), steps)
                  .second;
  });
  const double prefixes = seconds([&] {
    by_prefixes =
        tower::associative_scan(
            [](const Affine& a, const Affine& b) { return Affine(a.first * b.first, a.second * b.first + b.second); },
            steps)
            .second;
  });
  if (!at::allclose(by_scan, by_prefixes)) throw std::runtime_error("the scans disagree");
  table.add({"linear recurrence, 4,096 steps of 64 lanes", "associative_scan / scan",
             fmt::format("{:.3f}", prefixes / scan), "0.2", report::verdict(prefixes / scan, 0.2)});
}

// Newton at material points until each has converged, beside as many corrections as they make on the average, compiled
// alike.
void newton(report::Table& table) {
  using namespace material_newton;
  constexpr int64_t kPoints = 10000;
  const Material material{Constants{}};
  const Cycles cycles = Cycles::random(kPoints, 1);
  const at::TensorOptions f64 = at::dtype(at::kDouble);
  const Step step{cycles.strain(0.1), cycles.period / 10, at::zeros({kPoints, 6}, f64), at::zeros({kPoints}, f64)};
  const auto solve = [&material](const Step& one) {
    using State = std::tuple<Tensor, Tensor, Tensor>;  // unknowns, the residual before the last correction, corrections
    return tower::while_loop(
        [](const State& s) { return std::get<1>(s) > 1e-6; },
        [&material, one](const State& s) {
          const auto [x, norm] = correct_one_point(material, std::get<0>(s), one);
          return State(x, norm, std::get<2>(s) + 1);
        },
        State(material.first_guess(one), at::full({}, 1e300, at::kDouble), at::zeros({}, at::kLong)));
  };
  const auto own = tower::compile(tower::vmap(solve));
  const auto correct = tower::compile(correct_with_tower(material));
  const Tensor start = first_guess(material, step);
  own(step);
  correct(start, step);
  std::tuple<Tensor, Tensor, Tensor> last;
  const double until_converged = seconds([&] { last = own(step); }, 20);
  const auto& [x, norm, corrections] = last;
  constexpr int kCalls = 10;
  Tensor fixed;
  const double a_correction = seconds(
                                  [&] {
                                    fixed = start;
                                    for (int i = 0; i < kCalls; ++i) fixed = correct(fixed, step).first;
                                  },
                                  20) /
                              kCalls;
  if (!at::allclose(x, fixed, 1e-9)) throw std::runtime_error("Newton's loop ended elsewhere");
  const double mean = corrections.to(at::kDouble).mean().item<double>();
  const double ratio = until_converged / (mean * a_correction);
  table.add({fmt::format("Newton, 10,000 points, {} to {} corrections, {:.2f} on the average",
                         corrections.min().item<int64_t>(), corrections.max().item<int64_t>(), mean),
             "time", fmt::format("{:.2f}", ratio), "1.3", report::verdict(ratio, 1.3)});
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  report::Table table({"relative to the plain form", "", "measured", "budget", ""});
  const std::pair<std::string, void (*)(report::Table&)> rows[] = {
      {"loop", loop_itself},      {"states", few_states},     {"perceptron", perceptron},
      {"compaction", compaction}, {"recurrence", recurrence}, {"newton", newton},
  };
  for (const auto& [name, row] : rows)
    if (argc < 2 || name == argv[1]) row(table);
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "loops: {}\n", error.what());
  return EXIT_FAILURE;
}
