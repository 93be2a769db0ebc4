// What an operator demands of its arguments, where its batching rule or its decomposition would take more: a matrix
// product of the batch broadcasts, a formula promotes dtypes, and the kernel does neither. A demand is checked before
// them, on the arguments as one example has them, and throws what LibTorch throws (TORCH_CHECK), to which the
// transform, its level and the operator are added.
//
//   demands<at::_ops::dot>([](const Example& e) {
//     TORCH_CHECK(e.dim(0) == 1 && e.dim(1) == 1, "1D tensors expected, but got ", e.dim(0), "D and ", e.dim(1), "D
//     tensors");
//   });
//
// It follows the record whose rules it guards. Where a rule calls the operator itself on all examples, the kernel's own
// checks do, but for what the batch dimension makes look right.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include "core/operator.h"
#include "records/families.h"

namespace tower::rules {

/// The arguments of a call as one example has them: shapes, dtypes, and what is no tensor.
class Example {
 public:
  explicit Example(const VmapFrame& f) : op_(f.op), args_(f.stack), frame_(&f) {}
  Example(const Operator& op, c10::ArrayRef<IValue> args) : op_(op), args_(args), frame_(nullptr) {}

  bool has(size_t arg) const { return args_[arg].isTensor() && args_[arg].toTensor().defined(); }
  int64_t dim(size_t arg) const { return args_[arg].toTensor().dim() - (batch_dim(arg) >= 0); }
  int64_t size(size_t arg, int64_t d) const;
  Sizes sizes(size_t arg) const;
  int64_t numel(size_t arg) const { return c10::multiply_integers(sizes(arg)); }
  at::ScalarType dtype(size_t arg) const { return args_[arg].toTensor().scalar_type(); }
  at::Device device(size_t arg) const { return args_[arg].toTensor().device(); }
  bool is_complex(size_t arg) const { return c10::isComplexType(dtype(arg)); }
  /// The tensors of list argument `arg`; those that are not given have the dtype Undefined.
  std::vector<Meta> list(size_t arg) const;
  const IValue& operator[](size_t arg) const { return args_[arg]; }
  const Operator& op() const { return op_; }

 private:
  int64_t batch_dim(size_t arg) const { return frame_ ? frame_->in_dims[arg] : VmapFrame::kUnbatched; }

  const Operator& op_;
  c10::ArrayRef<IValue> args_;
  const VmapFrame* frame_;
};

using Check = void (*)(const Example&);

/// Puts `check` before the batching rule and the decomposition of a record.
void guard(Operator& record, Check check);

template <class Op>
void demands(Check check) {
  guard(record_of(Op::name, Op::overload_name), check);
}

// ---- checks that many operators share ----

/// Calls a shape function of the operator on the shapes of one example.
void ask(const c10::KernelFunction& shape_function, const Example& e);

/// What `shape_function` says against the example: LibTorch's of the operator in C++, which needs no data,
/// `own_demands<at::meta::linalg_qr>`. It costs microseconds: for operators beside whose kernels that is nothing. (That
/// which the dispatcher has is another one in a process of Python: it costs as much as the kernel, or the import of
/// half a thousand modules the first time.)
template <auto shape_function>
void own_demands(const Example& e) {
  static const auto kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(shape_function);
  ask(kernel, e);
}

/// Matrices, perhaps with dimensions of a batch before them.
void demand_matrix(const Example& e, size_t arg);
/// One dtype in all of `args` that are given.
void demand_same_dtype(const Example& e, std::initializer_list<size_t> args);
void demand_floating(const Example& e, size_t arg);
void demand_dtype(const Example& e, size_t arg, at::ScalarType type);

}  // namespace tower::rules
