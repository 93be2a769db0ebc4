// Compiled functions that are called with other sizes than those with which they were traced: random programs, traced
// with two, and called with none, one, few, many, a prime number; beside the same uncompiled. TOWER_SIZES=4000 runs so
// many.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/errors.h>

#include <iostream>

#include "compile/sizes_programs.h"
#include "support/compare.h"
#include "support/seeds.h"

namespace sizes {
namespace {

namespace td = tower::dynamic;
using td::Function;

// How an argument lies in memory.
enum class Lies : uint8_t { by_rows, by_columns, sliced, apart };

Tensor waves(std::vector<int64_t> shape, double phase, Lies lies) {
  const auto numbers = [&](const std::vector<int64_t>& s) {
    return at::sin(at::arange(1, c10::multiply_integers(s) + 1, at::kDouble) * 1.7 + phase).view(s);
  };
  if (lies == Lies::by_columns) {
    std::swap(shape.front(), shape.back());
    return numbers(shape).transpose(0, -1);
  }
  if (lies == Lies::sliced) {
    const int64_t n = shape.front();
    shape.front() = n + 5;
    return numbers(shape).slice(0, 3, 3 + n);
  }
  if (lies == Lies::apart) {
    const int64_t last = shape.back();
    shape.back() = 2 * last;
    return numbers(shape).slice(-1, 0, 2 * last, 2);
  }
  return numbers(shape);
}

// Arguments of n examples: -1 in a shape.
struct Arguments {
  std::vector<std::vector<int64_t>> shapes;
  Lies lies;

  Tensors with(int64_t n, double phase = 0.1) const {
    Tensors all;
    for (std::vector<int64_t> shape : shapes) {
      std::replace(shape.begin(), shape.end(), int64_t{-1}, n);
      all.push_back(waves(shape, phase + static_cast<double>(all.size()), lies));
    }
    return all;
  }
};

struct Way {
  const char* name;
  bool batch;  // the arguments are those of examples
  std::function<Function(const Function&)> of;
};

const std::vector<Way>& ways() {
  const auto first = td::Dims{0, std::nullopt, std::nullopt};
  // With the value, so that what is computed for it is needed.
  const auto gradient = [](const Function& f) -> Function {
    return [f](const Tensors& in) {
      const auto with_first = [&](const Tensor& x) {
        Tensors all = in;
        all[0] = x;
        return f(all);
      };
      return Tensors{td::grad([&](const Tensors& x) { return Tensors{with_first(x[0])[0].sum()}; }, {0})({in[0]})[0],
                     with_first(in[0])[0]};
    };
  };
  static const std::vector<Way> all{{"it", false, [](const Function& f) { return f; }},
                                    {"grad of it", false, gradient},
                                    {"vmap of it", true, [=](const Function& f) { return td::vmap(f, first, {0}); }},
                                    {"vmap of grad of it", true, [=](const Function& f) {
                                       return td::vmap(gradient(f), first, {0, 0});
                                     }}};
  return all;
}

struct Case {
  Program program;
  Arguments arguments;
  const Way* way;
  bool captures;  // the last argument is captured
  int64_t first, second;
};

Case draw(uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 1);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  static const std::vector<std::vector<std::vector<int64_t>>> shapes{
      {{-1}, {-1}, {3}},     {{-1, 3}, {-1, 3}, {3}}, {{-1, 3}, {-1, 1}, {3}},       {{3, -1}, {-1}, {3, 1}},
      {{-1, -1}, {-1}, {1}}, {{-1, 2}, {2}, {2}},     {{-1, 2, 2}, {-1, 1, 2}, {2}}, {{1, -1}, {-1, 1}, {1}},
      {{-1, 3}, {1, 3}, {1}}};
  // Of one example, whose number varies.
  static const std::vector<std::vector<std::vector<int64_t>>> of_examples{
      {{-1, 4}, {4}, {4}}, {{-1, 3, 2}, {3, 2}, {2}}, {{-1}, {1}, {1}}, {{-1, 3}, {-1}, {3}}, {{4, -1}, {-1}, {1}}};
  Case c;
  c.way = &ways()[below(ways().size())];
  const auto& from = c.way->batch ? of_examples : shapes;
  c.arguments = {from[below(from.size())], static_cast<Lies>(below(4))};
  c.captures = below(3) == 0;
  c.first = static_cast<int64_t>(2 + below(31));
  switch (below(4)) {
    case 0:
      c.second = c.first + 1;
      break;
    case 1:
      c.second = 2 * c.first;
      break;
    default:
      do c.second = static_cast<int64_t>(2 + below(31));
      while (c.second == c.first);
  }
  std::vector<Tensors> trials;
  for (const int64_t n : {c.first, c.second, int64_t{64}}) {
    trials.push_back(c.arguments.with(n));
    if (c.way->batch) trials.back()[0] = trials.back()[0].select(0, 0);
  }
  c.program = generate(random, trials, 20000);
  return c;
}

std::string first_line(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, text.find('\n'));
}

