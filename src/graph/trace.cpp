#include "graph/trace.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <exception>

#include "core/bind.h"
#include "core/gives_tensors.h"
#include "core/memory.h"
#include "frontend/arguments.h"
#include "frontend/enter.h"
#include "frontend/substitution.h"
#include "frontend/views.h"
#include "graph/operand_dims.h"
#include "graph/split.h"
#include "interpreters/custom.h"
#include "interpreters/mapped.h"
#include "interpreters/surface.h"
#include "numbers/element.h"
#include "operators/known_code.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower::compiler {
namespace {

// While one is there, tensors are replaced (frontend/substitution.h) as they are around the trace, not as inside.
class OuterSubstitutions {
 public:
  explicit OuterSubstitutions(const void* outer) : inner_(std::exchange(thread_state.substitutions, outer)) {}
  ~OuterSubstitutions() { thread_state.substitutions = inner_; }
  OuterSubstitutions(const OuterSubstitutions&) = delete;
  OuterSubstitutions& operator=(const OuterSubstitutions&) = delete;

 private:
  const void* inner_;
};

Call described(const Operator& op, const Stack& stack) {
  Call call;
  call.op = call.bound = &op;
  if (!op.handle()) call.owner = c10::intrusive_ptr<const Operator>::reclaim_copy(&op);
  call.records = autograd_state().get_grad_mode();
  const Stack* args = &stack;
  std::vector<LeafRef> places;
  while (const auto image = image_of(*call.op)) {
    call.vmaps.push_back({image->axis, image->batch_size, image->dims});
    args = &image->args;
    places = image->leaves;
    call.op = &image->base;
  }
  call.args = *args;
  static const Tensor place(at::detail::empty_cpu({0}, at::TensorOptions(at::kFloat)));
  replace_tensors(*call.op, call.args, [&](const Tensor&, LeafRef leaf) {
    if (call.vmaps.empty()) places.push_back(leaf);
    return place;
  });
  call.places = std::move(places);
  return call;
}

// Whether the shape of the result depends on values. `stack`: the arguments of the operator, or of its image.
bool has_shape_by_values(const Operator& op, const Call& call, const Stack& stack) {
  const Operator& called = *call.op;
  if (!called.shape_by_values) return called.handle() && called.handle()->hasTag(at::Tag::dynamic_output_shape);
  std::vector<Tensor> operands;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) { operands.push_back(t); });
  Stack args = call.args;
  size_t next = 0;
  replace_tensors(called, args, [&](const Tensor&, LeafRef) { return operands[next++]; });
  return called.shape_by_values(args);
}

// ---- of a loop's step, only shapes ----
// NOTE [Steps that are traced]
// A step is traced from the state that the loop starts with, whether the program would make one from there or not. What
// it computes is for nobody; what raises there (a division by zero, a singular matrix, an index out of range) may never
// come up. So an operator that refuses its operands is asked again with ones and with zeros in their places; what it
// refuses then, it refuses for their shapes. Run, a step raises what it raises. Functions are not asked again: with
// other numbers they might never end; nor is what is made of constants, whose values the graph keeps.

// Whether the call may divide the smallest integer by −1, for which the CPU ends the process.
bool may_trap(const Operator& op, const Stack& stack) {
  const ElementRule* rule = element_rule(op);
  if (!rule) return false;
  Expressions trial;
  std::vector<ElementArgument> operands(stack.size());
  bool integers = true;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef leaf) {
    const auto type = type_of(t.scalar_type());
    integers = integers && (type == Type::i64 || type == Type::i32);
    if (integers) operands[leaf.arg] = {trial.input(*type, leaf.arg), t.scalar_type(), false, false};
  });
  for (const IValue& v : stack) integers = integers && !(v.isScalar() && !v.toScalar().isIntegral(true));
  if (!integers) return false;
  (*rule)({trial, stack, operands, Type::i64});
  for (const Id id : trial.ids())
    if (trial[id].op == compiler::Op::quotient || trial[id].op == compiler::Op::rest) return true;
  return false;
}

// A tensor full of `number` that lies in memory as `t` does.
Tensor filled_like(const Tensor& t, double number) {
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += std::max<int64_t>(t.size(d) - 1, 0) * t.stride(d);
  Tensor filled = at::full({last + 1}, number, t.options()).as_strided(t.sizes(), t.strides());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) filled.unsafeGetTensorImpl()->set_wrapped_number(true);
  return filled;
}

