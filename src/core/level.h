// A level is one running transform: an interpreter with an identity, linked to the level it was started in. The
// thread's current top is the level whose user function (or rule) is being executed.
//
//   top ──▶ grad (level 2) ──▶ vmap (level 1) ──▶ null: plain tensors
//
// Identity, not depth, tells levels apart: ids are never reused, and a level answers "is it still running, here?"
// for every tensor that it made. Nothing here knows what a particular transform does.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>

#include "core/key.h"

namespace tower {

class Operator;
class Wrapper;
using c10::IValue;
using torch::jit::Stack;

enum class Kind : uint8_t { vmap, jvp, vjp };

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
  bool ended() const { return ended_; }
  uint64_t thread() const { return thread_; }
  /// "grad (level 2)": how messages name it.
  std::string describe() const;

  /// Replaces the arguments on `stack` by the results of `op` under this transform. At least one argument is a wrapper
  /// of this level, or the operator is random and the level decides what that means. The thread's top is this level.
  virtual void process(const Operator& op, Stack& stack) = 0;

  void release_resources() override { below_.reset(); }

 private:
  friend class Scope;
  Kind kind_;
  bool ended_ = true;  // until a Scope starts it
  int depth_ = 0;
  const char* label_;
  uint64_t id_;
  uint64_t thread_;
  c10::intrusive_ptr<Level> below_;
};

/// The level whose function or rule the thread is executing; null outside every transform.
Level* top();
/// True if `level` is running on this thread and visible from the current top.
bool is_visible(const Level* level);
/// Number of this thread, never reused.
uint64_t this_thread();

/// Sets the thread's dispatch keys for a while and puts back exactly what was there.
class DispatchGuard {
 public:
  DispatchGuard() : saved_(c10::impl::tls_local_dispatch_key_set()) {}
  ~DispatchGuard() { c10::impl::_force_tls_local_dispatch_key_set(saved_); }
  DispatchGuard(const DispatchGuard&) = delete;
  DispatchGuard& operator=(const DispatchGuard&) = delete;

  void see_every_operator(bool yes);
  /// Goes below LibTorch's autograd: for plain tensors of which none requires grad this only saves time.
  void skip_libtorch_autograd();
  /// The opposite, for code that runs LibTorch's autograd on purpose.
  void with_libtorch_autograd();

 private:
  c10::impl::LocalDispatchKeySet saved_;
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
  explicit Below(const Level& level);
  ~Below();
  Below(const Below&) = delete;
  Below& operator=(const Below&) = delete;

  DispatchGuard& keys() { return keys_; }

 private:
  Level* previous_;
  DispatchGuard keys_;
};

}  // namespace tower
