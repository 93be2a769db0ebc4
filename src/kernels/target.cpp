#include "kernels/target.h"

#include <array>

namespace tower::compiler {
namespace {

constexpr const char* kX86 = "x86_64-unknown-linux-gnu";
constexpr const char* kArm = "aarch64-unknown-linux-gnu";

struct Named {
  const char *name, *triple, *cpu;
  Machine machine;
  int64_t vector_bytes;
};
// LLVM knows the levels of x86-64 as CPUs; "generic" has NEON and fused multiplication, which all of Armv8-A have.
constexpr std::array<Named, 5> kNamed = {{{"x86-64", kX86, "x86-64", Machine::x86_64, 16},
                                          {"x86-64-v2", kX86, "x86-64-v2", Machine::x86_64, 16},
                                          {"x86-64-v3", kX86, "x86-64-v3", Machine::x86_64, 32},
                                          {"x86-64-v4", kX86, "x86-64-v4", Machine::x86_64, 64},
                                          {"aarch64", kArm, "generic", Machine::aarch64, 16}}};

}  // namespace

std::optional<Target> Target::named(std::string_view name) {
  for (const Named& known : kNamed)
    if (name == known.name) return Target{known.machine, known.triple, known.cpu, "", known.vector_bytes};
  return std::nullopt;
}

std::string Target::names() {
  std::string all;
  for (const Named& known : kNamed) all += (all.empty() ? "" : ", ") + std::string(known.name);
  return all;
}

}  // namespace tower::compiler