// `run`: makes the call, with its arguments on a stack, one level down; `make`: runs what makes tensors there.
template <class Run, class Make>
void run_for_shapes(const Operator& op, Stack& stack, Run run, Make make) {
  const Stack given = stack;
  const auto try_with = [&](std::optional<double> number) -> std::exception_ptr {
    try {
      stack = given;
      if (number)
        make([&] { replace_tensors(op, stack, [&](const Tensor& t, LeafRef) { return filled_like(t, *number); }); });
      run(stack);
      return nullptr;
    } catch (const c10::Error&) {
      return std::current_exception();
    }
  };
  const std::exception_ptr refusal = may_trap(op, given) ? try_with(1) : try_with(std::nullopt);
  if (refusal && try_with(1) && try_with(0)) std::rethrow_exception(refusal);
}

// A profiler's marks, which optimizers make at each step: objects that no value goes into.
bool marks_time(const Operator& op) {
  const auto is_mark = [](const c10::Argument& a) { return a.type()->kind() == c10::TypeKind::ClassType; };
  const auto& schema = op.schema();
  return op.foreign() && op.tensor_args().empty() &&
         (std::any_of(schema.arguments().begin(), schema.arguments().end(), is_mark) || !schema.returns().empty()) &&
         std::all_of(schema.returns().begin(), schema.returns().end(), is_mark);
}

}  // namespace

const Operator& innermost(const Operator& op) {
  const Operator* base = &op;
  while (const auto image = image_of(*base)) base = &image->base;
  return *base;
}

Tensor without_lazy_conjugation(Tensor t) { return t.is_conj() || t.is_neg() ? t.resolve_conj().resolve_neg() : t; }

Trace::Trace(const char* label, ForKernel kernels_know)
    : Level(Kind::trace, label), kernels_know_(kernels_know), substitutions_(thread_state.substitutions) {}

ValueId Trace::add(Origin origin, const Tensor& t) {
  return graph_.values.add({origin, t, origin == Origin::captured || origin == Origin::constant});
}

Tensor Trace::argument(const Tensor& t) {
  generators_.note(t);
  graph_.arguments.push_back(t.defined() ? add(Origin::argument, t) : kNoValue);
  return t.defined() ? stand_in(graph_.arguments.back(), t) : t;
}

bool Trace::is_constant(const Tensor& t) const {
  if (as_wrapper(t)) return false;
  return t.unsafeGetTensorImpl()->is_wrapped_number() ||
         (t.has_storage() && made_here_.count(t.storage().unsafeGetStorageImpl()) > 0);
}

ValueId Trace::number_of(const Tensor& t) {
  Wrapper* w = as_wrapper_of(t, *this);
  if (w && w->payload().tracked()) return ValueId{w->payload().index};
  const Tensor value = w ? Tensor(w->payload().value) : t;
  const auto [known, is_new] = plain_.try_emplace(value.unsafeGetTensorImpl(), value, kNoValue);
  if (is_new) {
    known->second.second = add(is_constant(value) ? Origin::constant : Origin::captured, value);
    if (const auto made = constants_.find(value.unsafeGetTensorImpl()); made != constants_.end())
      graph_.values.back().made_as = made->second.second;
  }
  return known->second.second;
}

ValueId Trace::constant_number(const Tensor& plain) {
  const auto [known, is_new] = constants_.try_emplace(plain.unsafeGetTensorImpl(), plain, kNoValue);
  if (is_new) {
    known->second.second = number_of_constant(graph_.constants.size());
    graph_.constants.push_back({Sizes(plain.sizes()), {}});
  }
  return known->second.second;
}

// The number of an operand of a call that makes a constant. Of an operand that is no constant, the call reads the shape
// alone.
ValueId Trace::read_by_maker(const Tensor& t) {
  Wrapper* w = as_wrapper_of(t, *this);
  if (w && w->payload().tracked()) return ValueId{w->payload().index};
  const Tensor value = w ? Tensor(w->payload().value) : t;
  const size_t known = graph_.constants.size();
  const ValueId id = constant_number(value);
  if (graph_.constants.size() > known && is_constant(value)) graph_.constants.back().tensor = value;
  return id;
}

bool Trace::depends(const Operator& op, const Operator& innermost, const Stack& stack) {
  if (marks_time(innermost)) return false;
  if (op.random() || op.mutates() || innermost.foreign()) return true;
  if (op.reads_shapes_alone) return false;
  bool found = false;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper_of(t, *this);
    found = found || (w && w->payload().tracked()) || !is_constant(w ? Tensor(w->payload().value) : t);
  });
  return found;
}

