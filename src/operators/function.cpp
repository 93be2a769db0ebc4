// The rules of a user function's higher-order operator, in terms of one call of it (tower/detail/function_call.h).
//
//   run_function ─▶ the operator ─▶ at some level, one of
//     forward            evaluate(): the call's forward, and what it may and may not write to
//     save, forward_and_save    the context is filled, and taken apart into residuals (Saved, and a list of tensors)
//     vjp, jvp           the context is put together again for the call's rule
//     vmap               the call's rule
#include "tower/function.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Type.h>

#include <algorithm>

#include "core/bind.h"
#include "core/operator.h"
#include "core/wrapper.h"
#include "interpreters/vmap.h"
#include "tower/errors.h"

namespace tower {

std::optional<int64_t> InDims::operator[](std::size_t argument) const {
  const dynamic::Dims& dims = of(argument);
  if (dims.size() > 1)
    throw ArgumentError("a vmap rule asked for the batch dimension of argument " + std::to_string(argument) +
                        ", which has " + std::to_string(dims.size()) + " tensors: use InDims::of.");
  return dims.empty() ? std::nullopt : dims[0];
}

namespace detail {
namespace {

using Access = ContextAccess;

const FunctionCall& call_of(const Attributes& attributes) {
  return *static_cast<const FunctionCall*>(attributes.get());
}

// What a filled context is made of, apart from the tensors: those saved for backward, those saved for forward, those in
// saved_data.
struct Saved {
  std::size_t for_backward = 0, for_forward = 0;
  bool has_for_forward = false;
  bool materialize = true;
  std::map<std::string, c10::IValue> data;  // without its tensors
  std::vector<bool> non_differentiable;     // outputs; empty: all are differentiable
  std::vector<Meta> outputs, operands;      // where they may be materialized
  std::shared_ptr<const void> residuals;
};

// Calls `f` for each tensor in saved_data; it may replace it.
template <class F>
void each_tensor(std::map<std::string, c10::IValue>& data, F&& f) {
  for (auto& [key, value] : data) {
    if (value.isTensor()) {
      value = f(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(f(t));
      value = std::move(list);
    }
  }
}

bool writes_to(const FunctionCall& call, std::size_t operand) {
  return std::find(call.mutates.begin(), call.mutates.end(), call.argument_of[operand]) != call.mutates.end();
}

// What a rule returned does not fit; who threw it does not know whose rule it is.
class EntryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string list(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (std::size_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

class Rules : public std::enable_shared_from_this<Rules> {
 public:
  explicit Rules(FunctionInfo info) : info_(std::move(info)) {}

  HigherOrderRules make() {
    auto self = shared_from_this();
    HigherOrderRules rules;
    rules.name = info_.name;
    rules.linear_vjp = info_.linear_backward;
    rules.generate_vmap = info_.generate_vmap;
    rules.generate_derivatives = !info_.has_backward && !info_.has_jvp;
    rules.forward = [self](const Tensors& operands, const Attributes& a) {
      Context ctx;
      return self->evaluate(call_of(a), operands, ctx, false);
    };
    rules.save = [self](const Tensors& operands, const Tensors& outputs, const Attributes& a) {
      return self->save(call_of(a), operands, outputs);
    };
    if (info_.saves == Saves::in_forward && !rules.generate_derivatives)
      rules.forward_and_save = [self](const Tensors& operands, const Attributes& a) {
        Context ctx;
        Tensors outs = self->evaluate(call_of(a), operands, ctx, true);
        Residuals residuals = self->take_apart(call_of(a), operands, outs, ctx);
        return std::pair(std::move(outs), std::move(residuals));
      };
    if (info_.has_backward) {
      rules.vjp = [self](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                         const Attributes& a) { return self->vjp(saved, cotangents, needs, a); };
      if (info_.once_differentiable) make_once_differentiable();
    }
    if (info_.has_jvp)
      rules.jvp = [self](const Residuals& saved, const Tensors& tangents, const Attributes& a) {
        return self->jvp(saved, tangents, call_of(a));
      };
    if (info_.has_vmap)
      rules.vmap = [self](const VmapInfo& info, const Dims& in_dims, const Tensors& operands, const Attributes& a) {
        return self->vmap(info, in_dims, operands, call_of(a));
      };
    if (info_.has_sparsity)
      rules.sparsity = [self](const Tensors& operands, const Attributes& a) { return call_of(a).sparsity(operands); };
    rules.operand_name = [](std::size_t operand, const Attributes& a) {
      return "argument " + std::to_string(call_of(a).argument_of[operand]);
    };
    return rules;
  }

 private:
  template <class F>
  auto named(F&& f) const {
    try {
      return f();
    } catch (const EntryError& error) {
      throw DerivativeError(info_.name + ": " + error.what());
    }
  }

  // ---- forward -----------------------------------------------------------------------------------------------------

  // Runs `run` on operands of which those that it may write to are copies, and checks that it wrote to no others.
  template <class Run>
  Tensors guarded(const FunctionCall& call, const Tensors& given, Context& ctx, Run&& run) const {
    Tensors operands = given;
    std::vector<uint64_t> before(operands.size());
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (writes_to(call, i)) operands[i] = operands[i].clone();
      else before[i] = write_count(operands[i]);
    }
    const Tensors outs = run(operands);
    std::vector<std::pair<std::size_t, std::size_t>> written;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const std::string argument = std::to_string(call.argument_of[i]);
      if (!writes_to(call, i)) {
        if (write_count(operands[i]) != before[i])
          throw MutationError(info_.name + ": its forward wrote to argument " + argument +
                              ". Declare it, static constexpr std::array mutates{" + argument +
                              "}, and return it; or clone it first.");
        continue;
      }
      const auto found = std::find_if(outs.begin(), outs.end(), [&](const auto& t) { return t.is_same(operands[i]); });
      if (found == outs.end())
        throw MutationError(info_.name + ": argument " + argument +
                            " is declared to be written to (mutates), but forward does not return it. Return it.");
      written.emplace_back(i, static_cast<std::size_t>(found - outs.begin()));
    }
    if (call.written != written) call.written = std::move(written);  // several threads may run one call of a graph
    check_dirty(call, operands, ctx);
    return outs;
  }

  Tensors evaluate(const FunctionCall& call, const Tensors& given, Context& ctx, bool saving) const {
    return guarded(call, given, ctx, [&](const Tensors& operands) {
      return saving ? call.forward_and_save(operands, ctx) : call.forward(operands, ctx);
    });
  }

  std::pair<Tensors, Dims> vmap(const VmapInfo& info, const Dims& in_dims, const Tensors& given,
                                const FunctionCall& call) const {
    Context ctx;
    Dims out_dims;
    Tensors outs = guarded(call, given, ctx, [&](const Tensors& operands) {
      auto [found, dims] = named([&] { return call.vmap(info, in_dims, operands); });
      out_dims = std::move(dims);
      return std::move(found);
    });
    return {std::move(outs), std::move(out_dims)};
  }

  // What the context calls dirty agrees with the declaration. `operands` as the function saw them.
  void check_dirty(const FunctionCall& call, const Tensors& operands, Context& ctx) const {
    const Tensors dirty = std::exchange(Access::dirty(ctx), {});
    if (dirty.empty()) return;
    std::vector<std::size_t> arguments;
    for (const at::Tensor& t : dirty) {
      const auto found = std::find_if(operands.begin(), operands.end(), [&](const auto& o) { return o.is_same(t); });
      if (found == operands.end())
        throw MutationError(info_.name + ": mark_dirty was given a tensor that is not an input.");
      arguments.push_back(call.argument_of[static_cast<std::size_t>(found - operands.begin())]);
    }
    std::sort(arguments.begin(), arguments.end());
    arguments.erase(std::unique(arguments.begin(), arguments.end()), arguments.end());
    std::vector<std::size_t> declared = call.mutates;
    std::sort(declared.begin(), declared.end());
    if (arguments != declared)
      throw MutationError(info_.name + ": mark_dirty names argument " + list(arguments) +
                          ", but the function declares that it writes to " +
                          (declared.empty() ? std::string("none") : list(declared)) +
                          ". Declare static constexpr std::array mutates{" + list(arguments) + "}.");
  }

  // ---- saving ------------------------------------------------------------------------------------------------------

  Residuals save(const FunctionCall& call, const Tensors& operands, const Tensors& outputs) const {
    Context ctx;
    if (info_.saves == Saves::in_forward) return save_by_evaluating_again(call, operands, outputs);
    if (info_.saves == Saves::after_forward) {
      Tensors inputs = operands;
      for (const auto& [operand, output] : call.written) inputs[operand] = outputs[output];
      named([&] { call.setup(inputs, outputs, ctx); });
      check_dirty(call, inputs, ctx);
    }
    return take_apart(call, operands, outputs, ctx);
  }

  // The outputs are there already: where levels below see the operator, it is by them that they know of it.
  Residuals save_by_evaluating_again(const FunctionCall& call, const Tensors& operands, const Tensors& outputs) const {
    Context ctx;
    SharedDraws before;
    before.note(operands);
    const Tensors again = evaluate(call, operands, ctx, true);
    const auto drew = [&] {
      DispatchGuard keys;
      keys.see_no_operator();
      return before.moved();
    };
    if (drew())
      throw UnsupportedError(info_.name +
                             ": its forward draws random numbers and saves what depends on them, which nested "
                             "transforms would have to draw again. Draw them outside and pass them in, or return what "
                             "depends on them and save it in setup_context.");
    auto original = [&](const at::Tensor& t) {
      for (std::size_t k = 0; k < again.size(); ++k)
        if (t.is_same(again[k])) return outputs[k];
      return t;
    };
    for (Tensors* saved : {&Access::for_backward(ctx), &Access::for_forward(ctx), &Access::non_differentiable(ctx)})
      for (at::Tensor& t : *saved) t = original(t);
    each_tensor(ctx.saved_data, original);
    return take_apart(call, operands, outputs, ctx);
  }

  Residuals take_apart(const FunctionCall&, const Tensors& operands, const Tensors& outputs, Context& ctx) const {
    auto saved = std::make_shared<Saved>();
    saved->materialize = Access::materialize(ctx);
    saved->has_for_forward = Access::has_for_forward(ctx);
    saved->residuals = std::move(Access::residuals(ctx));
    Tensors tensors = std::move(Access::for_backward(ctx));
    saved->for_backward = tensors.size();
    // On a tape for the reverse pass these are kept for nothing, but a rule does not know which it is recorded on.
    const Tensors& forward = Access::for_forward(ctx);
    if (info_.has_jvp) {
      tensors.insert(tensors.end(), forward.begin(), forward.end());
      saved->for_forward = forward.size();
    }
    saved->data = std::move(ctx.saved_data);
    each_tensor(saved->data, [&](const at::Tensor& t) {
      tensors.push_back(t);
      return placeholder();
    });
    for (const at::Tensor& t : Access::non_differentiable(ctx)) {
      const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const auto& o) { return o.is_same(t); });
      if (found == outputs.end())
        throw DerivativeError(info_.name + ": mark_non_differentiable was given a tensor that is not an output.");
      saved->non_differentiable.resize(outputs.size());
      saved->non_differentiable[static_cast<std::size_t>(found - outputs.begin())] = true;
    }
    if (saved->materialize) {
      if (outputs.size() > 1 && info_.has_backward)
        for (const at::Tensor& t : outputs) saved->outputs.emplace_back(t);
      if (operands.size() > 1 && info_.has_jvp)
        for (const at::Tensor& t : operands) saved->operands.emplace_back(t);
    }
    return {std::move(tensors), std::move(saved)};
  }

