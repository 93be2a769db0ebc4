#include "taylor/jet.h"

#include <c10/core/GradMode.h>

#include "core/bind.h"
#include "interpreters/derivatives.h"
#include "interpreters/history.h"
#include "taylor/growing.h"
#include "taylor/series.h"

namespace tower::taylor {

void Jet::took(Wrapper& w) { History::show_untracked(w); }

void Jet::process(const Operator& op, Stack& stack) {
  const bool follows = autograd_state().get_fw_grad_mode() && !op.no_derivative();
  const bool tracked = follows && tracked_args(*this, op, stack) != 0;
  std::vector<Derivatives> derivatives;
  {
    const Below below(*this);
    if (!tracked) {
      replace_tensors(op, stack, [&](const Tensor& t, LeafRef) -> Tensor {
        Wrapper* w = as_wrapper_of(t, *this);
        return w ? w->payload().value : t;
      });
      bind_call(op, stack);
    } else {
      const auto growing = c10::make_intrusive<Growing>(label(), scaling_);
      const Scope scope(growing);
      const c10::AutoFwGradMode following(true);
      replace_tensors(op, stack, [&](const Tensor& t, LeafRef leaf) -> Tensor {
        Wrapper* w = as_wrapper_of(t, *this);
        if (!w) return t;
        const Payload& payload = w->payload();
        return is_tracked(op, leaf, payload) ? growing->given(payload.value, derivatives_of(payload)) : payload.value;
      });
      growing->process(op, stack);
      replace_outputs(stack, [&](Tensor&& t, size_t k) {
        derivatives.resize(k + 1);
        derivatives[k] = growing->derivatives(t, order_);
        Wrapper* w = as_wrapper_of(t, *growing);
        return w ? w->payload().value : t;
      });
    }
  }
  replace_outputs(stack, [&](Tensor&& t, size_t k) {
    return k < derivatives.size() ? wrap_series(*this, std::move(t), std::move(derivatives[k]))
                                  : wrap_constant(*this, std::move(t));
  });
}

}  // namespace tower::taylor
