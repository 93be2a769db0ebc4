// Operators of lists of tensors, each of which goes its own way: the collectives.
#pragma once

#include "interpreters/custom.h"

namespace tower::mesh {

using Tensors = std::vector<Tensor>;

/// The derivative of a list of results is made of those that are there: undefined ones stay undefined.
template <class F>
Tensors of_defined(c10::ArrayRef<Tensor> list, F&& f) {
  Tensors defined;
  for (const Tensor& t : list)
    if (t.defined()) defined.push_back(t);
  Tensors result(list.size());
  if (defined.empty()) return result;
  const Tensors values = f(defined);
  size_t next = 0;
  for (size_t k = 0; k < list.size(); ++k)
    if (list[k].defined()) result[k] = values[next++];
  return result;
}

class ListOperator : public MadeOperator {
 public:
  bool opens_under_trace() const final { return true; }
  /// Calls it as the code does that is running now.
  Tensors operator()(const Tensors& operands) const;
  /// Whether a level that maps over processes leaves it alone: it knows itself what differs between them.
  static const ListOperator* from(const Operator& op) {
    return op.handle() ? nullptr : dynamic_cast<const ListOperator*>(&op);
  }

 protected:
  explicit ListOperator(const std::string& name);

  /// The gradients of the operands, from cotangents of which some may be undefined.
  /// Whether the rule begins what gives the gradients, and leaves it to the tape to wait for them.
  virtual bool begin_pull_back(const VjpFrame&) const { return false; }
  virtual Tensors pull_back(c10::ArrayRef<IValue> saved, c10::ArrayRef<Tensor> cotangents) const = 0;
  virtual Tensors push_forward(c10::ArrayRef<IValue> saved, c10::ArrayRef<Tensor> tangents) const = 0;
  virtual void map(VmapFrame& frame) const = 0;

  /// Under a vmap that the operator does not know: its batch behind all dimensions, where `moves` says that the
  /// operator changes them, and else in front.
  void map_alongside(VmapFrame& frame, bool moves) const;
};

}  // namespace tower::mesh
