// Rows, columns and elements are numbered in int64_t, as LibTorch's, and kept in containers of C++.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tower::sparse {

inline size_t index(int64_t number) { return static_cast<size_t>(number); }

}  // namespace tower::sparse
