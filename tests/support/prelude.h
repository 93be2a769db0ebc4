// What a test of the transforms begins with: operators, the comparisons, the errors, the list functions, and their
// names. For .cpp files of tests only.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "support/compositions.h"
#include "support/expect.h"
#include "support/functions.h"
#include "support/intact.h"
#include "tower/dynamic.h"
#include "tower/errors.h"

namespace td = tower::dynamic;

using at::Tensor;
using support::contains;
using support::disagreement;
using support::looped;
using support::message_of;
using support::number;
using support::numbers;
using support::of_one;
using support::refusal;
using support::same;
using support::says;
using support::vec;
using support::waves;
using tower::dynamic::Dims;
using tower::dynamic::Function;
using tower::dynamic::Tensors;
