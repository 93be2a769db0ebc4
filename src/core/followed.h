// Who may ask for the derivative with respect to a tensor.
#pragma once

#include "core/bind.h"
#include "core/level.h"
#include "core/wrapper.h"

namespace tower {

/// Whether a level of `t` or below it, or LibTorch, may ask for the derivative with respect to `t`. (A vmap asks for
/// none.)
inline bool is_differentiated(Tensor t) {
  for (Wrapper* w = as_wrapper(t); w != nullptr; w = as_wrapper(t)) {
    if (w->level().kind() != Kind::vmap && w->payload().tracked()) return true;
    t = Tensor(w->payload().value);  // a copy: the wrapper may go with `t`
  }
  return libtorch_follows(t);
}

}  // namespace tower
