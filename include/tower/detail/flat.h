// Behind tower/transforms.h: typed functions of trees as functions of flat lists of tensors, and back. `Flat` is the
// bridge; each `…_call` below takes a call of a transformed function over it.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tower/axes.h"
#include "tower/detail/function_ref.h"
#include "tower/dynamic.h"
#include "tower/mesh.h"
#include "tower/tree.h"

namespace tower::detail {

using dynamic::Dims;
using dynamic::FunctionWithAux;
using dynamic::Tensors;

/// What the dynamic layer takes, by reference.
using CallRef = FunctionRef<Tensors(const Tensors&)>;
using CallWithAuxRef = FunctionRef<std::pair<Tensors, Tensors>(const Tensors&)>;

/// A user's function inside a transformed one, which is const: function objects with a non-const operator() work too.
template <class F>
struct Held {
  mutable F function;
};

/// The argument itself, arrays (string literals) as pointers.
template <class T>
std::conditional_t<std::is_array_v<T>, std::decay_t<const T>, const T&> decayed(const T& arg) {
  return arg;
}

template <std::size_t... I>
using Chosen = std::conditional_t<sizeof...(I) == 0, std::index_sequence<0>, std::index_sequence<I...>>;

/// The arguments that hold tensors, as an index sequence.
template <class... D>
struct TensorArguments {
  static constexpr std::size_t count = (std::size_t{TensorTree<D>} + ... + 0);
  static constexpr std::array<std::size_t, count> picked = [] {
    std::array<std::size_t, count> result{};
    const std::array<bool, sizeof...(D)> holds{TensorTree<D>...};
    for (std::size_t i = 0, n = 0; i < holds.size(); ++i) {
      if (holds[i]) result[n++] = i;
    }
    return result;
  }();
  template <std::size_t... K>
  static auto pick(std::index_sequence<K...>) -> std::index_sequence<picked[K]...>;
  using type = decltype(pick(std::make_index_sequence<count>{}));
};

/// One tree, or a tuple of several.
template <class... T>
struct OneOrTuple {
  using type = std::tuple<T...>;
};
template <class T>
struct OneOrTuple<T> {
  using type = T;
};

/// The trees of the arguments `I`.
template <std::size_t... I, class Args>
auto select(std::index_sequence<I...>, const Args& args) {
  static_assert(((I < std::tuple_size_v<Args>)&&...), "tower: the function is called with fewer arguments than that.");
  static_assert((TensorTree<std::decay_t<std::tuple_element_t<I, Args>>> && ...),
                "tower: an argument to differentiate with respect to holds no tensors (numbers are static).");
  using Selected = typename OneOrTuple<std::decay_t<std::tuple_element_t<I, Args>>...>::type;
  return Selected(std::get<I>(args)...);
}

/// Positions, in the list of all tensors, of those of the arguments `chosen`; `counts`: tensors of each argument.
std::vector<int64_t> tensor_numbers(const std::vector<std::size_t>& counts, std::initializer_list<std::size_t> chosen);

/// The name of the tensor with this number among those of the arguments, for messages.
using NameTensor = std::function<std::string(std::size_t)>;
using NameTensorRef = FunctionRef<std::string(std::size_t)>;

/// Throws DerivativeError where one of the `chosen` tensors is of an integer dtype.
void check_differentiable(const char* transform, const Tensors& leaves, const std::vector<int64_t>& chosen,
                          const NameTensor& name);

template <class T>
std::size_t count_tensors(const T& tree) {
  std::size_t n = 0;
  for_each_tensor(tree, [&](const at::Tensor& tensor) { n += tensor.defined(); });
  return n;
}

/// An output on its way through the flat layer: its tensors travel in a list, its static parts wait here.
template <class T>
class Travelling {
 public:
  Tensors depart(T tree) {
    Tensors leaves;
    move_leaves(tree, leaves);
    rest_.emplace(std::move(tree));
    return leaves;
  }
  T arrive(const Tensors& leaves) const { return with_leaves(*rest_, leaves); }
  const T& static_parts() const { return *rest_; }

