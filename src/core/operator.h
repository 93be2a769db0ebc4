// One record per operator holds all that Tower knows of it: facts from its schema, and its rules for every transform.
// An operator is usually one of LibTorch's (or a library's), found by its dispatcher handle; it can also be made by
// Tower: the image of an operator under a transform is again an operator (see interpreters/libtorch_autograd.cpp).
//
// Read first: Operator, then the frames (what a rule is given and what it gives back).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/facts.h"
#include "core/level.h"

namespace tower {

using at::Tensor;
using Sizes = c10::SmallVector<int64_t, 5>;
using Mask = uint64_t;  // bit i: argument (or output) i

class Operator;

/// Shape, dtype and device of a tensor: what a rule may know of it without keeping it alive.
struct Meta {
  Sizes sizes;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  bool by_columns = false;  // its last two dimensions lie in memory as those of a transposed matrix do

  Meta() = default;
  explicit Meta(const Tensor& t)
      : sizes(t.sizes()), dtype(t.scalar_type()), device(t.device()), by_columns(lies_by_columns(t)) {}
  at::TensorOptions options() const { return at::TensorOptions().dtype(dtype).device(device); }
  bool matches(const Tensor& t) const { return t.scalar_type() == dtype && t.sizes().equals(sizes); }
  int64_t dim() const { return static_cast<int64_t>(sizes.size()); }
  /// "float32 [2, 3]": for messages.
  std::string describe() const;

 private:
  static bool lies_by_columns(const Tensor& t) {
    const auto last = t.dim();
    return last >= 2 && t.stride(last - 2) == 1 && t.stride(last - 1) == t.size(last - 2);
  }
};
std::string describe(const Tensor& t);

/// What a derivative rule needs of the primal call: nothing else is kept alive for it.
struct Keeps {
  Mask args = 0;    // values of these arguments
  Mask shapes = 0;  // metadata of these tensor arguments
  Mask outs = 0;    // values of these outputs

  Keeps& operator|=(const Keeps& o) {
    args |= o.args;
    shapes |= o.shapes;
    outs |= o.outs;
    return *this;
  }
};

/// The primal call as a derivative rule sees it: only what the rule declared in its Keeps is there.
struct Frame {
  const Operator& op;
  c10::ArrayRef<IValue> args;       // by schema position
  c10::ArrayRef<IValue> outs;       // by schema position
  const std::vector<Meta>* shapes;  // tensors of the arguments in Keeps::shapes, in order; null: read the arguments
  Mask shapes_kept;
  c10::ArrayRef<IValue> saved = {};  // what the operator's `save` gave; empty if it has none

  const Tensor& tensor(size_t arg) const { return args[arg].toTensor(); }
  /// Metadata of tensor argument `arg`.
  Meta meta(size_t arg) const;
  /// Metadata of the elements of tensor-list argument `arg`.
  std::vector<Meta> metas(size_t arg) const;
};

/// One tensor among the arguments of a call: argument `arg`, element `element` of it if it is a list.
struct LeafRef {
  uint16_t arg;
  uint16_t element;
};

/// A vjp rule reads cotangents of the outputs (flattened; undefined: zero) and gives gradients of the arguments.
struct VjpFrame : Frame {
  c10::ArrayRef<Tensor> cotangents;
  c10::ArrayRef<LeafRef> wanted;           // differentiated tensors, in schema order
  c10::ArrayRef<const Meta*> wanted_meta;  // theirs
  c10::SmallVector<Tensor, 4> gradients;   // one for each of `wanted`; undefined: zero
  Mask wanted_args;

  bool wants(size_t arg) const { return wanted_args >> arg & 1; }
  /// Metadata of tensor argument `arg`, whose gradient is wanted.
  const Meta& like(size_t arg) const {
    size_t k = 0;
    while (wanted[k].arg != arg) ++k;
    return *wanted_meta[k];
  }
  /// Gives the gradient of tensor argument `arg`; it must have the argument's shape. Ignored where it is not wanted.
  void give(size_t arg, Tensor gradient, size_t element = 0);
  /// The same for a pointwise operator: sums over what was broadcast first.
  void give_broadcast(size_t arg, Tensor gradient);

