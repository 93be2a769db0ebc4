// Machines that code is generated for. The process generates for the one that it runs on (Llvm::here); a C library may
// be for another (tower/export_c.h), whose code is written and not run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/machine_code.h"

namespace tower::compiler {

struct Target {
  Machine machine = Machine::x86_64;
  std::string triple = {}, cpu = {}, features = {};  // in LLVM's words
  int64_t vector_bytes = 0;                          // of the vectors that kernels use

  /// Of a level of x86-64, or a family of CPUs, "x86-64-v3"; none where nothing has that name.
  static std::optional<Target> named(std::string_view name);
  /// All names that there are: "x86-64, x86-64-v2, …".
  static std::string names();
};

}  // namespace tower::compiler
