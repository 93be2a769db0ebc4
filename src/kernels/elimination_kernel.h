// Blocks of factorizations and triangular solves as one kernel, for matrices in memory of any size
// (kernels/systems_by_pointers.h, which goes over the blocks): what small systems have in loops of their own
// (kernels/print_systems.h).
//
// A call's first number says what it does (EliminationTask), its second one is that of a block's columns, or of the
// rows of a product. Its inputs are T, and, fourth, a table of numbers (EliminationNumbers); its outputs are what it
// changes, the exchanged rows, and the first pivot that does not do. Products are C = S − A B, as product_kernel.h has
// them. Matrices lie column by column; a column begins where vectors may, and has room for whole vectors: what lies
// behind the last row is read and written.
#pragma once

#include "kernels/emit.h"

namespace tower::compiler {

/// Of float32 or float64.
KernelText print_elimination(Type type, const std::string& name, int64_t vector_bytes);

}  // namespace tower::compiler
