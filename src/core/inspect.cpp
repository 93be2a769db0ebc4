#include "tower/inspect.h"

#include "core/wrapper.h"

namespace tower {

std::optional<Inspected> inspect(const Tensor& t) {
  Wrapper* w = as_wrapper(t);
  if (!w) return std::nullopt;
  const Level& level = w->level();
  const Payload payload = is_visible(&level) ? w->payload() : w->stored();
  Inspected seen;
  seen.transform = name(level.kind());
  seen.label = level.label();
  seen.level = level.depth();
  seen.ended = level.ended();
  seen.constant = !payload.tracked();
  seen.value = payload.value;
  seen.tangent = payload.tangent;
  if (level.kind() == Kind::vmap && payload.tracked()) seen.batch_dim = payload.index;
  return seen;
}

c10::DispatchKey dispatch_key() { return kKey; }

bool inside_transform() { return top() != nullptr; }

struct Suspended::State {
  State() : previous(thread_state.top), recorder(thread_state.recorder), substitutions(thread_state.substitutions) {
    keys.see_every_operator(false);
    thread_state.top = nullptr;
    thread_state.recorder = nullptr;
    thread_state.substitutions = nullptr;
  }
  ~State() {
    thread_state.top = previous;
    thread_state.recorder = recorder;
    thread_state.substitutions = substitutions;
  }
  Level* previous;
  CallRecorder* recorder;
  const void* substitutions;
  DispatchGuard keys;
};

Suspended::Suspended() : state_(std::make_unique<State>()) {}
Suspended::~Suspended() = default;

}  // namespace tower
