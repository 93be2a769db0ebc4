// A tour. What an operator saves is the user's values and behind them one more, the structure of the outputs (Structure
// below): with it backward is given lists where the operator returns lists, and zeros where they are asked for. The
// record has one derivative rule for all tensor arguments; it gives the user's function what it declared, and checks
// what comes back before it reaches the tape.
#include "operators/custom_op_rules.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>

#include "core/bind.h"
#include "interpreters/vmap.h"
#include "operators/user_vmap.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower {

// ---- what rules are given ------------------------------------------------------------------------------------------

namespace {

const Tensor& tensor_in(const IValue& v) {
  static const Tensor undefined;
  return v.isNone() ? undefined : v.toTensor();
}

std::vector<Tensor> tensors_in(const IValue& v) {
  std::vector<Tensor> result;
  for (const auto& e : v.toListRef()) result.push_back(tensor_in(e));
  return result;
}

std::string names_of_arguments(const c10::FunctionSchema& schema) {
  std::string text;
  for (const auto& a : schema.arguments()) text += (text.empty() ? "'" : ", '") + a.name() + "'";
  return text;
}

std::optional<size_t> find_argument(const Operator& op, std::string_view name) {
  const auto& all = op.schema().arguments();
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].name() == name) return i;
  return std::nullopt;
}

size_t position_of(const Operator& op, std::string_view name) {
  if (const auto found = find_argument(op, name)) return *found;
  throw ArgumentError(op.name() + ": a rule asks for the argument '" + std::string(name) +
                      "', which the operator does not have; it has " + names_of_arguments(op.schema()) + ".");
}

}  // namespace

const IValue& ValueList::value(size_t i) const {
  if (i >= values_.size())
    throw ArgumentError("a rule asks for value " + std::to_string(i) + " of " + std::to_string(values_.size()) +
                        ". Values are counted from 0, in the order of the outputs, or in which they were saved.");
  return values_[i];
}
const Tensor& ValueList::tensor(size_t i) const { return tensor_in(value(i)); }
std::vector<Tensor> ValueList::tensors(size_t i) const { return tensors_in(value(i)); }

size_t Arguments::position(std::string_view name) const { return position_of(*op_, name); }
const IValue& Arguments::value(std::string_view name) const { return values_[position(name)]; }
const Tensor& Arguments::tensor(std::string_view name) const { return tensor_in(value(name)); }
std::vector<Tensor> Arguments::tensors(std::string_view name) const { return tensors_in(value(name)); }

std::optional<int64_t> BatchDims::operator[](std::string_view name) const {
  const auto& dims = list(name);
  return dims.empty() ? std::nullopt : dims[0];
}
const dynamic::Dims& BatchDims::list(std::string_view name) const { return dims_[position_of(*op_, name)]; }

Gradients detail::gradients_of(const IValue& value) {
  if (!value.isGenericDict())
    throw DerivativeError("a backward returned a value of type " + value.type()->str() +
                          ", not a map. Return a map from names of arguments to their gradients.");
  Gradients result;
  for (const auto& entry : value.toGenericDict()) {
    if (!entry.key().isString())
      throw DerivativeError("a backward returned a map whose keys are of type " + entry.key().type()->str() +
                            ". The keys are names of arguments.");
    const IValue& g = entry.value();
    if (g.isNone()) result[entry.key().toStringRef()] = Tensor();
    else if (g.isTensor()) result[entry.key().toStringRef()] = g.toTensor();
    else if (g.isList()) result[entry.key().toStringRef()] = tensors_in(g);
    else
      throw DerivativeError("a backward returned a gradient of type " + g.type()->str() + " for argument '" +
                            entry.key().toStringRef() + "'. A gradient is a tensor or a list of tensors.");
  }
  return result;
}

