#include "interpreters/surface.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/TensorGeometry.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "core/bind.h"
#include "core/torch_version.h"
#include "frontend/arguments.h"
#include "frontend/substitution.h"
#include "frontend/views.h"
#include "interpreters/tape.h"
#include "interpreters/vjp.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower {

std::string ordinal(const char* what, size_t index) { return std::string(what) + " " + std::to_string(index); }

namespace {

// What transforms cannot carry; null if they can.
const char* not_carried(const Tensor& t) {
  if (t.layout() != at::kStrided) return "a sparse or other non-strided tensor";
  if (t.is_quantized()) return "a quantized tensor";
  if (t.is_nested()) return "a nested tensor";
  if (torch_version::has_names(t)) return "a tensor with named dimensions";
  return nullptr;
}

}  // namespace

void check_supported(const Tensor& t, const char* transform, const std::string& what) {
  if (const char* found = not_carried(t))
    throw UnsupportedError(std::string(transform) + ": " + what + " is " + found +
                           ", which transforms cannot carry. Convert it to a dense, strided, unnamed tensor first.");
}

void check_outputs(const Tensors& outs, const char* transform) {
  for (size_t i = 0; i < outs.size(); ++i) {
    if (!outs[i].defined())
      throw ArgumentError(std::string(transform) + ": " + ordinal("output", i) +
                          " of the function is an undefined tensor. Functions that are transformed return tensors.");
    check_supported(outs[i], transform, ordinal("output", i));
  }
}

void check_differentiable(const Tensor& t, const char* transform, const std::string& what) {
  if (!t.is_floating_point() && !t.is_complex())
    throw DerivativeError(std::string(transform) + ": " + what + " is " + describe(t) +
                          "; derivatives exist only for floating point and complex dtypes. Convert it, or do not "
                          "differentiate with respect to it.");
}

void check_direction(const Tensor& given, const Meta& like, const char* transform, const std::string& what) {
  if (!given.defined()) return;
  if (!given.sizes().equals(like.sizes))
    throw ArgumentError(std::string(transform) + ": " + what + " is " + describe(given) + ", expected the shape of " +
                        like.describe() + ".");
  if (given.scalar_type() != like.dtype)
    throw ArgumentError(std::string(transform) + ": " + what + " is " + describe(given) + ", expected the dtype of " +
                        like.describe() + ".");
  if (given.device() != like.device)
    throw ArgumentError(std::string(transform) + ": " + what + " is on device " + given.device().str() + ", expected " +
                        like.device.str() + ".");
}

bool is_among(const Tensors& tensors, const Wrapper& w) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& t) { return as_wrapper(t) == &w; });
}

Tensor not_expanded(Tensor t) {
  if (t.is_contiguous()) return t;
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.stride(d) == 0 && t.size(d) > 1) return t.clone();
  return t;
}

Tensor as_new(Tensor t) {
  if (!top()) return not_expanded(std::move(t));
  Wrapper* w = as_wrapper(t);
  if (!w) return wrap_constant(*top(), std::move(t));
  return w->view() ? frontend::as_it_is(t) : t;
}

Tensor value_outside(const Tensor& t, const Level& level, const Tensors& inputs) {
  Wrapper* w = as_wrapper_of(t, level);
  if (!w) return t;
  const Tensor value = w->payload().value;
  if (!w->view()) return value;
  Wrapper& root = w->root();
  if (!is_among(inputs, root)) return value;
  const Tensor base = root.payload().value;
  if (as_wrapper(base)) return level.kind() == Kind::vmap ? value : frontend::view_below(*w);
  // A view that was made below LibTorch's autograd has a version counter of its own.
  if (as_wrapper(value) || libtorch_follows(base) || !value.is_alias_of(base) || value.dtype() != base.dtype())
    return value;
  DispatchGuard keys;
  keys.see_every_operator(false);
  return base.as_strided(value.sizes(), value.strides(), value.storage_offset());
}

