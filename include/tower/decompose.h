// An operator in terms of others. A decomposition serves vmap, vjp and jvp wherever the operator has no rule of its
// own, for LibTorch's operators and for those of any library, and can be called from C++ like the operator.
//
//   auto registered = tower::decompose("mylib::softplus_sum", [](const at::Tensor& x, int64_t dim) {
//     return at::log1p(x.exp()).sum(dim);
//   });
//   tower::grad(f)(x);                                     // f may call mylib::softplus_sum
//   auto stand_in = tower::decomposition<at::_ops::addmm>();
//   stand_in(c, a, b, 1, 1);                               // the one that Tower has for addmm
//
// The function is written with operators that transforms know and reads no data of tensors; what is right at any depth
// of nesting follows from that. It is not used to evaluate the operator outside of transforms. docs/coverage.md lists
// all decompositions with their cost.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tower/detail/boxed_function.h"

namespace tower {

class Operator;

/// A registration; taking it out of scope restores what served the operator before.
class [[nodiscard]] RegisteredDecomposition {
 public:
  RegisteredDecomposition() = default;
  RegisteredDecomposition(RegisteredDecomposition&& other) noexcept : id_(std::exchange(other.id_, 0)) {}
  RegisteredDecomposition& operator=(RegisteredDecomposition&& other) noexcept;
  ~RegisteredDecomposition() { remove(); }

  /// Ends the registration.
  void remove();
  /// Keeps it for the life of the process.
  void keep() { id_ = 0; }

 private:
  friend RegisteredDecomposition decompose(const c10::OperatorHandle& op, detail::BoxedFunction f);
  explicit RegisteredDecomposition(uint64_t id) : id_(id) {}
  uint64_t id_ = 0;
};

/// A decomposition as it was registered last, to be called.
class Decomposition {
 public:
  /// Whether the operator has one.
  explicit operator bool() const { return run_ != nullptr; }
  /// The operator's schema; only where it has a decomposition.
  const c10::FunctionSchema& schema() const { return *schema_; }
  /// Replaces the arguments on the stack by the results. Every argument must be given, defaults included.
  void call_boxed(std::vector<c10::IValue>& stack) const;
  /// As a function of the given signature, such as `Tensor(const Tensor&, int64_t)`. Throws ArgumentError where that
  /// does not fit the schema.
  template <class Signature>
  std::function<Signature> typed() const {
    require(c10::inferFunctionSchemaFlattenedReturns<Signature>());
    return Caller<Signature>{*this};
  }

 private:
  friend Decomposition decomposition(std::string_view op);
  void require(const c10::FunctionSchema& signature) const;

  template <class Signature>
  struct Caller;
  template <class Result, class... Arguments>
  struct Caller<Result(Arguments...)> {
    std::shared_ptr<const Decomposition> decomposition;
    explicit Caller(const Decomposition& d) : decomposition(std::make_shared<const Decomposition>(d)) {}
    Result operator()(Arguments... arguments) const {
      auto stack = c10::impl::boxArgs<Arguments...>(std::forward<Arguments>(arguments)...);
      decomposition->call_boxed(stack);
      return c10::impl::PopResult<Result>::call(stack);
    }
  };

  const c10::FunctionSchema* schema_ = nullptr;
  std::shared_ptr<const std::function<void(std::vector<c10::IValue>&)>> run_;
};

/// Registers `f` as the decomposition of the operator `op`; a later registration takes precedence while it lives. The
/// function takes the operator's arguments, all of them, with the types that a kernel for it may have (`const Tensor&`,
/// `int64_t` or `SymInt`, `at::IntArrayRef`, `std::optional<…>`, …). Throws ArgumentError where the signature does not
/// fit, there is no such operator, or it writes to its arguments (those run as their functional form).
/// As with LibTorch's own registrations, no other thread may be using the operator meanwhile.
RegisteredDecomposition decompose(const c10::OperatorHandle& op, detail::BoxedFunction f);
/// The same, with the name of `op`: "aten::add.Tensor".
RegisteredDecomposition decompose(std::string_view op, detail::BoxedFunction f);
/// The same with the name of `op`, for an `f` that is any callable.
template <class Function>
RegisteredDecomposition decompose(std::string_view op, Function f) {
  return decompose(op, detail::BoxedFunction(std::move(f)));
}
/// The same for an operator `op` and an `f` that is any callable.
template <class Function>
RegisteredDecomposition decompose(const c10::OperatorHandle& op, Function f) {
  return decompose(op, detail::BoxedFunction(std::move(f)));
}

namespace detail {
template <class Op, class Schema>
struct TypedOperator;
template <class Op, class Result, class... Arguments>
struct TypedOperator<Op, Result(Arguments...)> {
  template <class Function>
  static BoxedFunction boxed(Function f) {
    static_assert(std::is_invocable_r_v<Result, const Function&, Arguments...>,
                  "the function cannot be called with the operator's arguments, or does not return its results");
    return BoxedFunction(
        [f = std::move(f)](Arguments... arguments) -> Result { return f(std::forward<Arguments>(arguments)...); });
  }
};
}  // namespace detail

/// The same by LibTorch's declaration, `decompose<at::_ops::addmm>(f)`: `f` is whatever can be called with its
/// arguments, checked by the compiler.
template <class Op, class Function>
RegisteredDecomposition decompose(Function f) {
  std::string name = Op::name;
  if (*Op::overload_name) name += std::string(".") + Op::overload_name;
  return decompose(name, detail::TypedOperator<Op, typename Op::schema>::boxed(std::move(f)));
}

/// The decomposition of the operator called `op`, "aten::addmm", Tower's own or a registered one; one that is false if
/// there is none.
Decomposition decomposition(std::string_view op);
/// The same with the operator's own signature; an empty function if there is none.
template <class Op>
std::function<typename Op::schema> decomposition() {
  std::string name = Op::name;
  if (*Op::overload_name) name += std::string(".") + Op::overload_name;
  const Decomposition found = decomposition(name);
  return found ? found.typed<typename Op::schema>() : std::function<typename Op::schema>();
}

/// The names of all operators that have a decomposition, sorted.
std::vector<std::string> decomposed_operators();

}  // namespace tower
