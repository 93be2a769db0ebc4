// A function as CasADi calls it, and its C text (casadi_function.cpp).
//
// CasADi's functions are of sparse matrices, whose numbers lie column by column. Programs are of tensors. So a function
// is programs (fuse/pointer_program.h), and for each of their arguments and results where its numbers are in CasADi's
// matrices. The numbers that a program gives may be those of several matrices, as a Jacobian's are of its blocks, and
// a program runs if one of its matrices is wanted.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fuse/pointer_program.h"

namespace tower::compiler {

/// Where a matrix of CasADi's has numbers.
struct CasadiPattern {
  int64_t rows, columns;
  bool is_dense = true;
  std::vector<std::pair<int64_t, int64_t>> entries = {};  // (column, row), ascending, if it is not dense

  static CasadiPattern empty(int64_t rows, int64_t columns) { return {rows, columns, false}; }
  int64_t count() const { return is_dense ? rows * columns : static_cast<int64_t>(entries.size()); }
};

struct CasadiMatrix {
  std::string name;
  CasadiPattern pattern;
  bool is_differentiated = true;
};

/// Numbers of a matrix.
struct CasadiPart {
  size_t matrix;  // among arguments or results
  int64_t count;
  std::vector<int64_t> places = {};   // of each number among the program's; empty: as they lie
  std::vector<int64_t> numbers = {};  // which they are; empty: all, in the matrix's order
};

/// An argument or result of a program. Of an argument there is one part, of all numbers.
struct CasadiOperand {
  int64_t count;  // numbers
  std::vector<CasadiPart> parts;
};

struct CasadiRun {
  std::string name;  // of its text: program_text.h
  const ProgramTables* tables;
  std::vector<CasadiOperand> arguments, results;
};

struct CasadiFunction {
  std::string name;
  std::vector<CasadiMatrix> arguments, results;
  std::vector<CasadiRun> runs;

  /// What its header says of it: a declaration under a comment.
  std::string declaration() const;
  /// Its C text, behind those of its programs and `text_of_casadi_calls`.
  std::string text() const;
};

std::string text_of_casadi_calls();

}  // namespace tower::compiler