namespace {

// ---- the structure of outputs --------------------------------------------------------------------------------------

// In numbers, so that it can be saved: for every output the length of a list, -1 for a tensor, -2 for anything else;
// for every tensor its dtype (-1: undefined), device type and index, rank and sizes.
IValue structure_of(c10::ArrayRef<IValue> outs) {
  std::vector<int64_t> numbers;
  for (const IValue& v : outs)
    numbers.push_back(v.isTensorList() ? static_cast<int64_t>(v.toListRef().size()) : v.isTensor() ? -1 : -2);
  for (const Tensor& t : flatten_outputs(outs)) {
    if (!t.defined()) {
      numbers.push_back(-1);
      continue;
    }
    const Meta meta(t);
    numbers.insert(numbers.end(), {static_cast<int64_t>(meta.dtype), static_cast<int64_t>(meta.device.type()),
                                   meta.device.index(), meta.dim()});
    numbers.insert(numbers.end(), meta.sizes.begin(), meta.sizes.end());
  }
  return numbers;
}

class Structure {
 public:
  Structure(const IValue& numbers, size_t outs) : numbers_(numbers.toIntVector()), next_(outs), outs_(outs) {}

  // Gradients of the outputs, lists where they are lists; zeros for undefined ones if `materialize`.
  std::vector<IValue> gradients(c10::ArrayRef<Tensor> flat, bool materialize) {
    std::vector<IValue> result;
    size_t leaf = 0;
    for (size_t k = 0; k < outs_; ++k) {
      if (numbers_[k] < 0) {
        if (numbers_[k] == -1) result.emplace_back(gradient(flat[leaf++], materialize));
        else result.emplace_back();
        continue;
      }
      c10::List<Tensor> list;
      for (int64_t e = 0; e < numbers_[k]; ++e) list.push_back(gradient(flat[leaf++], materialize));
      result.emplace_back(std::move(list));
    }
    return result;
  }

 private:
  int64_t take() { return numbers_[next_++]; }

  Tensor gradient(const Tensor& given, bool materialize) {
    const int64_t dtype = take();
    if (dtype < 0) return given;
    const auto device_type = static_cast<at::DeviceType>(take());
    const at::Device device(device_type, static_cast<at::DeviceIndex>(take()));
    const auto rank = static_cast<size_t>(take());
    const at::IntArrayRef sizes(numbers_.data() + next_, rank);
    next_ += rank;
    if (given.defined() || !materialize) return given;
    const auto scalar = static_cast<at::ScalarType>(dtype);
    // Integers have no gradients, whoever asks.
    if (!c10::isFloatingType(scalar) && !c10::isComplexType(scalar)) return given;
    return at::zeros(sizes, at::TensorOptions().dtype(scalar).device(device));
  }

