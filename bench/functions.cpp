// What exp, sin and their kin cost in a kernel, beside Sleef's of LibTorch: nanoseconds for a vector of 64 bytes, from
// and to memory in the cache, the least of many turns of both, one after the other. One thread.
//
//   functions [NAME]
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/kernel.h"
#include "kernels/llvm.h"
#include "support/optimized.h"
#include "support/report.h"

namespace {

using tower::compiler::Id;
using tower::compiler::Op;
using tower::compiler::Type;

constexpr int64_t kBytes = 64, kLanesInAll = 2048;

struct Subject {
  Op op;
  double least, most;
  const char* accuracy = "u10";
};
const Subject kSubjects[] = {
    {Op::exp, -30, 30},          {Op::exp2, -30, 30},     {Op::expm1, -5, 5},  {Op::log, 0, 10},
    {Op::log2, 0, 10},           {Op::log10, 0, 10},      {Op::log1p, -1, 5},  {Op::sin, -20, 20},
    {Op::cos, -20, 20},          {Op::tan, -20, 20},      {Op::asin, -1, 1},   {Op::acos, -1, 1},
    {Op::atan, -5, 5},           {Op::sinh, -10, 10},     {Op::cosh, -10, 10}, {Op::tanh, -5, 5},
    {Op::asinh, -10, 10},        {Op::acosh, 1, 20},      {Op::atanh, -1, 1},  {Op::erf, -6, 6},
    {Op::erfc, -6, 28, "u15"},   {Op::lgamma, -10, 10},   {Op::pow, 0.01, 20}, {Op::atan2, -5, 5},
    {Op::hypot, -10, 10, "u05"}, {Op::fmod, -10, 10, ""},
};
bool has_two_operands(Op op) { return op >= Op::pow; }

template <class V, class T>
[[gnu::target("avx512f"), TOWER_BENCH_OPTIMIZED]] void by_sleef(void* function, bool two, const T* x, const T* y,
                                                                T* z) {
  for (int64_t i = 0; i < kLanesInAll; i += kBytes / static_cast<int64_t>(sizeof(T))) {
    V a, b;
    __builtin_memcpy(&a, x + i, sizeof a);
    __builtin_memcpy(&b, y + i, sizeof b);
    const V c = two ? reinterpret_cast<V (*)(V, V)>(function)(a, b) : reinterpret_cast<V (*)(V)>(function)(a);
    __builtin_memcpy(z + i, &c, sizeof c);
  }
}
using Floats = float __attribute__((vector_size(kBytes)));
using Doubles = double __attribute__((vector_size(kBytes)));

template <class F>
double nanoseconds(const F& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

template <class T>
void race(const Subject& s, report::Table& table) {
  constexpr bool wide = std::is_same_v<T, double>;
  const bool two = has_two_operands(s.op);
  const std::string name =
      fmt::format("Sleef_{}{}_{}avx512f", tower::compiler::name(s.op), wide ? "d8" : "f16", s.accuracy);
  void* sleef = dlsym(RTLD_DEFAULT, name.c_str());
  if (!sleef) return;

  tower::compiler::Region region;
  const Type type = wide ? Type::f64 : Type::f32;
  const Id x = region.graph.input(type, 0);
  for (int k = 0; k < (two ? 2 : 1); ++k) region.inputs.push_back({type, false});
  region.outputs = {region.graph.make(s.op, x, two ? region.graph.input(type, 1) : tower::compiler::kNone)};
  const tower::compiler::Kernel kernel(region);

  std::vector<T> a(kLanesInAll), b(kLanesInAll), c(kLanesInAll);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> used(s.least, s.most);
  for (auto* of : {&a, &b})
    for (T& number : *of) number = static_cast<T>(used(random));

  std::vector<const void*> from{a.data()};
  if (two) from.push_back(b.data());
  double ours = std::numeric_limits<double>::infinity(), theirs = ours;
  for (int turn = 0; turn < 2000; ++turn) {
    ours = std::min(ours, nanoseconds([&] { kernel.run(kLanesInAll, from, {c.data()}); }));
    theirs = std::min(theirs, nanoseconds([&] {
                        by_sleef<std::conditional_t<wide, Doubles, Floats>>(sleef, two, a.data(), b.data(), c.data());
                      }));
  }
  const double vectors = kLanesInAll * sizeof(T) / static_cast<double>(kBytes);
  table.add({fmt::format("{} {}", tower::compiler::name(s.op), wide ? "float64" : "float32"),
             fmt::format("{:.1f}", ours / vectors), fmt::format("{:.1f}", theirs / vectors),
             fmt::format("{:.2f}", ours / theirs)});
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto& llvm = tower::compiler::Llvm::get(); !llvm.works()) {
    fmt::print("no LLVM: {}\n", llvm.why_not());
    return 0;
  }
  if (tower::compiler::Cpu::get().vector_bytes() != kBytes) {
    fmt::print("for CPUs with vectors of 64 bytes\n");
    return 0;
  }
  report::Table table({"ns for a vector", "kernel", "Sleef", "ratio"});
  for (const Subject& s : kSubjects) {
    if (argc > 1 && std::string(argv[1]) != tower::compiler::name(s.op)) continue;
    race<double>(s, table);
    race<float>(s, table);
  }
  table.print();
}