struct Counts {
  uint64_t programs = 0, calls = 0, followed = 0, refused = 0;
};

// Empty if the compiled function computes what the program does, or fails where that does.
std::string disagreement(const Case& c, Counts& counts) {
  const Tensor captured = c.arguments.with(c.first).back();
  size_t traced = 0;
  const Function f = c.way->of([&](const Tensors& in) {
    ++traced;
    Tensors all = in;
    if (c.captures) all.back() = captured * 1;
    return Tensors{c.program(all)};
  });
  const Function compiled = td::compile(f);
  ++counts.programs;
  double phase = 0;
  for (const int64_t n : {c.first, c.second, int64_t{64}, int64_t{1}, int64_t{0}, int64_t{3}, int64_t{2}, c.first + 1,
                          int64_t{37}, c.first}) {
    const Tensors in = c.arguments.with(n, phase += 0.3);
    const std::string at =
        std::to_string(c.first) + " and " + std::to_string(c.second) + ", called with " + std::to_string(n) + ": ";
    Tensors expected, actual;
    std::string plain_fails, compiled_fails;
    try {
      expected = f(in);
    } catch (const std::exception& e) {
      plain_fails = first_line(e);
    }
    const size_t before = traced;
    try {
      actual = compiled(in);
    } catch (const tower::UnsupportedError& e) {
      if (plain_fails.empty()) return ++counts.refused, "";
      compiled_fails = e.what();
    } catch (const std::exception& e) {
      compiled_fails = first_line(e);
    }
    ++counts.calls;
    counts.followed += traced == before;
    if (plain_fails.empty() != compiled_fails.empty())
      return at +
             (plain_fails.empty() ? "compiled: " + compiled_fails : "nothing is wrong compiled; plain: " + plain_fails);
    if (!plain_fails.empty()) continue;
    const std::string text = support::difference(actual, expected, {1e-9, 1e-9});
    if (!text.empty()) return at + text;
  }
  return "";
}

TEST(CompiledSizes, OtherSizesThanThoseTracedAreAsUncompiled) {
  Counts counts;
  size_t wrong = 0;
  const support::Seeds seeds = support::seeds("TOWER_SIZES", 160);
  for (const uint64_t seed : seeds) {
    const Case c = draw(seed);
    if (c.program.steps.empty()) continue;
    const std::string text = disagreement(c, counts);
    if (text.empty()) continue;
    if (++wrong <= 20)
      ADD_FAILURE() << "program " << seed << ", " << c.way->name << ", of " << c.arguments.with(c.first)[0].sizes()
                    << (c.captures ? ", captured" : "") << ":\n"
                    << c.program.text() << "traced with " << text;
  }
  if (seeds.wanted)
    std::cout << counts.programs << " programs, " << counts.calls << " calls, " << counts.followed
              << " of them not traced, " << counts.refused << " programs refused, " << wrong << " wrong\n";
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(counts.followed, counts.calls / 8);
}

}  // namespace
}  // namespace sizes
