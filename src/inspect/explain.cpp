#include "tower/explain.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "core/call_recorder.h"
#include "frontend/twins.h"
#include "interpreters/derivatives.h"
#include "interpreters/vmap.h"
#include "tower/coverage.h"

namespace tower {

namespace {

Mask differentiable_arguments(const Operator& op) {
  Mask all = 0;
  for (uint8_t i : op.tensor_args()) all |= Mask{1} << i;
  return all;
}

std::string derivative_served(const Operator& op, Kind kind) {
  // An operator with rules for some arguments only (a mask has none) is served by them.
  if (op.has_rule(kind)) return op.no_derivative() ? "no derivative" : "own rule";
  if (op.decomposition) return "decomposition";
  if (op.composite()) return "composite";
  const Mask tracked = differentiable_arguments(op);
  if (tracked == 0 || op.num_outs() == 0 || (tracked & ~op.inactive_args) == 0) return "no derivative";
  switch (kind == Kind::vjp ? served_vjp(op, tracked) : served_jvp(op, tracked)) {
    case Served::own_rule:
      return "own rule";
    case Served::libtorch_autograd:
      return "LibTorch autograd";
    case Served::transposed_vjp:
      return "transposed vjp";
    case Served::transposed_jvp:
      return "transposed jvp";
    case Served::no_derivative:
      return "no derivative";
    default:
      return "error: no derivative is known";
  }
}

std::string vmap_served(const Operator& op) {
  if (op.vmap) return op.vmap_family ? std::string("family: ") + op.vmap_family : "own rule";
  if (op.composite() && !op.decomposition) return "composite";
  if (op.decomposition) return "decomposition";
  if (op.custom && op.implementation && !op.reads_memory) return "implementation";
  if (op.random()) return "random";
  if (op.pointwise_tag()) return "family: pointwise";
  if (op.tensor_args().empty()) return "no tensors";
  return "loop";
}

// How `op` is served under `kind`, in the words of CoverageRow.
std::string served_by(const Operator& op, Kind kind) {
  if (kind == Kind::trace) return "recorded";
  if (const auto& why = op.unsupported[static_cast<size_t>(kind)]) return "refused: " + *why;
  if (op.mutates()) {
    const frontend::Twin& twin = frontend::twin_of(op);
    if (twin.refused) return std::string("refused: ") + twin.refused;
    const bool into_out = op.schema().arguments().back().is_out();
    if (twin.op && (into_out || !op.composite())) return "in-place form of " + twin.op->name();
    return op.decomposition ? "decomposition" : "composite";
  }
  return kind == Kind::vmap ? vmap_served(op) : derivative_served(op, kind);
}

}  // namespace

std::vector<CoverageRow> coverage() {
  std::vector<CoverageRow> rows;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle) continue;
    const Operator& op = Operator::of(*handle);
    for (Kind kind : {Kind::vmap, Kind::vjp, Kind::jvp})
      rows.push_back({op.name(), tower::name(kind), served_by(op, kind)});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.op < b.op; });
  return rows;
}

bool set_fallback_is_error(bool yes) { return fallback_is_error(yes); }

struct Explainer::State final : CallRecorder {
  struct Key {
    int depth;
    std::string level, op;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, ExplainedCall> calls;
  CallRecorder* outer = nullptr;

  void record(const Operator& op, const Level* level, std::chrono::nanoseconds time) override {
    const std::string where = level ? level->describe() : "plain";
    auto& call = calls[{level ? level->depth() : 0, where, op.name()}];
    if (call.count == 0) {
      call.op = op.name();
      call.level = where;
      call.served = level ? served_by(op, level->kind()) : "LibTorch";
    }
    ++call.count;
    call.time += time;
  }
};

Explainer::Explainer() : state_(std::make_unique<State>()) {
  state_->outer = thread_state.recorder;
  thread_state.recorder = state_.get();
}

Explainer::~Explainer() { thread_state.recorder = state_->outer; }

std::vector<ExplainedCall> Explainer::calls() const {
  std::vector<std::pair<int, ExplainedCall>> all;
  for (const auto& [key, call] : state_->calls) all.emplace_back(key.depth, call);
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second.time > b.second.time;
  });
  std::vector<ExplainedCall> result;
  for (auto& [depth, call] : all) result.push_back(std::move(call));
  return result;
}

std::string Explainer::table() const {
  std::string text;
  char line[512];
  std::snprintf(line, sizeof line, "%-22s %-44s %-28s %7s %11s\n", "level", "operator", "served by", "calls",
                "time (us)");
  text += line;
  for (const auto& c : calls()) {
    std::snprintf(line, sizeof line, "%-22s %-44s %-28s %7lld %11.1f\n", c.level.c_str(), c.op.c_str(),
                  c.served.c_str(), static_cast<long long>(c.count), static_cast<double>(c.time.count()) * 1e-3);
    text += line;
  }
  return text;
}

}  // namespace tower