namespace {

// The wrapper that the function was given for argument `i`, if it wrote to it.
Wrapper* written(const Tensors& inputs, const Tensors& originals, size_t i) {
  Wrapper* w = as_wrapper(inputs[i]);
  return w && w->generation() > 0 && !inputs[i].is_same(originals[i]) ? w : nullptr;
}

void check_form(const Tensors& inputs, const Tensors& originals, size_t i) {
  Wrapper* w = as_wrapper(inputs[i]);
  if (w && w->shares_memory() && !inputs[i].is_same(originals[i]) &&
      !(inputs[i].sizes().equals(originals[i].sizes()) && frontend::may_overlap(inputs[i], originals[i])))
    throw MutationError(w->level().describe() + ": " + ordinal("argument", i) + ", " + describe(originals[i]) +
                        ", was given other memory (set_), which the caller's tensor cannot follow. Give it to a new "
                        "tensor.");
  if (w && w->form() > 0 && !inputs[i].is_same(originals[i]))
    throw MutationError(w->level().describe() + ": the shape of " + ordinal("argument", i) + ", " +
                        describe(originals[i]) + ", was changed in place (by the in-place form of " +
                        w->view()->op->name() + "), which the caller's tensor cannot follow. Use the functional " +
                        "operator.");
}

}  // namespace

void check_shared(const Tensors& originals, size_t i, const std::string& transform) {
  for (size_t j = 0; j < originals.size(); ++j)
    if (j != i && originals[j].defined() && frontend::may_overlap(originals[i], originals[j]))
      throw MutationError(transform + ": " + ordinal("argument", i) + ", " + describe(originals[i]) +
                          ", was written to, and shares memory with " + ordinal("argument", j) +
                          ", which did not see it. Pass a clone() of one of them.");
}

std::vector<size_t> check_writes(const Level& level, const Tensors& inputs, const Tensors& originals) {
  std::vector<size_t> found;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_form(inputs, originals, i);
    if (written(inputs, originals, i)) found.push_back(i);
  }
  for (size_t i : found) check_shared(originals, i, level.describe());
  return found;
}

bool write_back(const Level& level, const Tensors& inputs, const Tensors& originals, const dynamic::Dims& dims) {
  const std::vector<size_t> writes = check_writes(level, inputs, originals);
  for (size_t i : writes) {
    Wrapper* w = as_wrapper(inputs[i]);
    Payload payload = w->payload();
    const Tensor& original = originals[i];
    // As in LibTorch the write is recorded, but for a leaf that requires grad, which cannot be written to in grad mode:
    // there the value's history is not the leaf's.
    const bool records = c10::GradMode::is_enabled();
    const bool leaf = records && level.kind() != Kind::vmap && original.is_leaf() && libtorch_records(original);
    {
      const Below below(level);
      const AsUserCode user;
      const c10::AutoGradMode mode(records && !leaf);
      if (level.kind() != Kind::vmap) original.copy_(payload.value);
      else if (payload.tracked()) original.copy_(payload.value.movedim(payload.index, *dims[i]));
      else original.copy_(payload.value.unsqueeze(*dims[i]));
    }
    if (leaf) continue;
    if (level.kind() == Kind::vmap) payload.index = *dims[i];
    payload.value = original;
    w->take(wrap(w->level(), std::move(payload)));
    w->wrote();
  }
  return !writes.empty();
}

std::vector<int64_t> check_argnums(std::vector<int64_t> argnums, size_t num_args, const char* transform) {
  if (argnums.empty())
    throw ArgumentError(std::string(transform) + ": no argument to differentiate with respect to was named.");
  std::vector<bool> seen(num_args, false);
  for (int64_t& a : argnums) {
    const auto n = static_cast<int64_t>(num_args);
    if (a < -n || a >= n)
      throw ArgumentError(std::string(transform) + ": argument number " + std::to_string(a) +
                          " is out of range for a call with " + std::to_string(num_args) + " arguments.");
    if (a < 0) a += n;
    if (seen[static_cast<size_t>(a)])
      throw ArgumentError(std::string(transform) + ": argument number " + std::to_string(a) + " is named twice.");
    seen[static_cast<size_t>(a)] = true;
  }
  return argnums;
}

dynamic::FunctionWithAux without_aux(dynamic::Function f) {
  return [f = std::move(f)](const Tensors& args) { return std::pair<Tensors, Tensors>(f(args), {}); };
}

Evaluated evaluate(const dynamic::FunctionWithAux& f, const Tensors& primals, const std::vector<int64_t>& argnums,
                   const char* label, bool forward) {
  const auto purpose = forward ? Tape::Purpose::pushforward : Tape::Purpose::pullback;
  return evaluate(f, primals, argnums, c10::make_intrusive<Vjp>(label, purpose));
}