  static Context put_together(const Residuals& residuals, bool for_jvp) {
    const Saved& saved = attributes_as<Saved>(residuals.other);
    Context ctx;
    auto next = residuals.tensors.begin();
    auto take = [&](std::size_t count) {
      const auto first = std::exchange(next, next + static_cast<std::ptrdiff_t>(count));
      return Tensors(first, next);
    };
    Tensors for_backward = take(saved.for_backward), for_forward = take(saved.for_forward);
    Access::for_backward(ctx) = std::move(for_jvp && saved.has_for_forward ? for_forward : for_backward);
    if (!saved.data.empty()) {
      ctx.saved_data = saved.data;
      each_tensor(ctx.saved_data, [&](const at::Tensor&) { return *next++; });
    }
    Access::residuals(ctx) = saved.residuals;
    return ctx;
  }

  // Undefined tensors become zeros.
  static void materialize(Tensors& tensors, const std::vector<Meta>& metas) {
    for (std::size_t i = 0; i < metas.size(); ++i)
      if (!tensors[i].defined()) tensors[i] = at::zeros(metas[i].sizes, metas[i].options());
  }

  static void drop_non_differentiable(Tensors& tensors, const Saved& saved) {
    for (std::size_t k = 0; k < saved.non_differentiable.size(); ++k)
      if (saved.non_differentiable[k]) tensors[k] = at::Tensor();
  }

