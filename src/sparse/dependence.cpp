#include "sparse/dependence.h"

#include <limits>
#include <mutex>

#include "core/bind.h"
#include "core/gives_tensors.h"
#include "interpreters/custom.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower::sparse {

namespace {

bool differentiable(const Tensor& t) { return t.is_floating_point() || t.is_complex(); }

bool gives_numbers(const Stack& outs) {
  for (const IValue& v : outs) {
    if (v.isTensor() && v.toTensor().defined() && differentiable(v.toTensor())) return true;
    if (!v.isTensorList()) continue;
    for (const auto& e : v.toListRef())
      if (e.toTensor().defined() && differentiable(e.toTensor())) return true;
  }
  return false;
}

std::vector<Tensor> ids_of(const Level& level, const Operator& op, const std::vector<Tensor>& stand_ins,
                           const std::vector<Tensor>& outs) {
  std::vector<Tensor> result;
  for (size_t k = 0; k < outs.size(); ++k) {
    const Tensor stand_in = k < stand_ins.size() ? stand_ins[k] : Tensor();
    if (outs[k].defined() && (!stand_in.defined() || !stand_in.sizes().equals(outs[k].sizes())))
      throw ArgumentError(level.describe() + ": output " + std::to_string(k) + " of " + op.name() + " is " +
                          describe(outs[k]) + ", but what stands for it in patterns is " + describe(stand_in) +
                          ". Its stand-in returns tensors of the same shapes.");
    Wrapper* w = as_wrapper(stand_in);
    if (w && &w->level() != &level)
      throw UnsupportedError(
          w->level().describe() + ": " + op.name() +
          " has a stand-in in patterns that returned a tensor which it captured. Pass the tensor as an operand.");
    result.push_back(w ? w->payload().tangent : Tensor());
  }
  return result;
}

// Once for each operator.
void announce_dense(const char* label, const Operator& op) {
  static std::mutex mutex;
  static auto* announced = new std::set<std::string>;
  {
    const std::lock_guard lock(mutex);
    if (!announced->insert(op.name()).second) return;
  }
  TORCH_WARN(label, ": it is not known which elements the results of ", op.name(),
             " depend on, so all depend on all in the pattern (its taken_for_dense). Write that with other "
             "operators, or give a custom operator a sparsity rule (docs/solvers.md).");
}

}  // namespace

int32_t Dependence::new_elements(int64_t count) {
  const int64_t first = std::exchange(elements_, elements_ + count);
  if (elements_ > std::numeric_limits<int32_t>::max())
    throw ArgumentError(std::string(label()) + ": there are more elements than are supported.");
  return static_cast<int32_t>(first);
}

// Empty: nothing stands for it.
std::vector<Tensor> Dependence::by_stand_in(const Operator& op, const Stack& stack) {
  Stack outs = stack;
  const Topped as_top(this);
  const AsUserCode user;
  if (!op.stand_in(outs)) return {};
  std::vector<Tensor> result;
  for (const Tensor& t : flatten_outputs(outs)) result.push_back(t);
  return result;
}

std::string Dependence::why_and_what_to_do() const {
  if (dense_.empty())
    return ". Where there is memory for as many, raise the option most_entries; else take jvp and vjp, which "
           "need "
           "no pattern.";
  std::string names;
  for (const std::string& name : dense_) names += (names.empty() ? "" : ", ") + name;
  return ", because Tower does not know which elements the results of " + names +
         " depend on, and takes them to depend on all. Write that with other operators, give a custom operator a "
         "sparsity rule, or give sparse_jacobian a pattern of your own (docs/solvers.md); where there is memory for as "
         "many, raise the option most_entries.";
}

std::vector<Tensor> Dependence::found_by(Rule rule, const CallWithIds& call) const {
  try {
    return rule(call);
  } catch (const Sets::TooMany&) {
    throw UnsupportedError(std::string(label()) + ": at " + call.op.name() +
                           " the sets of elements that others depend on have more than " +
                           std::to_string(kSetsAnEntry) + " times " + std::to_string(most_entries_) +
                           " elements (most_entries)" + why_and_what_to_do());
  }
}

// `op` is given something that depends on x.
void Dependence::check_reads(const Operator& op) const {
  if (values_decide_ || gives_only_tensors(op)) return;
  throw UnsupportedError(describe() + ": " + op.name() +
                         " reads a value that depends on x, for the program to go by; at another x it may go another "
                         "way, and the pattern lack entries. Choose by where(), " +
                         detail::spellings().cond + " or " + detail::spellings().while_loop +
                         "; or set values_decide, for the pattern of the way taken at this x.");
}

void Dependence::process(const Operator& op, Stack& stack) {
  bool any = false;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper_of(t, *this);
    any = any || (w && w->payload().tracked());
  });
  any = any && !op.no_derivative();
  const Rule rule = any ? rule_of(op) : nullptr;
  if (any && !rule && op.opens_up() && decompose(op, stack)) return;

  const std::vector<Tensor> stand_ins = any && !rule ? by_stand_in(op, stack) : std::vector<Tensor>();
  std::vector<std::pair<LeafRef, Tensor>> tracked;
  bool wrapped = false, from_x = op.random();
  Mask varying = 0;
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef leaf) {
    Tensor value = t;
    Wrapper* w = as_wrapper_of(t, *this);
    if (w) {
      value = w->payload().value;
      if (any && w->payload().tracked()) tracked.emplace_back(leaf, w->payload().tangent);
    }
    if (w && is_from_x(*w)) {
      from_x = true;
      varying |= Mask{1} << leaf.arg;
    }
    wrapped = wrapped || value.key_set().has(kKey);
    return value;
  });
  if (from_x) check_reads(op);
  Below below(*this);
  Stack args = tracked.empty() ? Stack() : stack;
  call_below(*this, op, stack, wrapped);
  std::vector<Tensor> found;
  if (!tracked.empty() && gives_numbers(stack)) {
    // Positions and masks are applied to identifiers, which are the CPU's.
    replace_tensors(op, args, [](const Tensor& t, LeafRef) { return t.cpu(); });
    const CallWithIds call{op, args, stack, tracked, sets_, varying};
    if (rule) found = found_by(rule, call);
    else if (!stand_ins.empty()) found = ids_of(*this, op, stand_ins, call.outputs());
    if (found.empty()) {
      if (dense_.insert(op.name()).second) announce_dense(label(), op);
      found = found_by(dense, call);
    }
  }
  replace_outputs(stack, [&](Tensor&& t, size_t k) {
    Tensor ids = k < found.size() && t.defined() && differentiable(t) ? found[k] : Tensor();
    return wrap(*this, Payload{std::move(t), std::move(ids), from_x ? kFromX : kConstant});
  });
}

}  // namespace tower::sparse