Evaluated evaluate(const dynamic::FunctionWithAux& f, const Tensors& given, const std::vector<int64_t>& argnums,
                   const c10::intrusive_ptr<Vjp>& level) {
  const char* label = level->label();
  const Tensors primals = frontend::stand_ins(given);
  const bool forward = level->purpose() == Tape::Purpose::pushforward;
  for (int64_t a : argnums) {
    const Tensor& primal = primals[static_cast<size_t>(a)];
    if (!primal.defined())
      throw ArgumentError(std::string(label) + ": " + ordinal("argument", static_cast<size_t>(a)) +
                          " is an undefined tensor.");
    check_supported(primal, label, ordinal("argument", static_cast<size_t>(a)));
    check_differentiable(primal, label, ordinal("argument", static_cast<size_t>(a)));
  }
  Evaluated e;
  Tensors args = primals;
  if (!forward) level->tape().refuse_hooks();
  struct AtItsEnd {
    Vjp& level;
    ~AtItsEnd() { level.let_go_of_tape(); }
  } at_its_end{*level};
  Scope scope(level);
  const c10::AutoFwGradMode forward_mode(forward || autograd_state().get_fw_grad_mode());
  for (int64_t a : argnums) {
    Tensor& arg = args[static_cast<size_t>(a)];
    arg = level->track(arg);
    e.in_slots.push_back(as_wrapper(arg)->stored().index);
    e.in_metas.emplace_back(arg);
  }
  // The function may write to the others, too.
  for (size_t i = 0; i < args.size(); ++i)
    if (args[i].defined() && args[i].is_same(primals[i]) && !not_carried(args[i]))
      args[i] = wrap_constant(*level, args[i]);
  const auto [outs, aux] = [&] {
    const c10::AutoGradMode grad(true);
    const frontend::Arguments arguments(*level, args, primals);
    return f(args);
  }();
  level->history().check(args, *level);
  check_outputs(outs, label);
  const auto take_out = [&, &outs = outs, &aux = aux] {
    e.outs.clear(), e.aux.clear(), e.out_slots.clear(), e.out_metas.clear();
    for (const Tensor& out : outs) {
      Wrapper* w = as_wrapper_of(out, *level);
      e.out_slots.push_back(w ? w->payload().index : -1);
      e.outs.push_back(value_outside(out, *level, args));
      e.out_metas.emplace_back(out);
    }
    for (const Tensor& t : aux) e.aux.push_back(value_outside(t, *level, args));
  };
  take_out();
  for (size_t i = 0; i < args.size(); ++i)
    if (written(args, primals, i)) level->tape().preserve(primals[i]);
  if (write_back(*level, args, primals)) take_out();
  e.tape = level->tape_ptr();
  return e;
}

void prune(const Evaluated& e) { static_cast<Tape*>(e.tape.get())->prune(e.out_slots); }

Tensors pull_back(const Evaluated& e, const Tensors& cotangents, const char* label, bool consume) {
  if (cotangents.size() != e.out_slots.size())
    throw ArgumentError(std::string(label) + ": the pullback was given " + std::to_string(cotangents.size()) +
                        " cotangents, but the function has " + std::to_string(e.out_slots.size()) + " outputs.");
  for (size_t k = 0; k < cotangents.size(); ++k) {
    if (cotangents[k].defined() && !c10::isFloatingType(e.out_metas[k].dtype) &&
        !c10::isComplexType(e.out_metas[k].dtype))
      throw DerivativeError(std::string(label) + ": a cotangent was given for " + ordinal("output", k) + ", which is " +
                            e.out_metas[k].describe() + " and has no derivative. The cotangent must be " +
                            detail::spellings().absent_tensor + ".");
    check_direction(cotangents[k], e.out_metas[k], label, ordinal("cotangent", k));
  }
  return static_cast<Tape*>(e.tape.get())->pull_back(e.out_slots, frontend::stand_ins(cotangents), e.in_slots, consume);
}

Tensors push_forward(const Evaluated& e, const Tensors& tangents) {
  return static_cast<Tape*>(e.tape.get())->push_forward(e.in_slots, frontend::stand_ins(tangents), e.out_slots);
}

Tensor Outline::zeros() const {
  const auto dense = at::infer_dense_strides(sizes, strides);
  if (at::geometry_is_contiguous(sizes, dense)) return at::zeros(sizes, options());
  return at::empty_strided(sizes, dense, options()).zero_();
}

Tensors with_zeros(Tensors tensors, const std::vector<Outline>& metas) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) tensors[i] = as_new(std::move(tensors[i]));
    else tensors[i] = metas[i].zeros();
  }
  return tensors;
}

}  // namespace tower
