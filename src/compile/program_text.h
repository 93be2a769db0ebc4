// The C text of a program (kernels/by_pointers.h): its constants, what its kernels are called with, and the tables that
// run_program runs. What a library is besides, its functions and what is said about them, is of those who ask for it.
#pragma once

#include <string>
#include <vector>

#include "compile/library_target.h"
#include "fuse/pointer_program.h"
#include "kernels/object_file.h"
#include "tower/export_c.h"

namespace tower::compiler {

class ProgramText {
 public:
  /// `name` begins the names of the text, and of its kernels in the object file. The program is one that `target` gave.
  ProgramText(const PointerProgram& program, std::string name, const ExportOptions& options,
              const LibraryTarget& target);

  const PointerProgram& program() const { return program_; }
  /// Ends with `static const ProgramTables {name}_tables`.
  std::string text() const;
  /// The machine code of its kernels.
  const std::vector<NamedCode>& code() const { return code_; }
  /// What `options` want besides.
  const std::vector<OtherFile>& others() const { return others_; }
  /// Captured tensors that are arguments, in their order behind the function's own.
  const std::vector<PointerProgram::Constant>& captured() const { return captured_; }

 private:
  bool is_argument(const PointerProgram::Constant& constant) const {
    return constant.captured && options_.captured == ExportOptions::Captured::arguments;
  }
  size_t number_of(const Kernel* kernel) const;
  // A memory's number, where captured tensors are arguments.
  int64_t memory(int64_t number) const;
  std::string constants_text() const;
  std::string kernels_text() const;

  const PointerProgram& program_;
  const std::string name_;
  const ExportOptions& options_;
  const ProgramTables& tables_;
  std::vector<const Kernel*> kernels_;
  std::vector<NamedCode> code_;
  std::vector<OtherFile> others_;
  std::vector<PointerProgram::Constant> captured_;
};

/// What comes before the text of programs: the text that runs them, and what it includes.
std::string text_that_runs_programs();

/// Elements of a C table, a few on a line; `none` where there are none, which C's tables cannot have.
template <class T, class F>
std::string rows_of(const T& elements, F text, const char* none = "0") {
  std::string rows, row;
  for (const auto& element : elements) {
    const std::string next = text(element);
    if (row.size() + next.size() > 110) {
      rows += "\n   " + row;
      row.clear();
    }
    row += " " + next + ",";
  }
  if (elements.empty()) row.append(" ").append(none);
  return rows.append("\n   ").append(row).append("\n");
}

}  // namespace tower::compiler
