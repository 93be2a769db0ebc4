// User functions: a function whose derivatives and batching are given by rules of its own, called from anywhere.
//
//   struct Cube : tower::Function<Cube> {
//     static Tensor forward(const Tensor& x) { return x * x * x; }
//     static void setup_context(tower::Context& ctx, const std::tuple<Tensor>& inputs, const Tensor& output) {
//       ctx.save_for_backward({std::get<0>(inputs)});
//     }
//     static Tensor backward(tower::Context& ctx, const Tensor& grad) {
//       return 3 * ctx.saved_tensors()[0].square() * grad;
//     }
//   };
//   Tensor y = Cube::apply(x);
//
// Outside transforms LibTorch's autograd differentiates it by `backward`; inside, every level of a transform applies
// its rule, however many levels lie above. Arguments and outputs are trees (tower/tree.h). docs/custom_functions.md
// walks through one.
//
// What a function may declare, all static:
//   forward(args…)                          the implementation
//   setup_context(ctx, inputs, output)      what backward and jvp need; `inputs` is a tuple of the arguments
//   backward(ctx, gradient of each output)  one entry for each argument: a tuple, or the entry if there is one argument
//   jvp(ctx, tangent of each argument)      the tangent of the output
//   vmap(VmapInfo, const InDims&, args…)   {output for the batch, its out_dims}
//   sparsity(args…)                         what sparsity patterns (tower/sparse.h) follow in place of forward
//   mutates                                 std::array of the arguments that forward writes to
//   linear_backward                         backward is linear in the gradients, so it serves forward mode as well
//   once_differentiable                     backward must not be differentiated: that is an error, never a zero
//   generate_vmap_rule = false              no vmap without a vmap rule
//   name                                    for messages; else the type's
// LibTorch's own shape is understood, too: forward(ctx, args…) that saves while it runs, backward(ctx, tensor_list).
//
// A function without a derivative rule is differentiated through its implementation, evaluated again.
//
// For functions that are values: custom(f).vjp(fwd, bwd).jvp(rule).vmap(rule).sparsity(rule), any part of it.
#pragma once

#include <source_location>

#include "tower/detail/function_call.h"
#include "tower/detail/function_parts.h"

namespace tower {

/// The base of a function with rules of its own that is a class, `Derived`, as above: what that declares is found by
/// its names, and what is missing is generated, or an error that says so.
template <class Derived>
struct Function {
  /// The context's name in functions written for LibTorch, whose other names follow.
  using AutogradContext = Context;
  /// A tensor.
  using Variable = at::Tensor;
  /// Tensors.
  using variable_list = dynamic::Tensors;
  /// Tensors.
  using tensor_list = dynamic::Tensors;

  /// Calls the function with `args`, trees, and returns what forward returns. Tensors that it writes to (`mutates`) are
  /// written to, and returned.
  template <class... Args>
  static auto apply(const Args&... args) {
    using Parts = detail::ClassParts<Derived, detail::Stored<Args>...>;
    static const HigherOrderOperator op = detail::make_operator(Parts::info());
    return detail::call<Parts, detail::Stored<Args>...>(op, {}, args...);
  }
};

/// A function of trees with rules of its own, made by `custom`. A value: each method returns another one.
template <class Parts>
class CustomFunction {
 public:
  /// Of a function and the rules that it has, `parts`, and what is known of them, `info`. Call `custom` instead.
  explicit CustomFunction(Parts parts, detail::FunctionInfo info)
      : parts_(std::make_shared<const Parts>(std::move(parts))),
        info_(std::move(info)),
        op_(detail::make_operator(info_)) {}

  /// `forward(args…)` returns a pair of the output and residuals (a tree); `backward(residuals, gradient of each
  /// output)` one entry for each argument: a tuple, or the entry if there is one argument. Where `forward` draws random
  /// numbers, let it save nothing that depends on them unless it returns it, too.
  template <class Forward, class Backward>
  auto vjp(Forward forward, Backward backward) const {
    detail::FunctionInfo info = info_;
    info.has_backward = true;
    info.saves = detail::Saves::in_forward;
    return remade(parts_->with_vjp(std::move(forward), std::move(backward)), std::move(info));
  }

  /// `rule(primals, tangents)` returns the tangent of the output. Both are tuples with an entry for each argument, or
  /// the entry if there is one argument.
  template <class Rule>
  auto jvp(Rule rule) const {
    detail::FunctionInfo info = info_;
    info.has_jvp = true;
    if (info.saves == detail::Saves::nothing) info.saves = detail::Saves::after_forward;
    return remade(parts_->with_jvp(std::move(rule)), std::move(info));
  }

  /// `rule(VmapInfo, const InDims&, args…)` returns a pair of the output for the batch and its out_dims.
  template <class Rule>
  auto vmap(Rule rule) const {
    detail::FunctionInfo info = info_;
    info.has_vmap = true;
    return remade(parts_->with_vmap(std::move(rule)), std::move(info));
  }

  /// `rule(args…)` is made of operators, and its output, like the function's, depends on all that that depends on: what
  /// sparsity patterns (tower/sparse.h) follow in its place.
  template <class Rule>
  auto sparsity(Rule rule) const {
    detail::FunctionInfo info = info_;
    info.has_sparsity = true;
    return remade(parts_->with_sparsity(std::move(rule)), std::move(info));
  }

  /// Declares that backward is linear in the gradients: it then serves forward mode as well.
  CustomFunction linear_backward() const {
    detail::FunctionInfo info = info_;
    info.linear_backward = true;
    return CustomFunction(*parts_, std::move(info));
  }

  /// The name in messages.
  CustomFunction named(std::string name) const {
    detail::FunctionInfo info = info_;
    info.name = std::move(name);
    return CustomFunction(*parts_, std::move(info));
  }

  /// Calls the function with `args`, trees, as from anywhere.
  template <class... Args>
  auto operator()(const Args&... args) const {
    return detail::call<Parts, detail::Stored<Args>...>(op_, parts_, args...);
  }

 private:
  template <class Other>
  static CustomFunction<Other> remade(Other parts, detail::FunctionInfo info) {
    return CustomFunction<Other>(std::move(parts), std::move(info));
  }

  std::shared_ptr<const Parts> parts_;
  detail::FunctionInfo info_;
  HigherOrderOperator op_;
};

/// `f` as a function that rules can be given to.
template <class F>
auto custom(F f, std::source_location where = std::source_location::current()) {
  using Parts = detail::CustomParts<F>;
  return CustomFunction<Parts>(Parts{{std::move(f)}}, detail::custom_info(where.file_name(), where.line()));
}

/// `f` with a reverse-mode rule, `forward` and `backward` (CustomFunction::vjp).
template <class F, class Forward, class Backward>
auto custom_vjp(F f, Forward forward, Backward backward, std::source_location where = std::source_location::current()) {
  return custom(std::move(f), where).vjp(std::move(forward), std::move(backward));
}

/// `f` with a forward-mode `rule`, which also serves reverse mode (CustomFunction::jvp).
template <class F, class Rule>
auto custom_jvp(F f, Rule rule, std::source_location where = std::source_location::current()) {
  return custom(std::move(f), where).jvp(std::move(rule));
}

/// `f` with a batching `rule`; it is differentiated through its implementation (CustomFunction::vmap).
template <class F, class Rule>
auto custom_vmap(F f, Rule rule, std::source_location where = std::source_location::current()) {
  return custom(std::move(f), where).vmap(std::move(rule));
}

}  // namespace tower
