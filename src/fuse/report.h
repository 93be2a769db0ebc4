// What became of a function, for people: a page, which begins with what is in kernels and what is left to LibTorch, and
// why; and a list of all kernels.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "graph/graph.h"

namespace tower::compiler {

/// Of one graph, and of its images under transforms.
struct Report {
  size_t kernels = 0, operators = 0;                          // these have
  size_t products = 0;                                        // of matrices, by Tower
  std::map<std::string, std::map<std::string, size_t>> left;  // to LibTorch: how often, by reason and name
  std::string lines;                                          // one for each kernel, and what stands above them

  void add(const Report& other);
  /// `title`, and the other's lines below it.
  void add_below(const std::string& title, const Report& other);
  /// Such as "kernels: 2, of 17 operators; products of matrices: 1; calls left to LibTorch: 3".
  std::string summary() const;
};

/// Notes the calls of a graph with kernels that are LibTorch's. Views are none.
void note_left(const Graph& fused, Report& report);

/// The first lines of a text, as many as are a page.
std::string first_page(const std::string& text);

}  // namespace tower::compiler
