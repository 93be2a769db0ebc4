// Results of single examples, put together.
#pragma once

#include <ATen/ops/stack.h>

#include <vector>

namespace support {

/// Each result of all examples, stacked; `rows` has the results of one example after the other, at least one.
inline std::vector<at::Tensor> stacked(const std::vector<std::vector<at::Tensor>>& rows) {
  std::vector<at::Tensor> result;
  for (size_t k = 0; k < rows[0].size(); ++k) {
    std::vector<at::Tensor> column;
    for (const auto& row : rows) column.push_back(row[k]);
    result.push_back(at::stack(column));
  }
  return result;
}

}  // namespace support
