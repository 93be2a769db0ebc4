// Tower: composable function transforms for C++ on LibTorch. This header has everything but what needs more of LibTorch
// than tensors: torch::nn (tower/nn.h), functions with rules of their own (tower/function.h) and decompositions
// (tower/decompose.h), and it brings the arithmetic of tensors. Where compile time counts, include the headers that are
// used: they have at::Tensor alone.
#pragma once

// The arithmetic of tensors, and not all of LibTorch's functions, which its header brings where nobody defined this:
// they would be half of what a first program costs the compiler. <ATen/Functions.h> has them.
#ifdef AT_PER_OPERATOR_HEADERS
#include <ATen/TensorOperators.h>
#else
#define AT_PER_OPERATOR_HEADERS
#include <ATen/TensorOperators.h>
#undef AT_PER_OPERATOR_HEADERS
#endif

#include "tower/axes.h"
#include "tower/check_grads.h"
#include "tower/checkpoint.h"
#include "tower/collectives.h"
#include "tower/compile.h"
#include "tower/cond.h"
#include "tower/coverage.h"
#include "tower/dynamic.h"
#include "tower/errors.h"
#include "tower/explain.h"
#include "tower/export_c.h"
#include "tower/graph.h"
#include "tower/higher_order.h"
#include "tower/implicit.h"
#include "tower/inspect.h"
#include "tower/linear_solve.h"
#include "tower/loops.h"
#include "tower/memory.h"
#include "tower/mesh.h"
#include "tower/native.h"
#include "tower/sparse.h"
#include "tower/substitution.h"
#include "tower/transforms.h"
#include "tower/tree.h"
#include "tower/value_and_jacobian.h"
#include "tower/version.h"
