// Many programs of kernels in one C program, which is linked without LibTorch: what each gives there is what it gave in
// the process.
#pragma once

#include <ATen/core/Tensor.h>
#include <tower/export_c.h>

#include <memory>
#include <string>
#include <vector>

#include "compile/library_target.h"
#include "fuse/pointer_program.h"
#include "kernels/object_file.h"

namespace export_tests {

/// What a program for one number of examples gives in the process.
std::vector<at::Tensor> run_by_pointers(const tower::compiler::PointerProgram& program,
                                        const std::vector<at::Tensor>& args);

class CProgram {
 public:
  /// For the machine of `options`.
  explicit CProgram(const tower::ExportOptions& options);

  /// By what its programs are made: `of_process`, where it is for this machine.
  const std::shared_ptr<tower::compiler::Kernels>& kernels(
      const std::shared_ptr<tower::compiler::Kernels>& of_process) const {
    return target_.kernels(of_process);
  }
  /// A program for one number of examples, and what it gives for these arguments; `what` is said where it does not.
  void add(const std::shared_ptr<const tower::compiler::PointerProgram>& program, const std::vector<at::Tensor>& args,
           const std::vector<at::Tensor>& expected, const std::string& what);
  size_t count() const { return samples_.size(); }

  /// Compiles and links all, and runs it once, by `runner` ("valgrind -q "): what gives other bits, a line each.
  std::string disagreements(const std::string& runner = "") const;

 private:
  struct Sample {
    std::string what;
    std::vector<at::Tensor> expected;
  };
  const tower::ExportOptions options_;
  const tower::compiler::LibraryTarget target_;
  std::string programs_, bytes_, table_, input_;
  size_t sizes_ = 0;  // in bytes_
  std::vector<tower::compiler::NamedCode> code_;
  std::vector<Sample> samples_;
};

}  // namespace export_tests
