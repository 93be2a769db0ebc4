// Where the ways cross between which the numbers of src/numbers/thresholds.h decide: both are timed at sizes around
// each number, on the CPU that this runs on. A function is compiled anew for each way and size, with the number so that
// it goes this way whatever the size; no machine code is kept or read. Takes a minute or two.
//
//   thresholds [--only=PART OF A NAME]
//
//   default          what src/numbers/thresholds.h has
//   here             between which sizes the other way becomes the faster one; `alike`: the two differ by less than 3 %
//   smaller : larger time of the way that smaller sizes take, as a multiple of that of larger ones, for each size
//
// One thread, and its own clock. Those that say how much is worth a thread take all threads that LibTorch has, and the
// wall's clock: they want a machine with nothing else to do.
#include "numbers/thresholds.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/gemm.h"
#include "kernels/llvm.h"
#include "support/medians.h"
#include "support/race.h"
#include "support/report.h"

namespace {

using at::Tensor;
using tower::compiler::OtherThresholds;
using tower::compiler::Thresholds;
using tower::dynamic::Function;
using tower::dynamic::Tensors;
namespace td = tower::dynamic;

constexpr int64_t kNone = 0, kAll = int64_t{1} << 40;  // sizes that are below such a number
constexpr int64_t kElements = 65536, kExamples = 1024;

// ---- ways ----

using Work = std::function<void()>;

enum class Threads : uint8_t { one, all };

double wall_seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Of one call, the fastest of rounds in which ways take turns. What `make` gives is made and runs with the numbers of
/// its way.
std::vector<double> seconds_of(const std::vector<Thresholds>& ways, const std::function<Work()>& make,
                               Threads threads) {
  constexpr int kRounds = 11;
  constexpr double kTurn = 0.002;
  const auto time = [&](const Work& work, int64_t times) {
    const auto run = [&] {
      for (int64_t i = 0; i < times; ++i) work();
    };
    return (threads == Threads::one ? thread_seconds(run) : wall_seconds(run)) / static_cast<double>(times);
  };
  std::vector<Work> works;
  std::vector<int64_t> times;
  for (const Thresholds& way : ways) {
    const OtherThresholds numbers(way);
    works.push_back(make());
    for (int call = 0; call < 3; ++call) works.back()();
    times.push_back(1 + static_cast<int64_t>(kTurn / time(works.back(), 3)));
  }
  std::vector<double> best(ways.size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round < kRounds; ++round)
    for (size_t k = 0; k < ways.size(); ++k) {
      const OtherThresholds numbers(ways[k]);
      best[k] = std::min(best[k], time(works[k], times[k]));
    }
  return best;
}

Work compiled(const Function& f, Tensors arguments) {
  return [f = td::compile(f), arguments = std::move(arguments)] { f(arguments); };
}
Work mapped(const Function& f, Tensors arguments) {
  const td::Dims dims(arguments.size(), 0);
  return compiled(td::vmap(f, dims, {0}), std::move(arguments));
}
Work by_operators(const Function& f, const Tensor& argument) {
  return [f = td::vmap(f, {0}, {0}), arguments = Tensors{argument}] { f(arguments); };
}
Work product(int64_t rows, int64_t columns, int64_t terms) {
  const Tensor a = at::randn({rows, terms}), b = at::randn({terms, columns}), c = at::empty({rows, columns});
  tower::compiler::Gemm gemm;
  gemm.axes = {{rows, terms, 0, 0, columns}, {columns, 0, 1, 0, 1}};
  gemm.inner = {terms, 1, columns, 0, 0};
  return [=] { gemm.run(a, b, {}, c); };
}

Tensor affine(Tensor x, int64_t calls) {
  for (int64_t i = 0; i < calls; ++i) x = i % 2 == 0 ? x * 0.9 : x + 0.1;
  return x;
}

// ---- what is timed ----

struct Case {
  std::string name;
  int64_t Thresholds::*number;
  std::vector<int64_t> sizes;
  std::function<Work(int64_t size)> work;
  std::function<void(Thresholds&)> others = [](Thresholds&) {};  // which would decide before it does
  Threads threads = Threads::one;
};

std::vector<Case> of_rows() {
  const Function sums = [](const Tensors& in) { return Tensors{(in[0] * in[0]).sum(1)}; };
  const Function softmax = [](const Tensors& in) { return Tensors{at::softmax(in[0] * in[0], 1)}; };
  const auto deep = [](int64_t rows, int64_t depth) {
    const Function f = [depth](const Tensors& in) {
      return Tensors{in[0] * affine((in[0] * in[0]).sum(1, true), depth)};
    };
    return compiled(f, {at::randn({rows, 64})});
  };
  return {
      {"shortest_row",
       &Thresholds::shortest_row,
       {4, 8, 16, 32, 64, 128},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{in[0] * in[1] + in[0]}; };
         return compiled(f, {at::randn({kElements / n, n}), at::randn({kElements / n, 1})});
       }},
      {"most_added",
       &Thresholds::most_added,
       {2, 4, 8, 16, 32, 64, 128},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{(in[0] * in[0]).sum(0)}; };
         return compiled(f, {at::randn({n, 2048})});
       }},
      {"shortest_of_many, sum",
       &Thresholds::shortest_of_many,
       {8, 16, 32, 64, 128, 256},
       [=](int64_t n) {
         return compiled(sums, {at::randn({kElements / n, n})});
       }},
      {"shortest_of_many, softmax",
       &Thresholds::shortest_of_many,
       {8, 16, 32, 64, 128, 256},
       [=](int64_t n) {
         return compiled(softmax, {at::randn({kElements / n, n})});
       }},
      {"few_rows",
       &Thresholds::few_rows,
       {4, 8, 16, 32, 64, 256},
       [=](int64_t n) {
         return compiled(sums, {at::randn({n, 16})});
       }},
      {"most_for_one_thread",
       &Thresholds::most_for_one_thread,
       {8192, 32768, 65536, 131072, 524288},
       [=](int64_t n) {
         return compiled(sums, {at::randn({1, n})});
       },
       [](Thresholds&) {},
       Threads::all},
      {"few_elements",
       &Thresholds::few_elements,
       {64, 128, 256, 512, 1024, 4096},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{at::softmax(in[0] * in[0], 0)}; };
         return compiled(f, {at::randn({16, n / 16})});
       },
       [](Thresholds& t) { t.shortest_of_many = 0; }},
      {"most_of_row", &Thresholds::most_of_row, {2, 4, 8, 16, 32, 64}, [=](int64_t n) { return deep(4096, n); }},
      {"few_rows_for_any_depth",
       &Thresholds::few_rows_for_any_depth,
       {4, 16, 64, 256, 1024},
       [=](int64_t n) { return deep(n, 32); }},
  };
}

