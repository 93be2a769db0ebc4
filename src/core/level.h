// A level is one running transform: an interpreter with an identity, linked to the level it was started in. The
// thread's current top is the level whose user function (or rule) is being executed.
//
//   top ──▶ grad (level 2) ──▶ vmap (level 1) ──▶ null: plain tensors
//
// Identity, not depth, tells levels apart: ids are never reused, and a level answers "is it still running, here?"
// for every tensor that it made. Nothing here knows what a particular transform does.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <string>

#include "core/key.h"

namespace tower {

class CallRecorder;
class Operator;
class Wrapper;
namespace frontend {
class Arguments;
}
using c10::IValue;
using torch::jit::Stack;

enum class Kind : uint8_t { vmap, jvp, vjp, trace };
constexpr size_t kKinds = 4;

/// The name of the transform kind as users know it.
const char* name(Kind kind);

/// One running transform. Subclasses say what an operator means under it.
class Level : public c10::intrusive_ptr_target {
 public:
  /// `label`: the public function that started it, for messages ("vmap", "grad", "jacfwd", …); a literal.
  Level(Kind kind, const char* label);

  Kind kind() const { return kind_; }
  const char* label() const { return label_; }
  uint64_t id() const { return id_; }
  /// Number of levels up to and including this one.
  int depth() const { return depth_; }
  Level* below() const { return below_.get(); }
  /// The nearest trace at or below this level; null if there is none. See NOTE [In sight of a trace].
  Level* trace() const { return trace_; }
  /// Whether a trace lies below this level.
  bool is_traced() const { return traced_; }
  bool ended() const { return ended_; }
  uint64_t thread() const { return thread_; }
  /// "grad (level 2)": how messages name it.
  std::string describe() const;

  /// Replaces the arguments on `stack` by the results of `op` under this transform. At least one argument is a wrapper
  /// of this level, or the operator is random and the level decides what that means. The thread's top is this level.
  virtual void process(const Operator& op, Stack& stack) = 0;

  /// Whether it follows nothing under no_grad, as reverse mode does.
  virtual bool heeds_no_grad() const { return false; }

  /// Whether it owes each of its examples random numbers of its own. Throws RandomnessError where it was not told what
  /// random numbers mean.
  virtual bool draws_for_each(const Operator&) const { return false; }

  /// Code that runs under it found out what may be otherwise when it runs again, and `still` says whether it is the
  /// same: for a level that keeps what it records.
  virtual void assume(const std::function<bool()>& /*still*/) {}

  /// A wrapper of this level was given a value, and shows its sizes and type already.
  virtual void took(Wrapper&) {}

  void release_resources() override { below_.reset(); }

 private:
  friend class Scope;
  Kind kind_;
  bool ended_ = true;  // until a Scope starts it
  bool traced_ = false;
  int depth_ = 0;
  const char* label_;
  uint64_t id_;
  uint64_t thread_;
  Level* trace_ = nullptr;  // itself or kept alive by below_
  c10::intrusive_ptr<Level> below_;
};

/// Everything Tower keeps for a thread. In one small block with static addressing: it is read for every operator.
struct ThreadState {
  Level* top = nullptr;                      // the level whose function or rule the thread is executing
  CallRecorder* recorder = nullptr;          // who wants to know of calls (core/call_recorder.h)
  const void* substitutions = nullptr;       // what stands for what (frontend/substitution.cpp)
  frontend::Arguments* arguments = nullptr;  // of the functions that run (frontend/arguments.h)
  uint32_t written_arguments = 0;            // how many of them were written to
  uint64_t thread = 0;                       // this_thread(), once it was asked for
  void* operators = nullptr;                 // records that this thread met lately (core/operator.cpp)

  // LibTorch's state of this thread, once it was asked for: its address costs a call each time.
  c10::impl::PODLocalDispatchKeySet* dispatch_keys = nullptr;
  c10::AutogradState* autograd = nullptr;
};
extern constinit thread_local ThreadState thread_state __attribute__((tls_model("initial-exec")));

inline c10::impl::PODLocalDispatchKeySet& dispatch_keys() {
  if (!thread_state.dispatch_keys) thread_state.dispatch_keys = &c10::impl::raw_local_dispatch_key_set;
  return *thread_state.dispatch_keys;
}
inline c10::AutogradState& autograd_state() {
  if (!thread_state.autograd) thread_state.autograd = &c10::AutogradState::get_tls_state();
  return *thread_state.autograd;
}

/// The level whose function or rule the thread is executing; null outside every transform.
inline Level* top() { return thread_state.top; }
/// The nearest trace that calls made now would come to; null if there is none.
inline Level* tracing() { return thread_state.top ? thread_state.top->trace() : nullptr; }
/// Number of this thread, never reused.
uint64_t this_thread();
/// True if `level` is running on this thread and visible from the current top.
inline bool is_visible(const Level* level);

/// Sets the thread's dispatch keys for a while and puts back exactly what was there.
class DispatchGuard {
 public:
  DispatchGuard() : keys_(&dispatch_keys()), saved_(*keys_) {}
  ~DispatchGuard() { *keys_ = saved_; }
  DispatchGuard(const DispatchGuard&) = delete;
  DispatchGuard& operator=(const DispatchGuard&) = delete;

  // NOTE [In sight of a trace]
  // A trace records every operator call that is made while it runs, also those that rules make of plain tensors (a
  // constant, or a tensor from outside that the function captured): what it did not see would be the same for ever. So
  // above a trace nothing hides operators, and bind_call brings it the calls that no level above it takes.
  void see_every_operator(bool yes) { see(yes || tracing() != nullptr); }
  /// For LibTorch's kernels, in which no level has a part.
  void see_no_operator() { see(false); }
  /// Goes below LibTorch's autograd: for plain tensors of which none requires grad this only saves time.
  void skip_libtorch_autograd() { keys_->set_excluded(keys_->excluded() | c10::autograd_dispatch_keyset); }
  /// The opposite, for code that runs LibTorch's autograd on purpose.
  void with_libtorch_autograd() {
    keys_->set_excluded(keys_->excluded() - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  }
  /// For code whose arguments have the dtypes that it shall compute in.
  void skip_autocast() { keys_->set_excluded(keys_->excluded() | c10::autocast_dispatch_keyset); }

 private:
  friend class Below;
  void see(bool yes) { keys_->set_included(yes ? keys_->included() | kKeySet : keys_->included() - kKeySet); }

  c10::impl::PODLocalDispatchKeySet* keys_;
  c10::impl::PODLocalDispatchKeySet saved_;
};

/// Starts a level and makes it the top while user code runs in it.
class Scope {
 public:
  explicit Scope(c10::intrusive_ptr<Level> level);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  c10::intrusive_ptr<Level> level_;
  Level* previous_;
  DispatchGuard keys_;
};

/// While a rule of `level` runs, only the levels below it are there, and plain operators pay nothing.
class Below {
 public:
  explicit Below(const Level& level) : previous_(thread_state.top) {
    thread_state.top = level.below();
    keys_.see(level.is_traced());
  }
  ~Below() { thread_state.top = previous_; }
  Below(const Below&) = delete;
  Below& operator=(const Below&) = delete;

  DispatchGuard& keys() { return keys_; }

 private:
  Level* previous_;
  DispatchGuard keys_;
};

inline bool is_visible(const Level* level) {
  const Level* l = thread_state.top;
  while (l && l->depth() > level->depth()) l = l->below();
  return l == level;
}

}  // namespace tower
