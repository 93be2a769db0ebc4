// Kernels that stand in graphs in the place of calls, and are called like operators.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace tower::compiler {

/// A kernel, or what else stands for several calls, as an operator of a list of plain tensors, which gives a list.
///
/// It reads memory by the sizes and dtypes that its operands had where it was made, and so compares each operand with
/// them, at each call: what does not fit is an error.
class KernelOperator : public Operator {
 public:
  explicit KernelOperator(const char* name = "tower::kernel");
  /// What `call` does, with operands and results where they are, and no lists of them. A plan calls this.
  void run(c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results) const {
    check(operands);
    compute(operands, results);
  }
  void call(Stack& stack) const final;
  /// In the place of calls that read and give these values of `graph`; `of` names what it stands for.
  static Call call_of(c10::intrusive_ptr<KernelOperator> op, const Graph& graph, std::vector<ValueId> operands,
                      std::vector<ValueId> results, const std::vector<std::string>& of = {});

 private:
  virtual void compute(c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results) const = 0;
  void check(c10::ArrayRef<const Tensor*> operands) const {
    bool fit = operands.size() == read_.size();
    for (size_t k = 0; fit && k < read_.size(); ++k) fit = read_[k].is_like(*operands[k]);
    if (!fit) refuse(operands);
  }
  [[noreturn]] void refuse(c10::ArrayRef<const Tensor*> operands) const;

  struct Operand {
    caffe2::TypeMeta dtype;
    Sizes sizes;

    bool is_like(const Tensor& t) const {
      if (t.dtype() != dtype) return false;
      const at::IntArrayRef found = t.sizes();
      bool same = found.size() == sizes.size();
      for (size_t d = 0; same && d < found.size(); ++d) same = found[d] == sizes[d];
      return same;
    }
  };
  std::vector<Operand> read_;
  std::string stands_for_;
  size_t results_ = 1;  // how many
};

}  // namespace tower::compiler
