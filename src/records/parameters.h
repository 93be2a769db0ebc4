// What the parameters of a rule's function stand for, by their types (records/op.h says how they read), and calling it
// on a frame.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/operator.h"

namespace tower::rules {

using at::Scalar;
using at::Tensor;
using Ints = std::vector<int64_t>;
using Shape = Meta;
using Shapes = std::vector<Meta>;
struct Skip {};

/// A tensor that a rule's parameter stands for; `*p` and `p->` reach it, and it converts where a Tensor is expected.
struct TensorParameter {
  const Tensor& tensor;
  const Tensor& operator*() const { return tensor; }
  const Tensor* operator->() const { return &tensor; }
  operator const Tensor&() const { return tensor; }
};
template <int k>
struct Ct : TensorParameter {};
template <int i>
struct Tan : TensorParameter {};
template <int k>
struct Out : TensorParameter {};
struct Along : TensorParameter {};
struct Cts {
  c10::ArrayRef<Tensor> tensors;
  const Tensor& operator[](size_t i) const { return tensors[i]; }
  size_t size() const { return tensors.size(); }
};
template <int i>
struct Tans : Cts {};
template <int k>
struct OutShape : Meta {};
template <int i>
struct Wants {
  bool wanted;
  explicit operator bool() const { return wanted; }
};
template <int i>
struct Like {
  const Meta& meta;
  const Meta* operator->() const { return &meta; }
};

namespace detail {

template <class P>
inline constexpr bool is_marker = false;
template <int k>
inline constexpr bool is_marker<Ct<k>> = true;
template <int k>
inline constexpr bool is_marker<Tan<k>> = true;
template <int k>
inline constexpr bool is_marker<Tans<k>> = true;
template <int k>
inline constexpr bool is_marker<Out<k>> = true;
template <int k>
inline constexpr bool is_marker<OutShape<k>> = true;
template <int k>
inline constexpr bool is_marker<Wants<k>> = true;
template <int k>
inline constexpr bool is_marker<Like<k>> = true;
template <>
inline constexpr bool is_marker<Along> = true;
template <>
inline constexpr bool is_marker<Cts> = true;

template <int k>
constexpr Mask out_bit(const Out<k>*) {
  return Mask{1} << k;
}
template <int k>
constexpr Mask out_bit(const OutShape<k>*) {
  return Mask{1} << k;
}
constexpr Mask out_bit(const void*) { return 0; }

// What a parameter has kept of the call; `at` is its place among the arguments.
template <class P>
constexpr void add_keeps(Keeps& keeps, size_t at) {
  if constexpr (std::is_same_v<P, Tensor> || std::is_same_v<P, std::vector<Tensor>>) keeps.args |= Mask{1} << at;
  if constexpr (std::is_same_v<P, Shape> || std::is_same_v<P, Shapes>) keeps.shapes |= Mask{1} << at;
  keeps.outs |= out_bit(static_cast<const P*>(nullptr));
}

template <int k, class F>
Ct<k> marker(const Ct<k>*, const F& frame) {
  return {{frame.cotangents[k]}};
}
template <int i, class F>
Tan<i> marker(const Tan<i>*, const F& frame) {
  return {{frame.tangent(i)}};
}
template <int i, class F>
Tans<i> marker(const Tans<i>*, const F& frame) {
  return {{frame.tangent_list(i)}};
}
template <int k, class F>
Out<k> marker(const Out<k>*, const F& frame) {
  return {{frame.outs[k].toTensor()}};
}
template <int k, class F>
OutShape<k> marker(const OutShape<k>*, const F& frame) {
  return {Meta(frame.outs[k].toTensor())};
}
template <int i, class F>
Wants<i> marker(const Wants<i>*, const F& frame) {
  return {frame.wants(i)};
}
template <int i, class F>
Like<i> marker(const Like<i>*, const F& frame) {
  return {frame.like(i)};
}

const Tensor& tensor_or_undefined(const IValue& value);
std::vector<Tensor> tensors_or_undefined(const IValue& list);

template <class P, size_t at, class F>
decltype(auto) parameter(const F& frame, const Tensor* along) {
  if constexpr (std::is_same_v<P, Along>) return Along{{*along}};
  else if constexpr (std::is_same_v<P, Cts>) return Cts{frame.cotangents};
  else if constexpr (is_marker<P>) return marker(static_cast<const P*>(nullptr), frame);
  else if constexpr (std::is_same_v<P, Skip>) return Skip{};
  else if constexpr (std::is_same_v<P, Tensor>) return tensor_or_undefined(frame.args[at]);
  else if constexpr (std::is_same_v<P, Shape>) return frame.meta(at);
  else if constexpr (std::is_same_v<P, Shapes>) return frame.metas(at);
  else if constexpr (std::is_same_v<P, std::vector<Tensor>>) return tensors_or_undefined(frame.args[at]);
  else if constexpr (std::is_same_v<P, Scalar>) return frame.args[at].toScalar();
  else return frame.args[at].template to<P>();
}

/// The types of a function's parameters, without references.
template <class... P>
struct Parameters {
  static constexpr size_t count = sizeof...(P);
  /// The schema position of the argument that each stands for; of a marker, that of the next.
  static constexpr std::array<size_t, count> places = [] {
    constexpr std::array<bool, count> markers = {is_marker<P>...};
    std::array<size_t, count> places = {};
    for (size_t p = 0, next = 0; p < count; ++p) places[p] = markers[p] ? next : next++;
    return places;
  }();
  /// What the frame of a rule that takes these has to have.
  static constexpr Keeps keeps = [] {
    Keeps keeps;
    [[maybe_unused]] size_t p = 0;
    (add_keeps<P>(keeps, places[p++]), ...);
    return keeps;
  }();
  static constexpr bool takes_along = (false || ... || std::is_same_v<P, Along>);

