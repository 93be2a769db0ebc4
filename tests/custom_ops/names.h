// The names that tests of custom operators are written with. For .cpp files of tests only.
#pragma once

#include "tower/custom_op.h"

using at::Tensor;
using tower::Arguments;
using tower::BackwardContext;
using tower::BatchDims;
using tower::CallContext;
using tower::custom_op;
using tower::CustomOp;
using tower::Gradients;
using tower::Saved;
using tower::ValueList;
using tower::VmapInfo;
using tower::dynamic::Dims;
using tower::dynamic::Tensors;
