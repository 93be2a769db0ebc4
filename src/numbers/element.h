// How one element of a pointwise operator's output comes from elements of its inputs: what kernels are made of. Rules
// stand with the operators' other rules (records/op.h) and read like the mathematics:
//
//   op<at::_ops::tanh>().pointwise().element([](E x) { return tanh(x); });
//   op<at::_ops::threshold_backward>().pointwise().element(
//       [](E g, E x, E threshold) { return where(x <= threshold, 0, g); });
//
// A rule is a function of the operator's arguments in schema order (trailing ones may be left out):
//
//   E                      an element of a tensor, or a number, in the type that the operator computes in
//   Raw                    an element of a tensor in its own type
//   std::optional<E>       the same as E of what may be missing
//   bool, int64_t, double, Scalar, std::optional<…>, std::string    attributes
//   Skip                   nothing
//
// and gives an E, a std::tuple of them for several outputs, or a std::optional<E>: none where no kernel is to compute
// it. A result is converted to the output's type. Rules say what LibTorch's kernels compute, operation by operation: a
// multiplication and an addition that LibTorch rounds once are written fma.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>

#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/operator.h"
#include "numbers/expression.h"
#include "records/op.h"

namespace tower::compiler {

class E;

/// An E, or a number of the type of what it meets.
class Operand {
 public:
  Operand(E e);  // NOLINT: that is what it is for
  template <class T>
  requires std::is_arithmetic_v<T> Operand(T number) : number_(static_cast<double>(number)) {}  // NOLINT

 private:
  friend class E;
  Expressions* graph_ = nullptr;
  Id id_ = kNone;
  double number_ = 0;
};

class E {
 public:
  E(Expressions& graph, Id id) : graph_(&graph), id_(id) {}

  Id id() const { return id_; }
  Type type() const { return (*graph_)[id_].type; }
  bool floating() const { return is_float(type()); }
  /// A number of this one's type.
  E like(double number) const { return {*graph_, graph_->constant(type(), number)}; }
  E like(const at::Scalar& number) const;
  E to(Type type) const { return {*graph_, graph_->cast(id_, type)}; }

  E operator-() const { return made(Op::neg); }
  /// Of a boolean.
  E operator!() const { return made(Op::bit_xor, like(1)); }
  friend E operator+(Operand a, Operand b) { return of(Op::add, a, b); }
  friend E operator-(Operand a, Operand b) { return of(Op::sub, a, b); }
  friend E operator*(Operand a, Operand b) { return of(Op::mul, a, b); }
  /// Of integers: toward zero.
  friend E operator/(Operand a, Operand b);
  friend E operator%(Operand a, Operand b) { return of(Op::rest, a, b); }
  friend E operator&(Operand a, Operand b) { return of(Op::bit_and, a, b); }
  friend E operator|(Operand a, Operand b) { return of(Op::bit_or, a, b); }
  friend E operator^(Operand a, Operand b) { return of(Op::bit_xor, a, b); }
  friend E operator==(Operand a, Operand b) { return of(Op::eq, a, b); }
  friend E operator!=(Operand a, Operand b) { return of(Op::ne, a, b); }
  friend E operator<(Operand a, Operand b) { return of(Op::lt, a, b); }
  friend E operator<=(Operand a, Operand b) { return of(Op::le, a, b); }
  friend E operator>(Operand a, Operand b) { return of(Op::lt, b, a); }
  friend E operator>=(Operand a, Operand b) { return of(Op::le, b, a); }

  /// `op` of operands of one type.
  static E of(Op op, Operand a, Operand b);
  E made(Op op) const { return {*graph_, graph_->make(op, id_)}; }
  E made(Op op, E b) const { return {*graph_, graph_->make(op, id_, b.id_)}; }
  E made(Op op, E b, E c) const { return {*graph_, graph_->make(op, id_, b.id_, c.id_)}; }

  /// The first operand's type, or the second's if the first is a number, and both in it.
  static std::pair<E, E> together(Operand a, Operand b);

