// LibTorch's autocast inside a transform. Which operators it casts for, and to what, is LibTorch's business: its own
// autocast kernel runs first, above all levels, so that the casts are operators like others: recorded on the tape,
// batched, differentiated. Everything an operator's rules then do runs in the dtypes that this gave.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "core/operator.h"

namespace tower::frontend {

/// The dispatch keys of the devices for which autocast is on here. One thread-local read.
inline c10::DispatchKeySet active_autocast() { return c10::autocast_dispatch_keyset - dispatch_keys().excluded(); }

/// Calls the operator through LibTorch's autocast kernel, which casts the arguments and calls it again. False, with
/// nothing done, if it has none for these arguments.
bool run_autocast(const Operator& op, Stack& stack, c10::DispatchKeySet active);

/// To what autocast casts, or would, on each of the devices that LibTorch has it for; the rest is undefined. Some
/// thread-local reads.
using AutocastDtypes = std::array<at::ScalarType, 16>;
AutocastDtypes dtypes_of_autocast();

/// Which devices it is on for, the dtypes that it casts to, and whether it keeps casts of parameters.
struct Autocast {
  c10::DispatchKeySet active;
  std::vector<std::pair<at::DeviceType, at::ScalarType>> dtypes;
  bool keeps;
};
Autocast autocast_here();

/// While alive, autocast is as it was there, but keeps nothing: who would throw it away is no longer there.
class AutocastAs {
 public:
  explicit AutocastAs(const Autocast& there);
  ~AutocastAs();
  AutocastAs(const AutocastAs&) = delete;
  AutocastAs& operator=(const AutocastAs&) = delete;

 private:
  Autocast before_;
};

/// `f` under the autocast of this place, wherever it is called: a pullback runs outside of any, and a function that it
/// evaluates again would compute in other dtypes than it did.
template <class F>
F under_this_autocast(F f) {
  if (active_autocast().empty()) return f;
  return [f = std::move(f), here = autocast_here()](auto&&... args) {
    const AutocastAs there(here);
    return f(std::forward<decltype(args)>(args)...);
  };
}

}  // namespace tower::frontend
