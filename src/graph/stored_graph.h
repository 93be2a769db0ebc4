// Graphs as bytes and back. Operators go by their names and signatures, what their calls are given besides tensors as
// values; code that is known writes itself. Tensors that a graph holds, captured ones included, are stored with the
// values that they have: in another process nobody else has them.
#pragma once

#include <functional>
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

class GraphWriter {
 public:
  GraphWriter(ByteWriter& out, TensorWriter& tensors) : out_(out), tensors_(tensors) {}
  /// Throws UnsupportedError where a call runs code of the user's.
  void write(const Graph& graph);
  /// For what code that is known (KnownCode::store) says besides its graphs.
  ByteWriter& out() { return out_; }

 private:
  void write_call(const Call& call);

  ByteWriter& out_;
  TensorWriter& tensors_;
};

class GraphReader {
 public:
  /// Makes an operator of what its KnownCode wrote.
  using ReadCode = std::function<c10::intrusive_ptr<const Operator>(GraphReader&, ByteReader&)>;
  GraphReader(std::vector<Tensor> tensors, ReadCode read_code)
      : tensors_(std::move(tensors)), read_code_(std::move(read_code)) {}
  /// Throws a BytesError, and ArgumentError where there is no such operator.
  Graph read(ByteReader& in);

 private:
  Call read_call(ByteReader& in, const Graph& graph);

  std::vector<Tensor> tensors_;
  ReadCode read_code_;
  int depth_ = 0;
  std::map<int64_t, uint64_t> axes_;  // which vmaps: other numbers than those of this process
};

}  // namespace tower::compiler
