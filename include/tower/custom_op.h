// Custom operators: operators of LibTorch's dispatcher, yours or another library's, with rules for Tower's transforms
// and for LibTorch's autograd. docs/custom_operators.md walks through one.
//
//   auto cube = tower::custom_op("mylib::cube(Tensor x, float scale=1.0) -> Tensor")
//                   .kernel(at::kCPU, cube_cpu)
//                   .save_for_backward([](const tower::Arguments& in, const tower::ValueList&) {
//                     return tower::Saved{in.tensor("x")};
//                   })
//                   .backward([](const tower::BackwardContext& call, const tower::ValueList& saved,
//                                const tower::ValueList& grads) -> tower::Gradients {
//                     return {{"x", 3 * call.get<double>("scale") * saved[0] * saved[0] * grads[0]}};
//                   })
//                   .linear_backward();
//   auto f = cube.typed<at::Tensor(const at::Tensor&, double)>();
//   tower::vmap(tower::grad(...f...));
//
// A registration is taken back when the last copy of its CustomOp, or of a handle made by typed(), is gone; keep()
// keeps it. What was there before is then in force again. As with LibTorch's own registrations, no other thread may be
// using the operator meanwhile.
//
// What holds for every rule: it is the meaning of its transform, honoured at every level, however many other levels lie
// above it; it is written with operators, reads no data of tensors and writes to none that it was given; what it
// computes is differentiated and mapped in turn, so second derivatives are derivatives of the rules.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tower/detail/boxed_function.h"
#include "tower/dynamic.h"
#include "tower/vmap_info.h"

namespace tower {

class CustomOp;
class Operator;

/// Values of a call by position: its outputs, gradients of them, what was saved. Valid while the rule runs.
class ValueList {
 public:
  /// A view of `values`, which must live as long.
  explicit ValueList(c10::ArrayRef<c10::IValue> values) : values_(values) {}
  /// How many values there are.
  size_t size() const { return values_.size(); }
  /// Value `i`, a tensor; undefined where there is none. Throws ArgumentError where there are not as many.
  const at::Tensor& operator[](size_t i) const { return tensor(i); }
  /// The same as [i].
  const at::Tensor& tensor(size_t i) const;
  /// Value `i`, a list of tensors; undefined ones where it has holes.
  std::vector<at::Tensor> tensors(size_t i) const;
  /// Value `i`, of another type: a number, string, list of numbers, std::optional of one, …
  template <class T>
  T get(size_t i) const {
    return value(i).to<T>();
  }
  /// Value `i` as it is. Throws ArgumentError where there are not as many.
  const c10::IValue& value(size_t i) const;

 private:
  c10::ArrayRef<c10::IValue> values_;
};

/// The arguments of a call by name, or tangents in the place of its tensors. Valid while the rule runs.
class Arguments {
 public:
  /// Those of a call of `op`: `values` in the order of its schema, which must live as long.
  Arguments(const Operator& op, c10::ArrayRef<c10::IValue> values) : op_(&op), values_(values) {}
  /// The tensor argument `name`; undefined where there is none.
  const at::Tensor& tensor(std::string_view name) const;
  /// The tensors of the list `name`; undefined ones where it has holes.
  std::vector<at::Tensor> tensors(std::string_view name) const;
  /// The argument `name`, of another type: a number, string, list of numbers, std::optional of one, …
  template <class T>
  T get(std::string_view name) const {
    return value(name).to<T>();
  }
  /// The argument `name` as it is. Throws ArgumentError where the operator has no such argument, as all of these do.
  const c10::IValue& value(std::string_view name) const;

 protected:
  size_t position(std::string_view name) const;
  const Operator* op_;
  c10::ArrayRef<c10::IValue> values_;
};

/// The call that a derivative rule is for: its arguments that are no tensors.
class CallContext {
 public:
  /// Of the call with these `arguments`.
  explicit CallContext(const Arguments& arguments) : arguments_(arguments) {}
  /// The argument `name`: a number, string, list of numbers, std::optional of one, …
  template <class T>
  T get(std::string_view name) const {
    return arguments_.get<T>(name);
  }