  // ---- derivatives -------------------------------------------------------------------------------------------------

  Tensors vjp(const Residuals& residuals, Tensors cotangents, const std::vector<bool>& needs,
              const Attributes& attributes) const {
    const FunctionCall& call = call_of(attributes);
    const Saved& saved = attributes_as<Saved>(residuals.other);
    drop_non_differentiable(cotangents, saved);
    if (std::none_of(cotangents.begin(), cotangents.end(), [](const auto& t) { return t.defined(); }))
      return Tensors(call.argument_of.size());
    if (!once_) return run_backward(call, residuals, std::move(cotangents), needs);
    return run_backward_once(residuals, std::move(cotangents), needs, attributes);
  }

  Tensors run_backward(const FunctionCall& call, const Residuals& residuals, Tensors cotangents,
                       const std::vector<bool>& needs) const {
    Context ctx = put_together(residuals, false);
    auto& by_argument = Access::needs(ctx);
    for (std::size_t i = 0; i < needs.size(); ++i) {
      const std::size_t argument = call.argument_of[i];
      if (by_argument.size() <= argument) by_argument.resize(argument + 1);
      if (needs[i]) by_argument[argument] = true;
    }
    materialize(cotangents, attributes_as<Saved>(residuals.other).outputs);
    return named([&] { return call.backward(cotangents, ctx); });
  }

