// What the CPU is, as far as machine code depends on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/machine_code.h"

namespace tower::compiler {

class Cpu {
 public:
  static const Cpu& get();

  /// None where it is of another kind than code is linked for.
  std::optional<Machine> machine() const { return machine_; }
  /// Bytes of the widest vectors that kernels use: 64 or 32, on AArch64 16; 0 where there are none that will do.
  int64_t vector_bytes() const { return vector_bytes_; }
  /// The extensions that generated code may use, by LLVM's names.
  const std::vector<std::string>& features() const { return features_; }
  /// Model and features: code for one such text is as good for another CPU with the same.
  const std::string& text() const { return text_; }
  /// Of these features, those that this CPU lacks, as "avx512f, avx512vl"; empty: none.
  std::string lacks(const std::vector<std::string>& features) const;

 private:
  Cpu();
  std::vector<std::string> features_;
  std::string text_;
  int64_t vector_bytes_ = 0;
  std::optional<Machine> machine_;
};

}  // namespace tower::compiler
