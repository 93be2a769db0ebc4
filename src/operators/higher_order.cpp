#include "tower/higher_order.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "core/bind.h"
#include "core/tensor_lists.h"
#include "core/wrapper.h"
#include "frontend/enter.h"
#include "frontend/substitution.h"
#include "interpreters/custom.h"
#include "interpreters/libtorch_bridge.h"
#include "operators/differentiate.h"
#include "operators/known_code.h"
#include "operators/lifting.h"
#include "operators/user_vmap.h"
#include "tower/detail/foreign_frame.h"
#include "tower/errors.h"
#include "tower/inspect.h"
#include "tower/substitution.h"

namespace tower {
namespace {

using dynamic::Dims;
using dynamic::Tensors;

// What comes with a call besides its operands. Rules may run code of the caller's when what was substituted there has
// ended: the way back of a module that was called with other parameters, or of a function inside of another operator's.
struct Held final : torch::CustomClassHolder {
  Held(Attributes a, std::shared_ptr<const frontend::Substituted> s)
      : attributes(std::move(a)), substituted(std::move(s)) {}
  Attributes attributes;
  std::shared_ptr<const frontend::Substituted> substituted;
};

IValue pack(const Attributes& attributes, std::shared_ptr<const frontend::Substituted> substituted = nullptr) {
  if (!attributes && !substituted) return {};
  return IValue::make_capsule(c10::make_intrusive<Held>(attributes, std::move(substituted)));
}
Attributes unpack(const IValue& v) {
  if (v.isNone()) return {};
  return static_cast<const Held&>(*v.toCapsule()).attributes;
}
std::shared_ptr<const frontend::Substituted> substituted_at(const IValue& attributes) {
  if (attributes.isNone()) return nullptr;
  return static_cast<const Held&>(*attributes.toCapsule()).substituted;
}

c10::FunctionSchema schema_of(const std::string& name) {
  return {name,
          "",
          {c10::Argument("operands", c10::ListType::ofTensors()), c10::Argument("attributes", c10::AnyType::get())},
          {c10::Argument("", c10::ListType::ofTensors())}};
}

Operator::Values pack(Residuals residuals) {
  return {IValue(c10::List<Tensor>(residuals.tensors)), pack(residuals.other)};
}

Residuals residuals_of(const Frame& frame) { return {tensors_of(frame.saved[0]), unpack(frame.saved[1])}; }

size_t count(const IValue& list) { return list.isInt() ? static_cast<size_t>(list.toInt()) : list.toListRef().size(); }

void generate_derivatives(HigherOrderRules& rules) {
  rules.save = [](const Tensors& operands, const Tensors&, const Attributes&) { return Residuals{operands, {}}; };
  auto forward = rules.forward;
  rules.vjp = [forward](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                        const Attributes& attributes) {
    return pull_back_through([&](const Tensors& x) { return forward(x, attributes); }, saved.tensors, cotangents,
                             needs);
  };
  rules.jvp = [forward](const Residuals& saved, const Tensors& tangents, const Attributes& attributes) {
    return dynamic::jvp([&](const Tensors& x) { return forward(x, attributes); }, saved.tensors, tangents).second;
  };
}

// Where code of the caller's runs that may have captured what LibTorch's autograd follows. That the operands are not
// followed, by which the levels went when they put LibTorch's autograd aside, says nothing of that.
class FollowedByLibTorch {
 public:
  explicit FollowedByLibTorch(bool lifts_captured) {
    if (lifts_captured && c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled())
      keys_.with_libtorch_autograd();
  }

