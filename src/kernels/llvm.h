// LLVM as a library that is looked for when the first function is compiled: IR as text in, machine code in memory out,
// through LLVM's C API. No header of LLVM is needed to build this, and a program that compiles nothing loads nothing.
//
//   const Llvm& llvm = Llvm::get();
//   if (!llvm.works()) …llvm.why_not()…
//   const Code code(llvm.compile({.text = ir, .function = "f"}));
//   reinterpret_cast<void (*)()>(code.address())();
//
// TOWER_LLVM names the library (a path or a soname); otherwise the usual names of versions 15 to 22 are tried.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/compile_error.h"
#include "kernels/machine_code.h"
#include "kernels/target.h"

namespace tower::compiler {

struct LlvmApi;

/// IR of a function. What it calls are functions of the process.
struct Module {
  std::string text;
  std::string function;  // the one that is wanted
};

class Llvm {
 public:
  /// The one of this process; loaded by the first call, and never unloaded.
  static const Llvm& get();

  /// Loads the first of `libraries` that will do.
  explicit Llvm(const std::vector<std::string>& libraries);
  ~Llvm();  // the library stays
  Llvm(const Llvm&) = delete;
  Llvm& operator=(const Llvm&) = delete;

  bool works() const;
  /// Why it does not work: what was looked for and what was wrong with it.
  std::string why_not() const;
  /// Which library it is.
  const std::string& library() const { return library_; }

  /// The machine of this process.
  const Target& here() const { return here_; }

  /// Any number of threads at a time. Throws a CompileError.
  Binary compile(const Module& module) const { return compile(module, here_); }
  /// For another machine, of which the library may have no back end.
  Binary compile(const Module& module, const Target& target) const;
  /// The same as assembler, to look at.
  std::string assembler(const Module& module, const Target& target) const;

 private:
  bool load(const std::string& library);
  void start();
  std::string taken(char* message) const;
  void give_up(const std::string& why) const;
  std::string emitted(const Module& module, const Target& target, int kind) const;

  std::string library_;
  Target here_;
  std::unique_ptr<LlvmApi> api_;

  mutable std::mutex mutex_;
  mutable std::string why_not_;  // empty while it works
};

}  // namespace tower::compiler
