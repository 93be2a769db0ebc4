#include "interpreters/mapped.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>

#include <mutex>

#include "core/bind.h"
#include "core/tensor_lists.h"
#include "interpreters/custom.h"
#include "interpreters/derivatives.h"
#include "interpreters/libtorch_bridge.h"
#include "tower/errors.h"

namespace tower {
namespace {

constexpr int64_t kUnbatched = VmapFrame::kUnbatched;
using Tensors = std::vector<Tensor>;

c10::FunctionSchema schema_of_lists(const std::string& name) {
  return {name,
          "",
          {c10::Argument("operands", c10::ListType::ofTensors())},
          {c10::Argument("", c10::ListType::ofTensors())}};
}

// Operands and outputs are flat lists of defined tensors; the base operator's own arguments are rebuilt from them.
class MappedOperator final : public MadeOperator {
 public:
  MappedOperator(const Vmap& level, const Operator& base, const Stack& args)
      : MadeOperator("vmap(" + base.name() + ")", schema_of_lists("vmap(" + base.name() + ")")),
        base_(base),
        batch_size_(level.batch_size()),
        randomness_(level.randomness()),
        axis_(level.axis()),
        label_(level.label()),
        make_level_(base.custom ? level.images() : Vmap::MakeLevel()),
        args_(args) {
    if (!base.handle()) owner_ = c10::intrusive_ptr<const Operator>::reclaim_copy(&base);
    // Only the places of the tensors: a tape that keeps this operator must not keep its own level's tensors.
    static const Tensor place(at::detail::empty_cpu({0}, at::TensorOptions(at::kFloat)));
    replace_tensors(base, args_, [&](const Tensor& t, LeafRef leaf) {
      Wrapper* w = as_wrapper_of(t, level);
      leaves_.push_back(leaf);
      dims_.push_back(w ? w->payload().index : kUnbatched);
      return place;
    });
    set_rules(base.random() && level.is_traced());
  }
  explicit MappedOperator(const ImageOf& image)
      : MadeOperator("vmap(" + image.base.name() + ")", schema_of_lists("vmap(" + image.base.name() + ")")),
        base_(image.base),
        batch_size_(image.batch_size),
        randomness_(image.randomness),
        axis_(image.axis),
        label_(image.label),
        make_level_(image.make_level),
        args_(image.args),
        leaves_(image.leaves),
        dims_(image.dims) {
    if (!base_.handle()) owner_ = c10::intrusive_ptr<const Operator>::reclaim_copy(&base_);
    set_rules(image.draws);
  }

  c10::intrusive_ptr<const Operator> over(c10::ArrayRef<int64_t> batch_sizes) const {
    const auto* inner = dynamic_cast<const MappedOperator*>(&base_);
    const auto base = inner ? inner->over(batch_sizes.slice(1)) : nullptr;
    return c10::make_intrusive<MappedOperator>(image(base ? *base : base_, batch_sizes[0]));
  }

  c10::intrusive_ptr<const Operator> with(size_t arg, const IValue& value) const {
    if (const auto* inner = dynamic_cast<const MappedOperator*>(&base_)) {
      const auto base = inner->with(arg, value);
      return c10::make_intrusive<MappedOperator>(image(*base, batch_size_));
    }
    Stack args = args_;
    args[arg] = value;
    return c10::make_intrusive<MappedOperator>(
        ImageOf{base_, args, leaves_, dims_, batch_size_, axis_, randomness_, label_, make_level_, random()});
  }

  bool saves_at_every_level() const override {
    const auto* made = dynamic_cast<const MadeOperator*>(&base_);
    return made && made->saves_at_every_level();
  }
  ImageOf image() const { return image(base_, batch_size_); }

  void call(Stack& stack) const override {
    if (record_in_libtorch(*this, stack)) return;
    const Topped alone(lifts_captured ? nullptr : top());
    evaluate_inside(*this, stack);
  }