  /// `f` of what these stand for in a frame.
  template <class Function, class F>
  static auto call(const Function& f, const F& frame, const Tensor* along = nullptr) {
    return call(f, frame, along, std::make_index_sequence<count>());
  }

 private:
  template <class Function, class F, size_t... p>
  static auto call(const Function& f, const F& frame, [[maybe_unused]] const Tensor* along, std::index_sequence<p...>) {
    return f(parameter < P, is_marker<P> ? 0 : places[p] > (frame, along)...);
  }
};

template <class F>
struct ParametersOf : ParametersOf<decltype(&F::operator())> {};
template <class C, class R, class... P>
struct ParametersOf<R (C::*)(P...) const> {
  using Types = Parameters<std::decay_t<P>...>;
};
template <class R, class... P>
struct ParametersOf<R (*)(P...)> {
  using Types = Parameters<std::decay_t<P>...>;
};

template <class S>
struct Arguments;
template <class R, class... A>
struct Arguments<R(A...)> {
  using Types = std::tuple<std::decay_t<A>...>;
};

template <class Argument>
inline constexpr bool is_tensor_argument =
    std::is_same_v<Argument, Tensor> || std::is_same_v<Argument, std::optional<Tensor>>;
template <class Argument>
inline constexpr bool is_list_argument =
    std::is_same_v<Argument, at::TensorList> || std::is_same_v<Argument, at::ITensorListRef> ||
    std::is_same_v<Argument, c10::List<std::optional<Tensor>>> || std::is_same_v<Argument, at::IOptTensorListRef>;

template <class P, class Argument>
constexpr bool fits() {
  if constexpr (std::is_same_v<P, Skip>) return true;
  else if constexpr (std::is_same_v<P, Tensor> || std::is_same_v<P, Shape>) return is_tensor_argument<Argument>;
  else if constexpr (std::is_same_v<P, std::vector<Tensor>> || std::is_same_v<P, Shapes>)
    return is_list_argument<Argument>;
  else return !is_tensor_argument<Argument> && !is_list_argument<Argument>;
}
template <class Args, class P, size_t at>
constexpr bool parameter_fits() {
  if constexpr (is_marker<P>) return true;
  else {
    static_assert(at < std::tuple_size_v<Args>, "the rule has more parameters than the operator");
    return fits<P, std::tuple_element_t<at, Args>>();
  }
}
template <class Args, class... P, size_t... p>
constexpr bool all_fit(Parameters<P...>, std::index_sequence<p...>) {
  return (true && ... && parameter_fits<Args, P, Parameters<P...>::places[p]>());
}

template <class Op, class Function>
struct BoundTo {
  using Types = typename ParametersOf<Function>::Types;
  static_assert(all_fit<typename Arguments<typename Op::schema>::Types>(Types(),
                                                                        std::make_index_sequence<Types::count>()),
                "a parameter of the rule does not fit the operator's argument in its place");
};
/// The parameters of a rule's function, which have to fit an operator.
template <class Op, class Function>
using Bound = typename BoundTo<Op, Function>::Types;

// NOTE [Functions without captures]
// Nearly all functions of rules capture nothing. They are kept as plain functions, all of one type: a std::function of
// a lambda's own type costs the compiler more than the rule that it holds, a thousand times.

/// `f` as std::function<R(A...)>: a plain function where it is one.
template <class R, class... A, class Function>
std::function<R(A...)> kept(Function f) {
  if constexpr (std::is_convertible_v<Function, R (*)(A...)>) return static_cast<R (*)(A...)>(f);
  else return f;
}
/// The same of `run(f, a…)`; `run` captures nothing.
template <class R, class... A, class Function, class Run>
std::function<R(A...)> kept_for(Function f, Run) {
  if constexpr (std::is_empty_v<Function> && std::is_default_constructible_v<Function>)
    return static_cast<R (*)(A...)>([](A... a) -> R { return Run()(Function(), static_cast<A>(a)...); });
  else return [f = std::move(f)](A... a) -> R { return Run()(f, static_cast<A>(a)...); };
}

}  // namespace detail
}  // namespace tower::rules