  // A backward that must not be differentiated is an operator without derivatives: differentiating it is the usual
  // error.
  struct OnceCall {
    std::shared_ptr<const Rules> rules;
    Attributes call;
    Attributes saved;
    std::size_t tensors;
    std::vector<bool> given;  // cotangents
    std::vector<bool> needs;
    mutable std::vector<bool> defined = {};  // gradients
  };

  void make_once_differentiable() {
    HigherOrderRules rules;
    rules.name = "the backward of " + info_.name + ", which is declared once_differentiable";
    rules.forward = [](const Tensors& operands, const Attributes& a) {
      const auto& once = attributes_as<OnceCall>(a);
      const auto split = operands.begin() + static_cast<std::ptrdiff_t>(once.tensors);
      Tensors cotangents(once.given.size());
      auto next = split;
      for (std::size_t k = 0; k < cotangents.size(); ++k)
        if (once.given[k]) cotangents[k] = *next++;
      const Tensors gradients = once.rules->run_backward(
          call_of(once.call), {Tensors(operands.begin(), split), once.saved}, cotangents, once.needs);
      Tensors defined;
      once.defined.assign(gradients.size(), false);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (!gradients[i].defined()) continue;
        once.defined[i] = true;
        defined.push_back(gradients[i]);
      }
      return defined;
    };
    once_.emplace(std::move(rules));
  }

