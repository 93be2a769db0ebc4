#include "core/libtorch_functions.h"

#include <ATen/FuncTorchTLS.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include "core/functorch.h"
#include "core/level.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower {
namespace {

using at::functorch::FuncTorchTLSBase;

// The level whose derivative would be wrong. Where only batches are made, LibTorch's autograd outside may want one.
const Level* level_that_would_differentiate() {
  const bool reverse = c10::GradMode::is_enabled();
  for (const Level* level = top(); level; level = level->below()) {
    if (level->kind() == Kind::jvp && c10::AutogradState::get_tls_state().get_fw_grad_mode()) return level;
    if ((level->kind() == Kind::vjp || level->kind() == Kind::trace) && reverse) return level;
  }
  return reverse ? top() : nullptr;
}

class State final : public FuncTorchTLSBase {
 public:
  explicit State(std::unique_ptr<FuncTorchTLSBase> previous) : previous_(std::move(previous)) {}

  // LibTorch carries the state to other threads, and back, by copies.
  std::unique_ptr<FuncTorchTLSBase> deepcopy() const override {
    auto copy = std::make_unique<State>(previous_ ? previous_->deepcopy() : nullptr);
    copy->users_ = users_;
    copy->functorch_layers_ = functorch_layers_;
    return copy;
  }

  void enter() { ++users_; }
  /// True for the last one.
  bool leave() { return --users_ == 0; }
  std::unique_ptr<FuncTorchTLSBase> take_previous() { return std::move(previous_); }

  int64_t checkSupportsSingleLevelAutogradFunction() const override {
    if (!functorch_layers_.empty() && functorch::allows_single_level_functions()) return 0;
    checkSupportsCppAutogradFunction();
    return 0;
  }

  void checkSupportsCppAutogradFunction() const override {
    // Kernels may be such functions: those run on plain tensors, below all levels.
    if (!c10::impl::raw_local_dispatch_key_set.included().has(kKey)) return;
    if (const Level* level = level_that_would_differentiate())
      throw UnsupportedError(
          level->describe() +
          ": an autograd Function of LibTorch (torch::autograd::Function) was called. Transforms cannot see its "
          "backward, and would take its outputs for constants. " +
          detail::spellings().visible_function + "; or call it under " + detail::spellings().no_grad +
          " if no derivative is wanted.");
  }

  // Constants may: NOTE [Constants may require grad] (wrapper.cpp). Inside of torch.func's transforms as they have it.
  void checkSupportsInplaceRequiresGrad() const override {
    if (!functorch_layers_.empty() && !functorch::allows_inplace_requires_grad())
      throw UnsupportedError(
          "requires_grad_() was called inside of a transform of torch.func, which does not see it. Use "
          "torch.func.grad, "
          "vjp or jacrev.");
  }
  void checkSupportsRetainGrad() const override {
    if (top() && c10::impl::raw_local_dispatch_key_set.included().has(kKey))
      throw UnsupportedError(top()->describe() +
                             ": retain_grad() was called, but LibTorch's autograd does not see inside of transforms. "
                             "Return the tensor and differentiate with respect to it.");
  }

 private:
  // Functorch takes any such state for its own class, whose members follow: the layers of transforms of torch.func that
  // run inside of Tower's, and flags.
  functorch::Layers functorch_layers_;
  [[maybe_unused]] unsigned char functorch_flags_[128] = {};
  std::unique_ptr<FuncTorchTLSBase> previous_;
  int users_ = 0;
};

State* current() { return dynamic_cast<State*>(at::functorch::functorchTLSAccessor().get()); }

}  // namespace

void refuse_libtorch_functions() {
  auto& state = at::functorch::functorchTLSAccessor();
  if (!current()) {
    // A functorch transform around this one needs its own state, and refuses such functions itself.
    if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) return;
    state = std::make_unique<State>(std::move(state));
  }
  current()->enter();
}

void allow_libtorch_functions() {
  State* mine = current();
  if (mine && mine->leave()) at::functorch::functorchTLSAccessor() = mine->take_previous();
}

}  // namespace tower
