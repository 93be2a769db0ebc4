#include "tower/inspect.h"

#include <ATen/core/Formatting.h>

#include <sstream>

#include "core/wrapper.h"
#include "taylor/series.h"

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
  seen.tangent = taylor::is_series(payload.tangent) ? taylor::derivatives_of(payload)[0] : payload.tangent;
  if (level.kind() == Kind::vmap && payload.tracked()) seen.batch_dim = payload.index;
  return seen;
}

namespace {

using Plain = std::function<std::string(const Tensor&)>;

std::string formatted(const Tensor& t) {
  std::ostringstream text;
  text << t;
  return text.str();
}

std::string plain_text(const Tensor& t, const Plain& plain) {
  const Suspended outside;
  return plain ? plain(t) : formatted(t);
}

const char* class_name(const std::string& transform) {
  if (transform == "vmap") return "BatchedTensor";
  if (transform == "trace") return "TracedTensor";
  return transform == "jvp" ? "DualTensor" : "TapedTensor";
}

// In one line, or each part in lines of its own where one has several.
std::string put_together(const std::string& name, const std::vector<std::string>& parts) {
  bool lines = false;
  for (const auto& part : parts) lines = lines || part.find('\n') != std::string::npos;
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : lines ? ",\n" : ", ") + part;
  if (!lines) return name + "(" + text + ")";
  std::string indented;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) indented += (line.empty() ? "" : "  ") + line + "\n";
  return name + "(\n" + indented + ")";
}

// Whether a running level that `concerns` says yes to tracks it, whatever lies above.
template <class Concerns>
bool some_level_tracks(Tensor t, Concerns concerns) {
  while (Wrapper* w = as_wrapper(t)) {
    const Level& level = w->level();
    const Payload& payload = is_visible(&level) ? w->payload() : w->stored();
    if (payload.tracked() && !level.ended() && concerns(level.kind())) return true;
    Tensor value = payload.value;
    t = std::move(value);
  }
  return false;
}

}  // namespace

std::string to_string(const Tensor& t, const Plain& plain) {
  const auto seen = inspect(t);
  if (!seen) return plain_text(t, plain);
  if (seen->constant) return to_string(seen->value, plain);
  std::vector<std::string> parts{"level=" + std::to_string(seen->level)};
  if (seen->batch_dim) parts.push_back("bdim=" + std::to_string(*seen->batch_dim));
  parts.push_back("value=" + to_string(seen->value, plain));
  if (seen->transform == "jvp")
    parts.push_back("tangent=" + (seen->tangent.defined() ? to_string(seen->tangent, plain) : "0"));
  if (seen->ended) parts.emplace_back("ended=True");
  return put_together(class_name(seen->transform), parts);
}

bool is_batched(const Tensor& t) {
  return some_level_tracks(t, [](Kind kind) { return kind == Kind::vmap; });
}

bool is_tracked(const Tensor& t) {
  return some_level_tracks(t, [](Kind kind) { return kind == Kind::jvp || kind == Kind::vjp; });
}

c10::DispatchKey dispatch_key() { return kKey; }

bool inside_transform() { return top() != nullptr; }

struct Suspended::State {
  State() : previous(thread_state.top), recorder(thread_state.recorder), substitutions(thread_state.substitutions) {
    keys.see_no_operator();
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
