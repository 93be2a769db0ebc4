// cond as a higher-order operator. Its derivatives are conds over the derivatives of the branches, so what an example
// did not take is selected away after it was computed, and never multiplied by zero.
#include "tower/cond.h"

#include <ATen/Functions.h>

#include "core/wrapper.h"
#include "operators/differentiate.h"
#include "tower/errors.h"
#include "tower/higher_order.h"
#include "tower/substitution.h"

namespace tower {
namespace {

using dynamic::Function;
using dynamic::Tensors;

// At this level or one below, examples have different values.
bool differs_between_examples(Tensor t) {
  while (Wrapper* w = as_wrapper(t)) {
    if (w->payload().tracked() && w->level().kind() == Kind::vmap) return true;
    Tensor value = w->payload().value;
    t = std::move(value);
  }
  return false;
}

Tensors without_first(const Tensors& all) { return {all.begin() + 1, all.end()}; }

Tensors select(const Tensor& predicate, const Tensors& a, const Tensors& b) {
  if (a.size() != b.size())
    throw ArgumentError("cond: true_branch returned " + std::to_string(a.size()) + " outputs and false_branch " +
                        std::to_string(b.size()) +
                        ", but the predicate differs between examples: both must return "
                        "the same.");
  Tensors selected;
  for (size_t k = 0; k < a.size(); ++k) {
    if (!a[k].sizes().equals(b[k].sizes()) || a[k].scalar_type() != b[k].scalar_type())
      throw ArgumentError("cond: output " + std::to_string(k) + " of true_branch is " + describe(a[k]) +
                          ", that of false_branch " + describe(b[k]) +
                          ", but the predicate differs between examples: both must have the same shape and dtype.");
    selected.push_back(at::where(predicate, a[k], b[k]));
  }
  return selected;
}

// Operand 0 is the predicate.
HigherOrderRules rules_of(const Function& true_branch, const Function& false_branch) {
  HigherOrderRules rules;
  rules.name = "cond";
  rules.forward = [=](const Tensors& all, const Attributes&) {
    const Tensors operands = without_first(all);
    if (!differs_between_examples(all[0]))
      return at::is_nonzero(strip_constants(all[0])) ? true_branch(operands) : false_branch(operands);
    // Both are run for all examples: what one wrote, examples that take the other would see.
    const auto unchanged = [&](const char* which, const Function& branch) {
      std::vector<uint64_t> before;
      for (const Tensor& t : operands) before.push_back(write_count(t));
      Tensors outs = branch(operands);
      for (size_t i = 0; i < operands.size(); ++i)
        if (write_count(operands[i]) != before[i])
          throw MutationError(std::string("cond: ") + which + " writes to operand " + std::to_string(i) +
                              ", but the predicate differs between examples, and the branch is run for all of them. "
                              "Clone the operand first, and return what the write was for.");
      return outs;
    };
    const Tensors when_true = unchanged("true_branch", true_branch);
    return select(all[0], when_true, unchanged("false_branch", false_branch));
  };
  rules.save = [](const Tensors& all, const Tensors&, const Attributes&) { return Residuals{all, {}}; };
  rules.vjp = [=](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                  const Attributes&) {
    // Cotangents that are zero are left out of the operands.
    Tensors operands = without_first(saved.tensors);
    const size_t count = operands.size();
    for (const Tensor& ct : cotangents)
      if (ct.defined()) operands.push_back(ct);
    const std::vector<bool> wanted(needs.begin() + 1, needs.end());
    std::vector<bool> given;
    for (const Tensor& ct : cotangents) given.push_back(ct.defined());
    auto gradients_of = [=](const Function& branch) -> Function {
      return [=](const Tensors& values) {
        Tensors cts(given.size());
        size_t next = count;
        for (size_t k = 0; k < cts.size(); ++k)
          if (given[k]) cts[k] = values[next++];
        Tensors found = pull_back_through(branch, Tensors(values.begin(), values.begin() + static_cast<int64_t>(count)),
                                          cts, wanted);
        Tensors defined;
        for (size_t i = 0; i < count; ++i)
          if (wanted[i]) defined.push_back(found[i]);
        return defined;
      };
    };
    const Tensors found =
        dynamic::cond(saved.tensors[0], gradients_of(true_branch), gradients_of(false_branch), operands);
    Tensors gradients(needs.size());
    size_t next = 0;
    for (size_t i = 0; i < count; ++i)
      if (wanted[i]) gradients[i + 1] = found[next++];
    return gradients;
  };
  rules.jvp = [=](const Residuals& saved, const Tensors& tangents, const Attributes&) {
    Tensors operands = without_first(saved.tensors);
    const size_t count = operands.size();
    std::vector<bool> given;
    for (size_t i = 0; i < count; ++i) {
      given.push_back(tangents[i + 1].defined());
      if (given.back()) operands.push_back(tangents[i + 1]);
    }
    auto along = [=](const Function& branch) -> Function {
      return [=](const Tensors& values) {
        Tensors directions(count);
        size_t next = count;
        for (size_t i = 0; i < count; ++i)
          if (given[i]) directions[i] = values[next++];
        return dynamic::jvp(branch, Tensors(values.begin(), values.begin() + static_cast<int64_t>(count)), directions)
            .second;
      };
    };
    return dynamic::cond(saved.tensors[0], along(true_branch), along(false_branch), operands);
  };
  rules.lift = [=](const Tensor& captured) {
    auto with_operand = [captured](const Function& branch) -> Function {
      return [=](const Tensors& operands) {
        const Substitution stand_in({{captured, operands.back()}});
        return branch(Tensors(operands.begin(), operands.end() - 1));
      };
    };
    return rules_of(with_operand(true_branch), with_operand(false_branch));
  };
  return rules;
}

}  // namespace

Tensors dynamic::cond(const Tensor& predicate, Function true_branch, Function false_branch, const Tensors& operands) {
  if (!predicate.defined() || predicate.numel() != 1)
    throw ArgumentError("cond: the predicate must be a tensor of one element, but it is " + describe(predicate) +
                        ". Reduce it with any() or all(), or use where() for a choice by element.");
  Tensor choice = predicate.dim() == 0 ? predicate : predicate.reshape({});
  // A number has a derivative, a choice has none.
  if (choice.scalar_type() != at::kBool) choice = choice.ne(0);
  if (!differs_between_examples(choice))
    return at::is_nonzero(strip_constants(choice)) ? true_branch(operands) : false_branch(operands);
  Tensors all{choice};
  all.insert(all.end(), operands.begin(), operands.end());
  return HigherOrderOperator(rules_of(true_branch, false_branch))(all);
}

}  // namespace tower