 private:
  std::optional<T> rest_;
};

template <class Out, bool aux>
struct Parts {
  using Value = Out;
  using Aux = std::tuple<>;
};
template <class Value_, class Aux_>
struct Parts<std::pair<Value_, Aux_>, true> {
  using Value = Value_;
  using Aux = Aux_;
};
template <class Value_, class Aux_>
struct Parts<std::tuple<Value_, Aux_>, true> {
  using Value = Value_;
  using Aux = Aux_;
};

template <class T>
inline constexpr bool is_pair = false;
template <class A, class B>
inline constexpr bool is_pair<std::pair<A, B>> = true;
template <class A, class B>
inline constexpr bool is_pair<std::tuple<A, B>> = true;

/// What a call returns, or a tensor where it cannot be made: so the compiler reports that one mistake and no others.
template <class F, class... D>
struct ResultOf {
  using type = at::Tensor;
};
template <class F, class... D>
requires(std::is_invocable_v<F&, D...>) struct ResultOf<F, D...> {
  using type = std::decay_t<std::invoke_result_t<F&, D...>>;
};

/// A function that is called with values of these types, without its own type: what follows is compiled once for each
/// signature, not for each lambda.
template <class Out, class... D>
using CallOf = FunctionRef<Out(D&&...)>;

/// `f` as it is called with these arguments. It is referred to.
template <class F, class... D>
auto called_with(F& f, const D&...) {
  static_assert(std::is_invocable_v<F&, D...>,
                "tower: the function cannot be called with these arguments (their types, by value).");
  using Call = CallOf<typename ResultOf<F, D...>::type, D...>;
  if constexpr (std::is_invocable_v<F&, D...>) return Call::to(f);
  else return Call();
}
/// The same of a tuple of arguments.
template <class F, class... D>
auto called_at(F& f, const std::tuple<const D&...>& args) {
  return std::apply([&](const D&... arg) { return called_with(f, arg...); }, args);
}

/// One call of a typed function, seen as a function of the list of all tensors of its arguments.
template <bool aux, class Out, class... D>
class Flat {
 public:
  static_assert(!aux || is_pair<Out>, "tower: with has_aux the function returns a pair: {what is transformed, aux}.");
  using Value = typename Parts<Out, aux>::Value;
  using Aux = typename Parts<Out, aux>::Aux;
  static_assert(
      TensorTree<Value>,
      "tower: a transformed function returns a tensor, or a tree that holds tensors (tower/tree.h). A C++ number "
      "carries no batch and no derivative: return the tensor instead of its .item().");
  static_assert(IsTree<Aux>, "tower: aux is not a tree (tower/tree.h).");

  Flat(CallOf<Out, D...> f, const D&... args) : f_(f), args_(args...) {}
  Flat(CallOf<Out, D...> f, const std::tuple<const D&...>& args) : f_(f), args_(args) {}

  /// The tensors of the arguments.
  Tensors leaves() const {
    Tensors leaves;
    std::apply([&](const D&... arg) { (append_leaves(arg, leaves), ...); }, args_);
    return leaves;
  }

  /// The arguments as a tuple.
  const std::tuple<const D&...>& args() const { return args_; }

  Out run(const Tensors& leaves) {
    std::tuple<D...> args = std::apply([](const D&... arg) { return std::tuple<D...>(arg...); }, args_);
    LeafReader reader(leaves);
    fill(args, reader);
    return std::apply(f_, std::move(args));
  }

  std::pair<Tensors, Tensors> operator()(const Tensors& leaves) {
    if constexpr (aux) {
      Out out = run(leaves);
      Tensors values = value.depart(std::move(std::get<0>(out)));
      return {std::move(values), extra.depart(std::move(std::get<1>(out)))};
    } else {
      return {value.depart(run(leaves)), {}};
    }
  }

  /// This call in the form the dynamic layer takes; this object must outlive it.
  FunctionWithAux function() { return CallWithAuxRef::to(*this); }

  /// Positions, in `leaves`, of the tensors of the arguments `I`, with respect to which `transform` differentiates.
  template <std::size_t... I>
  std::vector<int64_t> differentiated(const char* transform, const Tensors& leaves, std::index_sequence<I...>) const {
    auto chosen = tensor_numbers(
        std::apply([](const auto&... arg) { return std::vector<std::size_t>{count_tensors(arg)...}; }, args_), {I...});
    auto name = [&](std::size_t tensor) { return name_of(tensor); };
    check_differentiable(transform, leaves, chosen, NameTensorRef::to(name));
    return chosen;
  }