std::vector<Case> of_elsewhere() {
  return {
      {"most_pieces",
       &Thresholds::most_pieces,
       {2, 4, 8, 16, 32},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{at::cat(in) * 2 + 1}; };
         return compiled(f, Tensors(static_cast<size_t>(n), at::randn({kElements / n})));
       }},
      {"most_in_list",
       &Thresholds::most_in_list,
       {1024, 2048, 4096, 8192, 16384, 65536},
       [](int64_t n) {
         const auto m = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(n)))) - 2;
         const Function f = [](const Tensors& in) { return Tensors{at::constant_pad_nd(in[0], {1, 1, 1, 1}) * 2}; };
         return compiled(f, {at::randn({m, m})});
       }},
      {"shortest_row_elsewhere",
       &Thresholds::shortest_row_elsewhere,
       {16, 32, 64, 128, 256, 512},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{at::embedding(in[0], in[1]) * 2}; };
         return compiled(f, {at::randn({1000, n}), at::randint(0, 1000, {kElements / n}, at::kLong)});
       },
       [](Thresholds& t) { t.shortest_walked_row = kAll; }},
      {"shortest_walked_row",
       &Thresholds::shortest_walked_row,
       {4, 8, 16, 32, 64},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{at::embedding(in[0], in[1]) * 2}; };
         return compiled(f, {at::randn({1000, n}), at::randint(0, 1000, {kElements / n}, at::kLong)});
       }},
  };
}

