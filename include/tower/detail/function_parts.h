// Behind tower/function.h: what a function's rules are, from the static members of a class or from callables given to
// `custom`, and in which of the accepted shapes each may be called. TypedCall (function_call.h) sees one interface.
#pragma once

#include <array>
#include <concepts>
#include <functional>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "tower/detail/function_call.h"

namespace tower::detail {

/// Calls `f` with the context as a reference or, as LibTorch has it, a pointer.
template <class F, class... A>
concept TakesContext = std::invocable<const F&, Context&, A...> || std::invocable<const F&, Context*, A...>;

template <class F, class... A>
decltype(auto) with_context(const F& f, Context& ctx, A&&... args) {
  if constexpr (std::invocable<const F&, Context&, A...>) return f(ctx, std::forward<A>(args)...);
  else return f(&ctx, std::forward<A>(args)...);
}

/// Whether `F` can be called with `A...` and, behind them, the parts of an output that is a tuple.
template <class F, class Out, class... A>
constexpr bool takes_spread() {
  if constexpr (TupleLike<Out>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return std::invocable<F&, A..., std::tuple_element_t<I, Out>&...>;
    }
    (std::make_index_sequence<std::tuple_size_v<Out>>{});
  } else {
    return false;
  }
}

// The static members of a class as function objects: whether a call of them is possible can be asked.
template <class T>
struct ForwardOf {
  template <class... A, class Class = T>
  auto operator()(A&&... a) const -> decltype(Class::forward(std::forward<A>(a)...)) {
    return Class::forward(std::forward<A>(a)...);
  }
};
template <class T>
struct SetupContextOf {
  template <class... A, class Class = T>
  auto operator()(A&&... a) const -> decltype(Class::setup_context(std::forward<A>(a)...)) {
    return Class::setup_context(std::forward<A>(a)...);
  }
};
template <class T>
struct BackwardOf {
  template <class... A, class Class = T>
  auto operator()(A&&... a) const -> decltype(Class::backward(std::forward<A>(a)...)) {
    return Class::backward(std::forward<A>(a)...);
  }
};
template <class T>
struct JvpOf {
  template <class... A, class Class = T>
  auto operator()(A&&... a) const -> decltype(Class::jvp(std::forward<A>(a)...)) {
    return Class::jvp(std::forward<A>(a)...);
  }
};
template <class T>
struct VmapOf {
  template <class... A, class Class = T>
  auto operator()(A&&... a) const -> decltype(Class::vmap(std::forward<A>(a)...)) {
    return Class::vmap(std::forward<A>(a)...);
  }
};

template <class T>
struct SparsityOf {
  template <class... A, class Class = T>
  auto operator()(A&&... a) const -> decltype(Class::sparsity(std::forward<A>(a)...)) {
    return Class::sparsity(std::forward<A>(a)...);
  }
};

// Whether a class has a member of a name at all, so that one with a wrong signature is not taken for a missing one:
// the name is then ambiguous in a class derived from both.
struct NamesSetup {
  int setup_context;
};
struct NamesBackward {
  int backward;
};
struct NamesJvp {
  int jvp;
};
struct NamesVmap {
  int vmap;
};
struct NamesSparsity {
  int sparsity;
};
template <class T, class Names>
struct Both : T, Names {};
template <class T>
concept DeclaresSetup = !requires {
  &Both<T, NamesSetup>::setup_context;
};
template <class T>
concept DeclaresBackward = !requires {
  &Both<T, NamesBackward>::backward;
};
template <class T>
concept DeclaresJvp = !requires {
  &Both<T, NamesJvp>::jvp;
};
template <class T>
concept DeclaresVmap = !requires {
  &Both<T, NamesVmap>::vmap;
};

template <class T>
concept DeclaresSparsity = !requires {
  &Both<T, NamesSparsity>::sparsity;
};

template <class... D>
std::tuple<std::conditional_t<TensorTree<D>, D, std::nullopt_t>...> with_static_as_nullopt(
    const std::tuple<D...>& all) {
  auto one = [](const auto& part) -> decltype(auto) {
    if constexpr (TensorTree<std::decay_t<decltype(part)>>) return part;
    else return std::nullopt;
  };
  return std::apply(
      [&](const auto&... part) {
        return std::tuple<std::conditional_t<TensorTree<D>, D, std::nullopt_t>...>(one(part)...);
      },
      all);
}

/// The entries that hold tensors.
template <class... D>
auto only_tensors(const std::tuple<D...>& all) {
  return select_tuple(typename TensorArguments<D...>::type{}, all);
}