  bool stand_in(Stack& stack) const override {
    auto level = new_level();
    Scope scope(level);
    Stack own = arguments(*level, tensors_of(stack[0]));
    if (!base_.stand_in(own)) {
      if (base_.foreign()) return false;
      level->evaluate(base_, own);
    }
    stack = take_out_outputs(*level, own);
    return true;
  }

  /// Replaces the list of outputs by the base operator's, each tensor made by `f`.
  template <class F>
  void unflatten(Stack& stack, F&& f) const {
    const Tensors flat = tensors_of(stack[0]);
    stack.clear();
    size_t next = 0;
    for (int64_t size : list_sizes_) {
      if (size < 0) {
        stack.emplace_back(f(flat[next++]));
        continue;
      }
      c10::List<Tensor> list;
      for (int64_t e = 0; e < size; ++e) list.push_back(f(flat[next++]));
      stack.emplace_back(std::move(list));
    }
  }

  void know_outputs(std::vector<int64_t> list_sizes) const {
    std::call_once(outputs_known_, [&] { list_sizes_ = std::move(list_sizes); });
  }
  /// What `another` has found out, which is of the same operator.
  void know_outputs_of(const MappedOperator& another) const { know_outputs(another.list_sizes_); }
  const Operator& base() const { return base_; }

 private:
  ImageOf image(const Operator& base, int64_t batch_size) const {
    return {base, args_, leaves_, dims_, batch_size, axis_, randomness_, label_, make_level_, random()};
  }

  void set_rules(bool draws) {
    const Operator& base = base_;
    custom = true;
    random_ = draws;
    vjp_is_linear = base.vjp_is_linear;
    lifts_captured = base.lifts_captured;
    implementation = [this](Stack& stack) { evaluate(stack); };
    const Keeps all{1, 0, 1};
    if (base.save) save = [this](c10::ArrayRef<IValue> a, c10::ArrayRef<IValue> o) { return save_mapped(a, o); };
    if (base.call_and_save) call_and_save = [this](c10::ArrayRef<IValue> a) { return evaluate_and_save(a); };
    // A user's rule gets what was saved for it; what else may serve the base operator needs its call.
    Mask tensors = 0;
    for (const LeafRef& leaf : leaves_) tensors |= Mask{1} << leaf.arg;
    tensors &= ~base.inactive_args;
    set_no_derivative(base.no_derivative() || tensors == 0);
    const Served served = served_vjp(base, tensors);
    const Keeps needs = keeps_for_vjp(base, tensors, served);
    pulls_back_saved_alone_ = base.save && !(needs.args | needs.shapes | needs.outs);
    if (!base.vjp.empty() || served == Served::libtorch_autograd || served == Served::decomposition)
      vjp.push_back({1, pulls_back_saved_alone_ ? Keeps{} : all, [this](VjpFrame& frame) { pull_back(frame); }});
    if (!base.jvp.empty()) jvp.push_back({1, all, [this](JvpFrame& frame) { push_forward(frame); }});
  }

  c10::intrusive_ptr<Vmap> new_level() const {
    return make_level_ ? make_level_(batch_size_) : c10::make_intrusive<Vmap>(batch_size_, randomness_, label_, axis_);
  }

  static Tensor put_in(Vmap& level, const Tensor& t, int64_t dim) {
    return t.defined() && dim != kUnbatched ? wrap(level, Payload{t, {}, dim}) : t;
  }

  // The value below `level` with its batch dimension at `dim`; expanded over the batch if it has none.
  Tensor take_out(Vmap& level, const Tensor& t, int64_t dim) const {
    if (!t.defined()) return t;
    Wrapper* w = as_wrapper_of(t, level);
    Tensor value = w ? w->payload().value : t;
    if (w && w->payload().tracked()) return w->payload().index == dim ? value : value.movedim(w->payload().index, dim);
    Sizes sizes(value.sizes());
    sizes.insert(sizes.begin() + dim, batch_size_);
    return value.unsqueeze(dim).expand(sizes);
  }