 protected:
  Arguments arguments_;
};

/// The same for backward, which need not compute what nobody asks for.
class BackwardContext : public CallContext {
 public:
  /// Of the call with these `arguments`; `needs` says of a tensor argument, or of an element of a list, whether its
  /// gradient is asked for.
  BackwardContext(const Arguments& arguments, const std::function<bool(std::string_view, size_t)>& needs)
      : CallContext(arguments), needs_(needs) {}
  /// Whether the gradient of the tensor argument `name` is asked for; of a list: of its element number `element`.
  bool needs_gradient(std::string_view name, size_t element = 0) const { return needs_(name, element); }

 private:
  const std::function<bool(std::string_view, size_t)>& needs_;
};

/// What backward and jvp need: tensors, lists, numbers, strings.
using Saved = std::vector<c10::IValue>;

/// The gradient of one argument: a tensor or, of a list, a tensor for each element. Undefined tensors are zeros.
struct Gradient {
  /// Zero.
  Gradient() = default;
  /// Of an argument that is a `tensor`, of its shape and dtype.
  Gradient(at::Tensor tensor) : value(std::move(tensor)) {}
  /// Of an argument that is a `list` of tensors: as many, of their shapes and dtypes.
  Gradient(std::vector<at::Tensor> list) : value(std::move(list)) {}
  /// What it was made of.
  std::variant<at::Tensor, std::vector<at::Tensor>> value;
};
/// By the name of the argument.
using Gradients = std::map<std::string, Gradient, std::less<>>;

/// Where the batch dimensions of a call's arguments are, by name.
class BatchDims {
 public:
  /// Those of a call of `op`: `dims` has an entry for each argument, with one for each tensor of it.
  BatchDims(const Operator& op, std::vector<dynamic::Dims> dims) : op_(&op), dims_(std::move(dims)) {}
  /// Of the tensor `name`; empty: every example has the same. Throws ArgumentError where there is no such argument.
  std::optional<int64_t> operator[](std::string_view name) const;
  /// Of the elements of the list `name`.
  const dynamic::Dims& list(std::string_view name) const;

 private:
  const Operator* op_;
  std::vector<dynamic::Dims> dims_;  // by position; one entry for a tensor
};

/// What CustomOp::backward is given.
struct BackwardOptions {
  /// Gradients of outputs that nobody asked about are zeros; else they are undefined tensors.
  bool materialize_grads = true;
};

namespace detail {

struct CustomOpState;
using SaveFunction = std::function<Saved(const Arguments&, const ValueList&)>;
using BackwardFunction = std::function<Gradients(const BackwardContext&, const ValueList&, const ValueList&)>;
using JvpFunction = std::function<dynamic::Tensors(const CallContext&, const ValueList&, const Arguments&)>;
/// Replaces the arguments on the stack by the outputs and returns their batch dimensions.
using VmapFunction = std::function<dynamic::Dims(const VmapInfo&, const BatchDims&, std::vector<c10::IValue>& stack)>;

/// Defines an operator with the schema of a function, which is its implementation on every device.
CustomOp define(std::string_view name, const BoxedFunction& f, const std::vector<std::string>& arguments,
                std::source_location where);

/// A dictionary from strings to tensors and lists of tensors. Throws DerivativeError for anything else.
Gradients gradients_of(const c10::IValue& value);

template <class F>
struct VmapSignature : VmapSignature<decltype(&F::operator())> {};
template <class C, class R, class D, class... A>
struct VmapSignature<std::pair<R, D> (C::*)(const VmapInfo&, const BatchDims&, A...) const> {
  using Call = R(A...);
};
template <class R, class D, class... A>
struct VmapSignature<std::pair<R, D> (*)(const VmapInfo&, const BatchDims&, A...)> {
  using Call = R(A...);
};

template <class F, class R, class... A>
VmapFunction boxed_vmap(F f, R (*)(A...)) {
  return [f = std::move(f)](const VmapInfo& info, const BatchDims& dims, std::vector<c10::IValue>& stack) {
    auto result = [&]<size_t... i>(std::index_sequence<i...>) {
      return f(info, dims,
               c10::impl::ivalue_to_arg<typename c10::impl::decay_if_not_tensor<A>::type, false>::call(stack[i])...);
    }
    (std::index_sequence_for<A...>{});
    stack.clear();
    c10::impl::push_outputs<R, false>::call(std::move(result.first), &stack);
    if constexpr (std::is_convertible_v<decltype(result.second), dynamic::Dims>) return dynamic::Dims(result.second);
    else return dynamic::Dims{std::optional<int64_t>(result.second)};
  };
}

}  // namespace detail

/// An operator, called like a function. It keeps the registration that it was made from.
template <class Signature>
class TypedOp;
template <class Result, class... A>
class TypedOp<Result(A...)> {
 public:
  /// Calls it, through LibTorch's dispatcher, with `arguments` of the types of its schema.
  Result operator()(A... arguments) const { return handle_.call(std::forward<A>(arguments)...); }

