// How rules are written. A record is one paragraph that reads like the mathematics, typed from LibTorch's declarations:
//
//   op<at::_ops::sin>().pointwise().derivative<0>([](const Tensor& x) { return x.cos(); });
//   op<at::_ops::exp>().pointwise().derivative<0>([](Out<0> y) { return *y; });
//   op<at::_ops::mm>()
//       .vmap(matmul_vmap)
//       .linear<0>([](Ct<0> ct, Skip, const Tensor& b) { return ct->mm(b.t().conj()); })
//       .linear<1>([](Ct<0> ct, const Tensor& a, Skip) { return a.t().conj().mm(*ct); });
//
// A rule is a function of the operator's arguments in schema order (trailing ones may be left out). Its parameter types
// say what it needs, and nothing else is kept for the backward pass:
//
//   const Tensor&          the value (undefined if the optional argument was not given)
//   std::vector<Tensor>    the values of a tensor list (undefined elements where Tensor?[] has none)
//   Shape, Shapes          only shape, dtype and device of a tensor, of a tensor list
//   Skip                   nothing
//   int64_t, bool, double, Scalar, Ints, std::optional<…>, std::string    attributes
//
// and in any place, not counted as arguments:
//
//   Ct<k>, Cts             cotangent of output k; of all outputs, flattened (undefined: zero)
//   Tan<i>, Tans<i>        tangent of argument i; of the elements of tensor list i (undefined: zero)
//   Along                  in derivative<i>: what the partial derivative multiplies (a tangent or cotangent)
//   Out<k>, OutShape<k>    value of output k; only its shape
//   Wants<i>               whether the gradient of argument i is asked for
//   Like<i>                in vjp<i>: what the gradient is to be like, shape, dtype, device and order in memory of
//   argument i
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/operator.h"
#include "records/families.h"

namespace tower::rules {

/// Which dimensions of its first operand an operator folds, or works along.
struct FoldDims {
  enum Which : uint8_t { all, in_argument, last } which;
  uint8_t arg;
};
/// All of them.
inline FoldDims over_all() { return {FoldDims::all, 0}; }
/// Those in an argument; all, where it names none.
inline FoldDims over(uint8_t arg) { return {FoldDims::in_argument, arg}; }
/// The last ones, as many as an argument has sizes.
inline FoldDims over_last(uint8_t arg) { return {FoldDims::last, arg}; }

}  // namespace tower::rules

namespace tower::compiler {
template <class Op, class Function>
void set_element_rule(const Operator& record, Function f);
template <class Function>
void set_fold_rule(const Operator& record, rules::FoldDims over, Function f, bool goes_on);
struct SmallCall;
struct Small;
void set_small_rule(const Operator& op, std::function<std::vector<Small>(const SmallCall&)> rule);
}  // namespace tower::compiler

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

template <class F>
struct Signature : Signature<decltype(&F::operator())> {};
template <class C, class R, class... P>
struct Signature<R (C::*)(P...) const> {
  using Result = R;
  using Parameters = std::tuple<P...>;
};
template <class R, class... P>
struct Signature<R (*)(P...)> {
  using Result = R;
  using Parameters = std::tuple<P...>;
};
template <class S>
struct Arguments;
template <class R, class... A>
struct Arguments<R(A...)> {
  using Types = std::tuple<std::decay_t<A>...>;
};

template <class T>
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

// Number of parameters before `P` that stand for arguments: its schema position.
template <class Parameters, size_t... before>
constexpr size_t position(std::index_sequence<before...>) {
  return (size_t{0} + ... + (is_marker<std::decay_t<std::tuple_element_t<before, Parameters>>> ? 0 : 1));
}
template <class Parameters, size_t p>
inline constexpr size_t position_of = position<Parameters>(std::make_index_sequence<p>{});

template <class Argument>
inline constexpr bool is_tensor_argument =
    std::is_same_v<Argument, Tensor> || std::is_same_v<Argument, std::optional<Tensor>>;
template <class Argument>
inline constexpr bool is_list_argument =
    std::is_same_v<Argument, at::TensorList> || std::is_same_v<Argument, at::ITensorListRef> ||
    std::is_same_v<Argument, c10::List<std::optional<Tensor>>> || std::is_same_v<Argument, at::IOptTensorListRef>;