 private:
  void put(size_t k, Tensor&& gradient);
};

/// A jvp rule reads tangents of the arguments (undefined: zero) and gives tangents of the outputs (flattened).
struct JvpFrame : Frame {
  c10::ArrayRef<Tensor> leaves;          // tangents of all tensors among the arguments, in schema order
  c10::SmallVector<Tensor, 2> tangents;  // of the outputs; undefined: zero
  c10::ArrayRef<const Meta*> outs_meta;

  const Tensor& tangent(size_t arg) const;
  c10::ArrayRef<Tensor> tangent_list(size_t arg) const;
  /// Adds to the tangent of output `out`, expanding it to the output's shape where it was broadcast.
  void give(size_t out, Tensor tangent);
};

/// A vmap rule finds values on the stack (one level down) with their batch dimensions, and leaves results likewise.
struct VmapFrame {
  static constexpr int64_t kUnbatched = -1;

  const Operator& op;
  Stack& stack;
  int64_t batch_size;
  const Level& level;
  c10::SmallVector<int64_t, 8> in_dims;         // by schema position; kUnbatched where not a batched tensor
  std::vector<std::vector<int64_t>> list_dims;  // by schema position; empty unless a tensor list
  c10::SmallVector<int64_t, 4> out_dims;        // of the outputs, flattened; 0 unless the rule says otherwise

  Tensor tensor(size_t arg) const { return stack[arg].toTensor(); }
  bool batched(size_t arg) const { return in_dims[arg] != kUnbatched; }
  bool is_tensor(size_t arg) const { return stack[arg].isTensor() && stack[arg].toTensor().defined(); }
  int64_t logical_dim(size_t arg) const { return tensor(arg).dim() - batched(arg); }
  /// Moves the batch dimension of `arg` to the front; expands it over the batch if it had none.
  void to_front(size_t arg, bool expand_unbatched);
  /// The elements of list argument `arg`, all with the batch dimension in front (expanded where unbatched).
  std::vector<Tensor> list_to_front(size_t arg) const;
  /// Calls the operator itself with what is on the stack, one level down.
  void call();
  /// Replaces the stack by a single result.
  void result(Tensor t, int64_t bdim = 0);
};

using VmapRule = std::function<void(VmapFrame&)>;
/// Replaces the arguments on the stack by the results, calling other operators.
using DecompositionRule = std::function<void(Stack&)>;

/// A rule serves the arguments in `serves`: one for a partial derivative, several where one kernel gives them jointly.
template <class F>
struct DerivativeRule {
  Mask serves = 0;
  Keeps keeps;
  std::function<void(F&)> run;
};

enum class ArgKind : uint8_t { other, tensor, tensor_list, optional_tensor_list };

/// How a transform serves an operator (the order of the rows is the order of resolution).
enum class Served : uint8_t {
  own_rule,
  decomposition,
  composite,
  loop,
  libtorch_autograd,
  transposed_vjp,
  transposed_jvp,
  no_derivative,
  error
};

class Operator : public c10::intrusive_ptr_target {
 public:
  explicit Operator(const c10::OperatorHandle& handle);
  /// An operator that is not in LibTorch's dispatcher, with the signature of `like` unless `schema` is changed later.
  Operator(std::string name, c10::FunctionSchema schema);

  /// The record of a dispatcher operator. References stay valid for the life of the process; after the library that
  /// defined the operator has taken it back, the record is of use only to what was recorded with it.
  static Operator& of(const c10::OperatorHandle& handle);
  /// Sets what completes records when they are made: rules may have been registered for an operator before it was.
  static void complete_records(void (*complete)(Operator&));
  /// By name, such as ("aten::add", "Tensor"); null if LibTorch has no such operator.
  static Operator* find(const char* name, const char* overload);
  /// All records made so far from the dispatcher, in order of name.
  static std::vector<const Operator*> all();