  // The base operator's arguments, with `operands` put into the level.
  Stack arguments(Vmap& level, c10::ArrayRef<Tensor> operands) const {
    Stack stack = args_;
    size_t next = 0;
    replace_tensors(base_, stack, [&](const Tensor&, LeafRef) {
      Tensor t = put_in(level, operands[next], dims_[next]);
      ++next;
      return t;
    });
    return stack;
  }

  void evaluate(Stack& stack) const {
    auto level = new_level();
    Scope scope(level);
    Stack own = arguments(*level, tensors_of(stack[0]));
    level->evaluate(base_, own);
    stack = take_out_outputs(*level, own);
  }

  // Both in one evaluation.
  std::pair<Stack, Values> evaluate_and_save(c10::ArrayRef<IValue> args) const {
    auto level = new_level();
    Scope scope(level);
    Stack own = arguments(*level, tensors_of(args[0]));
    Values saved = tower::call_and_save(base_, own);
    return {take_out_outputs(*level, own), take_out_saved(*level, std::move(saved))};
  }

  Stack take_out_outputs(Vmap& level, const Stack& own) const {
    std::vector<int64_t> sizes;
    for (const IValue& v : own) {
      if (!v.isTensor() && !v.isTensorList())
        throw UnsupportedError(level.describe() + ": " + base_.name() +
                               " returns a value that is not a tensor; it cannot differ between examples.");
      sizes.push_back(v.isTensor() ? -1 : static_cast<int64_t>(v.toListRef().size()));
    }
    know_outputs(std::move(sizes));
    c10::List<Tensor> outs;
    for (const Tensor& t : flatten_outputs(own)) outs.push_back(take_out(level, t, 0));
    return {std::move(outs)};
  }

  // The base operator's outputs, put into the level.
  Stack outputs(Vmap& level, const IValue& flat) const {
    Stack stack{flat};
    unflatten(stack, [&](const Tensor& t) { return put_in(level, t, 0); });
    return stack;
  }

  // What the base operator saves, its tensors taken out, and behind it their batch dimensions.
  Values save_mapped(c10::ArrayRef<IValue> args, c10::ArrayRef<IValue> outs) const {
    auto level = new_level();
    Scope scope(level);
    return take_out_saved(
        *level, save_for_derivatives(base_, arguments(*level, tensors_of(args[0])), outputs(*level, outs[0])));
  }

  static Values take_out_saved(Vmap& level, Values saved) {
    std::vector<int64_t> dims;
    each_tensor(saved, [&](const Tensor& t) {
      Wrapper* w = as_wrapper_of(t, level);
      dims.push_back(w ? w->payload().index : kUnbatched);
      return w ? w->payload().value : t;
    });
    saved.emplace_back(std::move(dims));
    return saved;
  }

  template <class F>
  static void each_tensor(Values& values, F&& f) {
    for (IValue& v : values) {
      if (v.isTensor()) {
        if (v.toTensor().defined()) v = f(v.toTensor());
      } else if (v.isTensorList()) {
        c10::List<Tensor> list;
        for (const auto& e : v.toListRef()) list.push_back(e.toTensor().defined() ? f(e.toTensor()) : Tensor());
        v = std::move(list);
      } else if (v.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> list;
        for (const auto& e : v.toListRef())
          list.push_back(e.isTensor() && e.toTensor().defined() ? std::optional(f(e.toTensor())) : std::nullopt);
        v = std::move(list);
      }
    }
  }

