// A pointer program while it is made (fuse/pointer_program.h): its steps as one fused graph has them, for which places
// in the workspace are not settled.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fuse/pointer_program.h"
#include "kernels/compile_error.h"

namespace tower::compiler {

struct PointerProgram::Draft {
  struct Made {
    Extent bytes;
    size_t first, last;  // steps
  };
  struct Step {
    int64_t kind;
    std::shared_ptr<const Kernel> kernel;  // null: it copies
    int64_t bytes;                         // of an element that is copied
    Extent lanes;
    std::vector<ProgramPlace> places = {};
    std::vector<Extent> sizes = {}, strides = {};
    int64_t tasks = 0, systems = 0;  // as ProgramStep has them
  };
  std::vector<Operand> arguments, results;
  std::vector<Constant> constants;
  std::vector<Made> made;
  std::vector<Step> steps;
};

/// What is left of the memories' numbers for one that is not there.
constexpr size_t kInNoMemory = static_cast<size_t>(-1);

inline Extent fixed(int64_t number) { return {number, 0}; }
std::vector<Extent> fixed(at::IntArrayRef numbers);

/// Throws what says, for `who`, why something is no program of kernels.
[[noreturn]] void refuse_program(const char* who, const std::string& what);
/// The same where there is no machine code.
[[noreturn]] void refuse_program(const char* who, const CompileError& why);

/// Of a graph that is fused. Throws UnsupportedError, for `who`, where it calls what is no kernel.
PointerProgram::Draft draft_of_fused(const Graph& fused, Kernels& kernels, const char* who,
                                     std::optional<int64_t> examples = {});

/// A graph with the sizes that it has, of so many examples if there are any. Throws as PointerProgram's constructors.
PointerProgram::Draft draft_of(Graph traced, Kernels& kernels, const char* who, bool frozen,
                               std::optional<int64_t> examples = {});

}  // namespace tower::compiler
