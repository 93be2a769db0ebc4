// Functions of a kernel's own: a formula (numbers/functions.h) as LLVM's IR, for vectors of one width. Each stands once
// in the kernel's module, and is called where it is needed.
#pragma once

#include <map>
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

}  // namespace tower::compiler