  // The base operator's call as its rules see it, in the level.
  struct Inside {
    Stack args, outs;
    Values saved;
  };
  Inside open(Vmap& level, const Frame& frame, bool saved_alone) const {
    // Where only what was saved is kept, the arguments that are not tensors are there all the same; those that are may
    // be placeholders, where the call is itself one that was mapped.
    Inside inside{args_, Stack(base_.num_outs()), {}};
    if (!saved_alone) {
      inside.args = arguments(level, tensors_of(frame.args[0]));
      inside.outs = outputs(level, frame.outs[0]);
    }
    if (!base_.save) return inside;
    inside.saved.assign(frame.saved.begin(), frame.saved.end() - 1);
    const std::vector<int64_t> dims = frame.saved.back().toIntVector();
    size_t next = 0;
    each_tensor(inside.saved, [&](const Tensor& t) { return put_in(level, t, dims[next++]); });
    return inside;
  }

  Meta logical(const Meta& meta, int64_t dim) const {
    Meta result = meta;
    if (dim != kUnbatched && meta.dtype != at::ScalarType::Undefined) result.sizes.erase(result.sizes.begin() + dim);
    return result;
  }

  // The gradient of an operand: over the batch it is a batch, for an unbatched operand all examples' together.
  Tensor gradient_below(Vmap& level, const Tensor& g, int64_t dim) const {
    if (!g.defined() || dim != kUnbatched) return take_out(level, g, dim);
    Wrapper* w = as_wrapper_of(g, level);
    if (w && w->payload().tracked()) return w->payload().value.sum(w->payload().index);
    return at::mul(w ? w->payload().value : g, batch_size_);
  }

  void pull_back(VjpFrame& frame) const {
    auto level = new_level();
    Tensors gradients;
    {
      Scope scope(level);
      const Inside inside = open(*level, frame, pulls_back_saved_alone_);
      Tensors cotangents;
      for (const Tensor& ct : frame.cotangents) cotangents.push_back(put_in(*level, ct, 0));
      c10::SmallVector<LeafRef, 4> wanted;
      std::vector<Meta> metas;
      Mask wanted_args = 0;
      for (size_t k = 0; k < frame.wanted.size(); ++k) {
        const size_t operand = frame.wanted[k].element;
        wanted.push_back(leaves_[operand]);
        wanted_args |= Mask{1} << leaves_[operand].arg;
        metas.push_back(logical(*frame.wanted_meta[k], dims_[operand]));
      }
      c10::SmallVector<const Meta*, 4> wanted_meta;
      for (const Meta& m : metas) wanted_meta.push_back(&m);
      VjpFrame base{{base_, inside.args, inside.outs, nullptr, 0, inside.saved},
                    cotangents,
                    wanted,
                    wanted_meta,
                    {},
                    wanted_args};
      base.gradients.resize(wanted.size());
      run_vjp(base, served_vjp(base_, wanted_args));
      for (size_t k = 0; k < wanted.size(); ++k)
        gradients.push_back(gradient_below(*level, base.gradients[k], dims_[frame.wanted[k].element]));
    }
    for (size_t k = 0; k < gradients.size(); ++k) frame.give(0, std::move(gradients[k]), frame.wanted[k].element);
  }

  void push_forward(JvpFrame& frame) const {
    auto level = new_level();
    Tensors tangents;
    {
      Scope scope(level);
      const Inside inside = open(*level, frame, /*saved_alone=*/false);
      Tensors leaves(count_leaves(base_, inside.args));
      Mask tracked = 0;
      for (size_t k = 0; k < leaves_.size(); ++k) {
        if (!frame.leaves[k].defined()) continue;
        leaves[leaf_number(base_, inside.args, leaves_[k])] = put_in(*level, frame.leaves[k], dims_[k]);
        tracked |= Mask{1} << leaves_[k].arg;
      }
      std::vector<Meta> metas;
      for (const Meta* meta : frame.outs_meta) metas.push_back(logical(*meta, 0));
      c10::SmallVector<const Meta*, 2> outs_meta;
      for (const Meta& m : metas) outs_meta.push_back(&m);
      JvpFrame base{{base_, inside.args, inside.outs, nullptr, 0, inside.saved}, leaves, {}, outs_meta};
      base.tangents.resize(metas.size());
      run_jvp(base, tracked, served_jvp(base_, tracked));
      for (const Tensor& t : base.tangents) tangents.push_back(take_out(*level, t, 0));
    }
    for (size_t k = 0; k < tangents.size(); ++k) frame.give(k, std::move(tangents[k]));
  }

