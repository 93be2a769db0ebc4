// For which machine a C library is written, and what besides: ExportOptions::target and also.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuse/pointer_program.h"
#include "kernels/object_file.h"
#include "tower/export_c.h"

namespace tower::compiler {

/// A file that is written besides a library's own: "newton_kernel0.ll".
struct OtherFile {
  std::string name, bytes;
};

class LibraryTarget {
 public:
  /// For programs with this arithmetic. Throws ArgumentError where `options` ask for what there is not.
  LibraryTarget(const ExportOptions& options, Math math);

  /// By what the kernels that are written are made: `of_process`, unless they are for another machine, or more is
  /// wanted of them than their code.
  const std::shared_ptr<Kernels>& kernels(const std::shared_ptr<Kernels>& of_process) const;

  /// What headers say that the machine code is for: "x86-64 with avx2, fma", "aarch64".
  std::string text() const;
  Machine machine() const;
  /// What is wanted of a kernel besides its code, in files that begin with `name`.
  std::vector<OtherFile> others(const std::string& name, const Kernel& kernel) const;

 private:
  const ExportOptions& options_;
  std::optional<Target> target_;      // none: this machine
  std::shared_ptr<Kernels> kernels_;  // null: those of the process
};

}  // namespace tower::compiler