 private:
  DispatchGuard keys_;
};

class Implementation final : public MadeOperator {
 public:
  explicit Implementation(HigherOrderRules rules, std::shared_ptr<const KnownCode> code = nullptr)
      : MadeOperator(rules.name, schema_of(rules.name)), rules_(std::move(rules)), code_(std::move(code)) {
    custom = true;
    if (code_) {
      foreign_ = code_->foreign;
      random_ = code_->random;
    }
    if (!rules_.forward && rules_.forward_and_save)
      rules_.forward = [both = rules_.forward_and_save](const Tensors& operands, const Attributes& attributes) {
        return both(operands, attributes).first;
      };
    generates_derivatives_ = rules_.generate_derivatives && !rules_.vjp && !rules_.jvp;
    if (generates_derivatives_) {
      generate_derivatives(rules_);
      if (!rules_.sparsity) rules_.sparsity = rules_.forward;
    }
    vjp_is_linear = rules_.linear_vjp;
    lifts_captured = static_cast<bool>(rules_.lift);
    if (!rules_.generate_vmap && !rules_.vmap)
      unsupported[static_cast<size_t>(Kind::vmap)] = "it has no vmap rule, and generating one was not allowed";
    implementation = [this](Stack& stack) { evaluate(stack); };
    save = [this](c10::ArrayRef<IValue> args, c10::ArrayRef<IValue> outs) { return save_call(args, outs); };
    if (rules_.forward_and_save)
      call_and_save = [this](c10::ArrayRef<IValue> args) {
        const frontend::SubstitutedAs there(substituted_at(args[1]));
        const FollowedByLibTorch followed(lifts_captured);
        auto [outs, residuals] = rules_.forward_and_save(tensors_of(args[0]), unpack(args[1]));
        check_defined(outs);
        return std::pair(Stack{c10::List<Tensor>(outs)}, pack(std::move(residuals)));
      };
    if (rules_.vjp) vjp.push_back({1, {}, [this](VjpFrame& frame) { pull_back(frame); }});
    if (rules_.jvp) jvp.push_back({1, {}, [this](JvpFrame& frame) { push_forward(frame); }});
    if (rules_.vmap) vmap = [this](VmapFrame& frame) { map(frame); };
  }

  const HigherOrderRules& rules() const { return rules_; }
  const KnownCode* code() const { return code_.get(); }
  bool saves_at_every_level() const override { return rules_.saves_at_every_level; }

  bool stand_in(Stack& stack) const override {
    if (!rules_.sparsity) return false;
    const frontend::SubstitutedAs there(substituted_at(stack[1]));
    const Tensors outs = rules_.sparsity(tensors_of(stack[0]), unpack(stack[1]));
    if (outs.empty()) return false;
    stack = {c10::List<Tensor>(outs)};
    return true;
  }

  void call(Stack& stack) const override {
    // Without rules of its own LibTorch may record the operators that it is made of, captured tensors and all.
    if (!generates_derivatives_ && record_in_libtorch(*this, stack)) return;
    const Topped alone(lifts_captured ? nullptr : top());
    evaluate_inside(*this, stack);
  }

 private:
  void check_defined(const Tensors& outs) const {
    for (const Tensor& t : outs)
      if (!t.defined()) throw ArgumentError(name() + ": its forward returned an undefined tensor.");
  }

  // What the function captured, it may return, too.
  void check_seen(const Tensor& out) const {
    const Tensor captured = strip_constants(out);
    const Wrapper* w = as_wrapper(captured);
    if (!w || is_visible(&w->level()) || w->level().ended() || w->level().thread() != this_thread()) return;
    detail::ForeignFrame::raise(InvisibleTensorError(
        w->level().describe() + ": " + name() + " returned a tensor of this transform that it had captured inside of " +
            "one of the transform's own rules or below it, where it cannot be seen.",
        captured));
  }

  void check_count(size_t found, size_t expected, const char* what, const char* of) const {
    if (found != expected)
      throw DerivativeError(name() + ": its " + what + " returned " + std::to_string(found) +
                            " tensors, but there are " + std::to_string(expected) + " " + of +
                            ". Return one for each, undefined where it is zero.");
  }

  // Gradients and tangents have shape and dtype of what they belong to.
  void check_like(const Tensor& found, const Meta& meta, const char* what, const std::string& of) const {
    if (found.defined() && !meta.matches(found))
      throw DerivativeError(name() + ": its " + what + " rule gave " + describe(found) + " for " + of + ", which is " +
                            meta.describe() + ". Return a tensor of that shape and dtype.");
  }