  // Facts.
  const std::string& name() const { return name_; }
  const c10::FunctionSchema& schema() const { return *schema_; }
  const std::optional<c10::OperatorHandle>& handle() const { return handle_; }
  size_t num_args() const { return kinds_.size(); }
  size_t num_outs() const { return num_outs_; }
  ArgKind kind(size_t arg) const { return kinds_[arg]; }
  c10::ArrayRef<uint8_t> tensor_args() const { return tensor_args_; }
  Mask tensor_mask() const { return tensor_mask_; }
  bool composite() const { return composite_; }
  /// Neither LibTorch's own nor made from one of those: what its code does is not known.
  bool foreign() const { return foreign_; }
  bool mutates() const { return mutates_; }
  bool is_view() const { return view_; }
  bool random() const { return random_; }
  bool pointwise_tag() const { return pointwise_tag_; }
  /// The dispatcher no longer has it.
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  /// Changes the shape of its first argument in place (squeeze_, t_, …).
  bool inplace_view() const { return inplace_view_; }
  const char* argument_name(size_t arg) const { return schema_->arguments()[arg].name().c_str(); }

  /// Evaluates on values of the current top (plain tensors when there is none): the operator itself, no rule.
  virtual void call(Stack& stack) const;
  /// In sparsity patterns, where its code is not followed: replaces the arguments by the results of code that is made
  /// of operators, which depend on all that the operator's depend on, and have their shapes. False, with nothing
  /// changed, where there is no such code.
  virtual bool stand_in(Stack& stack) const;
  /// LibTorch can differentiate it (an autograd kernel is registered for it).
  virtual bool libtorch_differentiates() const;

  /// The same for LibTorch's operators with simple signatures, without boxing; may be null.
  void (*unboxed)(Stack& stack) = nullptr;

  // Rules. Written once, when records are filled (rules/), read from every thread.
  VmapRule vmap;
  bool vmap_is_pointwise = false;     // `vmap` is the pointwise family's: its usual case is handled without a frame
  const char* vmap_family = nullptr;  // names the family in coverage; null for a rule of its own
  std::vector<DerivativeRule<VjpFrame>> vjp;
  std::vector<DerivativeRule<JvpFrame>> jvp;
  std::shared_ptr<const DecompositionRule> decomposition;  // may be replaced while it runs (tower/decompose.h)
  Mask nondifferentiable_outs = 0;                         // by schema position
  Mask inactive_args = 0;                                  // derivative is declared zero with respect to these
  /// For a view: the base after the view of it was overwritten by `written` (`args` as in the call, base undefined).
  std::function<Tensor(const Tensor& base, const Tensor& written, c10::ArrayRef<IValue> args, size_t out)> view_inverse;
  /// For a view that can show an element of its base more than once (expand, unfold, …): whether this one does.
  std::function<bool(const Tensor& base, c10::ArrayRef<IValue> args)> view_repeats;
  /// For a view: which dimension of its base each dimension of result `out` shows whole, whatever its size; -1: none
  /// (it is a new one, or shows a part). Null: that is known of none.
  std::function<Sizes(const Sizes& base, c10::ArrayRef<IValue> args, size_t out)> view_keeps;
  /// Whether the shape of a result depends on the arguments' values. Null: LibTorch's tag says it, of all calls.
  std::function<bool(c10::ArrayRef<IValue> args)> shape_by_values;
  std::optional<std::string> unsupported[kKinds];  // by Kind: why not, and what to do
  bool reads_shapes_alone = false;                 // zeros_like and its kin: the result is the same whatever the values
  Moves moves = Moves::no;
  std::optional<Contraction> contraction;
  Depends depends = Depends::unsaid;

