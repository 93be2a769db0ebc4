// Functions traced and fused, kernels run on tensors, and numbers on which arithmetic goes wrong if anywhere.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <vector>

#include "fuse/fuse.h"

// Where there is no LLVM there is nothing to test.
#define TOWER_NEEDS_LLVM() \
  if (!tower::compiler::Llvm::get().works()) GTEST_SKIP() << tower::compiler::Llvm::get().why_not()

namespace kernels {

using tower::compiler::Expressions;
using tower::compiler::Id;
using tower::compiler::Kernel;
using tower::compiler::Region;
using tower::compiler::Type;

/// What `f` calls, without what nobody needs.
tower::compiler::Graph graph_of(const tower::dynamic::Function& f, const tower::dynamic::Tensors& args);
/// The same with kernels; these have to be kept for as long as it is used, where others are to find them.
tower::compiler::FusedGraph fused(const tower::dynamic::Function& f, const tower::dynamic::Tensors& args,
                                  tower::compiler::Kernels& kernels,
                                  tower::compiler::Worth worth = tower::compiler::Worth::joined);
tower::compiler::FusedGraph fused(const tower::dynamic::Function& f, const tower::dynamic::Tensors& args,
                                  tower::compiler::Worth worth = tower::compiler::Worth::joined);
/// Runs a graph in the place of `f`: dtypes, sizes and strides are those of the operators, and values
/// within the tolerance, absolute and relative.
void expect_as_operators(tower::compiler::Graph graph, const tower::dynamic::Function& f,
                         const tower::dynamic::Tensors& args, double tolerance = 0);

/// What `f` computes, with a kernel in the place of each call that can have one; nothing if none can.
std::optional<tower::dynamic::Tensors> computed(const tower::dynamic::Function& f, const tower::dynamic::Tensors& args);

/// How many calls are left of a function, fused; its results are checked to be those of the operators.
size_t calls_left(const tower::dynamic::Function& f, const tower::dynamic::Tensors& args, double tolerance = 0);

/// The inputs' expressions to the outputs'.
using Build = std::function<std::vector<Id>(Expressions&, const std::vector<Id>&)>;

/// A kernel whose inputs have these dtypes.
Region region_of(const std::vector<at::ScalarType>& dtypes, const Build& build, const std::vector<bool>& repeated = {});
/// Run on contiguous tensors of one number of elements.
std::vector<at::Tensor> run(const Region& region, const std::vector<at::Tensor>& inputs, int64_t lanes);
/// Both: one output.
at::Tensor compute(const std::vector<at::Tensor>& inputs, const Build& build);

/// NaN, infinities, zeros of both signs, denormals, extremes, halves, and ordinary numbers; likewise of integers.
at::Tensor special(at::ScalarType dtype);
/// Of a dtype of two bytes, all its numbers.
at::Tensor all_of(at::ScalarType dtype);
/// Drawn from few quarters: their sums are exact.
at::Tensor quarters(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat);
/// Every pair of the special ones.
std::pair<at::Tensor, at::Tensor> special_pairs(at::ScalarType dtype);

/// Empty if every element has the same bits (or both are NaN); else a sentence about the first that has not.
std::string bit_difference(const at::Tensor& actual, const at::Tensor& expected, const std::vector<at::Tensor>& inputs);

}  // namespace kernels