void Trace::run_below(const Operator& op, Stack& stack) const {
  const Below below(*this);
  const OuterSubstitutions outer(substitutions_);
  enter(op, stack);
  replace_outputs(stack, [](Tensor&& t, size_t) { return without_lazy_conjugation(std::move(t)); });
}

// Strides that as_strided is given belong to its operand as the caller sees it. An operand that the graph computes may
// lie otherwise, at this run or at a later one (rules/views.cpp); memory from outside lies as it did when it was
// traced, which is checked before each run.
bool Trace::reads_by_place(const Operator& op, const Stack& stack) {
  static const Operator &alias = *Operator::find("aten::_reshape_alias", ""),
                        &strided = *Operator::find("aten::as_strided", "");
  if (&op != &alias && &op != &strided) return false;
  const Tensor& of = stack[0].toTensor();
  if (memory_outside(of).defined()) return false;
  return &op == &alias || graph_.values[number_of(of)].origin == Origin::result;
}

// NOTE [Memory from outside of a trace]
// A captured tensor is memory, which each run of the graph reads and writes: its views are views of that, and a write
// to one is a call of the graph, in its order. So what stands for such a view is marked to share memory. The front end
// ties it to no base, which would have to hear of writes, and writes to it by a call (mutation.cpp): whoever shares the
// memory sees it, at each run as in the function. Only a view that is lazily conjugate or negative has no memory in a
// graph. It is tied to its base, and taken anew after each write.
Tensor Trace::memory_outside(const Tensor& t) const {
  Wrapper* w = as_wrapper_of(t, *this);
  if (w && w->payload().tracked()) return w->shares_memory() ? Tensor(w->payload().value) : Tensor();
  const Tensor value = w ? Tensor(w->payload().value) : t;
  return is_constant(value) ? Tensor() : value;
}

Tensor Trace::stand_in_for_memory(const Tensor& t, const Tensor& memory) {
  if (Wrapper* w = as_wrapper_of(t, *this); w && w->payload().tracked()) return t;
  Tensor stands = stand_in(number_of(t), memory);
  as_wrapper(stands)->set_shares_memory();
  return stands;
}

void Trace::mark_views(const Tensor& base, const Tensor& memory, Stack& stack) {
  for (const Tensor& out : flatten_outputs(stack)) {
    Wrapper* view = as_wrapper_of(out, *this);
    if (out.numel() == 0 || frontend::may_overlap(view->payload().value, memory)) view->set_shares_memory();
    else tied_.emplace_back(base.getIntrusivePtr());
  }
}

void Trace::note_writes(const Call& call) {
  for (size_t k = 0; k < call.operands.size(); ++k) {
    const Value& known = graph_.values[call.operands[k]];
    if (!call.writes(k) || known.origin != Origin::captured) continue;
    // A tensor that was written to may have other sizes now (t_(), or out=): then it is another value from here on.
    const Tensor& t = known.tensor;
    if (!t.sizes().equals(known.sizes) || !t.strides().equals(known.strides)) plain_.erase(t.unsafeGetTensorImpl());
  }
  for (const auto& base : tied_)
    if (const auto memory = base.lock()) static_cast<Wrapper&>(*memory).wrote();
}

namespace {

dynamic::Tensors operands_of(const Operator& op, const Stack& stack) {
  dynamic::Tensors operands;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) { operands.push_back(t); });
  return operands;
}

// In the place of the arguments.
void put_results(const Operator& op, const dynamic::Tensors& results, Stack& stack) {
  gives_one_list(op, static_cast<int64_t>(results.size()));
  stack = {c10::List<Tensor>(results)};
}

}  // namespace

// What a loop gives in a step that is traced: shapes are all that is wanted, and it might raise.
bool Trace::give_zeros(const Operator& op, const Call& call, Stack& stack) {
  const KnownCode* code = known_code(*call.op);
  const auto found = code ? code->kinds() : std::nullopt;
  if (!found) return false;
  const dynamic::Tensors operands = operands_of(op, stack);
  const Below below(*this);
  dynamic::Tensors zeros;
  for (const auto& [of_one, dtype] : found->results)
    zeros.push_back(at::zeros(sizes_of_all(call, of_one), operands[0].options().dtype(dtype)));
  put_results(op, zeros, stack);
  return true;
}

