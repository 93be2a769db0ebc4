// From the functions that users register (tower/custom_op.h) to the rules of an operator's record.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "core/operator.h"
#include "tower/custom_op.h"

namespace tower {

/// All that was registered for one operator, by whomever. A user's function is held, not copied: records and registry
/// change under a lock, where nothing of the user's is copied or destroyed.
struct CustomRules {
  template <class F>
  using Held = std::shared_ptr<const F>;

  Held<detail::SaveFunction> save;
  Held<detail::BackwardFunction> backward;
  BackwardOptions backward_options;
  bool linear_backward = false;
  std::vector<std::string> no_gradient;
  Held<detail::JvpFunction> jvp;
  Held<detail::VmapFunction> vmap;
  Held<std::function<void(torch::jit::Stack&)>> sparsity;
  bool defined = false;  // by custom_op, which then also stands at its Autograd key
  int bridges = 0;       // parts of the program that put Tower's kernel at its Autograd keys
  /// C++ types of what must fit the schema: "vmap rule", "kernel for CPU", …
  std::map<std::string, c10::FunctionSchema> signatures;

  bool any_rule() const {
    return save || backward || linear_backward || !no_gradient.empty() || jvp || vmap || sparsity;
  }
};

/// What a record held before custom rules were put into it.
struct PlainRules {
  explicit PlainRules(const Operator& op);
  void restore(Operator& op) const;

  VmapRule vmap;
  bool vmap_is_pointwise;
  const char* vmap_family;
  std::vector<DerivativeRule<VjpFrame>> vjp;
  std::vector<DerivativeRule<JvpFrame>> jvp;
  std::function<void(Stack&)> implementation;
  Mask inactive_args, nondifferentiable_outs;
  bool custom, vjp_is_linear, bridged, no_derivative;
  std::function<Operator::Values(c10::ArrayRef<IValue>, c10::ArrayRef<IValue>)> save;
};

/// Throws ArgumentError where the rules do not fit the operator.
void check_rules(const Operator& op, const CustomRules& rules);

/// Puts them into the record.
void fill_record(Operator& op, const CustomRules& rules);

}  // namespace tower