  // NOTE [Custom rules]
  // The rules of LibTorch's operators agree with what the operators compute, so any of them may be replaced by the
  // operators it is made of. A rule that a user registered is the meaning of the transform, whatever the implementation
  // computes: it is honoured at every level, however many other levels lie above it. So a vmap level with a level below
  // it that may differentiate does not open a custom operator up: it binds the operator's image
  // (interpreters/mapped.h).
  bool custom = false;
  /// Whether any level may put a decomposition in the operator's place: there is no rule that would be passed over.
  bool opens_up() const { return !custom || (decomposes() && vjp.empty() && jvp.empty() && !vmap && !no_derivative_); }
  bool decomposes() const { return decomposition || composite_; }
  /// Evaluates a custom operator on values of any level, if it is written with operators. Unlike a decomposition, it is
  /// never differentiated in the operator's place.
  std::function<void(Stack&)> implementation;
  /// The autograd kernel that LibTorch has for it records Tower's rules (operators/autograd_kernel.h).
  bool bridged = false;
  /// Whether a vjp rule is a linear function of the cotangent, so that it serves forward mode by transposition.
  bool vjp_is_linear = true;
  /// Tensors that its functions capture become operands, so its implementation must not see the levels above its own.
  bool lifts_captured = false;
  /// What stands for a custom operator in sparsity patterns; null: nothing.
  std::shared_ptr<const std::function<void(Stack&)>> sparsity;
  /// Found out while running: the implementation reads memory or values of single tensors, so vmap must loop.
  mutable std::atomic<bool> reads_memory{false};
  /// What the derivative rules need, from the arguments and outputs of a call (Keeps are for rules without this).
  using Values = std::vector<IValue>;
  std::function<Values(c10::ArrayRef<IValue> args, c10::ArrayRef<IValue> outs)> save;
  /// The outputs and what the derivative rules need in one evaluation; optional, beside `save`.
  std::function<std::pair<Stack, Values>(c10::ArrayRef<IValue> args)> call_and_save;

  /// For an operator that writes to its arguments: what stands for it, once somebody has looked (frontend/twins.h).
  mutable std::atomic<const void*> twin = nullptr;

  /// Own vjp (jvp) rules cover every argument in `tracked`.
  bool has_vjp(Mask tracked) const { return covers(vjp, tracked); }
  bool has_jvp(Mask tracked) const { return covers(jvp, tracked); }
  bool has_rule(Kind kind) const;
  /// Declared to have no derivative at all.
  bool no_derivative() const { return no_derivative_; }
  void set_no_derivative(bool none = true) { no_derivative_ = none; }

 protected:
  friend struct Records;
  /// What happens to a record when the dispatcher's operator goes.
  void retire();

  template <class R>
  bool covers(const std::vector<R>& rules, Mask tracked) const {
    Mask served = inactive_args;
    for (const auto& r : rules) served |= r.serves;
    return (tracked & ~served) == 0;
  }
  void read_schema();