template <class Parameter, class Argument>
constexpr bool fits() {
  if constexpr (std::is_same_v<Parameter, Skip>) return true;
  else if constexpr (std::is_same_v<Parameter, Tensor> || std::is_same_v<Parameter, Shape>)
    return is_tensor_argument<Argument>;
  else if constexpr (std::is_same_v<Parameter, std::vector<Tensor>> || std::is_same_v<Parameter, Shapes>)
    return is_list_argument<Argument>;
  else return !is_tensor_argument<Argument> && !is_list_argument<Argument>;
}

template <class Op, class Parameters, size_t p>
constexpr bool parameter_fits() {
  using P = std::decay_t<std::tuple_element_t<p, Parameters>>;
  if constexpr (is_marker<P>) return true;
  else {
    using Args = typename Arguments<typename Op::schema>::Types;
    static_assert(position_of<Parameters, p> < std::tuple_size_v<Args>,
                  "the rule has more parameters than the operator");
    return fits<P, std::tuple_element_t<position_of<Parameters, p>, Args>>();
  }
}

template <class P, size_t at>
void add_keeps(Keeps& keeps) {
  if constexpr (std::is_same_v<P, Tensor> || std::is_same_v<P, std::vector<Tensor>>) keeps.args |= Mask{1} << at;
  if constexpr (std::is_same_v<P, Shape> || std::is_same_v<P, Shapes>) keeps.shapes |= Mask{1} << at;
}
template <int k>
constexpr Mask out_bit(const Out<k>*) {
  return Mask{1} << k;
}
template <int k>
constexpr Mask out_bit(const OutShape<k>*) {
  return Mask{1} << k;
}
constexpr Mask out_bit(const void*) { return 0; }

template <class P, size_t at, class F>
decltype(auto) get(const F& frame, const Tensor* along) {
  static const Tensor undefined;
  if constexpr (std::is_same_v<P, Skip>) return Skip{};
  else if constexpr (std::is_same_v<P, Along>) return Along{{*along}};
  else if constexpr (std::is_same_v<P, Cts>) return Cts{frame.cotangents};
  else if constexpr (std::is_same_v<P, Tensor>)
    return frame.args[at].isTensor() ? frame.args[at].toTensor() : undefined;
  else if constexpr (std::is_same_v<P, Shape>) return frame.meta(at);
  else if constexpr (std::is_same_v<P, Shapes>) return frame.metas(at);
  else if constexpr (std::is_same_v<P, std::vector<Tensor>>) {
    std::vector<Tensor> list;
    for (const auto& e : frame.args[at].toListRef()) list.push_back(e.isTensor() ? e.toTensor() : Tensor());
    return list;
  } else if constexpr (std::is_same_v<P, Scalar>) return frame.args[at].toScalar();
  else return frame.args[at].template to<P>();
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

template <class Parameters, size_t p, class F>
decltype(auto) parameter(const F& frame, const Tensor* along) {
  using P = std::decay_t<std::tuple_element_t<p, Parameters>>;
  if constexpr (is_marker<P> && !std::is_same_v<P, Along> && !std::is_same_v<P, Cts>)
    return marker(static_cast<const P*>(nullptr), frame);
  else return get<P, position_of<Parameters, p>>(frame, along);
}

/// A rule's function with what it keeps, callable on any frame.
template <class Op, class Function>
struct Bound {
  using Parameters = typename Signature<Function>::Parameters;
  static constexpr size_t count = std::tuple_size_v<Parameters>;

  static Keeps keeps() {
    return [&]<size_t... p>(std::index_sequence<p...>) {
      static_assert((parameter_fits<Op, Parameters, p>() && ...),
                    "a parameter of the rule does not fit the operator's argument in its place");
      Keeps k;
      (add_keeps<std::decay_t<std::tuple_element_t<p, Parameters>>, position_of<Parameters, p>>(k), ...);
      ((k.outs |= out_bit(static_cast<const std::decay_t<std::tuple_element_t<p, Parameters>>*>(nullptr))), ...);
      return k;
    }
    (std::make_index_sequence<count>{});
  }
  static constexpr bool takes_along = []<size_t... p>(std::index_sequence<p...>) {
    return (false || ... || std::is_same_v<std::decay_t<std::tuple_element_t<p, Parameters>>, Along>);
  }
  (std::make_index_sequence<count>{});

  template <class F>
  static auto call(const Function& f, const F& frame, const Tensor* along = nullptr) {
    return [&]<size_t... p>(std::index_sequence<p...>) { return f(parameter<Parameters, p>(frame, along)...); }
    (std::make_index_sequence<count>{});
  }
};

template <class R>
void give_all(VjpFrame& frame, R&& result, std::initializer_list<int> args) {
  const int* arg = args.begin();
  std::apply([&](auto&&... g) { (frame.give(static_cast<size_t>(*arg++), std::move(g)), ...); }, std::move(result));
}

template <class A>
inline constexpr bool unboxes = std::is_same_v<A, const Tensor&> || std::is_same_v<A, const Scalar&> ||
                                std::is_same_v<A, int64_t> || std::is_same_v<A, bool> || std::is_same_v<A, double>;
template <class A>
decltype(auto) unbox(IValue& v) {
  if constexpr (std::is_same_v<A, const Tensor&>) return std::as_const(v).toTensor();
  else if constexpr (std::is_same_v<A, const Scalar&>) return v.toScalar();
  else return v.to<A>();
}

// Calls the operator past the boxed dispatch, where its signature is simple enough to be worth a function of its own.
template <class Op, class R, class... A>
void (*unboxed_call(R (*)(A...)))(Stack&) {
  if constexpr (std::is_same_v<R, Tensor> && (unboxes<A> && ...)) {
    return [](Stack& stack) {
      Tensor result = [&]<size_t... i>(std::index_sequence<i...>) { return Op::call(unbox<A>(stack[i])...); }
      (std::make_index_sequence<sizeof...(A)>{});
      stack.clear();
      stack.emplace_back(std::move(result));
    };
  }
  return nullptr;
}

}  // namespace detail

