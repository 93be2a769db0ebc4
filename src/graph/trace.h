// A trace is a level that records. It runs each operator call that reaches it at once, one level down, on the values of
// this call, and notes it in a graph; so shapes come from the kernels themselves, and the function's result is there
// when its graph is. Whatever runs above it (vmap, grad, the front end) has done its work when a call arrives.
//
//   trace   payload.index = number of the value in the graph
//
// A payload without a number is a constant, as at every level: what is made from nothing, and what is made of that. Its
// value can be read; that of a traced tensor cannot, for it would be that of this call. A plain tensor that was not
// made while the trace runs was captured: it becomes a value of the graph, read at each run.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/in_force.h"
#include "core/wrapper.h"
#include "graph/graph.h"
#include "graph/watched_generators.h"
#include "interpreters/history.h"
#include "tower/dynamic.h"

namespace tower::compiler {

/// What a graph takes for granted besides its arguments: each function says whether it still is so.
using Assumptions = std::vector<std::function<bool()>>;

/// Whether kernels know an operator: for a graph that is to become a part of a kernel. Operators that no kernel knows
/// are replaced by those that they are made of, as under vmap. Null for any other graph.
using ForKernel = bool (*)(const Operator& op);

/// In force while a function is traced for what it is, such as the step of a loop, and not for what it gives. What
/// levels around that record is no part of what they trace.
struct Trying : InForce<Trying> {};

class Trace final : public Level {
 public:
  /// `kernels_know`: see ForKernel.
  explicit Trace(const char* label, ForKernel kernels_know = nullptr);

  void process(const Operator& op, Stack& stack) override;
  void took(Wrapper& w) override { History::show_untracked(w); }

  /// The argument of the function that stands for `t`; undefined for an undefined tensor.
  Tensor argument(const Tensor& t);
  /// The number of the value that `t` is, as code at this level sees it.
  ValueId number_of(const Tensor& t);
  /// The number of an argument as it was given, whatever was written to it since.
  ValueId argument_number(size_t i) const { return graph_.arguments[i]; }
  /// Notes a result of the function.
  void give(ValueId id) { graph_.results.push_back(id); }
  /// A wrapper of this level that stands for a value of the graph, which is `value` in this call.
  Tensor stand_in(ValueId id, const Tensor& value) { return wrap(*this, Payload{value, {}, plain(id)}); }

  /// Takes the tensor for a constant, not for one that the function captured.
  void know_constant(const Tensor& t) { made_here_.emplace(t.storage().unsafeGetStorageImpl(), t.storage()); }

  /// Notes what the function found out that may be otherwise at another call.
  void assume(const std::function<bool()>& still) override { assumptions_.push_back(still); }

  /// From now on, the first call that writes to memory from outside, draws random numbers or is of unknown code throws
  /// an UnsupportedError, before anything has happened: the function is only tried.
  void refuse_effects() { refuses_effects_ = true; }

  /// Lets the function read values, for which the graph is then made: see NOTE [Values that were read].
  void allow_reads() { may_read_ = true; }
  const std::vector<std::pair<ValueId, bool>>& reads() const { return reads_; }

  /// Throws an UnsupportedError if a call raised something that the function caught: it may raise for some values only.
  void check_unraised() const;
  /// Throws an UnsupportedError if the function moved random number generators otherwise than by its draws.
  void check_generators();

  /// What was recorded. The trace is of no use afterwards.
  Graph take_graph() { return std::move(graph_); }
  /// Lets go of the tensors that it knows, wrappers of its own among them, so that it can end.
  void forget();
  Assumptions assumptions() { return std::move(assumptions_); }

 private:
  /// Makes the call and notes it; `recorded`: as one that differs from call to call. `viewed`, where it is defined, is
  /// the operand of a view, which shows `memory` from outside.
  void note(const Operator& op, Stack& stack, bool recorded, const Tensor& memory, const Tensor& viewed);
  bool run_at_once(const Operator& op, const Call& call, Stack& stack);
  bool give_zeros(const Operator& op, const Call& call, Stack& stack);
  struct Values;
  bool is_constant(const Tensor& plain) const;
  bool reads_by_place(const Operator& op, const Stack& stack);
  /// The captured tensor, or the view of one, that `t` is; undefined if it is none.
  Tensor memory_outside(const Tensor& t) const;
  Tensor stand_in_for_memory(const Tensor& t, const Tensor& memory);
  void mark_views(const Tensor& base, const Tensor& memory, Stack& stack);
  void note_writes(const Call& call);
  bool read(const Operator& op, Stack& stack);
  bool decide(const Tensor& answer, bool& value);
  bool know_values(const Operator& op, Stack& stack);
  bool pick_by_known_mask(const Operator& op, Stack& stack);
  bool depends(const Operator& op, const Operator& innermost, const Stack& stack);
  void run_below(const Operator& op, Stack& stack) const;
  ValueId add(Origin origin, const Tensor& t);
  ValueId constant_number(const Tensor& plain);
  ValueId read_by_maker(const Tensor& t);

  Graph graph_;
  std::unordered_map<const c10::TensorImpl*, std::pair<Tensor, ValueId>> plain_;      // constants and captured tensors
  std::unordered_map<const c10::StorageImpl*, c10::Storage> made_here_;               // of constants
  std::unordered_map<const c10::TensorImpl*, std::pair<Tensor, ValueId>> constants_;  // that calls made, or read
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> tied_;  // memory from outside with views that are computed
  WatchedGenerators generators_;
  Assumptions assumptions_;
  std::vector<std::pair<ValueId, bool>> reads_;  // what was read, and what it was
  std::string raised_;                           // the first operator that raised something
  bool may_read_ = false;
  ForKernel kernels_know_;
  bool refuses_effects_ = false;
  int64_t tries_ = Trying::depth();  // that this trace is inside of
  const void* substitutions_;        // around the trace: the graph reads what they replace, and so is right for others
};

/// What the function read of its arguments: `graph` computes it, and `values` is what it was. The function's graph is
/// right for arguments of which it is the same.
struct Reads {
  Graph graph;
  std::vector<bool> values;
};

/// A function's graph, and what it computed on the way.
struct Traced {
  Graph graph;
  dynamic::Tensors results;
  Assumptions assumptions;
  Reads reads;
};

/// Runs `f` once. `label` is the public function that wants to know.
Traced trace(const dynamic::Function& f, const dynamic::Tensors& args, const char* label,
             ForKernel kernels_know = nullptr);
/// The same of a function that is only tried (Trace::refuse_effects).
Traced trace_without_effects(const dynamic::Function& f, const dynamic::Tensors& args, const char* label,
                             ForKernel kernels_know);
/// The same of a function that may read values.
Traced trace_with_reads(const dynamic::Function& f, const dynamic::Tensors& args, const char* label);

/// The operator of which `op` is an image, or the image of one: as the function called it.
const Operator& innermost(const Operator& op);

/// A value as levels show it, which have no lazy conjugation or negation: calls in a graph expect none.
Tensor without_lazy_conjugation(Tensor t);

/// Constants leave a function in memory of their own, which callers may write to. Several that share memory go on to do
/// so.
class OwnMemory {
 public:
  Tensor copy(const Tensor& t);

 private:
  std::unordered_map<const c10::StorageImpl*, Tensor> copies_;
};

}  // namespace tower::compiler