  std::vector<int64_t> numbers_;
  size_t next_, outs_;
};

// ---- saving --------------------------------------------------------------------------------------------------------

void check_saved(const Operator& op, const Saved& saved) {
  for (const IValue& v : saved) {
    bool holds_other = v.isTuple() || v.isGenericDict() || v.isObject() || v.isCapsule() || v.isPyObject();
    if (v.isList() && !v.isTensorList() && !v.isOptionalTensorList())
      for (const auto& e : v.toListRef()) holds_other = holds_other || e.isTensor() || e.isList() || e.isTuple();
    if (holds_other)
      throw ArgumentError("save_for_backward of " + op.name() + " saved a value of type " + v.type()->str() +
                          ". Save tensors, lists of tensors, numbers, strings, and lists of numbers.");
  }
}

auto saver(const Operator& op, CustomRules::Held<detail::SaveFunction> save) {
  return [&op, save = std::move(save)](c10::ArrayRef<IValue> args, c10::ArrayRef<IValue> outs) {
    Saved saved;
    if (save) {
      saved = (*save)(Arguments(op, args), ValueList(outs));
      check_saved(op, saved);
    } else {
      saved.assign(args.begin(), args.end());
      saved.insert(saved.end(), outs.begin(), outs.end());
    }
    saved.push_back(structure_of(outs));
    return saved;
  };
}

ValueList saved_by_user(const Frame& frame) { return ValueList(frame.saved.slice(0, frame.saved.size() - 1)); }

// ---- backward ------------------------------------------------------------------------------------------------------

std::string whose(const Operator& op, size_t arg, size_t element) {
  const std::string name = std::string("argument '") + op.argument_name(arg) + "'";
  return op.kind(arg) == ArgKind::tensor ? name : "element " + std::to_string(element) + " of " + name;
}

// Under autocast, formulas compute in another precision than the arguments have.
bool fits(const Tensor& t, const Meta& meta) {
  if (t.device() != meta.device || !t.sizes().equals(meta.sizes)) return false;
  return t.scalar_type() == meta.dtype || (at::autocast::is_autocast_enabled(meta.device.type()) &&
                                           t.is_floating_point() && c10::isFloatingType(meta.dtype));
}

std::string describe_with_device(const Meta& meta) { return meta.describe() + " on " + meta.device.str(); }

void give(VjpFrame& frame, size_t k, const Tensor& gradient) {
  if (!gradient.defined()) return;
  const LeafRef leaf = frame.wanted[k];
  if (!fits(gradient, *frame.wanted_meta[k]))
    throw DerivativeError("vjp of " + frame.op.name() + ": its backward gave a gradient of " +
                          describe_with_device(Meta(gradient)) + " for " + whose(frame.op, leaf.arg, leaf.element) +
                          ", which is " + describe_with_device(*frame.wanted_meta[k]) +
                          ". A gradient has the shape, dtype and device of its argument.");
  frame.give(leaf.arg, gradient, leaf.element);
}

void check_names(const Operator& op, const Gradients& gradients) {
  for (const auto& [name, gradient] : gradients) {
    const auto arg = find_argument(op, name);
    if (!arg)
      throw DerivativeError("vjp of " + op.name() + ": its backward gave a gradient for '" + name +
                            "', which is not an argument; the arguments are " + names_of_arguments(op.schema()) + ".");
    if (op.kind(*arg) == ArgKind::other)
      throw DerivativeError("vjp of " + op.name() + ": its backward gave a gradient for argument '" + name +
                            "', which is not a tensor but of type " + op.schema().arguments()[*arg].type()->str() +
                            ". Return gradients of tensors only.");
    const bool list = std::holds_alternative<std::vector<Tensor>>(gradient.value);
    if (list != (op.kind(*arg) != ArgKind::tensor))
      throw DerivativeError("vjp of " + op.name() + ": its backward gave a " + (list ? "list" : "tensor") +
                            " for argument '" + name + "', which is a " + (list ? "tensor" : "list of tensors") +
                            ". The gradient of a list is a list with an entry for each element.");
  }
}

void pull_back(VjpFrame& frame, const detail::BackwardFunction& backward, bool materialize) {
  const Operator& op = frame.op;
  const std::function<bool(std::string_view, size_t)> needs = [&](std::string_view name, size_t element) {
    const size_t arg = position_of(op, name);
    for (const LeafRef& leaf : frame.wanted)
      if (leaf.arg == arg && leaf.element == element) return true;
    return false;
  };
  const AsUserCode user;
  const auto grads = Structure(frame.saved.back(), op.num_outs()).gradients(frame.cotangents, materialize);
  const Gradients gradients =
      backward(BackwardContext(Arguments(op, frame.args), needs), saved_by_user(frame), ValueList(grads));
  check_names(op, gradients);
  std::vector<Tensor> flat;
  for (size_t k = 0; k < frame.wanted.size(); ++k) {
    const auto [arg, element] = frame.wanted[k];
    if (op.inactive_args >> arg & 1) continue;
    const auto found = gradients.find(op.argument_name(arg));
    if (found == gradients.end())
      throw DerivativeError("vjp of " + op.name() + ": its backward gave no gradient for argument '" +
                            op.argument_name(arg) +
                            "', which needs one. Return one; an undefined tensor is zero. If it always is, declare "
                            "no_gradient({\"" +
                            op.argument_name(arg) + "\"}).");
    if (const auto* list = std::get_if<std::vector<Tensor>>(&found->second.value)) {
      if (element >= list->size())
        throw DerivativeError("vjp of " + op.name() + ": its backward gave " + std::to_string(list->size()) +
                              " gradients for the list '" + op.argument_name(arg) +
                              "', which has more elements. Return an entry for each, undefined where it is zero.");
      give(frame, k, (*list)[element]);
    } else {
      give(frame, k, std::get<Tensor>(found->second.value));
    }
  }
}

// ---- jvp -----------------------------------------------------------------------------------------------------------

void push_forward(JvpFrame& frame, const detail::JvpFunction& jvp) {
  const Operator& op = frame.op;
  std::vector<IValue> tangents(frame.args.begin(), frame.args.end());
  for (uint8_t i : op.tensor_args()) {
    if (op.kind(i) == ArgKind::tensor) {
      tangents[i] = frame.tangent(i);
      continue;
    }
    c10::List<Tensor> list;
    for (const Tensor& t : frame.tangent_list(i)) list.push_back(t);
    tangents[i] = std::move(list);
  }
  const AsUserCode user;
  const auto result = jvp(CallContext(Arguments(op, frame.args)), saved_by_user(frame), Arguments(op, tangents));
  if (result.size() != frame.outs_meta.size())
    throw DerivativeError("jvp of " + op.name() + ": its rule returned " + std::to_string(result.size()) +
                          " tangents, but the operator has " + std::to_string(frame.outs_meta.size()) +
                          " outputs. Return one for each, undefined where it is zero.");
  for (size_t k = 0; k < result.size(); ++k) {
    const Meta& meta = *frame.outs_meta[k];
    if (!result[k].defined() || (!c10::isFloatingType(meta.dtype) && !c10::isComplexType(meta.dtype))) continue;
    if (!fits(result[k], meta))
      throw DerivativeError("jvp of " + op.name() + ": its rule gave a tangent of " +
                            describe_with_device(Meta(result[k])) + " for output " + std::to_string(k) + ", which is " +
                            describe_with_device(meta) + ". A tangent has the shape, dtype and device of its output.");
    frame.give(k, result[k]);
  }
}

// ---- vmap ----------------------------------------------------------------------------------------------------------

dynamic::Dims dims_of(const std::vector<int64_t>& dims) {
  dynamic::Dims result;
  for (int64_t d : dims) result.push_back(d == VmapFrame::kUnbatched ? std::nullopt : std::optional(d));
  return result;
}

void map(VmapFrame& frame, const detail::VmapFunction& vmap) {
  const Operator& op = frame.op;
  std::vector<dynamic::Dims> dims(op.num_args());
  for (uint8_t i : op.tensor_args()) {
    if (op.kind(i) == ArgKind::tensor) dims[i] = dims_of({frame.in_dims[i]});
    else if (i < frame.list_dims.size()) dims[i] = dims_of(frame.list_dims[i]);
  }
  const AsUserCode user;
  const dynamic::Dims out_dims = vmap(info_of(frame), BatchDims(op, std::move(dims)), frame.stack);
  const auto outs = flatten_outputs(frame.stack);
  set_out_dims(frame, outs, out_dims);
}

// ---- implementations -----------------------------------------------------------------------------------------------

void run_kernel(const Operator& op, Stack& stack) {
  at::Device device = at::kCPU;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) { device = t.device(); });
  const auto& handle = *op.handle();
  for (const auto key : {c10::computeDispatchKey(std::nullopt, at::kStrided, device),
                         c10::DispatchKey::CompositeExplicitAutograd, c10::DispatchKey::CompositeImplicitAutograd})
    if (handle.hasKernelForDispatchKey(key)) return handle.callBoxedForDispatchKey(key, stack);
  throw UnsupportedError(op.name() + " has no kernel for tensors on " + device.str() + ". Register one (" +
                         detail::spellings().new_operator + "), or move the tensors.");
}

}  // namespace