std::vector<Case> of_examples() {
  const auto large_lanes = [](Thresholds& t) { t.most_of_lane = t.most_of_call = t.most_operations = kAll; };
  return {
      {"most_of_lane",
       &Thresholds::most_of_lane,
       {8, 16, 32, 64, 128, 256, 512},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{(in[0] * in[0]).sum(0)}; };
         return mapped(f, {at::randn({kExamples, n})});
       },
       large_lanes},
      {"fewest_summed",
       &Thresholds::fewest_summed,
       {32, 64, 128, 256, 512, 4096},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{at::tanh(in[0]) * in[0].square().sum()}; };
         const Function sums = [per_example = td::vmap(f, {0}, {0})](const Tensors& in) {
           return Tensors{per_example(in)[0].sum(0)};
         };
         return compiled(sums, {at::randn({n, 6})});
       }},
      {"most_of_call",
       &Thresholds::most_of_call,
       {4, 16, 36, 64, 100},
       [](int64_t n) {
         // A product of 2 m² operations, and one of m.
         const auto m = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(n))));
         const Function f = [](const Tensors& in) { return Tensors{at::abs(at::mv(in[0], in[1]))}; };
         return mapped(f, {at::randn({kExamples, m, m}), at::randn({kExamples, m})});
       }},
      {"most_directions",
       &Thresholds::most_directions,
       {2, 4, 8, 16, 32, 64},
       [](int64_t n) {
         const Function f =
             td::vmap([](const Tensors& in) { return Tensors{at::tanh(in[0]) * in[0].square().sum()}; }, {0}, {0});
         const Function along = [f](const Tensors& in) {
           return td::vmap(td::linearize(f, {in[0]}).second, {0}, {0})({in[1]});
         };
         return compiled(along, {at::randn({kExamples, 4}), at::randn({n, kExamples, 4})});
       }},
      {"fewest_terms",
       &Thresholds::fewest_terms,
       {256, 1024, 4096, 16384, 65536},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{(in[0].unsqueeze(2) * in[1].unsqueeze(1)).sum(0)}; };
         return compiled(f, {at::randn({n / 64, 8}), at::randn({n / 64, 8})});
       }},
      {"few_of_example",
       &Thresholds::few_of_example,
       {27, 64, 125, 216, 343, 512},
       [](int64_t n) {
         const auto m = static_cast<int64_t>(std::lround(std::cbrt(static_cast<double>(n))));
         const Function f = [](const Tensors& in) { return Tensors{(in[0].unsqueeze(2) * in[1].unsqueeze(0)).sum(1)}; };
         return mapped(f, {at::randn({kExamples, m, m}), at::randn({kExamples, m, m})});
       },
       large_lanes},
      {"most_written_out",
       &Thresholds::most_written_out,
       {3, 5, 8, 11, 14},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{at::linalg_solve(in[0], in[1]) * 2}; };
         return mapped(f, {at::randn({kExamples, n, n}) + 4 * at::eye(n), at::randn({kExamples, n})});
       },
       large_lanes},
  };
}

std::vector<Case> of_kernels() {
  const auto functions = [](int64_t n) {
    const Function f = [n](const Tensors& in) {
      Tensor x = in[0];
      for (int64_t i = 0; i < n; ++i) x = i % 2 == 0 ? at::tanh(x) : x * 1.1;
      return Tensors{x};
    };
    return compiled(f, {at::randn({4096})});
  };
  return {
      {"most_together", &Thresholds::most_together, {4, 16, 50, 100, 200}, functions},
      {"most_of_formulas",
       &Thresholds::most_of_formulas,
       {25, 50, 100, 200, 400, 800},
       [](int64_t n) {
         constexpr int64_t kOfExponential = 25;
         const Function f = [n](const Tensors& in) {
           Tensor x = in[0];
           for (int64_t i = 0; i < n / kOfExponential; ++i) x = at::exp(x * -0.5) + in[1];
           return Tensors{x};
         };
         return compiled(f, {at::randn({4096}), at::randn({4096})});
       }},
      // Of a lane there are 32, and what it costs to read and write it is taken for eight.
      {"grain_of_kernel",
       &Thresholds::grain_of_kernel,
       {4096, 16384, 32768, 65536, 262144, 1048576},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{affine(in[0], 30)}; };
         return compiled(f, {at::randn({n * 8 / 40})});
       },
       [](Thresholds&) {},
       Threads::all},
  };
}

