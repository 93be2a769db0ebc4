// LLVM as a library that is looked for when the first function is compiled: IR as text in, machine code in memory out,
// through LLVM's C API. No header of LLVM is needed to build this, and a program that compiles nothing loads nothing.
//
//   const Llvm& llvm = Llvm::get();
//   if (!llvm.works()) …llvm.why_not()…
//   const std::unique_ptr<Code> code = llvm.compile({.text = ir, .function = "f"});
//   reinterpret_cast<void (*)()>(code->address())();
//
// TOWER_LLVM names the library (a path or a soname); otherwise the usual names of versions 15 to 22 are tried.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tower::compiler {

struct LlvmApi;

/// What LLVM refused, or that there is none.
struct CompileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// IR, and where the functions are that it calls.
struct Module {
  std::string text;
  std::string function;  // the one that is wanted
  std::vector<std::pair<std::string, const void*>> externals;
};

class Llvm;

/// Machine code of one function: freed with this.
class Code {
 public:
  ~Code();
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  void* address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  friend class Llvm;
  Code(const Llvm& llvm, void* tracker) : llvm_(llvm), tracker_(tracker) {}
  const Llvm& llvm_;
  void* tracker_;
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

class Llvm {
 public:
  /// The one of this process; loaded by the first call, and never unloaded.
  static const Llvm& get();

  /// Loads the first of `libraries` that will do.
  explicit Llvm(const std::vector<std::string>& libraries);
  ~Llvm();
  Llvm(const Llvm&) = delete;
  Llvm& operator=(const Llvm&) = delete;

  bool works() const;
  /// Why it does not work: what was looked for and what was wrong with it.
  std::string why_not() const;
  /// Which library it is.
  const std::string& library() const { return library_; }
  /// Bytes of the widest vectors that this CPU has: 32 or 64.
  int64_t vector_bytes() const { return vector_bytes_; }

  /// Any number of threads at a time. Throws a CompileError.
  std::unique_ptr<Code> compile(const Module& module) const;

 private:
  friend class Code;
  bool load(const std::string& library);
  void start();
  void define(const Module& module) const;
  void check(void* error) const;
  std::string text_of(void* error) const;
  static void report(void* llvm, void* error);
  std::string taken(char* message) const;
  void give_up(const std::string& why) const;

  std::string library_, triple_, cpu_, features_;
  int64_t vector_bytes_ = 0;
  std::unique_ptr<LlvmApi> api_;
  void* jit_ = nullptr;

  mutable std::mutex mutex_;
  mutable std::string why_not_;          // empty while it works
  mutable std::set<std::string> known_;  // external functions that the JIT was told of
};

}  // namespace tower::compiler
