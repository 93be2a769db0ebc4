// The precompiled header of the library and the tests: LibTorch's large headers and the standard containers. Files
// include what they use all the same; this only makes it cheap.
#pragma once

#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>