  /// The name of a tensor of the arguments, for messages.
  std::string name_of(std::size_t tensor) const {
    return std::apply([&](const auto&... arg) { return name_of_tensor({shape_of(arg)...}, tensor); }, args_);
  }

  Travelling<Value> value;
  Travelling<Aux> extra;

 private:
  CallOf<Out, D...> f_;
  std::tuple<const D&...> args_;
};

/// One call of `f`, of which nothing is auxiliary.
template <class F, class... D>
auto flat_call(F& f, const D&... args) {
  return Flat<false, typename ResultOf<F, D...>::type, D...>(called_with(f, args...), args...);
}

/// Runs `f` mapped over `args`. `out_dims` is read after `f` has returned: `f` can write it once it knows its outputs.
Tensors run_vmap(const FunctionWithAux& f, const Tensors& args, const Dims& in_dims, const Dims& out_dims,
                 const VmapOptions& options, const NamedExamples& examples, const NameTensor& name);

template <class Out, class... D>
auto vmap_call(CallOf<Out, D...> f, const Axes& in_dims, const Axes& out_dims, const VmapOptions& options,
               const NamedExamples& examples, const D&... args) {
  static_assert((IsTree<D> && ...), "tower: vmap was called with an argument that is not a tree (tower/tree.h).");
  Flat<false, Out, D...> flat(f, args...);
  Tensors leaves = flat.leaves();
  Dims in, out;
  if (in_dims.is_list()) {
    std::size_t index = 0;
    (append_in_dims(in_dims, shape_of(args), index++, sizeof...(D), in), ...);
  } else {
    in.assign(leaves.size(), in_dims.dim());
  }
  if (!out_dims.is_list()) out.push_back(out_dims.dim());
  auto run = [&](const Tensors& tensors) {
    auto results = flat(tensors);
    if (out_dims.is_list()) out = out_dims_for(out_dims, shape_of(flat.value.static_parts()));
    return results;
  };
  auto name = [&](std::size_t tensor) { return flat.name_of(tensor); };
  return flat.value.arrive(
      run_vmap(CallWithAuxRef::to(run), leaves, in, out, options, examples, NameTensorRef::to(name)));
}

template <bool with_value, bool aux, class Argnums, class Out, class... D>
auto grad_call(Argnums argnums, CallOf<Out, D...> f, const D&... args) {
  using FlatCall = Flat<aux, Out, D...>;
  static_assert(
      std::is_same_v<typename FlatCall::Value, at::Tensor>,
      "tower: grad takes a function whose result is the loss, a scalar tensor; if it returns {loss, aux}, pass "
      "tower::has_aux.");
  FlatCall flat(f, args...);
  auto gradients = select(argnums, flat.args());
  const Tensors leaves = flat.leaves();
  auto chosen = flat.differentiated("grad", leaves, argnums);
  if constexpr (with_value) {
    // What grad_and_value hands back besides the gradients: the loss and, behind it, aux.
    auto run = [&](const Tensors& tensors) {
      auto [values, extra] = flat(tensors);
      values.insert(values.end(), extra.begin(), extra.end());
      return values;
    };
    auto [grads, values] = dynamic::grad_and_value(CallRef::to(run), std::move(chosen))(leaves);
    gradients = with_leaves(std::move(gradients), grads);
    at::Tensor loss = values[0];
    if constexpr (aux) {
      values.erase(values.begin());
      return std::pair(std::pair(std::move(loss), flat.extra.arrive(values)), std::move(gradients));
    } else {
      return std::pair(std::move(loss), std::move(gradients));
    }
  } else {
    auto [grads, extra] = dynamic::grad(flat.function(), std::move(chosen))(leaves);
    gradients = with_leaves(std::move(gradients), grads);
    if constexpr (aux) {
      return std::pair(std::move(gradients), flat.extra.arrive(extra));
    } else {
      return gradients;
    }
  }
}

/// Appends to `flat` the tensors of `given` for which `like` has one. Throws ArgumentError where the trees differ.
/// `what`: "vjp: the cotangent".
void append_matching(const Tensors& like, const Tensors& given, const std::string& what, Tensors& flat);

/// All places of tensors in a tree, those of undefined ones too.
template <class T>
Tensors places_of(const T& tree) {
  Tensors places;
  for_each_tensor(tree, [&](const at::Tensor& tensor) { places.push_back(tensor); });
  return places;
}

/// The tensors of tangents or cotangents that belong to `like`, a tuple of trees.
template <class Like, class... T>
Tensors matching(const Like& like, const char* what, const T&... given) {
  static_assert(std::tuple_size_v<Like> == sizeof...(T),
                "tower: give one tangent for each argument that holds tensors (static arguments have none).");
  Tensors flat;
  std::size_t index = 0;
  auto append = [&](const auto& tree, const auto& direction) {
    static_assert(std::is_same_v<std::decay_t<decltype(tree)>, std::decay_t<decltype(direction)>>,
                  "tower: a tangent or cotangent is a tree of the type of its argument or output.");
    append_matching(places_of(tree), places_of(direction), std::string(what) + " " + std::to_string(index++), flat);
  };
  std::apply([&](const auto&... tree) { (append(tree, given), ...); }, like);
  return flat;
}

/// What `vjp` returns beside the output: takes a cotangent for the output to those of the arguments.
template <class Out, class Arguments>
class Pullback {
 public:
  Pullback(dynamic::Function run, Out output, Arguments arguments)
      : run_(std::move(run)), output_(std::move(output)), arguments_(std::move(arguments)) {}