/// A class derived from tower::Function.
template <class T, class... D>
struct ClassParts {
  static constexpr ForwardOf<T> run_forward{};
  static constexpr SetupContextOf<T> run_setup{};
  static constexpr BackwardOf<T> run_backward{};
  static constexpr JvpOf<T> run_jvp{};
  static constexpr VmapOf<T> run_vmap{};
  static constexpr SparsityOf<T> run_sparsity{};
  static constexpr bool is_static = true;
  static constexpr auto mutates = [] {
    if constexpr (requires { T::mutates; }) return T::mutates;
    else return std::array<int, 0>{};
  }();
  static constexpr bool jvp_takes_primals = false;
  static constexpr bool saves_in_forward = TakesContext<ForwardOf<T>, D&...>;
  static_assert(saves_in_forward || std::invocable<ForwardOf<T>, D&...>,
                "tower: forward cannot be called with these arguments (their types, by value).");
  static_assert(!(saves_in_forward && DeclaresSetup<T>),
                "tower: a forward that takes the context fills it; setup_context is for one that does not.");

  static decltype(auto) run(Context& ctx, D&... args) {
    if constexpr (saves_in_forward) return with_context(run_forward, ctx, args...);
    else return run_forward(args...);
  }

  using Out = std::decay_t<decltype(run(std::declval<Context&>(), std::declval<D&>()...))>;
  template <class...>
  using Output = Out;

  static FunctionInfo info() {
    FunctionInfo info;
    if constexpr (requires { std::string(T::name); }) info.name = T::name;
    else info.name = type_name(typeid(T));
    info.has_backward = DeclaresBackward<T>;
    info.has_jvp = DeclaresJvp<T>;
    info.has_vmap = DeclaresVmap<T>;
    info.has_sparsity = DeclaresSparsity<T>;
    info.saves = saves_in_forward ? Saves::in_forward : DeclaresSetup<T> ? Saves::after_forward : Saves::nothing;
    if constexpr (requires { T::linear_backward; }) info.linear_backward = T::linear_backward;
    if constexpr (requires { T::once_differentiable; }) info.once_differentiable = T::once_differentiable;
    if constexpr (requires { T::generate_vmap_rule; }) info.generate_vmap = T::generate_vmap_rule;
    return info;
  }

  Out forward(Context& ctx, D&... args) const { return run(ctx, args...); }
  Out forward_and_save(Context& ctx, D&... args) const { return run(ctx, args...); }

  void setup(Context& ctx, const std::tuple<D...>& inputs, const Out& output) const {
    if constexpr (DeclaresSetup<T>) {
      static_assert(TakesContext<SetupContextOf<T>, const std::tuple<D...>&, const Out&>,
                    "tower: setup_context cannot be called with (Context&, tuple of the arguments, output).");
      with_context(run_setup, ctx, inputs, output);
    }
  }

  auto backward(Context& ctx, const std::tuple<D...>&, Out gradients) const {
    if constexpr (!DeclaresBackward<T>) {
      return Tensors();
    } else if constexpr (takes_spread<BackwardOf<T>, Out, Context&>()) {
      return std::apply([&](auto&... part) { return run_backward(ctx, part...); }, gradients);
    } else if constexpr (takes_spread<BackwardOf<T>, Out, Context*>()) {
      return std::apply([&](auto&... part) { return run_backward(&ctx, part...); }, gradients);
    } else if constexpr (TakesContext<BackwardOf<T>, Out&>) {
      return with_context(run_backward, ctx, gradients);
    } else {
      static_assert(TakesContext<BackwardOf<T>, Tensors>,
                    "tower: backward cannot be called with (Context&, gradient of each output).");
      return with_context(run_backward, ctx, places_of(gradients));
    }
  }

  auto jvp(Context& ctx, const std::tuple<D...>&, const std::tuple<D...>& tangents) const {
    auto call = [&](const auto&... tangent) -> decltype(auto) { return with_context(run_jvp, ctx, tangent...); };
    if constexpr (!DeclaresJvp<T>) {
      return Tensors();
    } else if constexpr (TakesContext<JvpOf<T>, const std::conditional_t<TensorTree<D>, D, std::nullopt_t>&...>) {
      return std::apply(call, with_static_as_nullopt(tangents));
    } else {
      return std::apply(call, only_tensors(tangents));
    }
  }

  auto vmap(const VmapInfo& info, const InDims& in_dims, D&... args) const {
    if constexpr (!DeclaresVmap<T>) {
      return std::pair(Out(), Axes(std::nullopt));
    } else {
      static_assert(std::invocable<VmapOf<T>, const VmapInfo&, const InDims&, D&...>,
                    "tower: vmap cannot be called with (const VmapInfo&, const InDims&, arguments…).");
      return run_vmap(info, in_dims, args...);
    }
  }

  Out sparsity(D&... args) const {
    if constexpr (!DeclaresSparsity<T>) {
      Context ctx;
      return run(ctx, args...);
    } else {
      static_assert(std::invocable<SparsityOf<T>, D&...>, "tower: sparsity cannot be called with the arguments.");
      return run_sparsity(args...);
    }
  }
};

/// The place of a rule that was not given.
struct NoRule {};
template <class T>
inline constexpr bool is_rule = !std::is_same_v<T, Held<NoRule>>;

/// Callables given to `custom`.
template <class F, class Fwd = NoRule, class Bwd = NoRule, class Jvp = NoRule, class Vmap = NoRule,
          class Sparse = NoRule>
