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
//
// save() writes what was traced, with its machine code, to a file that another process runs without the function and
// without LLVM: load<…>() below.
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
#include "tower/detail/stored.h"
#include "tower/dynamic.h"
#include "tower/native.h"

namespace tower {

/// What arithmetic of floats may do in kernels.
enum class Math : std::uint8_t {
  strict,  ///< each operation gives the bits that LibTorch's gives
  fast,    ///< a product and a sum may be rounded once (fma), a divisor of several numbers inverted once
};

/// How `compile` compiles.
struct CompileOptions {
  /// What arithmetic of floats may do.
  Math math = Math::strict;
  /// A folder that keeps kernels' machine code for other processes; made if it is not there. Empty: the one that the
  /// environment names (TOWER_CACHE), or none. Whoever can write there decides what is executed.
  std::string cache = {};
};

namespace detail {

/// What belongs to a graph besides tensors: static parts of the arguments and the result.
struct Kept {
  virtual ~Kept() = default;
  /// The type of the function, as files name it.
  virtual std::string signature() const = 0;
  /// As bytes. Throws UnsupportedError where a type cannot be stored.
  virtual std::string stored() const = 0;
};

/// The graphs of one function, and what belongs to its result besides tensors.
class Specialisations {
 public:
  using Rest = std::shared_ptr<const Kept>;
  using SameRest = bool(const Rest&, const Rest&);
  /// What `stored` says, of a graph of the function with this number in the file.
  using Restore = std::pair<StaticKey, Rest>(std::size_t function, const std::string& stored);

  struct State;

  explicit Specialisations(const CompileOptions& options = {});
  explicit Specialisations(std::shared_ptr<State> state) : state_(std::move(state)) {}

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
  std::string listing() const;
  /// The graph that was used last, as kernels on memory that pointers name. Throws UnsupportedError where it is more
  /// than that, and ArgumentError where there is none; `who` asks for it. `frozen`: what is captured is numbers of the
  /// kernels, as they are now. `loop_steps`: for how many steps of loops that others go back through the workspace has
  /// memory; negative: that is the thread's.
  std::shared_ptr<const compiler::PointerProgram> by_pointers(const char* who, bool frozen = false,
                                                              std::int64_t loop_steps = -1) const;

  /// The graphs of several functions in one file.
  static void save(const std::string& path, const std::vector<Specialisations>& functions);
  /// Those of them that have this signature; functions without any are empty. They trace nothing.
  static std::vector<Specialisations> load(const std::string& path, const std::string& signature,
                                           const std::function<Restore>& restore, SameRest* same = nullptr);

 private:
  std::shared_ptr<State> state_;
};

template <class Value, class... D>
std::string signature_of() {
  return readable(typeid(Value(D...)));
}

/// Of a function of trees.
template <class Value, class... D>
struct KeptTrees final : Kept {
  KeptTrees(Value result_, std::tuple<D...> args_) : result(std::move(result_)), args(std::move(args_)) {}
  std::string signature() const override { return signature_of<Value, D...>(); }
  std::string stored() const override {
    StaticWriter out;
    store(out, args);
    store(out, result);
    return out.take();
  }
  const Value result;
  const std::tuple<D...> args;
};

/// Whether a value is tensors and nothing else that could differ: its type says how many.
template <class T>
inline constexpr bool is_tensors_alone = std::is_same_v<T, at::Tensor>;
template <class... T>
inline constexpr bool is_tensors_alone<std::tuple<T...>> = (is_tensors_alone<T> && ...);
template <class A, class B>
inline constexpr bool is_tensors_alone<std::pair<A, B>> = is_tensors_alone<A>&& is_tensors_alone<B>;
template <class T, std::size_t n>
inline constexpr bool is_tensors_alone<std::array<T, n>> = is_tensors_alone<T>;
template <>
inline constexpr bool is_tensors_alone<std::vector<at::Tensor>> = true;  // as long as there are results

}  // namespace detail

/// A function that `compile` gives. Copies share what was traced.
template <class F>
class Compiled {
 public:
  /// What `compile(f, options)` gives.
  explicit Compiled(F f, const CompileOptions& options = {})
      : Compiled(std::move(f), detail::Specialisations(options)) {}
  /// `f` with graphs that there already are, those of `specialisations`.
  Compiled(F f, detail::Specialisations specialisations)
      : function_(std::make_shared<detail::Held<F>>(detail::Held<F>{std::move(f)})),
        specialisations_(std::move(specialisations)) {}

  /// What the function gives for `args`: trees, and numbers, strings and the like, each value of which has a graph of
  /// its own. Throws UnsupportedError where the function, while it is traced, reads a value of a tensor or makes a
  /// shape of one.
  template <class... Args>
  auto operator()(const Args&... args) const {
    return call(detail::decayed(args)...);
  }

  /// How many graphs there are: one for each kind of arguments that it was traced with.
  std::size_t graphs() const { return specialisations_.count(); }
  /// What became of the function, on a page: of the graph that was used last, what is in kernels, and which calls are
  /// left to LibTorch, how often and why; then the first lines of the listing.
  std::string report() const { return specialisations_.report(); }
  /// For each graph, last used first, its kernels: how many operators each has, lanes, instructions for a vector of
  /// them, bytes read and written for one, and how long it took to compile.
  std::string listing() const { return specialisations_.listing(); }