  /// The cotangents of the arguments that hold tensors: the tree of the only one, or a tuple.
  Arguments operator()(const Out& cotangent) const {
    return with_leaves(arguments_, run_(matching(std::tie(output_), "vjp: cotangent", cotangent)));
  }

 private:
  dynamic::Function run_;
  Out output_;           // static parts
  Arguments arguments_;  // static parts
};

template <bool aux, class Out, class... D>
auto vjp_call(CallOf<Out, D...> f, const D&... args) {
  Flat<aux, Out, D...> flat(f, args...);
  const Tensors leaves = flat.leaves();
  flat.differentiated("vjp", leaves, typename TensorArguments<D...>::type{});
  auto [values, pullback, extra] = dynamic::vjp(flat.function(), leaves);
  auto arguments = static_parts(select(typename TensorArguments<D...>::type{}, flat.args()));
  Pullback typed(std::move(pullback), flat.value.static_parts(), std::move(arguments));
  if constexpr (aux) {
    return std::tuple(flat.value.arrive(values), std::move(typed), flat.extra.arrive(extra));
  } else {
    return std::pair(flat.value.arrive(values), std::move(typed));
  }
}

/// What `linearize` returns beside the output: takes tangents of the arguments to that of the output.
template <class Out, class... Arguments>
class Pushforward {
 public:
  Pushforward(dynamic::Function run, Out output, std::tuple<Arguments...> arguments)
      : run_(std::move(run)), output_(std::move(output)), arguments_(std::move(arguments)) {}

  /// One tangent for each argument that holds tensors.
  Out operator()(const Arguments&... tangents) const {
    return with_leaves(output_, run_(matching(arguments_, "linearize: tangent", tangents...)));
  }