std::vector<Case> of_products() {
  const auto alone = [](Thresholds& t) {
    t.few_columns = t.few_of_sum = t.most_of_panel = t.most_of_square = t.most_of_product = kNone;
  };
  const auto in_tiles = [](Thresholds& t) { t.most_of_product = kAll; };
  const auto cube = [](int64_t n) {
    const auto m = static_cast<int64_t>(std::lround(std::cbrt(static_cast<double>(n))));
    return product(m, m, m);
  };
  return {
      {"most_of_vector",
       &Thresholds::most_of_vector,
       {256, 1024, 4096, 16384, 65536},
       [](int64_t n) { return product(n / 16, 1, 16); }},
      {"few_columns",
       &Thresholds::few_columns,
       {4, 8, 16, 32, 64},
       [](int64_t n) { return product(1024, n, 1024); },
       alone},
      {"few_of_sum",
       &Thresholds::few_of_sum,
       {4, 8, 16, 32, 64},
       [](int64_t n) { return product(512, 512, n); },
       alone},
      {"most_of_panel",
       &Thresholds::most_of_panel,
       {128, 256, 512, 768, 1024, 1536},
       [](int64_t n) { return product(1024, n, n); },
       alone},
      {"most_of_square",
       &Thresholds::most_of_square,
       {32, 64, 128, 192, 256},
       [](int64_t n) { return product(n, n, 2048); },
       alone},
      {"most_of_product", &Thresholds::most_of_product, {32768, 262144, 2097152, 16777216, 134217728}, cube, alone},
      {"fewest_of_right",
       &Thresholds::fewest_of_right,
       {4096, 16384, 65536, 262144, 589824},
       [](int64_t n) {
         const Function f = [](const Tensors& in) {
           return Tensors{at::mm(in[0], in[3]), at::mm(in[1], in[3]), at::mm(in[2], in[3])};
         };
         const auto m = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(n))));
         return compiled(f, {at::randn({16, m}), at::randn({800, m}), at::randn({16, m}), at::randn({m, m})});
       }},
      {"fewest_wide_vectors",
       &Thresholds::fewest_wide_vectors,
       {1, 2, 3, 6},
       [](int64_t n) { return product(256, 16 * n, 256); },
       in_tiles},
      {"grain_of_product",
       &Thresholds::grain_of_product,
       {4096, 32768, 262144, 2097152, 16777216},
       cube,
       in_tiles,
       Threads::all},
  };
}

std::vector<Case> of_operators() {
  const Function sum = [](const Tensors& in) { return Tensors{in[0].sum(0)}; };
  return {
      {"longest_short_row",
       &Thresholds::longest_short_row,
       {2, 4, 8, 16, 32, 64},
       [=](int64_t n) {
         return by_operators(sum, at::randn({kElements / n, n}));
       }},
      {"fewest_short_rows",
       &Thresholds::fewest_short_rows,
       {16, 64, 256, 1024, 4096},
       [=](int64_t n) {
         return by_operators(sum, at::randn({n, 3}));
       }},
      {"fewest_channels",
       &Thresholds::fewest_channels,
       {2, 4, 8, 16, 32},
       [](int64_t n) {
         const Function f = [](const Tensors& in) { return Tensors{at::max_pool2d(in[0], {2, 2})}; };
         return by_operators(f, at::randn({8, 4, n, 32, 32}));
       }},
  };
}

// ---- where ways cross ----

/// The place among the sizes from which on the larger one's way loses least.
std::string crossing(const std::vector<int64_t>& sizes, const std::vector<double>& ratios) {
  if (std::all_of(ratios.begin(), ratios.end(), [](double r) { return std::abs(std::log(r)) < 0.03; })) return "alike";
  size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t cut = 0; cut <= sizes.size(); ++cut) {
    double loss = 0;
    for (size_t k = 0; k < sizes.size(); ++k) {
      const double more = std::log(ratios[k]) * (k < cut ? 1 : -1);
      loss += std::max(more, 0.0);
    }
    if (loss < least) best = cut, least = loss;
  }
  if (best == 0) return fmt::format("< {}", sizes.front());
  if (best == sizes.size()) return fmt::format("> {}", sizes.back());
  return fmt::format("{} … {}", sizes[best - 1], sizes[best]);
}

std::vector<std::string> row_of(const Case& c) {
  std::vector<double> ratios;
  std::string text;
  for (const int64_t size : c.sizes) {
    std::vector<Thresholds> ways(2);
    for (Thresholds& way : ways) c.others(way);
    ways[0].*c.number = kAll;
    ways[1].*c.number = kNone;
    const std::vector<double> seconds = seconds_of(
        ways, [&] { return c.work(size); }, c.threads);
    ratios.push_back(seconds[0] / seconds[1]);
    text += fmt::format("{}{}: {:.2f}", text.empty() ? "" : "  ", size, ratios.back());
  }
  return {c.name, std::to_string(Thresholds{}.*c.number), crossing(c.sizes, ratios), text};
}