  /// Writes the graphs that there are to the file `path`, for `load`: with machine code for this CPU, and with the
  /// values that captured tensors have now. Throws UnsupportedError where a graph has code of the user's in it
  /// (functions with rules of their own, a cond whose branches do more than to compute what they return).
  void save(const std::string& path) const { detail::Specialisations::save(path, {specialisations_}); }

  /// The function of memory, for arguments of the kind that it was last called with: `arguments` tensors (one for each
  /// leaf of its trees, as they come), all of which are of `T`, as the results are; `void` where types differ. It is
  /// for any number of examples where the function was called with two. Captured tensors are read where they lie now.
  /// Throws UnsupportedError where something in it is no kernel, and says what, and ArgumentError where
  /// the function was not called, or is of other arguments.
  template <class T, std::size_t arguments>
  Native<T, arguments> native() const {
    return Native<T, arguments>(detail::NativeCall(specialisations_.by_pointers("native")));
  }

  /// The graphs, for what else makes something of them (tower/export_c.h).
  const detail::Specialisations& specialisations() const { return specialisations_; }

 private:
  template <class T>
  static T without_tensors(const T& arg) {
    if constexpr (TensorTree<T>) return detail::static_parts(arg);
    else return arg;
  }

  template <class... D>
  auto call(const D&... args) const {
    auto flat = detail::flat_call(function_->function, args...);
    using Call = decltype(flat);
    const auto run = [&](const dynamic::Tensors& tensors) { return flat(tensors).first; };
    using Kept = detail::KeptTrees<typename Call::Value, D...>;
    const auto rest = [&] {
      return std::make_shared<const Kept>(flat.value.static_parts(), std::tuple<D...>(without_tensors(args)...));
    };
    auto [tensors, static_parts] = specialisations_.run(
        flat.leaves(), detail::StaticKey::of(args...), detail::CallRef::to(run),
        detail::FunctionRef<std::shared_ptr<const Kept>()>::to(rest),
        detail::is_tensors_alone<typename Call::Value> ? &detail::Specialisations::always_same : nullptr);
    return with_leaves(static_cast<const Kept*>(static_parts.get())->result, tensors);
  }

  std::shared_ptr<detail::Held<F>> function_;
  detail::Specialisations specialisations_;
};

/// `f`, compiled: a function of the same trees that gives the same values. Nothing happens before its first call.
template <class F>
Compiled<F> compile(F f, const CompileOptions& options = {}) {
  return Compiled<F>(std::move(f), options);
}

/// A compiled function from a file; `load` makes one.
template <class Signature>
class Loaded;
template <class Out, class... Args>
class Loaded<Out(Args...)> {
 public:
  /// What `tower::load(path)` gives, which says what is thrown.
  explicit Loaded(const std::string& path) : compiled_(Missing(), load(path)) {}

  /// What the function gives for `args`. Throws UnsupportedError where the file has no graph for arguments like these.
  Out operator()(const std::decay_t<Args>&... args) const { return compiled_(args...); }
  /// How many graphs the file has.
  std::size_t graphs() const { return compiled_.graphs(); }
  /// As that of Compiled::report.
  std::string report() const { return compiled_.report(); }
  /// As that of Compiled::listing.
  std::string listing() const { return compiled_.listing(); }
  /// Writes the graphs to a file `path` again.
  void save(const std::string& path) const { compiled_.save(path); }

 private:
  // The function itself stayed where it was compiled: it is not called.
  struct Missing {
    Out operator()(const std::decay_t<Args>&...) const { return Out(); }
  };

  static detail::Specialisations load(const std::string& path) {
    using Kept = detail::KeptTrees<Out, std::decay_t<Args>...>;
    return detail::Specialisations::load(
        path, detail::signature_of<Out, std::decay_t<Args>...>(),
        [](std::size_t, const std::string& stored) {
          detail::StaticReader in(stored);
          auto args = detail::restore<std::tuple<std::decay_t<Args>...>>(in);
          auto kept = std::make_shared<const Kept>(detail::restore<Out>(in), std::move(args));
          in.finish();
          auto key = std::apply([](const auto&... arg) { return detail::StaticKey::of(arg...); }, kept->args);
          return std::pair<detail::StaticKey, detail::Specialisations::Rest>(std::move(key), std::move(kept));
        },
        detail::is_tensors_alone<Out> ? &detail::Specialisations::always_same : nullptr)[0];
  }

  Compiled<Missing> compiled_;
};

/// The function that was saved to the file `path`: `load<std::pair<Tensor, Tensor>(Tensor, Tensor)>("step")`, with the
/// types, by value, that it was called with. It runs without the function that was compiled and without LLVM, for
/// arguments of the kinds that it had been called with; others are an UnsupportedError. Throws ArgumentError where the
/// file is not whole, or not for this signature, CPU, Tower or LibTorch. A file is a program: load what you trust.
template <class Signature>
Loaded<Signature> load(const std::string& path) {
  return Loaded<Signature>(path);
}

namespace dynamic {
/// `f`, compiled, as tower::compile says.
Function compile(Function f, const CompileOptions& options = {});
/// Writes the graphs of `compiled`, which `compile` or `load` gave, to the file `path`. Throws ArgumentError for
/// another function, and UnsupportedError as Compiled::save does.
void save(const Function& compiled, const std::string& path);
/// The function that was saved to the file `path`. Throws ArgumentError as tower::load does.
Function load(const std::string& path);
}  // namespace dynamic

}  // namespace tower