struct CustomParts {
  Held<F> function;
  Held<Fwd> fwd = {};
  Held<Bwd> bwd = {};
  Held<Jvp> jvp_rule = {};
  Held<Vmap> vmap_rule = {};
  Held<Sparse> sparsity_rule = {};

  static constexpr bool is_static = false;
  static constexpr std::array<int, 0> mutates{};
  static constexpr bool jvp_takes_primals = is_rule<Held<Jvp>>;

  template <class... D>
  using Output = typename ResultOf<F, D&...>::type;

  template <class NewFwd, class NewBwd>
  auto with_vjp(NewFwd f, NewBwd b) const {
    return CustomParts<F, NewFwd, NewBwd, Jvp, Vmap, Sparse>{function, {std::move(f)}, {std::move(b)},
                                                             jvp_rule, vmap_rule,      sparsity_rule};
  }
  template <class Rule>
  auto with_jvp(Rule rule) const {
    return CustomParts<F, Fwd, Bwd, Rule, Vmap, Sparse>{function,          fwd,       bwd,
                                                        {std::move(rule)}, vmap_rule, sparsity_rule};
  }
  template <class Rule>
  auto with_vmap(Rule rule) const {
    return CustomParts<F, Fwd, Bwd, Jvp, Rule, Sparse>{function, fwd, bwd, jvp_rule, {std::move(rule)}, sparsity_rule};
  }
  template <class Rule>
  auto with_sparsity(Rule rule) const {
    return CustomParts<F, Fwd, Bwd, Jvp, Vmap, Rule>{function, fwd, bwd, jvp_rule, vmap_rule, {std::move(rule)}};
  }

  template <class... D>
  Output<D...> forward(Context&, D&... args) const {
    static_assert(std::invocable<F&, D&...>, "tower: the function cannot be called with these arguments.");
    return function.function(args...);
  }

  template <class... D>
  Output<D...> forward_and_save(Context& ctx, D&... args) const {
    if constexpr (!is_rule<Held<Fwd>>) {
      return forward(ctx, args...);
    } else {
      static_assert(std::invocable<Fwd&, D&...>, "tower: the vjp's forward cannot be called with these arguments.");
      auto [out, residuals] = fwd.function(args...);
      static_assert(std::is_same_v<decltype(out), Output<D...>>,
                    "tower: the vjp's forward returns {output, residuals}, the output of the function's type.");
      using Residual = decltype(residuals);
      static_assert(IsTree<Residual>, "tower: residuals are a tree (tower/tree.h).");
      Tensors leaves;
      if constexpr (TensorTree<Residual>) move_leaves(residuals, leaves);
      ctx.save_for_backward(std::move(leaves));
      ContextAccess::residuals(ctx) = std::make_shared<const Residual>(std::move(residuals));
      return std::move(out);
    }
  }

  template <class... D, class Out>
  void setup(Context&, const std::tuple<D...>&, const Out&) const {}

  template <class... D, class Out>
  auto backward(Context& ctx, const std::tuple<D...>&, Out gradients) const {
    if constexpr (!is_rule<Held<Fwd>>) {
      return Tensors();
    } else {
      using Residual = std::decay_t<decltype(std::get<1>(fwd.function(std::declval<D&>()...)))>;
      Residual residuals = *static_cast<const Residual*>(ContextAccess::residuals(ctx).get());
      if constexpr (TensorTree<Residual>) residuals = with_leaves(std::move(residuals), ctx.saved_tensors());
      if constexpr (takes_spread<Bwd, Out, Residual&>()) {
        return std::apply([&](auto&... part) { return bwd.function(residuals, part...); }, gradients);
      } else {
        static_assert(std::invocable<Bwd&, Residual&, Out&>,
                      "tower: the vjp's backward cannot be called with (residuals, gradient of each output).");
        return bwd.function(residuals, gradients);
      }
    }
  }

  template <class... D>
  auto jvp(Context&, const std::tuple<D...>& primals, const std::tuple<D...>& tangents) const {
    if constexpr (!is_rule<Held<Jvp>>) {
      return Tensors();
    } else if constexpr (sizeof...(D) == 1) {
      return jvp_rule.function(std::get<0>(primals), std::get<0>(tangents));
    } else if constexpr (std::invocable<Jvp&, const std::tuple<D...>&, decltype(with_static_as_nullopt(tangents))>) {
      return jvp_rule.function(primals, with_static_as_nullopt(tangents));
    } else {
      return jvp_rule.function(primals, only_tensors(tangents));
    }
  }

  template <class... D>
  auto vmap(const VmapInfo& info, const InDims& in_dims, D&... args) const {
    if constexpr (!is_rule<Held<Vmap>>) return std::pair(function.function(args...), Axes(std::nullopt));
    else return vmap_rule.function(info, in_dims, args...);
  }

  template <class... D>
  Output<D...> sparsity(D&... args) const {
    if constexpr (is_rule<Held<Sparse>>) return sparsity_rule.function(args...);
    else return function.function(args...);
  }
};

}  // namespace tower::detail
