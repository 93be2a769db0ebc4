// Functions of a kernel's own: a formula (numbers/functions.h) as LLVM's IR, for vectors of one width. Each stands once
// in the kernel's module, and is called where it is needed, or is written out there.
//
// NOTE [Functions that are written out]
// A call costs a kernel of few operations as much as the function: by the CPU's conventions no vector is in a register
// behind it, and the function loads its constants each time. Where a kernel's functions are few, their formulas stand
// in its loop instead, and constants stay in registers from turn to turn. It is the same arithmetic, with the same
// bits.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "numbers/expression.h"

namespace tower::compiler {

/// Functions of a module, by their names.
using Definitions = std::map<std::string, std::string>;

/// How a kernel calls `op`, which has a formula: a function of vectors of `type`.
std::string name_of_function(Op op, Type type, int64_t lanes);
/// Adds it, and what it calls. Intrinsics are added to what is declared.
void define_function(Op op, Type type, int arity, int64_t lanes, Definitions& definitions,
                     std::set<std::string>& declared);

/// Of how many operations the formula is; none where it has branches, which only a function can have.
std::optional<int64_t> operations_of_function(Op op, Type type);
/// The formula of values `v`, which comes to `result`; names of what lies between begin with `prefix`.
std::string write_function_out(Op op, Type type, int64_t lanes, const std::string* v, const std::string& result,
                               const std::string& prefix, std::set<std::string>& declared);

}  // namespace tower::compiler
