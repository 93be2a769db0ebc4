// A C++ function of tensors and attributes, callable on a stack of IValues and comparable with an operator's schema.
// LibTorch's own machinery does the work, so the types are those that its kernels may have.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/op_registration/infer_schema.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tower::detail {

class BoxedFunction {
 public:
  /// A lambda, a function object with one call operator, or a pointer to a function.
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, BoxedFunction>>>
  explicit BoxedFunction(F&& f)
      : kernel_(c10::KernelFunction::makeFromUnboxedFunctor<false,
                                                            c10::impl::WrapFunctionIntoRuntimeFunctor<std::decay_t<F>>>(
            std::make_unique<c10::impl::WrapFunctionIntoRuntimeFunctor<std::decay_t<F>>>(std::forward<F>(f)))),
        schema_(c10::inferFunctionSchemaFlattenedReturns<std::decay_t<F>>()) {}

  /// Replaces the arguments on the stack by the results. `op` is the operator that the function stands for.
  void operator()(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) const {
    kernel_.callBoxed(op, c10::DispatchKeySet(), &stack);
  }
  const c10::KernelFunction& kernel() const { return kernel_; }
  /// The schema that the function's own type amounts to.
  const c10::FunctionSchema& schema() const { return schema_; }

 private:
  c10::KernelFunction kernel_;
  c10::FunctionSchema schema_;
};

/// What keeps a function of type `inferred` from standing for an operator with the schema `specified`; empty: nothing.
std::string schema_difference(const c10::FunctionSchema& inferred, const c10::FunctionSchema& specified);

}  // namespace tower::detail