 private:
  friend class Operand;
  Expressions* graph_;
  Id id_;
};

inline Operand::Operand(E e) : graph_(e.graph_), id_(e.id_) {}

/// An element in its own type.
struct Raw : E {
  using E::E;
};

/// One of two by a boolean.
E where(E mask, Operand a, Operand b);
/// a · b + c, of floats rounded once.
E fma(E a, E b, E c);
inline E sqrt(E x) { return x.made(Op::sqrt); }
inline E floor(E x) { return x.floating() ? x.made(Op::floor) : x; }
inline E ceil(E x) { return x.floating() ? x.made(Op::ceil) : x; }
inline E trunc(E x) { return x.floating() ? x.made(Op::trunc) : x; }
inline E round(E x) { return x.floating() ? x.made(Op::round) : x; }
inline E abs(E x) { return x.type() == Type::b1 ? x : x.made(Op::abs); }
inline E copysign(E x, E sign) { return x.made(Op::copysign, sign); }
inline E isnan(E x) { return x != x; }
inline E exp(E x) { return x.made(Op::exp); }
inline E exp2(E x) { return x.made(Op::exp2); }
inline E expm1(E x) { return x.made(Op::expm1); }
inline E log(E x) { return x.made(Op::log); }
inline E log2(E x) { return x.made(Op::log2); }
inline E log10(E x) { return x.made(Op::log10); }
inline E log1p(E x) { return x.made(Op::log1p); }
inline E sin(E x) { return x.made(Op::sin); }
inline E cos(E x) { return x.made(Op::cos); }
inline E tan(E x) { return x.made(Op::tan); }
inline E asin(E x) { return x.made(Op::asin); }
inline E acos(E x) { return x.made(Op::acos); }
inline E atan(E x) { return x.made(Op::atan); }
inline E sinh(E x) { return x.made(Op::sinh); }
inline E cosh(E x) { return x.made(Op::cosh); }
inline E tanh(E x) { return x.made(Op::tanh); }
E asinh(E x);
E acosh(E x);
inline E atanh(E x) { return x.made(Op::atanh); }
inline E erf(E x) { return x.made(Op::erf); }
inline E erfc(E x) { return x.made(Op::erfc); }
inline E lgamma(E x) { return x.made(Op::lgamma); }
inline E pow(E x, E p) { return x.made(Op::pow, p); }
inline E atan2(E y, E x) { return y.made(Op::atan2, x); }
inline E hypot(E x, E y) { return x.made(Op::hypot, y); }
/// Exact, whatever the quotient.
E fmod(E x, E y);
/// As LibTorch's sigmoid has it.
inline E sigmoid(E x) { return 1 / (1 + exp(-x)); }
/// NaN if one is; of zeros, the second.
E maximum(E a, E b);
E minimum(E a, E b);
/// As clamp has it: NaN stays, and a bound that is NaN makes all NaN.
E at_least(E x, Operand low);
E at_most(E x, Operand high);

// ---- rules ----

/// An argument of a call: an element of a tensor, and what type promotion asks of that.
struct ElementArgument {
  Id id = kNone;  // none: not a tensor
  at::ScalarType dtype = at::ScalarType::Undefined;
  bool scalar = false;  // it has no dimensions
  bool number = false;  // LibTorch made it of a number
};

// NOTE [Rounding to half types]
// Of float16 and bfloat16, LibTorch's pointwise kernels for vectors compute in float32, and round. What they round
// differs: the result alone, as a fused formula does, or each of the operations that they write with vectors of the
// half type. Operands of other types are promoted to the half type before; numbers (attributes) mostly are not.

/// What an operator rounds to a half type.
enum class Rounds : uint8_t {
  result,
  numbers_and_result,
  each_operation,
  otherwise,  // not in a way that a rule can say: no kernel computes the call
};
struct InHalves {
  Rounds f16 = Rounds::result, bf16 = Rounds::result;
  bool keeps_number =
      false;  // if the second operand is one number, that stays what it is, and only the result is rounded
};
/// Of operators that have an element rule. Those of which it is not said have no kernels in half types.
void set_in_halves(const Operator& op, InHalves how);

/// A call whose element is asked for.
struct ElementCall {
  Expressions& graph;
  c10::ArrayRef<IValue> args;               // by schema position: the attributes
  c10::ArrayRef<ElementArgument> elements;  // likewise: the tensors
  Type computed_in;
  std::optional<Type> round_operands = {}, round_numbers = {};  // before they are converted to `computed_in`
  bool keeps_second = false;                                    // operand, as it is