  std::string name_of(size_t operand, const Attributes& attributes) const {
    return rules_.operand_name ? rules_.operand_name(operand, attributes) : "operand " + std::to_string(operand);
  }

  void evaluate(Stack& stack) const {
    const frontend::SubstitutedAs there(substituted_at(stack[1]));
    const FollowedByLibTorch followed(lifts_captured);
    Tensors outs = frontend::stand_ins(rules_.forward(tensors_of(stack[0]), unpack(stack[1])));
    check_defined(outs);
    for (const Tensor& t : outs) check_seen(t);
    stack.clear();
    stack.emplace_back(c10::List<Tensor>(outs));
  }

  Values save_call(c10::ArrayRef<IValue> args, c10::ArrayRef<IValue> outs) const {
    const frontend::SubstitutedAs there(substituted_at(args[1]));
    const FollowedByLibTorch followed(lifts_captured);
    Tensors operands = tensors_of(args[0]);
    if (rules_.save) return pack(rules_.save(operands, tensors_of(outs[0]), unpack(args[1])));
    if (rules_.forward_and_save) return pack(rules_.forward_and_save(operands, unpack(args[1])).second);
    for (const auto& e : outs[0].toListRef()) operands.push_back(e.toTensor());
    return pack(Residuals{std::move(operands), {}});
  }

  void pull_back(VjpFrame& frame) const {
    const size_t operands = count(frame.args[0]);
    std::vector<bool> needs(operands, false);
    for (const LeafRef& leaf : frame.wanted) needs[leaf.element] = true;
    const AsUserCode user;
    const frontend::SubstitutedAs there(substituted_at(frame.args[1]));
    const FollowedByLibTorch followed(lifts_captured);
    Tensors gradients = rules_.vjp(residuals_of(frame), Tensors(frame.cotangents.begin(), frame.cotangents.end()),
                                   needs, unpack(frame.args[1]));
    check_count(gradients.size(), operands, "vjp rule", "operands");
    for (size_t k = 0; k < frame.wanted.size(); ++k) {
      Tensor& gradient = gradients[frame.wanted[k].element];
      if (gradient.defined() && !frame.wanted_meta[k]->matches(gradient))
        check_like(gradient, *frame.wanted_meta[k], "vjp", name_of(frame.wanted[k].element, unpack(frame.args[1])));
      frame.gradients[k] = std::move(gradient);
    }
  }

  void push_forward(JvpFrame& frame) const {
    const AsUserCode user;
    const frontend::SubstitutedAs there(substituted_at(frame.args[1]));
    const FollowedByLibTorch followed(lifts_captured);
    Tensors tangents =
        rules_.jvp(residuals_of(frame), Tensors(frame.leaves.begin(), frame.leaves.end()), unpack(frame.args[1]));
    check_count(tangents.size(), frame.outs_meta.size(), "jvp rule", "outputs");
    for (size_t k = 0; k < tangents.size(); ++k) {
      check_like(tangents[k], *frame.outs_meta[k], "jvp", "output " + std::to_string(k));
      frame.tangents[k] = std::move(tangents[k]);
    }
  }

  void map(VmapFrame& frame) const {
    Dims in_dims;
    for (int64_t dim : frame.list_dims[0])
      in_dims.push_back(dim == VmapFrame::kUnbatched ? std::nullopt : std::optional(dim));
    const AsUserCode user;
    const frontend::SubstitutedAs there(substituted_at(frame.stack[1]));
    const FollowedByLibTorch followed(lifts_captured);
    auto [outs, out_dims] = rules_.vmap(info_of(frame), in_dims, tensors_of(frame.stack[0]), unpack(frame.stack[1]));
    check_defined(outs);
    set_out_dims(frame, outs, out_dims);
    frame.stack.clear();
    frame.stack.emplace_back(c10::List<Tensor>(outs));
  }