bool Trace::run_at_once(const Operator& op, const Call& call, Stack& stack) {
  const KnownCode* code = known_code(*call.op);
  if (!code) return false;
  const dynamic::Tensors operands = operands_of(op, stack);
  const auto is_watched = [](const Tensor& t) { return libtorch_records(t) || is_libtorch_dual(t); };
  const Below below(*this);
  if (std::any_of(operands.begin(), operands.end(), is_watched)) return false;
  const auto results = code->run_at_once(call, operands);
  if (results) put_results(op, *results, stack);
  return results.has_value();
}

void Trace::process(const Operator& op, Stack& stack) {
  if (kernels_know_ && !op.custom && op.decomposes() && !kernels_know_(op) && decompose(op, stack)) return;
  if (reads_by_place(op, stack) && decompose(op, stack)) return;
  const Operator& base = innermost(op);
  static const Operator& lift_fresh = *Operator::find("aten::lift_fresh", "");
  if (&op == &lift_fresh && !as_wrapper(stack[0].toTensor())) {
    const Tensor& made = stack[0].toTensor();
    if (made.has_storage()) know_constant(made);
  }
  const Tensor memory = op.is_view() ? memory_outside(stack[op.tensor_args()[0]].toTensor()) : Tensor();
  Tensor viewed;
  if (memory.defined()) {
    IValue& place = stack[op.tensor_args()[0]];
    viewed = stand_in_for_memory(place.toTensor(), memory);
    if (!viewed.is_same(place.toTensor())) {
      place = std::move(viewed);
      return frontend::make_view(op, stack);
    }
  }
  const bool recorded = depends(op, base, stack);
  if (!recorded || Trying::depth() > tries_) return note(op, stack, recorded, memory, viewed);
  try {
    note(op, stack, recorded, memory, viewed);
  } catch (const InvisibleTensorError&) {
    throw;  // the call is made again, with that tensor as an operand
  } catch (...) {
    if (raised_.empty()) raised_ = base.name();
    throw;
  }
}

void Trace::note(const Operator& op, Stack& stack, bool recorded, const Tensor& memory, const Tensor& viewed) {
  const Operator& base = innermost(op);
  Call call = described(op, stack);
  if (refuses_effects_ && (op.mutates() || call.random() || call.opaque()))
    throw UnsupportedError(describe() + ": " + base.name() + " does more than to compute what it returns.");
  if (!recorded) {
    for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) { call.operands.push_back(read_by_maker(t)); });
  } else {
    if (may_read_substituted(*call.op, call.args))
      throw UnsupportedError(
          describe() + ": " + base.name() +
          " is code of its own that runs again at each call, and it is called while other tensors stand for some that "
          "it might have captured (those of a module, by functional_call or Substitution, or those that a checkpoint, "
          "branch or loop around it captured). Call it outside of that, with the tensors as arguments.");
    if (!gives_only_tensors(base)) {
      if (read(op, stack)) return;
      throw UnsupportedError(describe() + ": " + base.name() +
                             " reads a value (item(), bool(), equal(), …) that differs from call to call, so what is "
                             "done with it could not. Choose by " +
                             tower::detail::spellings().cond +
                             " or where(), or leave it outside of the compiled function. Only whether something holds "
                             "(bool(x.any()), equal()) may be read, and captured tensors, and only before the function "
                             "writes to memory from outside.");
    }
    for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) { call.operands.push_back(number_of(t)); });
    if (has_shape_by_values(op, call, stack)) {
      if (pick_by_known_mask(op, stack) || know_values(op, stack)) return;
      throw UnsupportedError(describe() + ": " + base.name() +
                             " gives a tensor whose shape depends on values, which differ from call to call. Use an "
                             "operator whose result has one shape, such as where(), or leave it outside of the "
                             "compiled function.");
    }
  }
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper_of(t, *this);
    return w ? Tensor(w->payload().value) : t;
  });
  call.tried = Trying::depth() > tries_;
  const bool draws = recorded && !call.tried && (call.random() || call.opaque());  // what is tried is taken back
  if (draws) generators_.before(*this, base, call.args);
  const auto run = [&](Stack& operands) { run_below(op, operands); };
  const auto make = [&](const auto& what) {
    const Below below(*this);
    const OuterSubstitutions outer(substitutions_);
    what();
  };
  // A step that is traced is not to fail for the values that it is traced from: NOTE [Steps that are traced].
  c10::intrusive_ptr<const Operator> unchecked;
  if (const auto at = call.check_argument(); kernels_know_ && recorded && at && call.args[*at].toBool()) {
    if (call.vmaps.empty()) stack[*at] = false;
    else unchecked = mapped_with(op, *at, false);
  }
  // A call that only checks its operands has no results whose shapes would be needed. Run one level down, it would
  // raise even if no step is made.
  const auto run_unchecked = [&](Stack& operands) {
    run_below(*unchecked, operands);
    gives_what_gives(op, *unchecked);
  };
  if (kernels_know_ && recorded && base.handle() && base.schema().returns().empty() && !op.mutates()) {
    gives_nothing(op);
    stack.clear();
    if (!op.handle()) stack.emplace_back(c10::List<Tensor>());
  } else if (unchecked) run_for_shapes(*unchecked, stack, run_unchecked, make);
  else if (kernels_know_ && recorded && base.handle() && !op.mutates()) run_for_shapes(op, stack, run, make);
  else if (!recorded || !(kernels_know_ ? give_zeros(op, call, stack) : run_at_once(op, call, stack))) run(stack);
  if (draws) generators_.after();
  if (!recorded) {
    replace_outputs(stack, [&](Tensor&& made, size_t leaf) {
      const Tensor t = strip_constants(made);
      if (t.has_storage()) know_constant(t);
      call.results.resize(std::max(call.results.size(), leaf + 1), kNoValue);
      call.results[leaf] = constant_number(t);
      return wrap_constant(*this, t);
    });
    graph_.makers.push_back(std::move(call));
    return;
  }
  call.effect = op.mutates();
  if (!call.effect) {
    call.results.assign(flatten_outputs(stack).size(), kNoValue);
    replace_outputs(stack, [&](Tensor&& t, size_t leaf) {
      const ValueId id = call.results[leaf] = add(Origin::result, t);
      return stand_in(id, t);
    });
    if (viewed.defined()) mark_views(viewed, memory, stack);
  } else {
    note_writes(call);
  }
  graph_.calls.push_back(std::move(call));
}

