// Graphs as bytes and back. Operators go by their names and signatures, what their calls are given besides tensors as
// values. Tensors that a graph holds, captured ones included, are stored with the values that they have: in another
// process nobody else has them.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include "core/bytes.h"
#include "graph/graph.h"

namespace tower::compiler {

/// The tensors of several graphs: those that are one stay one, and those that share memory go on to do so.
class TensorWriter {
 public:
  /// Its number. Throws UnsupportedError for what is not memory of the CPU's.
  int64_t number_of(const Tensor& t);
  void write(ByteWriter& out) const;

 private:
  std::unordered_map<const c10::TensorImpl*, int64_t> numbers_;
  std::vector<Tensor> tensors_;
};
std::vector<Tensor> read_tensors(ByteReader& in);
/// One that there is.
at::ScalarType read_dtype(ByteReader& in);

/// Throws UnsupportedError where a call runs code of the user's.
void write_graph(ByteWriter& out, const Graph& graph, TensorWriter& tensors);

class GraphReader {
 public:
  explicit GraphReader(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}
  /// Throws a BytesError, and ArgumentError where there is no such operator.
  Graph read(ByteReader& in);

 private:
  Call read_call(ByteReader& in, const Graph& graph);

  std::vector<Tensor> tensors_;
  std::map<int64_t, uint64_t> axes_;  // which vmaps: other numbers than those of this process
};

}  // namespace tower::compiler
