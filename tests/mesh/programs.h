// Programs with collectives, each beside the same written over the batch dimension, and both under nestings of
// transforms: what a named axis means in one process, and across several.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tower/dynamic.h"
#include "tower/mesh.h"

namespace mesh_programs {

using Tensors = tower::dynamic::Tensors;
using Function = tower::dynamic::Function;

/// How many examples there are.
inline constexpr int64_t kBatch = 5;

/// A function of an example and of a value that is the same for all: two tensors to one. `batched` is the same over the
/// batch dimension, which all tensors have in front.
struct Program {
  std::string name;
  std::vector<int64_t> example, shared;
  Function one, batched;
};
const std::vector<Program>& programs();

/// The examples [start, start + length) of the batch: those of one process, or all.
struct Part {
  int64_t start = 0, length = kBatch;
  at::Tensor of(const at::Tensor& whole, int64_t dim) const { return whole.narrow(dim, start, length); }
};

/// "": none; "v", "j", "r" and pairs, from the outermost: vmap, jvp and reverse mode along fixed directions.
std::vector<std::string> nestings(size_t most);

/// `one` under `inside`, mapped over `examples`, under `outside`, called with fixed arguments, of whose
/// mapped ones this process has `part`. With `by_batch` the program over the batch dimension in its place. Each result
/// with the dimension that is mapped, if there is one.
struct Result {
  Tensors values;
  std::vector<std::optional<int64_t>> mapped;
};
Result run(const Program& program, const std::string& outside, const std::string& inside, const Part& part,
           const tower::NamedExamples& examples, bool by_batch = false);

}  // namespace mesh_programs