/// The record of one operator while it is being written.
template <class Op>
class Rule {
 public:
  explicit Rule(Operator& record) : record_(record) {
    record.unboxed = detail::unboxed_call<Op>(static_cast<typename Op::schema*>(nullptr));
  }

  // ---- families ----

  /// Output element i depends on input elements i alone (with broadcasting). Gives vmap; state `derivative`s besides.
  Rule& pointwise() {
    family("pointwise", vmap_pointwise);
    record_.vmap_is_pointwise = true;
    return *this;
  }

  /// Works along the dimensions named by the arguments `dims`; all tensors are batched over a new first dimension.
  Rule& along(std::initializer_list<uint8_t> dims, EmptyDims empty = EmptyDims::none) {
    return family("along dimensions",
                  [dims = std::vector<uint8_t>(dims), empty](VmapFrame& f) { vmap_along(f, dims, empty); });
  }

  /// Accepts any number of leading batch dimensions itself; `core` logical dimensions at the end belong to the
  /// operation.
  Rule& batches_natively() { return family("natively batched", vmap_natively); }

  /// Has a leading dimension of independent items (images); the batch is folded into it. `rank` is the rank with it.
  Rule& folds_into_items(int64_t rank) {
    return family("folded into items", [rank](VmapFrame& f) { vmap_fold(f, rank); });
  }

  /// A random operator whose elements are drawn independently of each other.
  Rule& draws_elementwise() { return family("elementwise random", vmap_draw_elementwise); }

  // ---- compiled functions ----

  /// Pointwise: one element of the output in terms of those of the arguments, as numbers/element.h has them (which a
  /// file with such rules includes). Compiled functions are made of these.
  template <class Function>
  Rule& element(Function f) {
    compiler::set_element_rule<Op>(record_, std::move(f));
    return *this;
  }

  // ---- what passes ask ----

  /// Computes nothing: what becomes of its operands' elements. For kernels over small examples, and for sparsity.
  Rule& moves(Moves how) {
    record_.moves = how;
    return *this;
  }
  /// A product of its first two operands: "mk,kn->mn". Every letter but those of the result is summed over.
  Rule& contracts(std::string_view letters) {
    record_.contraction = contraction_of(letters, /*adds=*/false);
    return *this;
  }
  /// beta · the first operand + alpha · such a product of the next two (arguments 3 and 4).
  Rule& adds_contraction(std::string_view letters) {
    record_.contraction = contraction_of(letters, /*adds=*/true);
    return *this;
  }
  /// What its elements depend on, for sparsity; what moves, contracts or is pointwise need not say it.
  Rule& depends(Depends on) {
    record_.depends = on;
    return *this;
  }

  /// Rows come to one number each, as numbers/fold.h has it (which a file with such rules includes).
  template <class Function>
  Rule& fold(FoldDims over, Function f) {
    compiler::set_fold_rule(record_, over, std::move(f), /*goes_on=*/false);
    return *this;
  }
  /// The same where the first result has an element for each of its operand's.
  template <class Function>
  Rule& maps_rows(FoldDims over, Function f) {
    compiler::set_fold_rule(record_, over, std::move(f), /*goes_on=*/true);
    return *this;
  }
  /// What an example's result is, element by element, where it is small (numbers/small.h).
  template <class Function>
  Rule& small(Function f) {
    compiler::set_small_rule(record_, std::move(f));
    return *this;
  }

