#include "fuse/fused_plan.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>

#include "core/bind.h"
#include "fuse/example_blocks.h"
#include "graph/kernel_operator.h"

namespace tower::compiler {
namespace {

// What a kernel can read as it lies in memory: the values of nobody else's tensor.
bool is_readable(const Tensor& t) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet special({DispatchKey::Python, DispatchKey::FuncTorchBatched,
                                         DispatchKey::FuncTorchGradWrapper, DispatchKey::Functionalize,
                                         DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});
  const c10::DispatchKeySet keys = t.key_set();
  if (!t.device().is_cpu() || t.layout() != at::kStrided || keys.has(kKey) || keys.has_any(special)) return false;
  return !t.unsafeGetTensorImpl()->autograd_meta() ||
         (!is_libtorch_dual(t) && !(libtorch_records(t) && autograd_state().get_grad_mode()));
}

bool readable_or_undefined(const Tensor& t) { return !t.defined() || is_readable(t); }

}  // namespace

bool listens_to_operators() {
  return thread_state.recorder || thread_state.substitutions || c10::impl::TorchDispatchModeTLS::any_modes_set();
}

bool is_plain(const dynamic::Tensors& tensors) {
  return !top() && !listens_to_operators() && std::all_of(tensors.begin(), tensors.end(), readable_or_undefined);
}

FusedPlan::FusedPlan(Graph graph, std::shared_ptr<Kernels> kernels)
    : plain_(std::move(graph)), kernels_(std::move(kernels)) {
  for (const Value& v : plain_.graph().values)
    if (v.origin == Origin::captured && v.tensor.defined()) captured_.push_back(v.tensor);
  for (const Call& call : plain_.graph().calls) has_effects_ = has_effects_ || call.effect || call.opaque();
}

FusedPlan::Compiled FusedPlan::compiled() const try {
  const bool is_small = is_small_graph(plain_.graph());
  FusedGraph fused = fuse(plain_.graph(), *kernels_, is_small ? Worth::any : Worth::joined);
  if (auto in_blocks = fuse_in_blocks(plain_.graph(), fused, *kernels_)) fused = *std::move(in_blocks);
  Report report;
  // Kernels, and products of matrices.
  const auto is_made = [](const Call& call) { return dynamic_cast<const KernelOperator*>(call.bound) != nullptr; };
  if (std::none_of(fused.graph.calls.begin(), fused.graph.calls.end(), is_made)) {
    note_left(plain_.graph(), report);
    return {std::nullopt, "", std::move(report)};
  }
  report = fused.report();
  auto whole = is_small ? OneFunction::of(fused.graph, kernels_) : nullptr;
  return {Fast{Plan(std::move(fused.graph)), std::move(fused.kernels), std::move(whole)}, "", std::move(report)};
} catch (const CompileError& e) {
  Report report;
  report.lines = "operator by operator: " + std::string(e.what()) + "\n";
  return {std::nullopt, e.what(), std::move(report)};
}

const FusedPlan::Fast* FusedPlan::fast() const {
  const Compiled& compiled = compiled_.get([this] { return this->compiled(); });
  if (static std::atomic<bool> warned; !compiled.why_not.empty())
    warn_once(warned, "compile: functions run operator by operator, not as machine code: ", compiled.why_not);
  return compiled.fast ? &*compiled.fast : nullptr;
}

std::optional<dynamic::Tensors> FusedPlan::run_fused(const dynamic::Tensors& args) const {
  const bool plain = is_plain(args) && std::all_of(captured_.begin(), captured_.end(), is_readable);
  const Fast* fast = plain ? this->fast() : nullptr;
  if (!fast) return std::nullopt;
  // A kernel knows that an index is out of range or a matrix singular, and LibTorch says which one: unless what was
  // written by then would be written again.
  const auto unless_it_writes = [&]() -> std::optional<dynamic::Tensors> {
    if (has_effects_) throw;
    return std::nullopt;
  };
  try {
    auto results = fast->whole ? fast->whole->run(args) : std::nullopt;
    return results ? std::move(results) : fast->plan.run(args);
  } catch (const c10::IndexError&) {
    return unless_it_writes();
  } catch (const c10::LinAlgError&) {
    return unless_it_writes();
  }
}

Report FusedPlan::report() const {
  if (const Compiled* compiled = compiled_.if_made()) return compiled->report;
  Report report;
  report.lines = "operator by operator so far\n";
  return report;
}

}  // namespace tower::compiler
