// Rules of operators that write into an argument where Reuse allows (core/reuse.h): those that replace a part of their
// first, and pointwise ones, whose result takes the memory of a temporary.
#pragma once

#include "core/reuse.h"
#include "records/op.h"

namespace tower::rules {

/// Evaluates on plain tensors: `write(base, stack)` into the first argument or a copy of it, or LibTorch's kernel,
/// whose result may be a view that LibTorch keeps the base of. `write` returns false, with nothing written, where it
/// leaves the call to the kernel after all, such as to refuse it.
template <class Op, bool (*write)(const Tensor& base, const Stack& stack)>
void evaluate_overwriting(Stack& stack) {
  static const Operator& record = record_of(Op::name, Op::overload_name);
  const Tensor base = Reuse::to_overwrite(stack);
  if (!base.defined() || !write(base, stack)) return record.handle()->callBoxed(stack);
  stack.assign(1, base);
}

/// The same for kernels that give rows, whatever the order of the first argument in memory.
template <class Op, bool (*write)(const Tensor& base, const Stack& stack)>
void evaluate_in_rows(Stack& stack) {
  static const Operator& record = record_of(Op::name, Op::overload_name);
  if (stack[0].toTensor().is_contiguous()) evaluate_overwriting<Op, write>(stack);
  else record.handle()->callBoxed(stack);
}

/// Whether `part` can be written into plain memory like `base` without a conversion, and nothing follows it.
bool goes_into(const Tensor& part, const Tensor& base);

/// The cotangent (the tangent of the first argument) that the caller may have given up: it leaves the frame.
Tensor taken_cotangent(VjpFrame& frame);

/// call_overwriting (core/reuse.h) with the arguments one by one.
template <class Op, class... Args>
Tensor overwritten(Tensor base, Args&&... args) {
  static const Operator& record = record_of(Op::name, Op::overload_name);
  Stack call;
  call.reserve(1 + sizeof...(args));
  call.emplace_back(std::move(base));
  (call.emplace_back(std::forward<Args>(args)), ...);
  return call_overwriting(record, std::move(call));
}

/// The jvp of an operator that is linear in its first argument and in `part` together.
void linear_by_overwriting(Operator& record, size_t part);

/// The derivatives of a scatter that is linear in its first argument and in `part` together.
void overwrites(Operator& record, size_t part, Keeps vjp_keeps, std::function<void(VjpFrame&)> vjp);

/// The gradient of a pointwise operator's tensor by an operator of the cotangent, which is used for the last time, and
/// of what `rest` gives.
template <class Op, class Backward, class Function>
void pulls_back_by(Function rest) {
  using Rest = detail::Bound<Op, Function>;
  record_of(Op::name, Op::overload_name)
      .vjp.push_back(
          {Mask{1}, Rest::keeps, detail::kept_for<void, VjpFrame&>(rest, [](const Function& rest, VjpFrame& f) {
             if (!f.cotangents[0].defined()) return;
             static const Operator& backward = record_of(Backward::name, Backward::overload_name);
             Stack call = Rest::call(rest, f);
             call.insert(call.begin(), taken_cotangent(f));
             f.give(0, call_overwriting(backward, std::move(call)));
           })});
}

/// The derivatives of an operator that writes the number in place `value` to elements of its first argument.
void overwrites_with_number(Operator& record, size_t value);

/// Whether all indices lie in [least, size): kernels that write find a wrong one in the middle. False, too, where they
/// are better left to the kernel.
bool in_range(const Tensor& index, int64_t least, int64_t size);

/// The records of the scatters of views: evaluation and derivatives.
void scatters_of_views();

/// The evaluation of pointwise operators whose results take the memory of temporaries; after their other rules.
void pointwise_into_spent();

}  // namespace tower::rules
