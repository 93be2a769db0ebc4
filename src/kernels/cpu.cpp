#include "kernels/cpu.h"

#include <algorithm>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace tower::compiler {

#if defined(__x86_64__)
namespace {

enum Register : uint8_t { ebx, ecx, edx, eax };
// Where CPUID tells of it.
struct Feature {
  const char* name;
  unsigned leaf, subleaf;
  Register where;
  int bit;
};
// Of 64 bits all have what came before. What is not for arithmetic is not generated.
constexpr Feature kFeatures[] = {
    {"sse3", 1, 0, ecx, 0},
    {"pclmul", 1, 0, ecx, 1},
    {"ssse3", 1, 0, ecx, 9},
    {"fma", 1, 0, ecx, 12},
    {"sse4.1", 1, 0, ecx, 19},
    {"sse4.2", 1, 0, ecx, 20},
    {"movbe", 1, 0, ecx, 22},
    {"popcnt", 1, 0, ecx, 23},
    {"avx", 1, 0, ecx, 28},
    {"f16c", 1, 0, ecx, 29},
    {"lzcnt", 0x80000001, 0, ecx, 5},
    {"sse4a", 0x80000001, 0, ecx, 6},
    {"xop", 0x80000001, 0, ecx, 11},
    {"fma4", 0x80000001, 0, ecx, 16},
    {"tbm", 0x80000001, 0, ecx, 21},
    {"bmi", 7, 0, ebx, 3},
    {"avx2", 7, 0, ebx, 5},
    {"bmi2", 7, 0, ebx, 8},
    {"avx512f", 7, 0, ebx, 16},
    {"avx512dq", 7, 0, ebx, 17},
    {"adx", 7, 0, ebx, 19},
    {"avx512ifma", 7, 0, ebx, 21},
    {"avx512cd", 7, 0, ebx, 28},
    {"avx512bw", 7, 0, ebx, 30},
    {"avx512vl", 7, 0, ebx, 31},
    {"avx512vbmi", 7, 0, ecx, 1},
    {"avx512vbmi2", 7, 0, ecx, 6},
    {"gfni", 7, 0, ecx, 8},
    {"vaes", 7, 0, ecx, 9},
    {"vpclmulqdq", 7, 0, ecx, 10},
    {"avx512vnni", 7, 0, ecx, 11},
    {"avx512bitalg", 7, 0, ecx, 12},
    {"avx512vpopcntdq", 7, 0, ecx, 14},
    {"avx512vp2intersect", 7, 0, edx, 8},
    {"avx512fp16", 7, 0, edx, 23},
    {"avxvnni", 7, 1, eax, 4},
    {"avx512bf16", 7, 1, eax, 5},
    {"avxifma", 7, 1, eax, 23},
    {"avx10", 7, 1, edx, 19},
    {"apx", 7, 1, edx, 21},
};

bool starts_with(const std::string& text, const char* begin) { return text.rfind(begin, 0) == 0; }

}  // namespace

Cpu::Cpu() {
  unsigned registers[4];
  const auto ask = [&](unsigned leaf, unsigned subleaf) {
    if (!__get_cpuid_count(leaf, subleaf, &registers[eax], &registers[ebx], &registers[ecx], &registers[edx]))
      std::fill(std::begin(registers), std::end(registers), 0);
  };
  // These ask the system, too, whether it keeps the registers.
  const bool avx = __builtin_cpu_supports("avx"), wide = __builtin_cpu_supports("avx512f");
  for (const Feature& f : kFeatures) {
    ask(f.leaf, f.subleaf);
    if (!(registers[f.where] >> f.bit & 1)) continue;
    const std::string name = f.name;
    const bool needs_avx = starts_with(name, "avx") || starts_with(name, "fma") || name == "f16c" || name == "xop" ||
                           starts_with(name, "v");
    if ((needs_avx && !avx) || (starts_with(name, "avx512") && !wide)) continue;
    features_.push_back(name);
  }
  ask(1, 0);
  machine_ = Machine::x86_64;
  text_ = "x86-64 " + std::to_string(registers[eax] >> 4);  // family and model, without the stepping
  for (const std::string& name : features_) text_ += " " + name;
  const auto all = [&](const std::vector<std::string>& names) { return lacks(names).empty(); };
  // LibTorch's own kernels need all three.
  if (!all({"avx2", "fma", "f16c"})) return;
  vector_bytes_ = all({"avx512f", "avx512vl", "avx512dq", "avx512bw"}) ? 64 : 32;
}
#elif defined(__aarch64__) && defined(__linux__)
namespace {

// Bits of AT_HWCAP, which are Linux's interface (Documentation/arch/arm64/elf_hwcaps.rst).
struct Feature {
  const char* name;
  int bit;
};
// Fused multiplication and conversions of float16 come with these two. Of what came later nothing is for kernels, whose
// float16 is computed in float32.
constexpr Feature kFeatures[] = {{"fp-armv8", 0}, {"neon", 1}};

}  // namespace

Cpu::Cpu() : text_("aarch64"), machine_(Machine::aarch64) {
  const unsigned long has = getauxval(AT_HWCAP);
  for (const Feature& f : kFeatures)
    if (has >> f.bit & 1) features_.emplace_back(f.name);
  for (const std::string& name : features_) text_ += " " + name;
  vector_bytes_ = lacks({"fp-armv8", "neon"}).empty() ? 16 : 0;
}
#else
Cpu::Cpu() : text_("unknown") {}
#endif

const Cpu& Cpu::get() {
  static const Cpu& cpu = *new Cpu;
  return cpu;
}

std::string Cpu::lacks(const std::vector<std::string>& features) const {
  std::string missing;
  for (const std::string& name : features)
    if (std::find(features_.begin(), features_.end(), name) == features_.end())
      missing += (missing.empty() ? "" : ", ") + name;
  return missing;
}

}  // namespace tower::compiler