  // ---- vmap ----

  /// A batching rule: reads and writes the frame.
  Rule& vmap(VmapRule rule) {
    record_.vmap = std::move(rule);
    record_.vmap_family = nullptr;
    record_.vmap_is_pointwise = false;
    return *this;
  }
  Rule& family(const char* name, VmapRule rule) {
    vmap(std::move(rule));
    record_.vmap_family = name;
    return *this;
  }

  // ---- derivatives ----

  /// Pointwise: the partial derivative with respect to argument i, as a tensor or a number, or, with a parameter of
  /// type Along, what becomes of that when multiplied by it. Serves vjp and jvp; broadcasting, dtypes and complex
  /// conjugation are taken care of.
  template <int i, class Function>
  Rule& derivative(Function f) {
    using B = detail::Bound<Op, Function>;
    record_.vjp.push_back({Mask{1} << i, B::keeps(), [f](VjpFrame& frame) {
                             const Tensor& ct = frame.cotangents[0];
                             if (!ct.defined()) return;
                             if constexpr (B::takes_along) {
                               const Tensor c = conjugate(ct);
                               frame.give_broadcast(i, conjugate(B::call(f, frame, &c)));
                             } else {
                               frame.give_broadcast(i, times_conjugate(ct, B::call(f, frame)));
                             }
                           }});
    record_.jvp.push_back({Mask{1} << i, B::keeps(), [f](JvpFrame& frame) {
                             const Tensor& t = frame.tangent(i);
                             if (!t.defined()) return;
                             if constexpr (B::takes_along) frame.give(0, B::call(f, frame, &t));
                             else frame.give(0, times(t, B::call(f, frame)));
                           }});
    return *this;
  }

  /// The gradient with respect to argument i (a tensor, or a std::vector<Tensor> for a tensor list).
  template <int i, class Function>
  Rule& vjp(Function f) {
    using B = detail::Bound<Op, Function>;
    record_.vjp.push_back({Mask{1} << i, B::keeps(), [f](VjpFrame& frame) {
                             auto g = B::call(f, frame);
                             if constexpr (std::is_same_v<decltype(g), std::vector<Tensor>>) {
                               for (size_t e = 0; e < g.size(); ++e) frame.give(i, std::move(g[e]), e);
                             } else {
                               frame.give(i, std::move(g));
                             }
                           }});
    return *this;
  }

  /// Gradients with respect to several arguments, where one computation gives them together: a tuple of tensors.
  template <int i, int j, int... more, class Function>
  Rule& vjp(Function f) {
    using B = detail::Bound<Op, Function>;
    constexpr Mask serves = Mask{1} << i | Mask{1} << j | (Mask{0} | ... | (Mask{1} << more));
    record_.vjp.push_back({serves, B::keeps(), [f](VjpFrame& frame) {
                             detail::give_all(frame, B::call(f, frame), {i, j, more...});
                           }});
    return *this;
  }

  /// The tangent of the output (a tensor, or a tuple of tensors for several outputs) due to the listed arguments.
  template <int... i, class Function>
  Rule& jvp(Function f) {
    using B = detail::Bound<Op, Function>;
    record_.jvp.push_back({(Mask{0} | ... | (Mask{1} << i)), B::keeps(), [f](JvpFrame& frame) {
                             auto t = B::call(f, frame);
                             if constexpr (std::is_convertible_v<decltype(t), Tensor>) {
                               frame.give(0, std::move(t));
                             } else if constexpr (std::is_same_v<decltype(t), std::vector<Tensor>>) {
                               for (size_t k = 0; k < t.size(); ++k) frame.give(k, std::move(t[k]));
                             } else {
                               std::apply(
                                   [&](auto&&... each) {
                                     size_t k = 0;
                                     (frame.give(k++, std::move(each)), ...);
                                   },
                                   std::move(t));
                             }
                           }});
    return *this;
  }

  /// The operator is linear in argument i when the others are held: states the transpose, gives vjp and jvp.
  template <int i, class Function>
  Rule& linear(Function transpose) {
    vjp<i>(std::move(transpose));
    record_.jvp.push_back(
        {Mask{1} << i, keeps_all_but(Mask{1} << i), [](JvpFrame& frame) { jvp_by_calling(frame, Mask{1} << i); }});
    return *this;
  }