  std::string name_;
  const c10::FunctionSchema* schema_;
  std::unique_ptr<c10::FunctionSchema> own_schema_;
  std::optional<c10::OperatorHandle> handle_;
  std::vector<ArgKind> kinds_;
  c10::SmallVector<uint8_t, 6> tensor_args_;
  Mask tensor_mask_ = 0;  // the same as bits
  size_t num_outs_ = 0;
  bool composite_ = false, mutates_ = false, view_ = false, random_ = false, pointwise_tag_ = false,
       inplace_view_ = false;
  bool no_derivative_ = false, foreign_ = true;
  std::atomic<bool> gone_{false};
};

/// What `op.save` gives, computed as user code is run: by its operators, each of which finds its own way.
Operator::Values save_for_derivatives(const Operator& op, c10::ArrayRef<IValue> args, c10::ArrayRef<IValue> outs);

/// Number of tensors among the values (list elements counted one by one, undefined and None included for single
/// tensors).
size_t count_leaves(const Operator& op, c10::ArrayRef<IValue> args);
/// The position of one tensor among all of them.
size_t leaf_number(const Operator& op, c10::ArrayRef<IValue> args, LeafRef leaf);

/// Calls `f(tensor, LeafRef)` for every defined tensor among the arguments, list elements included.
template <class F>
void for_each_tensor(const Operator& op, c10::ArrayRef<IValue> args, F&& f) {
  for (uint8_t i : op.tensor_args()) {
    const IValue& v = args[i];
    if (v.isTensor()) {
      const Tensor& t = v.toTensor();
      if (t.defined()) f(t, LeafRef{i, 0});
    } else if (v.isList()) {
      const auto& elements = v.toListRef();
      for (size_t e = 0; e < elements.size(); ++e)
        if (elements[e].isTensor() && elements[e].toTensor().defined())
          f(elements[e].toTensor(), LeafRef{i, static_cast<uint16_t>(e)});
    }
  }
}

/// Replaces the defined tensors of list argument `arg` by `f(tensor, LeafRef)`, in a copy of the list.
template <class F>
[[gnu::noinline]] void replace_tensors_in_list(IValue& list, uint8_t arg, F& f) {
  const auto replaced = [&](const IValue& element, size_t e) {
    return f(element.toTensor(), LeafRef{arg, static_cast<uint16_t>(e)});
  };
  const auto& old = list.toListRef();
  if (list.isTensorList()) {
    c10::List<Tensor> copy;
    copy.reserve(old.size());
    for (size_t e = 0; e < old.size(); ++e)
      copy.push_back(old[e].toTensor().defined() ? replaced(old[e], e) : Tensor());
    list = std::move(copy);
  } else {
    c10::List<std::optional<Tensor>> copy;
    copy.reserve(old.size());
    for (size_t e = 0; e < old.size(); ++e) {
      if (old[e].isTensor() && old[e].toTensor().defined()) copy.push_back(replaced(old[e], e));
      else copy.push_back(std::nullopt);
    }
    list = std::move(copy);
  }
}

/// Replaces every defined tensor among the arguments by `f(tensor, LeafRef)`; lists are copied, never written to.
/// `f` may return the same tensor, and a reference to one that the old value owns.
template <class F>
void replace_tensors(const Operator& op, c10::ArrayRef<IValue> args_ref, F&& f) {
  IValue* args = const_cast<IValue*>(args_ref.data());
  for (uint8_t i : op.tensor_args()) {
    IValue& v = args[i];
    if (v.isTensor()) {
      const Tensor& t = v.toTensor();
      if (!t.defined()) continue;
      decltype(auto) r = f(t, LeafRef{i, 0});
      if (!r.is_same(t)) v = IValue(std::forward<decltype(r)>(r));
    } else if (v.isList()) {
      replace_tensors_in_list(v, i, f);
    }
  }
}

/// Replaces every defined tensor among the outputs on the stack by `f(Tensor&&, flattened index)`.
template <class F>
void replace_outputs(c10::ArrayRef<IValue> outs_ref, F&& f) {
  IValue* outs = const_cast<IValue*>(outs_ref.data());
  size_t leaf = 0;
  for (size_t i = 0; i < outs_ref.size(); ++i) {
    IValue& v = outs[i];
    if (v.isTensor()) {
      if (std::as_const(v).toTensor().defined()) v = f(std::move(v).toTensor(), leaf);
      ++leaf;
    } else if (v.isTensorList()) {
      c10::List<Tensor> copy;
      for (const auto& e : v.toListRef()) {
        copy.push_back(e.toTensor().defined() ? f(Tensor(e.toTensor()), leaf) : Tensor());
        ++leaf;
      }
      v = std::move(copy);
    }
  }
}

/// The tensors among the outputs, flattened; undefined ones included.
c10::SmallVector<Tensor, 2> flatten_outputs(c10::ArrayRef<IValue> outs);

}  // namespace tower