 private:
  dynamic::Function run_;
  Out output_;                          // static parts
  std::tuple<Arguments...> arguments_;  // static parts
};

/// A tuple is the arguments; anything else is the only one.
template <class T>
auto as_arguments(const T& only) {
  return std::tie(only);
}
template <class... T>
auto as_arguments(const std::tuple<T...>& all) {
  return std::apply([](const auto&... arg) { return std::tie(arg...); }, all);
}

/// The arguments `I` as a tuple, also when there is one.
template <std::size_t... I, class Args>
auto select_tuple(std::index_sequence<I...>, const Args& args) {
  return std::tuple<std::decay_t<std::tuple_element_t<I, Args>>...>(std::get<I>(args)...);
}

template <class Out, class... D>
auto linearize_call(CallOf<Out, D...> f, const D&... args) {
  Flat<false, Out, D...> flat(f, args...);
  auto run = [&](const Tensors& tensors) { return flat(tensors).first; };
  const Tensors leaves = flat.leaves();
  flat.differentiated("linearize", leaves, typename TensorArguments<D...>::type{});
  auto [values, pushforward] = dynamic::linearize(CallRef::to(run), leaves);
  auto arguments = static_parts(select_tuple(typename TensorArguments<D...>::type{}, flat.args()));
  return std::pair(flat.value.arrive(values),
                   Pushforward(std::move(pushforward), flat.value.static_parts(), std::move(arguments)));
}

template <bool aux, class Out, class... D, class Tangents>
auto jvp_call(CallOf<Out, D...> f, const std::tuple<const D&...>& primals, const Tangents& tangents) {
  Flat<aux, Out, D...> flat(f, primals);
  const auto arguments = select_tuple(typename TensorArguments<D...>::type{}, primals);
  Tensors directions = std::apply(
      [&](const auto&... tangent) { return matching(arguments, "jvp: tangent", tangent...); }, as_arguments(tangents));
  auto [values, derivatives, extra] = dynamic::jvp(flat.function(), flat.leaves(), directions);
  if constexpr (aux) {
    return std::tuple(flat.value.arrive(values), flat.value.arrive(derivatives), flat.extra.arrive(extra));
  } else {
    return std::pair(flat.value.arrive(values), flat.value.arrive(derivatives));
  }
}

template <class Out, class... D, class Tangents>
auto hvp_call(CallOf<Out, D...> f, const std::tuple<const D&...>& primals, const Tangents& tangents) {
  Flat<false, Out, D...> flat(f, primals);
  static_assert(std::is_same_v<typename Flat<false, Out, D...>::Value, at::Tensor>,
                "tower: hvp takes a function whose result is a scalar tensor.");
  const auto arguments = select_tuple(typename TensorArguments<D...>::type{}, primals);
  Tensors directions = std::apply(
      [&](const auto&... tangent) { return matching(arguments, "hvp: tangent", tangent...); }, as_arguments(tangents));
  auto run = [&](const Tensors& tensors) { return flat(tensors).first; };
  auto [grads, products] = dynamic::hvp(CallRef::to(run), flat.leaves(), directions);
  auto like = select(typename TensorArguments<D...>::type{}, primals);
  return std::pair(with_leaves(like, grads), with_leaves(like, products));
}

/// A transform that gives Jacobians or Hessians, with its name for messages.
struct Differentiate {
  const char* name;
  FunctionWithAux (*transform)(FunctionWithAux, std::vector<int64_t>, JacobianOptions);
};
inline constexpr Differentiate rows{"jacrev", dynamic::jacrev};
inline constexpr Differentiate columns{"jacfwd", dynamic::jacfwd};
inline constexpr Differentiate second{"hessian", dynamic::hessian};

/// Jacobian (order 1) or Hessian (order 2): the output's tree of the arguments' tree (of the arguments' tree).
template <int order, bool aux, class Argnums, class Out, class... D>
auto jacobian_call(Argnums argnums, const Differentiate& differentiate, const JacobianOptions& options,
                   CallOf<Out, D...> f, const D&... args) {
  Flat<aux, Out, D...> flat(f, args...);
  const Tensors leaves = flat.leaves();
  auto chosen = flat.differentiated(differentiate.name, leaves, argnums);
  auto [blocks, extra] = differentiate.transform(flat.function(), std::move(chosen), options)(leaves);
  const auto arguments = select(argnums, flat.args());
  using Arguments = std::remove_const_t<decltype(arguments)>;
  LeafReader reader(blocks);
  auto first = [&](const at::Tensor& place) {
    // An output that is not there has no derivatives.
    Arguments tree = arguments;
    for_each_tensor(tree, [&](at::Tensor& tensor) {
      if (tensor.defined()) tensor = place.defined() ? reader.next() : at::Tensor();
    });
    return tree;
  };
  auto jacobian = [&] {
    if constexpr (order == 1) {
      return map_tensors<Arguments>(flat.value.static_parts(), first);
    } else {
      return map_tensors<Rebound<Arguments, Arguments>>(flat.value.static_parts(), [&](const at::Tensor& place) {
        return map_tensors<Arguments>(
            arguments, [&](const at::Tensor& argument) { return first(argument.defined() ? place : argument); });
      });
    }
  }();
  reader.finish();
  if constexpr (aux) {
    return std::pair(std::move(jacobian), flat.extra.arrive(extra));
  } else {
    return jacobian;
  }
}

}  // namespace tower::detail
