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
  /// Whether operand `k` may be this tensor.
  bool fits(size_t k, const Tensor& t) const { return read_[k].is_like(t); }
  [[noreturn]] void refuse(c10::ArrayRef<const Tensor*> operands) const;
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

/// A value as it lies in memory, for as long as a kernel runs.
struct InMemory {
  void* data;
  at::IntArrayRef sizes, strides;
  at::ScalarType dtype;
  const Tensor* of = nullptr;  // the tensor; null: it is in a block for what a plan makes on its way

  static InMemory read(const Tensor& t) {
    return {const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides(), t.scalar_type(), &t};
  }
  int64_t element_size() const { return static_cast<int64_t>(c10::elementSize(dtype)); }
  /// How many elements there are from `data` on to the end of its memory.
  int64_t elements() const;
  /// The tensor, or one that has this memory and does not own it.
  Tensor tensor() const;
};

/// A kernel that is called with memory. It keeps none of its operands', and says beforehand how its results lie.
class MemoryKernel : public KernelOperator {
 public:
  struct Result {
    Sizes sizes, strides;
    at::ScalarType dtype;

    size_t bytes() const;
    Tensor allocate() const;
    InMemory at(void* memory) const { return {memory, sizes, strides, dtype}; }
    InMemory written(const Tensor& t) const { return {t.mutable_data_ptr(), sizes, strides, dtype, &t}; }
  };

  explicit MemoryKernel(std::vector<Result> made, const char* name = "tower::kernel")
      : KernelOperator(name), made_(std::move(made)) {}

  const std::vector<Result>& made() const { return made_; }
  /// Operands are of the sizes and dtypes that it was made for, and results as `made` says, which nobody else is.
  virtual void run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const = 0;

 private:
  void compute(c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results) const final;

  const std::vector<Result> made_;
};

}  // namespace tower::compiler
