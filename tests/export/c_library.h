// An exported function, built by the system's C compiler and called by pointers.
#pragma once

#include <ATen/core/Tensor.h>
#include <tower/dynamic.h>
#include <tower/export_c.h>

#include <functional>
#include <string>

#include "compile/files.h"
#include "compile/kernels.h"

#define TOWER_NEEDS_C() \
  TOWER_NEEDS_LLVM();   \
  if (!export_tests::has_compiler()) GTEST_SKIP() << "there is no C compiler"

namespace export_tests {

using at::Tensor;
using tower::dynamic::Function;
using tower::dynamic::Tensors;

#if defined(__x86_64__)
inline constexpr bool kOnX86 = true;
#else
inline constexpr bool kOnX86 = false;
#endif

/// Whether there is a C compiler.
bool has_compiler();
/// Runs a command of the shell: its output, or a failure of the test where it fails.
std::string output_of(const std::string& command);

inline Function mapped_over_all(const Function& f) {
  return [f](const Tensors& x) { return tower::dynamic::vmap(f, tower::dynamic::Dims(x.size(), 0), {0})(x); };
}

/// The shared library of one exported function, loaded into this process.
class CLibrary {
 public:
  CLibrary(const Function& compiled, const tower::ExportOptions& options = {}, const std::string& name = "exported");
  /// One that is built, at this path.
  CLibrary(const std::string& path, const std::string& name);
  ~CLibrary();
  CLibrary(const CLibrary&) = delete;
  CLibrary& operator=(const CLibrary&) = delete;

  /// What the function returns for memory of these tensors, results in memory that lies as that of `like`. Fails the
  /// test where anything is written outside of results and workspace.
  int call(int64_t n, const Tensors& arguments, const Tensors& like, Tensors& results) const;
  int64_t work_bytes(int64_t n) const { return work_bytes_(n); }
  /// An int of the library.
  int number(const std::string& name) const;
  const support::Folder& folder() const { return folder_; }

 private:
  void load(const std::string& path, const std::string& name);

  support::Folder folder_;
  void* library_ = nullptr;
  int (*function_)(int64_t, const void* const*, void* const*, void*) = nullptr;
  int64_t (*work_bytes_)(int64_t) = nullptr;
};

/// Empty if the exported function, and the compiled one by pointers, give for `n` and these arguments what the compiled
/// function gives, bit by bit. `captured`: what the library takes as arguments behind these.
std::string disagreement(const CLibrary& library, const Function& compiled, int64_t n, const Tensors& arguments,
                         const Tensors& captured = {});
void expect_same(const CLibrary& library, const Function& compiled, int64_t n, const Tensors& arguments,
                 const Tensors& captured = {});
/// `f` under a vmap over all arguments, compiled, called with two numbers of examples of `of(n)`, and held against its
/// library and its pointers for 0, 1, 7, 64 and 1000.
void expect_exported(const Function& f, const std::function<Tensors(int64_t)>& of,
                     const tower::ExportOptions& options = {});

}  // namespace export_tests