// The time of one more operation, function or result of a kernel, for all lanes.
std::vector<std::vector<std::string>> prices() {
  constexpr int64_t kLanes = 16384, kFew = 8, kMore = 24;
  const auto of = [](const Function& f) {
    return seconds_of(
        {Thresholds{}}, [&] { return compiled(f, {at::randn({kLanes})}); }, Threads::one)[0];
  };
  const auto one_more = [&](const std::function<Function(int64_t)>& f) {
    return (of(f(kMore)) - of(f(kFew))) / static_cast<double>(kMore - kFew);
  };
  const double operation =
      one_more([](int64_t n) -> Function { return [n](const Tensors& in) { return Tensors{affine(in[0], n)}; }; });
  const double function = one_more([](int64_t n) -> Function {
    return [n](const Tensors& in) {
      Tensor x = in[0];
      for (int64_t i = 0; i < n; ++i) x = at::tanh(x);
      return Tensors{x};
    };
  });
  const double result = one_more([](int64_t n) -> Function {
    return [n](const Tensors& in) {
      Tensors all;
      for (int64_t i = 0; i < n; ++i) all.push_back(in[0] + static_cast<double>(i));
      return all;
    };
  });
  const auto row = [&](const char* name, int64_t known, double seconds) -> std::vector<std::string> {
    return {name, std::to_string(known), fmt::format("{:.1f}", seconds / operation),
            fmt::format("{:.2f} ns a lane; an operation {:.3f}", seconds / kLanes * 1e9, operation / kLanes * 1e9)};
  };
  return {row("of_move", Thresholds{}.of_move, result - operation),
          row("of_function", Thresholds{}.of_function, function)};
}

std::vector<std::string> together() {
  const std::vector<int64_t> widths{1, 2, 4, 8};
  std::vector<Thresholds> ways(widths.size());
  for (size_t k = 0; k < widths.size(); ++k) ways[k].together = widths[k];
  const Function f = [](const Tensors& in) { return Tensors{at::tanh(at::exp(in[0]) * 0.5)}; };
  const auto seconds = seconds_of(
      ways, [&] { return compiled(f, {at::randn({4096})}); }, Threads::one);
  const auto best = std::min_element(seconds.begin(), seconds.end());
  std::string text;
  for (size_t k = 0; k < widths.size(); ++k)
    text += fmt::format("{}{}: {:.2f}", k ? "  " : "", widths[k], seconds[k] / *best);
  return {"together", std::to_string(Thresholds{}.together),
          std::to_string(widths[static_cast<size_t>(best - seconds.begin())]), text + " of the fastest"};
}

}  // namespace

int main(int argc, char** argv) {
  unsetenv("TOWER_CACHE");
  const std::string part = only(argc, argv);
  const int threads = at::get_num_threads();
  if (const auto& llvm = tower::compiler::Llvm::get(); !llvm.works()) {
    fmt::print(stderr, "thresholds: there are no kernels to time: {}\n", llvm.why_not());
    return 1;
  }
  const std::string& cpu = tower::compiler::Cpu::get().text();
  fmt::print("{}; {} bytes a vector; {} threads\n\n", cpu.substr(0, cpu.find(' ', cpu.find(' ') + 1)),
             tower::compiler::Cpu::get().vector_bytes(), threads);
  report::Table table({"", "default", "here", "smaller : larger, by size"});
  const auto wanted = [&](const std::string& name) { return name.find(part) != std::string::npos; };
  at::manual_seed(26);
  for (const auto& cases : {of_rows(), of_elsewhere(), of_examples(), of_kernels(), of_products(), of_operators()})
    for (const Case& c : cases) {
      if (!wanted(c.name)) continue;
      if (c.threads == Threads::all && threads == 1) {
        table.add({c.name, std::to_string(Thresholds{}.*c.number), "—", "LibTorch has one thread"});
        continue;
      }
      at::set_num_threads(c.threads == Threads::all ? threads : 1);
      table.add(row_of(c));
    }
  at::set_num_threads(1);
  if (wanted("together")) table.add(together());
  if (wanted("of_move") || wanted("of_function"))
    for (auto& row : prices()) table.add(std::move(row));
  table.print();
  return 0;
}