  Tensors run_backward_once(const Residuals& residuals, const Tensors& cotangents, const std::vector<bool>& needs,
                            const Attributes& attributes) const {
    auto once = std::make_shared<OnceCall>(
        OnceCall{shared_from_this(), attributes, residuals.other, residuals.tensors.size(), {}, needs});
    Tensors operands = residuals.tensors;
    for (const at::Tensor& t : cotangents) {
      once->given.push_back(t.defined());
      if (t.defined()) operands.push_back(t);
    }
    const Tensors defined = (*once_)(operands, once);
    Tensors gradients(once->defined.size());
    auto next = defined.begin();
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (once->defined[i]) gradients[i] = *next++;
    return gradients;
  }

  Tensors jvp(const Residuals& residuals, Tensors tangents, const FunctionCall& call) const {
    Context ctx = put_together(residuals, true);
    const Saved& saved = attributes_as<Saved>(residuals.other);
    materialize(tangents, saved.operands);
    Tensors result = named([&] { return call.jvp(tangents, ctx); });
    drop_non_differentiable(result, saved);
    return result;
  }

  FunctionInfo info_;
  std::optional<HigherOrderOperator> once_;
};

std::string tensors(std::size_t count) { return std::to_string(count) + (count == 1 ? " tensor" : " tensors"); }

}  // namespace

FunctionInfo custom_info(const char* file, unsigned line) {
  FunctionInfo info;
  const std::string path = file;
  info.name = "custom function (" + path.substr(path.find_last_of('/') + 1) + ":" + std::to_string(line) + ")";
  return info;
}

std::string type_name(const std::type_info& type) {
  std::string name = c10::demangle(type.name());
  for (const std::string part : {"(anonymous namespace)::"})
    for (auto at = name.find(part); at != std::string::npos; at = name.find(part)) name.erase(at, part.size());
  return name;
}

HigherOrderOperator make_operator(FunctionInfo info) {
  return HigherOrderOperator(std::make_shared<Rules>(std::move(info))->make());
}

Tensors run_function(const HigherOrderOperator& op, std::shared_ptr<const FunctionCall> call, Tensors operands) {
  Tensors given = operands;
  // LibTorch's autograd keeps operands, and refuses to go back to those that were written to since.
  const bool records = c10::GradMode::is_enabled() && std::any_of(operands.begin(), operands.end(), libtorch_records);
  for (std::size_t i = 0; records && i < given.size(); ++i)
    if (writes_to(*call, i)) given[i] = given[i].clone();
  Tensors outs = op(given, call);
  for (const auto& [operand, output] : call->written) {
    operands[operand].copy_(outs[output]);
    outs[output] = operands[operand];
  }
  return outs;
}

void refuse_entry(const char* whose, const std::string& what, std::size_t given, std::size_t expected) {
  throw EntryError("its " + std::string(whose) + " returned a tree of " + tensors(given) + " for " + what +
                   ", which has " + tensors(expected) + ". Return a tree like it, or std::nullopt for zero.");
}

Tensors entries_of_list(const Tensors& list, const std::vector<std::vector<bool>>& defined, const char* whose) {
  std::size_t places = 0;
  for (const auto& part : defined) places += part.size();
  // LibTorch lets a list be too long where the rest is undefined.
  const bool fits = list.size() >= places && std::none_of(list.begin() + static_cast<std::ptrdiff_t>(places),
                                                          list.end(), [](const at::Tensor& t) { return t.defined(); });
  if (!fits)
    throw EntryError("its " + std::string(whose) + " returned a list of " + tensors(list.size()) + ", but " +
                     std::to_string(places) +
                     " are due: one for each tensor, and an undefined one for each argument that is none.");
  Tensors flat;
  std::size_t next = 0;
  for (const auto& part : defined)
    for (const bool wanted : part) {
      if (wanted) flat.push_back(list[next]);
      ++next;
    }
  return flat;
}

}  // namespace detail
}  // namespace tower
