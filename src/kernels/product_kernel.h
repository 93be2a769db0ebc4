// A product of matrices as a kernel, C = S + A B, where kernels run without LibTorch: one for all sizes and strides.
// The process multiplies by kernels/gemm.h, which takes blocks of several rows and LibTorch's products.
//
// A call computes rows `begin` to before `end` of the result. Its inputs are A, B, S (null: there is none) and a table
// of numbers (ProductNumbers in kernels/products_by_pointers.h); its output is C. It gives the bits of the products in
// tiles of kernels/gemm_tiles.cpp: of each element, the terms of a block are added up from the first to the last,
// product and sum rounded once, and then the blocks.
#pragma once

#include "kernels/emit.h"

namespace tower::compiler {

constexpr int64_t kVectorsOfTile = 4;  // of columns; of fewer, each is computed by itself

/// Of float32 or float64.
KernelText print_product(Type type, const std::string& name, int64_t vector_bytes);
/// The same as a function that others of its text call, but C = S − A B.
std::string print_subtracted_product(Type type, const std::string& name, int64_t vector_bytes);

}  // namespace tower::compiler