void Trace::check_unraised() const {
  if (raised_.empty()) return;
  throw UnsupportedError(
      describe() + ": the function caught what " + raised_ +
      " raised, and went on. Whether that happens can differ from call to call, and what the function does about it "
      "would "
      "not be done again. Choose by " +
      tower::detail::spellings().cond +
      " or where() (operators that end in _ex return what went wrong), or leave it outside of the compiled function.");
}

void Trace::check_generators() {
  generators_.check_at_end(*this, [&](const at::Generator& generator) {
    size_t holders = 0;
    for (const Call& call : graph_.calls)
      for (const IValue& v : call.args)
        if (v.isGenerator() && v.toGenerator() == generator) holders += call.vmaps.empty() ? 1 : 2;  // its image, too
    return holders;
  });
}

void Trace::forget() {
  plain_.clear();
  made_here_.clear();
  constants_.clear();
  tied_.clear();  // what is only known of may hold its members, this level among them
}

// ---- tracing a function --------------------------------------------------------------------------------------------

Tensor OwnMemory::copy(const Tensor& t) {
  DispatchGuard keys;
  keys.see_every_operator(false);
  auto [known, is_new] = copies_.try_emplace(t.storage().unsafeGetStorageImpl());
  if (is_new) known->second = t.as_strided({static_cast<int64_t>(t.storage().nbytes() / t.itemsize())}, {1}, 0).clone();
  const bool same_dtype = known->second.scalar_type() == t.scalar_type();
  const Tensor own = same_dtype ? known->second.as_strided(t.sizes(), t.strides(), t.storage_offset()) : t.clone();
  return top() && !as_wrapper(own) ? wrap_constant(*top(), own) : own;
}

namespace {

// A result that shows an argument that was written to: the same view of the argument as it is after the write.
Tensor shown_again(Trace& level, Wrapper& result, const Tensor& argument) {
  c10::SmallVector<const View*, 4> links;
  for (Wrapper* w = &result; w->view(); w = &base_of(*w->view())) links.push_back(w->view().get());
  Tensor value = argument;
  for (size_t k = links.size(); k-- > 0;) {
    const View& view = *links[k];
    Stack stack(view.args.begin(), view.args.end());
    stack[view.op->tensor_args()[0]] = value;
    level.process(*view.op, stack);
    value = flatten_outputs(stack)[view.out];
  }
  return value;
}

// Writes go into the caller's tensor last. A leaf that requires grad takes none in grad mode, as at any transform's
// end.
void write_argument(Trace& level, size_t i, const Tensor& inside, const Tensor& original) {
  static const Operator& copy = *Operator::find("aten::copy_", "");
  const bool leaf = original.is_leaf() && libtorch_records(original);
  const c10::AutoGradMode mode(autograd_state().get_grad_mode() && !leaf);
  const Tensor stands = level.stand_in(level.argument_number(i), original);
  Stack stack{stands, inside, false};
  level.process(copy, stack);
  if (!original.is_conj() && !original.is_neg()) return;
  // What stands for it is not lazily so, and has memory of its own.
  const Below below(level);
  stack = {original, as_wrapper(stands)->payload().value, false};
  enter(copy, stack);
}

}  // namespace

