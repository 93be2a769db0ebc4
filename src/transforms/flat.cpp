#include "tower/detail/flat.h"

#include <string>

#include "interpreters/surface.h"
#include "tower/errors.h"

namespace tower::detail {

std::vector<int64_t> tensor_numbers(const std::vector<std::size_t>& counts, std::initializer_list<std::size_t> chosen) {
  std::vector<int64_t> numbers;
  for (std::size_t argument : chosen) {
    std::size_t start = 0;
    for (std::size_t i = 0; i < argument; ++i) start += counts[i];
    for (std::size_t i = 0; i < counts[argument]; ++i) numbers.push_back(static_cast<int64_t>(start + i));
  }
  return numbers;
}

void check_differentiable(const char* transform, const Tensors& leaves, const std::vector<int64_t>& chosen,
                          const NameTensor& name) {
  for (int64_t i : chosen) {
    const auto index = static_cast<std::size_t>(i);
    if (leaves[index].is_floating_point() || leaves[index].is_complex()) continue;
    tower::check_differentiable(leaves[index], transform, name(index));
  }
}

void append_matching(const Tensors& like, const Tensors& given, const std::string& what, Tensors& flat) {
  if (given.size() != like.size()) {
    throw ArgumentError(what + " is a tree of " + std::to_string(given.size()) +
                        " tensors, but what it belongs to has " + std::to_string(like.size()) +
                        ": give a tree with the same elements (an undefined tensor stands for zero)");
  }
  for (std::size_t i = 0; i < like.size(); ++i) {
    if (like[i].defined()) flat.push_back(given[i]);
  }
}

}  // namespace tower::detail