 private:
  friend class CustomOp;
  TypedOp(const c10::OperatorHandle& handle, std::shared_ptr<detail::CustomOpState> state)
      : handle_(handle.typed<Result(A...)>()), state_(std::move(state)) {}
  c10::TypedOperatorHandle<Result(A...)> handle_;
  std::shared_ptr<detail::CustomOpState> state_;
};

/// What was registered for an operator through this object; copies share it. What registers something returns the
/// object, for the next. It throws ArgumentError where the operator has that already, or a function `f` does not fit
/// the schema; messages then say `where` the other was registered.
class CustomOp {
 public:
  /// A place in the source.
  using Where = std::source_location;

  /// The operator's name, with its overload: "mylib::foo" or "mylib::foo.overload".
  const std::string& name() const;
  /// The operator as a function of the given type, such as `Tensor(const Tensor&, double)`. Throws ArgumentError where
  /// that does not fit the schema, or nobody has defined the operator yet.
  template <class Signature>
  TypedOp<Signature> typed() const {
    return {handle(c10::inferFunctionSchemaFlattenedReturns<Signature>()), state_};
  }
  /// Keeps the registration for the life of the process.
  void keep() const;

  // ---- what it computes ----

  /// `f` is the implementation for one kind of `device`. It takes the schema's arguments with the types of LibTorch's
  /// kernels
  /// (`const Tensor&`, `at::TensorList`, `const std::optional<Tensor>&`, `int64_t`, `double`, `std::string_view`, …),
  /// writes to none of them and returns fresh tensors. One written with operators is also run under vmap; one that
  /// reads memory runs once for each example.
  template <class F>
  const CustomOp& kernel(at::DeviceType device, F f, Where where = Where::current()) const {
    add_kernel(device, detail::BoxedFunction(std::move(f)), where);
    return *this;
  }
  /// `f` is the implementation for every device that has none of its own.
  template <class F>
  const CustomOp& kernel(F f, Where where = Where::current()) const {
    add_kernel(std::nullopt, detail::BoxedFunction(std::move(f)), where);
    return *this;
  }
  /// `f` gives outputs of the right shapes and dtypes, without values: the implementation for meta tensors.
  template <class F>
  const CustomOp& abstract(F f, Where where = Where::current()) const {
    return kernel(at::kMeta, std::move(f), where);
  }
  /// `f` is the operator in terms of others (tower/decompose.h): serves vmap, and derivatives where there are no rules
  /// for them. The operator must be there.
  template <class F>
  const CustomOp& decomposition(F f, Where where = Where::current()) const {
    add_decomposition(detail::BoxedFunction(std::move(f)), where);
    return *this;
  }

  // ---- derivatives ----

