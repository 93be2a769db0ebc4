// Compiled functions as C libraries: machine code that another program links, without Tower, LibTorch or LLVM.
//
//   const auto step = tower::compile(tower::vmap(correct));
//   step(x, load);                                     // traced for 100 examples, …
//   step(more_x, more_load);                           // … and for 200: now any number will do
//   tower::export_c(step, "newton", {.folder = "out"});
//
// writes newton.h, which says how the function is called and with what, newton_kernels.o with the machine code of its
// kernels, newton.c, which calls them in order, newton.cmake, which makes a library of these, and newton.f90, an
// interface for Fortran. docs/c_libraries.md shows how they are used, and how a function is one of CasADi's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tower/compile.h"

namespace tower {

/// How a C function is called.
enum class CAbi : std::uint8_t {
  tower,   ///< `int f(int64_t n, const double* const x[], double* const y[], void* work)`, for n examples
  casadi,  ///< as CasADi calls external functions, with what it looks for when it differentiates them
};

/// How `export_c` writes.
struct ExportOptions {
  /// Where to; made if it is not there.
  std::string folder = ".";

  /// The machine that the library is for. Empty: this CPU, with all that kernels use of it. Otherwise "x86-64" (any CPU
  /// of its 64 bits), "x86-64-v2" (with SSE4.2), "x86-64-v3" (AVX2, FMA), "x86-64-v4" (AVX-512), as the ABI of x86-64
  /// has these levels, or "aarch64" (any CPU of Armv8-A).
  std::string target = {};
  /// What is written besides, to look at, of each kernel: "ll", its text for LLVM, in name_kernel0.ll, …, and "s", its
  /// assembler.
  std::vector<std::string> also = {};

  /// What tensors that the function captured are.
  enum class Captured : std::uint8_t {
    constants,  ///< numbers in the library, as they are now
    arguments,  ///< further arguments, behind the function's own
  };
  /// The same.
  Captured captured = Captured::constants;

  /// For how many steps of a while_loop that the function goes back through (grad, jacrev) the workspace has memory. A
  /// loop with `max_steps` has it for so many. One that makes more is told by what the function returns.
  std::int64_t loop_steps = 1000;

  /// How the function is called.
  CAbi abi = CAbi::tower;
  /// For CasADi, how often it can differentiate the function: with 1, there are Jacobians and derivatives along
  /// directions, with 2, Hessians as well. Each is a function of its own in the library.
  int derivatives = 2;
  /// For CasADi, positions of arguments that nothing is differentiated by.
  std::vector<std::int64_t> parameters = {};
  /// The names of arguments, which the header says, and CasADi asks for; empty: none, and for CasADi i0, i1, …
  std::vector<std::string> argument_names = {};
  /// The names of results; empty: none, and for CasADi o0, o1, …
  std::vector<std::string> result_names = {};
};

namespace detail {
void export_c(const Specialisations& function, const std::string& name, const ExportOptions& options);
}

/// Writes `compiled`, for arguments of the kind that it was last called with, as a C function `name`, as `options` say.
/// It is for any number of examples where the function was called with two; otherwise for the sizes of that call.
/// Throws UnsupportedError where something in it is no kernel, and says what, and where the LLVM that is there does not
/// know the target; ArgumentError where `name` is not one that C has for functions, where the function was not called,
/// where a target is none of those above, and where a file cannot be written. For CasADi the function is of one number
/// of examples, and of tensors of float64 with up to two dimensions; captured tensors are constants.
template <class F>
void export_c(const Compiled<F>& compiled, const std::string& name, const ExportOptions& options = {}) {
  detail::export_c(compiled.specialisations(), name, options);
}

namespace dynamic {
/// Writes `compiled`, a function that dynamic::compile or dynamic::load gave, as a C function `name`, with `options` as
/// above. Throws what that throws, and ArgumentError for another function.
void export_c(const Function& compiled, const std::string& name, const ExportOptions& options = {});
}  // namespace dynamic

}  // namespace tower
