#include "core/level.h"

#include <atomic>

#include "core/libtorch_functions.h"
#include "core/torchscript.h"
#include "tower/errors.h"

namespace tower {
namespace {

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

const char* name(Kind kind) {
  switch (kind) {
    case Kind::vmap:
      return "vmap";
    case Kind::jvp:
      return "jvp";
    case Kind::vjp:
      return "vjp";
    case Kind::trace:
      return "trace";
  }
  return "?";
}

constinit thread_local ThreadState thread_state;

uint64_t this_thread() {
  static std::atomic<uint64_t> last{0};
  if (thread_state.thread == 0) thread_state.thread = ++last;
  return thread_state.thread;
}

Level::Level(Kind kind, const char* label) : kind_(kind), label_(label), id_(next_id()), thread_(this_thread()) {}

std::string Level::describe() const { return std::string(label_) + " (level " + std::to_string(depth_) + ")"; }

namespace {

// A transform of torch.func sees operators before Tower does, and would take Tower's tensors for values of its own.
void refuse_inside_functorch(const Level& level) {
  constexpr auto kFunctorch = c10::DispatchKey::FuncTorchDynamicLayerFrontMode;
  if (dispatch_keys().included().has(kFunctorch) && !dispatch_keys().excluded().has(kFunctorch))
    throw UnsupportedError(
        std::string(level.label()) +
        ": it was called inside of a function that torch.func transforms (vmap, grad, jvp, …), whose "
        "levels cannot hold Tower's. Use Tower's transform in place of torch.func's; torch.func "
        "inside of Tower's transforms works.");
}

// LibTorch's engine has a thread for each device that is not the CPU, on which a transform's tensors are unknown: what
// of it runs inside of a transform (torch.func's transforms, a backward) stays on the transform's thread.
thread_local const Scope* keeps_engine_here = nullptr;

}  // namespace

Scope::Scope(c10::intrusive_ptr<Level> level) : level_(std::move(level)), previous_(thread_state.top) {
  refuse_inside_functorch(*level_);
  if (previous_) level_->below_ = c10::intrusive_ptr<Level>::reclaim_copy(previous_);
  level_->depth_ = previous_ ? previous_->depth() + 1 : 1;
  level_->ended_ = false;
  Level* outer_trace = previous_ ? previous_->trace() : nullptr;
  level_->traced_ = outer_trace != nullptr;
  level_->trace_ = level_->kind() == Kind::trace ? level_.get() : outer_trace;
  thread_state.top = level_.get();
  keys_.see_every_operator(true);
  if (!previous_) {
    refuse_libtorch_functions();
    enter_torchscript_as_written();
    if (autograd_state().get_multithreading_enabled()) {
      autograd_state().set_multithreading_enabled(false);
      keeps_engine_here = this;
    }
  }
}

Scope::~Scope() {
  if (keeps_engine_here == this) {
    autograd_state().set_multithreading_enabled(true);
    keeps_engine_here = nullptr;
  }
  if (!previous_) {
    leave_torchscript_as_written();
    allow_libtorch_functions();
  }
  level_->ended_ = true;
  // A tape below may keep a rule that captured a tensor of this level, which would keep the tape.
  level_->below_.reset();
  level_->trace_ = nullptr;
  thread_state.top = previous_;
}

}  // namespace tower