namespace {

Traced trace_at(const c10::intrusive_ptr<Trace>& level, const dynamic::Function& f, const dynamic::Tensors& args,
                const char* label) {
  const memory::InTransform here;
  const frontend::SubstitutedAs themselves(frontend::substituted_by_themselves());
  struct Forgets {
    Trace& level;
    ~Forgets() { level.forget(); }
  } const forgets{*level};  // whatever is thrown
  Traced traced;
  dynamic::Tensors inside;
  {
    const Scope scope(level);
    for (size_t i = 0; i < args.size(); ++i) {
      if (args[i].defined()) check_supported(args[i], label, ordinal("argument", i));
      inside.push_back(level->argument(args[i]));
    }
    const dynamic::Tensors outs = [&] {
      const frontend::Arguments arguments(*level, inside, args);
      return f(inside);
    }();
    level->check_unraised();
    level->check_generators();
    check_outputs(outs, label);
    const std::vector<size_t> writes = check_writes(*level, inside, args);
    const auto is_written = [&](const Wrapper& w) {
      return std::any_of(writes.begin(), writes.end(), [&](size_t i) { return as_wrapper(inside[i]) == &w; });
    };
    const auto argument_of = [&](const Wrapper& w) {
      size_t i = 0;
      while (as_wrapper(inside[i]) != &w) ++i;
      return i;
    };
    // The numbers of results first: writing to an argument changes which value it shows.
    std::vector<std::optional<ValueId>> numbers;
    for (const Tensor& out : outs) {
      Wrapper* w = as_wrapper_of(out, *level);
      const bool waits = w && is_among(inside, w->root()) && (!w->view() || is_written(w->root()));
      numbers.push_back(waits ? std::nullopt : std::optional(level->number_of(out)));
    }
    for (size_t i : writes) write_argument(*level, i, inside[i], args[i]);
    for (size_t k = 0; k < outs.size(); ++k) {
      Wrapper* w = as_wrapper_of(outs[k], *level);
      Tensor result = w ? Tensor(w->payload().value) : outs[k];
      if (!numbers[k]) {
        const size_t i = argument_of(w->root());
        Tensor standing = level->stand_in(level->argument_number(i), args[i]);
        if (w->view()) standing = shown_again(*level, *w, standing);
        numbers[k] = level->number_of(standing);
        result = as_wrapper(standing)->payload().value;
      }
      level->give(*numbers[k]);
      traced.results.push_back(std::move(result));
    }
  }
  const auto reads = level->reads();
  traced.graph = level->take_graph();
  if (!reads.empty()) {
    Graph read = traced.graph;
    read.results.clear();
    for (const auto& [id, value] : reads) {
      read.results.push_back(id);
      traced.reads.values.push_back(value);
    }
    traced.reads.graph = without_results(read, 0);
  }
  traced.assumptions = level->assumptions();
  OwnMemory own;
  for (size_t k = 0; k < traced.results.size(); ++k)
    if (traced.graph.values[traced.graph.results[k]].origin == Origin::constant)
      traced.results[k] = own.copy(traced.results[k]);
  return traced;
}

}  // namespace

Traced trace(const dynamic::Function& f, const dynamic::Tensors& args, const char* label, ForKernel kernels_know) {
  return trace_at(c10::make_intrusive<Trace>(label, kernels_know), f, args, label);
}

Traced trace_without_effects(const dynamic::Function& f, const dynamic::Tensors& args, const char* label,
                             ForKernel kernels_know) {
  const auto level = c10::make_intrusive<Trace>(label, kernels_know);
  level->refuse_effects();
  return trace_at(level, f, args, label);
}

Traced trace_with_reads(const dynamic::Function& f, const dynamic::Tensors& args, const char* label) {
  auto level = c10::make_intrusive<Trace>(label);
  level->allow_reads();
  return trace_at(level, f, args, label);
}

}  // namespace tower::compiler
