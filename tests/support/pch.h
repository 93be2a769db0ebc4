// The precompiled header of the tests: that of the library, and what most tests begin with. Files include what they use
// all the same; this only makes it cheap.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/loops.h>
#include <tower/tower.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "../../src/pch.h"
#include "support/compare.h"
#include "support/compositions.h"
#include "support/expect.h"
#include "support/functions.h"
#include "support/intact.h"
#include "support/oracles.h"