  const Operator& base_;
  c10::intrusive_ptr<const Operator> owner_;
  int64_t batch_size_;
  Randomness randomness_;
  uint64_t axis_;
  const char* label_;
  Vmap::MakeLevel make_level_;
  Stack args_;                   // of the base operator, placeholders for its tensors
  std::vector<LeafRef> leaves_;  // where each operand goes among them
  std::vector<int64_t> dims_;    // batch dimension of each operand
  bool pulls_back_saved_alone_ = false;
  // The outputs' structure, known after the first evaluation: -1 for a tensor, the length of a list. Who reads it has
  // evaluated before, or has what did; evaluations may be on several threads, and the first that is done writes it.
  mutable std::vector<int64_t> list_sizes_;
  mutable std::once_flag outputs_known_;
};

}  // namespace

std::optional<ImageOf> image_of(const Operator& op) {
  if (op.handle()) return std::nullopt;
  const auto* mapped = dynamic_cast<const MappedOperator*>(&op);
  return mapped ? std::optional(mapped->image()) : std::nullopt;
}

void gives_one_list(const Operator& image, int64_t tensors) {
  for (const auto* op = dynamic_cast<const MappedOperator*>(&image); op;
       op = dynamic_cast<const MappedOperator*>(&op->base()))
    op->know_outputs({tensors});
}

void gives_nothing(const Operator& image) {
  for (const auto* op = dynamic_cast<const MappedOperator*>(&image); op;) {
    const auto* inner = dynamic_cast<const MappedOperator*>(&op->base());
    if (inner) op->know_outputs({0});  // its list
    else op->know_outputs({});
    op = inner;
  }
}

void gives_what_gives(const Operator& image, const Operator& another) {
  const auto *op = dynamic_cast<const MappedOperator*>(&image), *known = dynamic_cast<const MappedOperator*>(&another);
  while (op && known) {
    op->know_outputs_of(*known);
    op = dynamic_cast<const MappedOperator*>(&op->base());
    known = dynamic_cast<const MappedOperator*>(&known->base());
  }
}

c10::intrusive_ptr<const Operator> image_from(const ImageOf& image) {
  return c10::make_intrusive<MappedOperator>(image);
}

c10::intrusive_ptr<const Operator> mapped_over(const Operator& image, c10::ArrayRef<int64_t> batch_sizes) {
  return dynamic_cast<const MappedOperator&>(image).over(batch_sizes);
}

c10::intrusive_ptr<const Operator> mapped_with(const Operator& image, size_t arg, const IValue& value) {
  return dynamic_cast<const MappedOperator&>(image).with(arg, value);
}

void bind_mapped(Vmap& level, const Operator& op, Stack& stack) {
  auto mapped = c10::make_intrusive<MappedOperator>(level, op, stack);
  c10::List<Tensor> operands;
  bool any_batched = false;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper_of(t, level);
    operands.push_back(w ? w->payload().value : t);
    any_batched = any_batched || (w && w->payload().tracked());
  });
  // Each run of a graph draws anew.
  const bool draws = op.random() && level.is_traced();
  if (draws && level.shared_draws())
    throw UnsupportedError(level.describe() + ": " + op.name() +
                           " draws random numbers in chunks of a batch that share one draw, which a compiled function "
                           "cannot repeat. Leave out the chunk size, or draw outside and pass the numbers in.");
  if (!any_batched && !(draws && level.randomness() == Randomness::different)) return level.evaluate(op, stack);
  stack.clear();
  stack.emplace_back(std::move(operands));
  {
    Below below(level);
    bind_call(*mapped, stack);
  }
  mapped->unflatten(stack, [&](const Tensor& t) { return t.defined() ? wrap(level, Payload{t, {}, 0}) : t; });
}

}  // namespace tower
