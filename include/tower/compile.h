// Functions that are traced once and then run from their graph (tower/graph.h).
//
//   const auto step = tower::compile(tower::vmap(correct));  // any function of trees, transformed or not
//   auto [x1, norm] = step(x, load);                         // the first call traces, the next ones run the graph
//
// What is computed is what the function computes, for each call anew: captured tensors are read, random numbers drawn,
// and tensors written when the graph runs, and transforms of a compiled function (grad, vmap, … and LibTorch's
// autograd) see its operators. What the function does besides calling operators is done once, while it is traced: it
// prints once, and a number that it takes from anywhere but its arguments is the same ever after.
//
// Functions that are operators (the branches of cond, functions with rules of their own) are kept and run again, so
// they capture by value, as for pullbacks. A captured tensor is the tensor itself: a variable that later holds another
// one is not looked at again.
//
// A function is traced once for each structure, dtype, size, stride and device of its arguments and each value of
// static ones (numbers, strings, …), and once for each state of grad mode, autocast and the default dtype; but not for
// each number of examples (docs/compile.md, "What compiles again"). A value that is read (item(), bool) or a shape that
// depends on values is refused: an UnsupportedError names the operator.
//
// On plain CPU tensors, which no transform and no autograd follows, operators run together as machine code, from the
// second call on: pointwise ones over the same elements, and all that is small for one example of a vmap. That takes
// LLVM, versions 15 to 22, which is looked for then (TOWER_LLVM names the library); without it all runs operator by
// operator, and a warning says so once.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tower/detail/flat.h"
#include "tower/detail/static_key.h"
#include "tower/dynamic.h"

namespace tower {

namespace detail {

/// The graphs of one function, and what belongs to its result besides tensors.
class Specialisations {
 public:
  using Rest = std::shared_ptr<const void>;
  using SameRest = bool(const Rest&, const Rest&);

  Specialisations();

  /// Runs the graph for arguments like these; if there is none, `f` is traced and `rest` called afterwards. `same`
  /// tells whether two results of that are equal; without it they may not be. Can be called from several threads at
  /// once.
  std::pair<dynamic::Tensors, Rest> run(const dynamic::Tensors& args, const StaticKey& statics,
                                        const dynamic::Function& f, const std::function<Rest()>& rest,
                                        SameRest* same = nullptr) const;
  static bool always_same(const Rest&, const Rest&) { return true; }
  /// How many times a function was traced and its graph is there.
  std::size_t count() const;
  std::string report() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Whether a value is tensors and nothing else that could differ: its type says how many.
template <class T>
inline constexpr bool is_tensors_alone = std::is_same_v<T, at::Tensor>;
template <class... T>
inline constexpr bool is_tensors_alone<std::tuple<T...>> = (is_tensors_alone<T> && ...);
template <class A, class B>
inline constexpr bool is_tensors_alone<std::pair<A, B>> = is_tensors_alone<A> && is_tensors_alone<B>;
template <class T, std::size_t n>
inline constexpr bool is_tensors_alone<std::array<T, n>> = is_tensors_alone<T>;
template <>
inline constexpr bool is_tensors_alone<std::vector<at::Tensor>> = true;  // as long as there are results

}  // namespace detail

/// A function that `compile` gives. Copies share what was traced.
template <class F>
class Compiled {
 public:
  explicit Compiled(F f) : function_(std::make_shared<detail::Held<F>>(detail::Held<F>{std::move(f)})) {}

  template <class... Args>
  auto operator()(const Args&... args) const {
    return call(detail::decayed(args)...);
  }

  /// How many graphs there are: one for each kind of arguments that it was traced with.
  std::size_t graphs() const { return specialisations_.count(); }
  /// For each graph, last used first, its kernels: how many operators each has, lanes, instructions for a vector of
  /// them, bytes read and written for one, and how long it took to compile.
  std::string report() const { return specialisations_.report(); }

 private:
  template <class... D>
  auto call(const D&... args) const {
    using Call = detail::Flat<false, F, D...>;
    Call flat(function_->function, args...);
    const auto run = [&](const dynamic::Tensors& tensors) { return flat(tensors).first; };
    const auto rest = [&] { return std::make_shared<const typename Call::Value>(flat.value.static_parts()); };
    auto [tensors, static_parts] = specialisations_.run(
        flat.leaves(), detail::StaticKey::of(args...), std::ref(run), std::ref(rest),
        detail::is_tensors_alone<typename Call::Value> ? &detail::Specialisations::always_same : nullptr);
    return with_leaves(*static_cast<const typename Call::Value*>(static_parts.get()), tensors);
  }

  std::shared_ptr<detail::Held<F>> function_;
  detail::Specialisations specialisations_;
};

/// `f`, compiled.
template <class F>
Compiled<F> compile(F f) {
  return Compiled<F>(std::move(f));
}

namespace dynamic {
Function compile(Function f);
}  // namespace dynamic

}  // namespace tower
