// Higher-order operators: operators whose attributes are functions, with a rule for each transform. Custom functions
// (tower/function.h), control flow (tower/cond.h) and custom operators (tower/custom_op.h) are made of them; most users
// want one of those. docs/higher_order_operators.md walks through one.
//
//   tower::HigherOrderOperator twice({
//       .name = "twice",
//       .forward = [](const Tensors& x, const Attributes& f) { return call(f, call(f, x)); },
//       .vjp = ...});
//   Tensors y = twice({x}, tower::attributes(f));
//
// What holds for every rule:
//   - A rule registered for a transform is honoured at every level of that transform, however many levels lie above it:
//     under vmap the operator's image is bound, an operator whose rules are these rules mapped.
//   - A rule is run as ordinary code of the levels below its own; its operators may be differentiated and mapped in
//     turn. So second derivatives are derivatives of the rules.
//   - Undefined tensors among cotangents, tangents and what rules return are zeros.
#pragma once

#include <memory>

#include "tower/dynamic.h"
#include "tower/vmap_info.h"

namespace tower {

class Operator;

/// What a call carries besides tensors: functions, numbers, anything. Rules get it as it was given.
using Attributes = std::shared_ptr<const void>;

/// `value`, held as attributes.
template <class T>
Attributes attributes(T value) {
  return std::make_shared<const T>(std::move(value));
}
/// What `attributes` hold, which must be a `T`: nothing checks it.
template <class T>
const T& attributes_as(const Attributes& attributes) {
  return *static_cast<const T*>(attributes.get());
}

/// What derivative rules are given of the call: tensors, and anything else.
struct Residuals {
  dynamic::Tensors tensors;  ///< followed by derivatives of higher order
  Attributes other;          ///< anything else
};

/// The rules of a higher-order operator. What is missing is an error that names operator and transform, or generated.
struct HigherOrderRules {
  /// Operands, outputs, cotangents, tangents: by position.
  using Tensors = dynamic::Tensors;
  /// An entry for each operand, or output.
  using Dims = dynamic::Dims;

  /// What messages call the operator.
  std::string name;

  /// Evaluates on operands; all outputs are defined tensors.
  std::function<Tensors(const Tensors& operands, const Attributes&)> forward = {};

  /// What vjp and jvp need, run once where the operator is recorded. If empty: the operands, then the outputs.
  std::function<Residuals(const Tensors& operands, const Tensors& outputs, const Attributes&)> save = {};
  /// Outputs and residuals in one evaluation, used instead of forward and save where no other rule is passed over.
  /// May stand without `save`.
  std::function<std::pair<Tensors, Residuals>(const Tensors& operands, const Attributes&)> forward_and_save = {};
  /// forward_and_save calls operators that have all rules of their own, so it is used at every level.
  bool saves_at_every_level = false;

  /// Gradients of the operands (undefined: zero). `needs[i]`: operand i is differentiated.
  std::function<Tensors(const Residuals&, const Tensors& cotangents, const std::vector<bool>& needs, const Attributes&)>
      vjp = {};
  /// Tangents of the outputs (undefined: zero); linear in `tangents`.
  std::function<Tensors(const Residuals&, const Tensors& tangents, const Attributes&)> jvp = {};
  /// Outputs for a batch, and where their batch dimensions are. Operands have theirs at `in_dims` (empty: none).
  std::function<std::pair<Tensors, Dims>(const VmapInfo&, const Dims& in_dims, const Tensors& operands,
                                         const Attributes&)>
      vmap = {};

  /// For sparsity patterns (tower/sparse.h): outputs of the same shapes, by operators, that depend on all that the
  /// operator's depend on; no tensors where that is not known of this call. Without it, all depends on all.
  std::function<Tensors(const Tensors& operands, const Attributes&)> sparsity = {};

  /// What messages call an operand; if empty, its number.
  std::function<std::string(std::size_t operand, const Attributes&)> operand_name = {};

  /// `vjp` is linear in the cotangents (no clipping, no noise): forward mode then needs no jvp rule.
  bool linear_vjp = false;
  /// vmap without a rule maps `forward`, its derivatives by the mapped rules.
  bool generate_vmap = true;
  /// Derivatives without any rule differentiate `forward`, evaluating it again.
  bool generate_derivatives = false;

  /// The same operator with one more operand, the last, in place of a tensor that its functions captured. Only for
  /// operators whose rules then give the new operand its derivatives; without this, captured tensors are passed on
  /// only where they are not differentiated.
  std::function<HigherOrderRules(const at::Tensor& captured)> lift = {};
};

/// An operator that is made of such rules, called like a function. A value: copies are the same operator.
class HigherOrderOperator {
 public:
  /// With these `rules`, of which `forward` or `forward_and_save` must be there.
  explicit HigherOrderOperator(HigherOrderRules rules);
  HigherOrderOperator(const HigherOrderOperator&);
  HigherOrderOperator& operator=(const HigherOrderOperator&);
  ~HigherOrderOperator();

  /// Calls it with `operands` and `attributes`, from user code or from a rule: every level whose tensors are among the
  /// operands applies its rule. Outside transforms LibTorch's autograd records it where an operand requires grad.
  ///
  /// A tensor that `forward` captured from a running transform instead of taking it as an operand is passed on as an
  /// operand where that is right. Throws UnsupportedError where it is not: where it is differentiated, for which the
  /// rules give no gradient.
  dynamic::Tensors operator()(const dynamic::Tensors& operands, const Attributes& attributes = {}) const;

  /// What messages call it.
  const std::string& name() const;

 private:
  struct Record;
  std::shared_ptr<const Record> record_;
};

}  // namespace tower