  HigherOrderRules rules_;
  std::shared_ptr<const KnownCode> code_;
  bool generates_derivatives_ = false;
};

// ---- captured tensors ----------------------------------------------------------------------------------------------

// The rules with one operand more, which stands for a captured tensor wherever they meet it.
HigherOrderRules lift(const HigherOrderRules& rules, const Tensor& captured) {
  auto split = [](const Tensors& all) { return std::pair(Tensors(all.begin(), all.end() - 1), all.back()); };
  HigherOrderRules lifted = rules;
  lifted.forward_and_save = nullptr;
  lifted.saves_at_every_level = false;
  lifted.forward = [forward = rules.forward, captured, split](const Tensors& all, const Attributes& attributes) {
    auto [operands, value] = split(all);
    const Substitution stand_in({{captured, value}});
    return frontend::stand_ins(forward(operands, attributes));
  };
  if (rules.sparsity)
    lifted.sparsity = [sparsity = rules.sparsity, captured, split](const Tensors& all, const Attributes& attributes) {
      auto [operands, value] = split(all);
      const Substitution stand_in({{captured, value}});
      return frontend::stand_ins(sparsity(operands, attributes));
    };
  lifted.save = [rules, captured, split](const Tensors& all, const Tensors& outs, const Attributes& attributes) {
    auto [operands, value] = split(all);
    const Substitution stand_in({{captured, value}});
    Residuals residuals;
    if (rules.save) {
      residuals = rules.save(operands, outs, attributes);
    } else if (rules.forward_and_save) {
      residuals = rules.forward_and_save(operands, attributes).second;
    } else {
      residuals.tensors = operands;
      residuals.tensors.insert(residuals.tensors.end(), outs.begin(), outs.end());
    }
    residuals.tensors.push_back(value);
    return residuals;
  };
  if (rules.vjp)
    lifted.vjp = [vjp = rules.vjp, captured, split](const Residuals& saved, const Tensors& cotangents,
                                                    const std::vector<bool>& needs, const Attributes& attributes) {
      auto [tensors, value] = split(saved.tensors);
      const Substitution stand_in({{captured, value}});
      Tensors gradients =
          vjp({tensors, saved.other}, cotangents, std::vector<bool>(needs.begin(), needs.end() - 1), attributes);
      gradients.emplace_back();
      return gradients;
    };
  if (rules.jvp)
    lifted.jvp = [jvp = rules.jvp, captured, split](const Residuals& saved, const Tensors& tangents,
                                                    const Attributes& attributes) {
      auto [tensors, value] = split(saved.tensors);
      const Substitution stand_in({{captured, value}});
      return jvp({tensors, saved.other}, Tensors(tangents.begin(), tangents.end() - 1), attributes);
    };
  if (rules.vmap)
    lifted.vmap = [vmap = rules.vmap, captured, split](const VmapInfo& info, const Dims& in_dims, const Tensors& all,
                                                       const Attributes& attributes) {
      if (in_dims.back())
        throw UnsupportedError(
            "vmap: the vmap rule of a higher-order operator uses a batched tensor that it captured. "
            "Pass the tensor as an operand.");
      auto [operands, value] = split(all);
      const Substitution stand_in({{captured, value}});
      return vmap(info, Dims(in_dims.begin(), in_dims.end() - 1), operands, attributes);
    };
  return lifted;
}

constexpr int kMostCaptured = 64;

// NOTE [Substituted in graphs]
// A graph's call runs its code again when what is substituted now is no more. So where a trace runs, whatever the code
// may read and something stands for becomes an operand of the call. Operators without `lift` keep what is substituted,
// and a trace refuses them.
Tensors enter_operator(const Operator& op, const Tensors& operands, const Attributes& attributes,
                       bool has_all_as_operands = false) {
  Stack stack{c10::List<Tensor>(operands), pack(attributes, has_all_as_operands ? nullptr : frontend::substituted())};
  enter(op, stack);
  return tensors_of(stack[0]);
}

}  // namespace

struct HigherOrderOperator::Record {
  c10::intrusive_ptr<Implementation> op;
};

HigherOrderOperator::HigherOrderOperator(HigherOrderRules rules)
    : record_(std::make_shared<Record>(Record{c10::make_intrusive<Implementation>(std::move(rules))})) {}
HigherOrderOperator::HigherOrderOperator(const HigherOrderOperator&) = default;
HigherOrderOperator& HigherOrderOperator::operator=(const HigherOrderOperator&) = default;
HigherOrderOperator::~HigherOrderOperator() = default;

const std::string& HigherOrderOperator::name() const { return record_->op->name(); }

namespace {

bool is_visible_here(const Tensor& t) {
  const Wrapper* w = as_wrapper(t);
  if (!w || is_visible(&w->level())) return true;
  w = as_wrapper(strip_constants(t));
  return !w || is_visible(&w->level());
}

// The tensor as the code that captured it knows it. What stands for that now will not when a pullback runs the code.
Tensor name_of(const Tensor& met, const Tensors& known) {
  for (const Tensor& original : frontend::replaced_by(met))
    if (std::none_of(known.begin(), known.end(), [&](const Tensor& t) { return t.is_same(original); })) return original;
  return met;
}

// Calls it with the captured tensors behind the operands. Where the forward meets a tensor of a level that the operator
// had passed, that joins them, and it is evaluated again.
Tensors call(c10::intrusive_ptr<Implementation> op, const Tensors& operands, const Attributes& attributes,
             Tensors& captured) {
  const bool all_as_operands = tracing() && op->rules().lift;
  if (all_as_operands)
    for (const Tensor& original : frontend::replaced()) {
      if (std::any_of(captured.begin(), captured.end(), [&](const Tensor& t) { return t.is_same(original); })) continue;
      op = c10::make_intrusive<Implementation>(op->rules().lift(original));
      captured.push_back(original);
    }
  for (int lifted = 0;; ++lifted) {
    Tensors all = operands;
    all.insert(all.end(), captured.begin(), captured.end());
    Tensor next;
    try {
      return enter_operator(*op, all, attributes, all_as_operands);
    } catch (const InvisibleTensorError& error) {
      next = error.tensor();
      if (lifted == kMostCaptured || !is_visible_here(next)) throw;  // not this call's to solve
    }
    next = name_of(next, captured);
    const HigherOrderRules& rules = op->rules();
    if (!rules.lift && is_tracked(next))
      throw UnsupportedError(
          as_wrapper(next)->level().describe() + ": " + op->name() + " uses a tensor (" + describe(next) +
          ") that it captured instead of taking it as an argument, and that is differentiated. Its rules give no "
          "gradient for it; pass it as an argument.");
    op = c10::make_intrusive<Implementation>(rules.lift ? rules.lift(next) : lift(rules, next));
    captured.push_back(next);
  }
}

}  // namespace

Tensors HigherOrderOperator::operator()(const Tensors& operands, const Attributes& attributes) const {
  Tensors captured;
  return call(record_->op, operands, attributes, captured);
}

Tensors call_lifting(HigherOrderRules rules, const Tensors& operands, const Attributes& attributes, Tensors& captured) {
  return call(c10::make_intrusive<Implementation>(std::move(rules)), operands, attributes, captured);
}

c10::intrusive_ptr<const Operator> known_operator(HigherOrderRules rules, std::shared_ptr<const KnownCode> code) {
  return c10::make_intrusive<Implementation>(std::move(rules), std::move(code));
}

Tensors call_known(HigherOrderRules rules, std::shared_ptr<const KnownCode> code, const Tensors& operands) {
  // The code is a graph, which was given its captured tensors.
  return enter_operator(*known_operator(std::move(rules), std::move(code)), operands, {}, true);
}

bool may_read_substituted(const Operator& op, c10::ArrayRef<IValue> args) {
  const auto* made = op.handle() ? nullptr : dynamic_cast<const Implementation*>(&op);
  return made && substituted_at(args[1]);
}

const KnownCode* known_code(const Operator& op) {
  const auto* made = op.handle() ? nullptr : dynamic_cast<const Implementation*>(&op);
  return made ? made->code() : nullptr;
}

bool do_the_same(const Operator& a, const Operator& b) {
  if (a.handle() || b.handle()) return &a == &b;
  const KnownCode *x = known_code(a), *y = known_code(b);
  return x && y && x->does_the_same(*y);
}

}  // namespace tower