  /// `save` gives what backward and jvp get as `saved`, from the arguments and outputs of a call. Without it that is
  /// all arguments, then all outputs.
  const CustomOp& save_for_backward(detail::SaveFunction save, Where where = Where::current()) const;
  /// `f(call, saved, gradients of the outputs)` gives the gradients by name of argument, each of the argument's shape.
  /// Of the arguments that need one each must be there, unless declared by no_gradient: a DerivativeError says which is
  /// not. Without a backward LibTorch's backward() through the operator is an error.
  template <class F>
  const CustomOp& backward(F f, BackwardOptions options = {}, Where where = Where::current()) const {
    using Result = std::invoke_result_t<F&, const BackwardContext&, const ValueList&, const ValueList&>;
    if constexpr (std::is_same_v<Result, c10::IValue>) {
      add_backward([f = std::move(f)](const BackwardContext& call, const ValueList& saved,
                                      const ValueList& grads) { return detail::gradients_of(f(call, saved, grads)); },
                   options, where);
    } else {
      static_assert(std::is_convertible_v<Result, Gradients>,
                    "backward must return a map from names of arguments to gradients: tower::Gradients");
      add_backward(std::move(f), options, where);
    }
    return *this;
  }
  /// The backward is linear in the gradients (no clipping, no noise), so it also serves forward mode.
  const CustomOp& linear_backward(Where where = Where::current()) const;
  /// Declares that the derivative with respect to these arguments is zero.
  const CustomOp& no_gradient(std::initializer_list<const char*> arguments, Where where = Where::current()) const;
  /// `f(call, saved, tangents)` gives the tangents of the outputs (lists flattened; undefined: zero), each of its
  /// output's shape, from those of the arguments (undefined: zero), in which it is linear.
  const CustomOp& jvp(detail::JvpFunction f, Where where = Where::current()) const;

  // ---- vmap ----

  /// `f` is the operator for a batch: `(info, in_dims, arguments…) -> pair(outputs, out_dims)`. Tensors have their
  /// batch dimensions where in_dims says; out_dims has one entry for each output (lists flattened), or one for all of
  /// them.
  template <class F>
  const CustomOp& vmap(F f, Where where = Where::current()) const {
    using Call = typename detail::VmapSignature<std::decay_t<F>>::Call;
    add_vmap(detail::boxed_vmap(std::move(f), static_cast<Call*>(nullptr)),
             c10::inferFunctionSchemaFlattenedReturns<Call>(), where);
    return *this;
  }

  // ---- sparsity patterns ----

  /// `f` is a function of the schema's arguments, made of operators, whose outputs have the shapes of the operator's
  /// and depend on all that those depend on: what sparsity patterns (tower/sparse.h) follow in its place. Without it
  /// they are dense.
  template <class F>
  const CustomOp& sparsity(F f, Where where = Where::current()) const {
    add_sparsity(detail::BoxedFunction(std::move(f)), where);
    return *this;
  }

 private:
  friend CustomOp custom_op(std::string_view, std::vector<at::Tag>, std::source_location);
  friend CustomOp detail::define(std::string_view, const detail::BoxedFunction&, const std::vector<std::string>&,
                                 std::source_location);
  explicit CustomOp(std::shared_ptr<detail::CustomOpState> state) : state_(std::move(state)) {}
  c10::OperatorHandle handle(const c10::FunctionSchema& signature) const;
  void add_kernel(std::optional<at::DeviceType> device, detail::BoxedFunction f, Where where) const;
  void add_decomposition(detail::BoxedFunction f, Where where) const;
  void add_backward(detail::BackwardFunction f, BackwardOptions options, Where where) const;
  void add_sparsity(const detail::BoxedFunction& f, Where where) const;
  void add_vmap(detail::VmapFunction f, c10::FunctionSchema signature, Where where) const;

  std::shared_ptr<detail::CustomOpState> state_;
};

/// An operator by `schema_or_name`: defines it by its schema, "mylib::foo(Tensor x, Tensor[] ys, float alpha=1.0) ->
/// (Tensor, Tensor)", or, with a name alone, "mylib::foo" or "mylib::foo.overload", adds to an operator that somebody
/// else defines, before or after; transforms for which nothing is added keep what serves them. `tags` are LibTorch's,
/// of a defined one. Throws ArgumentError where the schema does not parse, or the operator is defined already.
[[nodiscard]] CustomOp custom_op(std::string_view schema_or_name, std::vector<at::Tag> tags = {},
                                 std::source_location where = std::source_location::current());

/// Defines an operator `name` with the schema of a C++ function `f`, which is its implementation on every device.
/// `arguments` are the names of its arguments. Throws ArgumentError where their number differs.
template <class F>
requires(!std::is_convertible_v<F, std::vector<at::Tag>>) [[nodiscard]] CustomOp
    custom_op(std::string_view name, F f, const std::vector<std::string>& arguments,
              std::source_location where = std::source_location::current()) {
  return detail::define(name, detail::BoxedFunction(std::move(f)), arguments, where);
}

}  // namespace tower