  /// In the type that the operator computes in: an element, or an attribute.
  E operand(size_t at) const;
  E number(size_t at) const;
};
/// The outputs' elements; none where the rule has none for these attributes.
using ElementRule = std::function<std::vector<Id>(const ElementCall&)>;

/// Null where the operator has none.
const ElementRule* element_rule(const Operator& op);
void set_element_rule(const Operator& op, ElementRule rule);

/// The elements of the results of a call, in their dtypes; none where no kernel is to compute it. `elements` stand by
/// schema position, as `args` do.
std::vector<Id> elements(Expressions& graph, const Operator& op, c10::ArrayRef<IValue> args,
                         c10::ArrayRef<ElementArgument> elements, c10::ArrayRef<at::ScalarType> results);

namespace detail {

inline E number(Expressions& graph, Type type, const at::Scalar& value) {
  const Id id = value.isFloatingPoint() ? graph.constant(type, value.toDouble()) : graph.constant(type, value.toLong());
  return {graph, id};
}

template <class P>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class P, size_t at>
P element_parameter(const ElementCall& call) {
  if constexpr (std::is_same_v<P, rules::Skip>) return {};
  else if constexpr (std::is_same_v<P, Raw>) return {call.graph, call.elements[at].id};
  else if constexpr (std::is_same_v<P, E>) {
    return call.elements[at].id != kNone ? call.operand(at) : call.number(at);
  } else if constexpr (std::is_same_v<P, std::optional<E>>) {
    if (call.elements[at].id == kNone && (call.args[at].isNone() || call.args[at].isTensor())) return std::nullopt;
    return element_parameter<E, at>(call);
  } else if constexpr (std::is_same_v<P, at::Scalar>) return call.args[at].toScalar();
  else return call.args[at].template to<P>();
}

template <class P, class Argument>
constexpr bool element_parameter_fits() {
  constexpr bool tensor = rules::detail::is_tensor_argument<Argument>;
  constexpr bool number = std::is_same_v<Argument, at::Scalar> || std::is_same_v<Argument, std::optional<at::Scalar>> ||
                          std::is_same_v<Argument, double> || std::is_same_v<Argument, std::optional<double>>;
  if constexpr (std::is_same_v<P, rules::Skip>) return true;
  else if constexpr (std::is_same_v<P, Raw>) return tensor;
  else if constexpr (std::is_same_v<P, E>) return (tensor || number) && !is_optional<Argument>;
  else if constexpr (std::is_same_v<P, std::optional<E>>) return (tensor || number) && is_optional<Argument>;
  else return !tensor;
}

inline void give(std::vector<Id>& ids, E e) { ids.push_back(e.id()); }
inline void give(std::vector<Id>& ids, const std::optional<E>& e) {
  if (e) ids.push_back(e->id());
}
template <class... T>
void give(std::vector<Id>& ids, const std::tuple<T...>& all) {
  std::apply([&](const auto&... each) { (give(ids, each), ...); }, all);
}

}  // namespace detail

inline E E::like(const at::Scalar& number) const { return detail::number(*graph_, type(), number); }

namespace detail {

template <class Arguments, class... P, size_t... i>
constexpr bool element_parameters_fit(rules::detail::Parameters<P...>, std::index_sequence<i...>) {
  return (true && ... && element_parameter_fits<P, std::tuple_element_t<i, Arguments>>());
}
template <class Function, class... P, size_t... i>
std::vector<Id> element_of(const Function& f, const ElementCall& call, rules::detail::Parameters<P...>,
                           std::index_sequence<i...>) {
  std::vector<Id> ids;
  give(ids, f(element_parameter<P, i>(call)...));
  return ids;
}

}  // namespace detail

template <class Op, class Function>
void set_element_rule(const Operator& record, Function f) {
  using Parameters = typename rules::detail::ParametersOf<Function>::Types;
  using Places = std::make_index_sequence<Parameters::count>;
  static_assert(detail::element_parameters_fit<typename rules::detail::Arguments<typename Op::schema>::Types>(
                    Parameters(), Places()),
                "a parameter of the element rule does not fit the operator's argument in its place");
  set_element_rule(record, rules::detail::kept_for<std::vector<Id>, const ElementCall&>(
                               f, [](const Function& f, const ElementCall& call) {
                                 return detail::element_of(f, call, Parameters(), Places());
                               }));
}

}  // namespace tower::compiler