// ---- records -------------------------------------------------------------------------------------------------------

PlainRules::PlainRules(const Operator& op)
    : vmap(op.vmap),
      vmap_is_pointwise(op.vmap_is_pointwise),
      vmap_family(op.vmap_family),
      vjp(op.vjp),
      jvp(op.jvp),
      implementation(op.implementation),
      inactive_args(op.inactive_args),
      nondifferentiable_outs(op.nondifferentiable_outs),
      custom(op.custom),
      vjp_is_linear(op.vjp_is_linear),
      bridged(op.bridged),
      no_derivative(op.no_derivative()),
      save(op.save) {}

void PlainRules::restore(Operator& op) const {
  op.vmap = vmap;
  op.vmap_is_pointwise = vmap_is_pointwise;
  op.vmap_family = vmap_family;
  op.vjp = vjp;
  op.jvp = jvp;
  op.implementation = implementation;
  op.inactive_args = inactive_args;
  op.nondifferentiable_outs = nondifferentiable_outs;
  op.custom = custom;
  op.vjp_is_linear = vjp_is_linear;
  op.bridged = bridged;
  op.set_no_derivative(no_derivative);
  op.save = save;
  op.reads_memory = false;
  op.sparsity = nullptr;
}

void check_rules(const Operator& op, const CustomRules& rules) {
  const std::string schema = c10::toString(op.schema());
  if ((rules.any_rule() || rules.defined) && (op.mutates() || op.is_view()))
    throw ArgumentError("custom_op: " + schema + (op.mutates() ? " writes to its arguments" : " returns views") +
                        "; rules are for operators that return fresh tensors. Define one that does, and this one in "
                        "terms of it.");
  for (const auto& [what, signature] : rules.signatures) {
    const std::string difference = detail::schema_difference(signature, op.schema());
    if (!difference.empty())
      throw ArgumentError("custom_op: the " + what + " does not fit " + schema + ". " + difference);
  }
  for (const auto& name : rules.no_gradient) {
    const auto arg = find_argument(op, name);
    if (!arg || op.kind(*arg) == ArgKind::other)
      throw ArgumentError("custom_op: no_gradient names '" + name + "', which is no tensor argument of " + schema +
                          ".");
  }
}