  /// The operator is linear in the listed arguments taken together: gives jvp (state each vjp<i> besides).
  template <int... i>
  Rule& jointly_linear() {
    constexpr Mask serves = (Mask{0} | ... | (Mask{1} << i));
    Keeps keeps = keeps_all_but(serves);
    keeps.shapes = serves;
    record_.jvp.push_back({serves, keeps, [](JvpFrame& frame) { jvp_by_calling(frame, serves); }});
    return *this;
  }

  /// The derivative with respect to these arguments is zero wherever it exists (floor, sign, a weight of counts, …).
  template <int... i>
  Rule& inactive() {
    record_.inactive_args |= (Mask{0} | ... | (Mask{1} << i));
    return *this;
  }
  /// Outputs without a derivative (indices, masks stored as floats, …), by schema position.
  template <int... k>
  Rule& nondifferentiable_outputs() {
    record_.nondifferentiable_outs |= (Mask{0} | ... | (Mask{1} << k));
    return *this;
  }
  /// No output has a derivative with respect to anything.
  Rule& no_derivative() {
    record_.set_no_derivative();
    return *this;
  }

  // ---- others ----

  /// The operator in terms of others: serves every transform that has no rule of its own. (tower/decompose.h is the
  /// same for users: there the function takes all arguments.)
  template <class Function>
  Rule& decomposes(Function f) {
    using B = detail::Bound<Op, Function>;
    static_cast<void>(B::keeps());  // checks the parameters
    const Operator* record = &record_;
    record_.decomposition = std::make_shared<const DecompositionRule>([f, record](Stack& stack) {
      const std::vector<IValue> args(stack.begin(), stack.end());
      const Frame frame{*record, args, {}, nullptr, 0};
      auto result = B::call(f, frame);
      stack.clear();
      push(stack, std::move(result));
    });
    return *this;
  }

  /// A view: how a write to it reaches the base. `inverse(base, written, args…)` gives the base after the write.
  Rule& inverse(std::function<Tensor(const Tensor&, const Tensor&, c10::ArrayRef<IValue>, size_t)> inverse) {
    record_.view_inverse = std::move(inverse);
    return *this;
  }

  /// What evaluates the operator on plain tensors, where LibTorch's kernel of that name does not serve.
  Rule& evaluated_by(void (*evaluate)(Stack&)) {
    record_.unboxed = evaluate;
    return *this;
  }

  /// A view that can show an element of its base more than once: whether this one does. A write through it has no
  /// inverse then.
  Rule& repeats(std::function<bool(const Tensor& base, c10::ArrayRef<IValue> args)> repeats) {
    record_.view_repeats = std::move(repeats);
    return *this;
  }

  /// A view: which dimension of its base each of its own dimensions shows whole, whatever the size
  /// (Operator::view_keeps).
  Rule& keeps_dims(std::function<Sizes(const Sizes& base, c10::ArrayRef<IValue> args, size_t out)> keeps) {
    record_.view_keeps = std::move(keeps);
    return *this;
  }

  /// Whether the shape of a result depends on the arguments' values, where LibTorch's tag does not say it.
  Rule& shape_by_values(std::function<bool(c10::ArrayRef<IValue> args)> depends) {
    record_.shape_by_values = std::move(depends);
    return *this;
  }

  /// Refuses the operator under a transform, with the reason and what to do.
  Rule& unsupported(Kind kind, std::string why) {
    record_.unsupported[static_cast<size_t>(kind)] = std::move(why);
    return *this;
  }

 private:
  static Keeps keeps_all_but(Mask args) { return Keeps{~args, 0, 0}; }
  static void push(Stack& stack, Tensor t) { stack.emplace_back(std::move(t)); }
  static void push(Stack& stack, std::vector<Tensor> list) { stack.emplace_back(c10::List<Tensor>(list)); }
  template <class... T>
  static void push(Stack& stack, std::tuple<T...> results) {
    std::apply([&](auto&&... each) { (push(stack, std::move(each)), ...); }, std::move(results));
  }

  Operator& record_;
};

/// The record of a LibTorch operator, by its declaration. (An operator that this LibTorch lacks gets a record that
/// nobody asks for.)
template <class Op>
Rule<Op> op() {
  return Rule<Op>(record_of(Op::name, Op::overload_name));
}

}  // namespace tower::rules
