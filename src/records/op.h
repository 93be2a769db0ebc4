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
#include "records/parameters.h"

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

namespace detail {

inline void give_gradient(VjpFrame& frame, size_t arg, Tensor gradient) { frame.give(arg, std::move(gradient)); }
void give_gradient(VjpFrame& frame, size_t arg, std::vector<Tensor> gradients);
inline void give_tangents(JvpFrame& frame, Tensor tangent) { frame.give(0, std::move(tangent)); }
void give_tangents(JvpFrame& frame, std::vector<Tensor> tangents);
template <class... T>
void give_tangents(JvpFrame& frame, std::tuple<T...> tangents) {
  std::apply(
      [&](auto&&... each) {
        size_t k = 0;
        (frame.give(k++, std::move(each)), ...);
      },
      std::move(tangents));
}

// The results of a call in the place of its arguments.
void replace(Stack& stack, Tensor result);
void replace(Stack& stack, std::vector<Tensor> list);
template <class... T>
void replace(Stack& stack, std::tuple<T...> results) {
  stack.clear();
  const auto push = [&stack](auto&& each) {
    if constexpr (std::is_same_v<std::decay_t<decltype(each)>, std::vector<Tensor>>)
      stack.emplace_back(c10::List<Tensor>(each));
    else stack.emplace_back(std::forward<decltype(each)>(each));
  };
  std::apply([&](auto&&... each) { (push(std::move(each)), ...); }, std::move(results));
}

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

/// What a record's writing does for every operator alike.
class Writing {
 protected:
  explicit Writing(Operator& record) : record_(record) {}

  void set_vmap(VmapRule rule, const char* family = nullptr);
  void pointwise();
  void along(std::initializer_list<uint8_t> dims, EmptyDims empty);
  void fold_into_items(int64_t rank);
  void gives_gradient(Mask serves, const Keeps& keeps, std::function<void(VjpFrame&)> run);
  void gives_tangent(Mask serves, const Keeps& keeps, std::function<void(JvpFrame&)> run);
  void gives_tangent_by_calling(Mask serves, bool keeps_shapes);
  void decomposes_by(std::function<void(const Frame&, Stack&)> run);

  Operator& record_;
};

/// The record of one operator while it is being written.
template <class Op>
class Rule : Writing {
 public:
  explicit Rule(Operator& record) : Writing(record) {
    record.unboxed = detail::unboxed_call<Op>(static_cast<typename Op::schema*>(nullptr));
  }

  // ---- families ----

  /// Output element i depends on input elements i alone (with broadcasting). Gives vmap; state `derivative`s besides.
  Rule& pointwise() {
    Writing::pointwise();
    return *this;
  }

  /// Works along the dimensions named by the arguments `dims`; all tensors are batched over a new first dimension.
  Rule& along(std::initializer_list<uint8_t> dims, EmptyDims empty = EmptyDims::none) {
    Writing::along(dims, empty);
    return *this;
  }

  /// Accepts any number of leading batch dimensions itself; `core` logical dimensions at the end belong to the
  /// operation.
  Rule& batches_natively() { return family("natively batched", vmap_natively); }

  /// Has a leading dimension of independent items (images); the batch is folded into it. `rank` is the rank with it.
  Rule& folds_into_items(int64_t rank) {
    fold_into_items(rank);
    return *this;
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
    compiler::set_small_rule(record_,
                             detail::kept<std::vector<compiler::Small>, const compiler::SmallCall&>(std::move(f)));
    return *this;
  }

  // ---- vmap ----

  /// A batching rule: reads and writes the frame.
  template <class Function>
  Rule& vmap(Function rule) {
    set_vmap(detail::kept<void, VmapFrame&>(std::move(rule)));
    return *this;
  }
  template <class Function>
  Rule& family(const char* name, Function rule) {
    set_vmap(detail::kept<void, VmapFrame&>(std::move(rule)), name);
    return *this;
  }

  // ---- derivatives ----

  /// Pointwise: the partial derivative with respect to argument i, as a tensor or a number, or, with a parameter of
  /// type Along, what becomes of that when multiplied by it. Serves vjp and jvp; broadcasting, dtypes and complex
  /// conjugation are taken care of.
  template <int i, class Function>
  Rule& derivative(Function f) {
    using P = detail::Bound<Op, Function>;
    gives_gradient(Mask{1} << i, P::keeps, detail::kept_for<void, VjpFrame&>(f, [](const Function& f, VjpFrame& frame) {
                     const Tensor& ct = frame.cotangents[0];
                     if (!ct.defined()) return;
                     if constexpr (P::takes_along) {
                       const Tensor c = conjugate(ct);
                       frame.give_broadcast(i, conjugate(P::call(f, frame, &c)));
                     } else {
                       frame.give_broadcast(i, times_conjugate(ct, P::call(f, frame)));
                     }
                   }));
    gives_tangent(Mask{1} << i, P::keeps, detail::kept_for<void, JvpFrame&>(f, [](const Function& f, JvpFrame& frame) {
                    const Tensor& t = frame.tangent(i);
                    if (!t.defined()) return;
                    if constexpr (P::takes_along) frame.give(0, P::call(f, frame, &t));
                    else frame.give(0, times(t, P::call(f, frame)));
                  }));
    return *this;
  }