void fill_record(Operator& op, const CustomRules& rules) {
  op.bridged = rules.bridges > 0;
  if (!rules.defined && !rules.any_rule()) return;
  op.custom = true;
  op.implementation = [&op](Stack& stack) { run_kernel(op, stack); };
  op.sparsity = rules.sparsity;
  Mask tensors = 0;
  for (uint8_t i : op.tensor_args()) tensors |= Mask{1} << i;
  if (rules.backward || rules.jvp) {
    op.save = saver(op, rules.save);
    // What was declared before, by Tower for one of LibTorch's operators, is the formula's to say now.
    op.set_no_derivative(false);
    op.inactive_args = op.nondifferentiable_outs = 0;
  }
  for (const auto& name : rules.no_gradient) op.inactive_args |= Mask{1} << *find_argument(op, name);
  if (rules.backward) {
    op.vjp = {{tensors,
               {},
               [backward = rules.backward, materialize = rules.backward_options.materialize_grads](VjpFrame& frame) {
                 pull_back(frame, *backward, materialize);
               }}};
    op.vjp_is_linear = rules.linear_backward;
    if (rules.linear_backward) op.jvp.clear();  // of LibTorch's operator: now this backward's to give
  }
  if (rules.jvp) op.jvp = {{tensors, {}, [jvp = rules.jvp](JvpFrame& frame) { push_forward(frame, *jvp); }}};
  if (rules.vmap) {
    op.vmap = [vmap = rules.vmap](VmapFrame& frame) { map(frame, *vmap); };
    op.vmap_is_pointwise = false;
    op.vmap_family = nullptr;
  }
}

}  // namespace tower