  /// The gradient with respect to argument i (a tensor, or a std::vector<Tensor> for a tensor list).
  template <int i, class Function>
  Rule& vjp(Function f) {
    using P = detail::Bound<Op, Function>;
    gives_gradient(Mask{1} << i, P::keeps, detail::kept_for<void, VjpFrame&>(f, [](const Function& f, VjpFrame& frame) {
                     detail::give_gradient(frame, i, P::call(f, frame));
                   }));
    return *this;
  }

  /// Gradients with respect to several arguments, where one computation gives them together: a tuple of tensors.
  template <int i, int j, int... more, class Function>
  Rule& vjp(Function f) {
    using P = detail::Bound<Op, Function>;
    constexpr Mask serves = Mask{1} << i | Mask{1} << j | (Mask{0} | ... | (Mask{1} << more));
    gives_gradient(serves, P::keeps, detail::kept_for<void, VjpFrame&>(f, [](const Function& f, VjpFrame& frame) {
                     detail::give_all(frame, P::call(f, frame), {i, j, more...});
                   }));
    return *this;
  }

  /// The tangent of the output (a tensor, or a tuple of tensors for several outputs) due to the listed arguments.
  template <int... i, class Function>
  Rule& jvp(Function f) {
    using P = detail::Bound<Op, Function>;
    gives_tangent((Mask{0} | ... | (Mask{1} << i)), P::keeps,
                  detail::kept_for<void, JvpFrame&>(
                      f, [](const Function& f, JvpFrame& frame) { detail::give_tangents(frame, P::call(f, frame)); }));
    return *this;
  }

  /// The operator is linear in argument i when the others are held: states the transpose, gives vjp and jvp.
  template <int i, class Function>
  Rule& linear(Function transpose) {
    vjp<i>(std::move(transpose));
    gives_tangent_by_calling(Mask{1} << i, /*keeps_shapes=*/false);
    return *this;
  }

  /// The operator is linear in the listed arguments taken together: gives jvp (state each vjp<i> besides).
  template <int... i>
  Rule& jointly_linear() {
    gives_tangent_by_calling((Mask{0} | ... | (Mask{1} << i)), /*keeps_shapes=*/true);
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
    using P = detail::Bound<Op, Function>;
    decomposes_by(detail::kept_for<void, const Frame&, Stack&>(
        f, [](const Function& f, const Frame& frame, Stack& stack) { detail::replace(stack, P::call(f, frame)); }));
    return *this;
  }

  /// A view: how a write to it reaches the base. `inverse(base, written, args…)` gives the base after the write.
  template <class Function>
  Rule& inverse(Function inverse) {
    record_.view_inverse = detail::kept<Tensor, const Tensor&, const Tensor&, c10::ArrayRef<IValue>, size_t>(inverse);
    return *this;
  }

  /// What evaluates the operator on plain tensors, where LibTorch's kernel of that name does not serve.
  Rule& evaluated_by(void (*evaluate)(Stack&)) {
    record_.unboxed = evaluate;
    return *this;
  }

  /// A view that can show an element of its base more than once: whether this one does. A write through it has no
  /// inverse then.
  template <class Function>
  Rule& repeats(Function repeats) {
    record_.view_repeats = detail::kept<bool, const Tensor&, c10::ArrayRef<IValue>>(repeats);
    return *this;
  }

  /// A view: which dimension of its base each of its own dimensions shows whole, whatever the size
  /// (Operator::view_keeps).
  template <class Function>
  Rule& keeps_dims(Function keeps) {
    record_.view_keeps = detail::kept<Sizes, const Sizes&, c10::ArrayRef<IValue>, size_t>(keeps);
    return *this;
  }

  /// Whether the shape of a result depends on the arguments' values, where LibTorch's tag does not say it.
  template <class Function>
  Rule& shape_by_values(Function depends) {
    record_.shape_by_values = detail::kept<bool, c10::ArrayRef<IValue>>(depends);
    return *this;
  }

  /// Refuses the operator under a transform, with the reason and what to do.
  Rule& unsupported(Kind kind, std::string why) {
    record_.unsupported[static_cast<size_t>(kind)] = std::move(why);
    return *this;
  }
};

/// The record of a LibTorch operator, by its declaration. (An operator that this LibTorch lacks gets a record that
/// nobody asks for.)
template <class Op>
Rule<Op> op() {
  return Rule<Op>(record_of(Op::name, Op::overload_name));
}

}  // namespace tower::rules
