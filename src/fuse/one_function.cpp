#include "fuse/one_function.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/bind.h"
#include "fuse/memory_steps.h"
#include "fuse/program_draft.h"
#include "fuse/small.h"
#include "graph/addresses.h"
#include "graph/operand_dims.h"
#include "graph/plan.h"
#include "graph/trace.h"
#include "numbers/small.h"
#include "tower/errors.h"

namespace tower::compiler {
namespace {

constexpr int64_t kMostOfSmall = 1 << 16;  // bytes of a value: what a plan keeps in its block (graph/plan.cpp)
constexpr size_t kFewestOfFunction = 2;    // calls: one alone is LibTorch's

bool is_kernel_on_memory(const Call& call) {
  const auto* steps = dynamic_cast<const StepsInMemory*>(call.op);
  return steps && !steps->is_another_kernel();
}

}  // namespace

bool is_small_graph(const Graph& graph) {
  size_t calls = 0;
  for (const Call& call : graph.calls) {
    if (call.effect || call.opaque() || call.random()) return false;
    if (gives_view(call)) continue;
    calls += code_in_numbers(*call.op) ? kFewestOfFunction : 1;
    // Those that are opened are not looked into here.
    if (!is_known_in_numbers(*call.op) && !code_in_numbers(*call.op) && !call.op->decomposition) return false;
    for (const ValueId id : call.results) {
      if (id == kNoValue) continue;
      const Value& v = graph.values[id];
      if (!v.device.is_cpu() || !type_of(v.dtype) ||
          count(v.sizes) * static_cast<int64_t>(c10::elementSize(v.dtype)) > kMostOfSmall)
        return false;
    }
  }
  return calls >= kFewestOfFunction;
}

std::unique_ptr<const OneFunction> OneFunction::of(const Graph& fused, const std::shared_ptr<Kernels>& kernels) {
  ById<ValueId, ValueId> shown(fused.values.size(), kNoValue);  // of views: what they are of
  for (const Call& call : fused.calls) {
    if (is_kernel_on_memory(call)) continue;
    if (!gives_view(call) || call.effect || call.operands.size() != 1 || is_given_addresses(*call.op)) return nullptr;
    const ValueId of = call.operands[0];
    for (const ValueId id : call.results)
      if (id != kNoValue) shown[id] = shown[of] == kNoValue ? of : shown[of];
  }
  Graph computed = fused;
  computed.results.clear();
  std::vector<Source> sources;
  std::unordered_map<ValueId, std::pair<ValueId, size_t>> results;  // by what has the memory: which, and its number
  for (const ValueId id : fused.results) {
    if (id == kNoValue) return nullptr;
    const ValueId in = shown[id] == kNoValue ? id : shown[id];
    if (fused.values[in].origin == Origin::result) {
      const auto [known, is_new] = results.try_emplace(in, id, computed.results.size());
      if (!is_new && known->second.first != id) return nullptr;
      if (is_new) computed.results.push_back(id);
      sources.push_back({Source::computed, known->second.second});
      continue;
    }
    if (in != id) return nullptr;
    const auto argument = std::find(fused.arguments.begin(), fused.arguments.end(), id);
    if (argument == fused.arguments.end()) sources.push_back({Source::held, static_cast<size_t>(plain(id))});
    else sources.push_back({Source::argument, static_cast<size_t>(argument - fused.arguments.begin())});
  }
  if (computed.results.empty()) return nullptr;
  DispatchGuard keys;
  keys.see_no_operator();
  try {
    std::unique_ptr<const OneFunction> whole(new OneFunction(std::move(computed), std::move(sources), kernels));
    return whole->lies_as_traced() ? std::move(whole) : nullptr;
  } catch (const UnsupportedError&) {
    return nullptr;  // a kernel adds up over all examples, or a view copies
  }
}

OneFunction::OneFunction(Graph computed, std::vector<Source> sources, const std::shared_ptr<Kernels>& kernels)
    : graph_(std::move(computed)), sources_(std::move(sources)) {
  PointerProgram::Draft draft = draft_of_fused(graph_, *kernels, "compile");
  for (const auto& step : draft.steps) {
    if (!step.kernel) continue;
    int64_t lanes = step.lanes.fixed;
    for (const Extent& size : step.sizes) lanes *= size.fixed;
    is_for_threads_ = is_for_threads_ || lanes > step.kernel->grain();
  }
  program_ = std::make_unique<const PointerProgram>(std::move(draft));
  for (const auto& result : program_->results()) {
    Made& made = made_.emplace_back();
    made.dtype = result.dtype;
    for (const Extent& size : result.sizes) made.sizes.push_back(size.fixed);
    for (const Extent& stride : result.strides) made.strides.push_back(stride.fixed);
  }
  for (const ValueId id : graph_.values.ids())
    if (const Value& v = graph_.values[id]; v.origin == Origin::captured && v.tensor.defined()) captured_.push_back(id);
  all_computed_ = sources_.size() == made_.size();
  for (size_t k = 0; k < sources_.size(); ++k)
    all_computed_ = all_computed_ && sources_[k].from == Source::computed && sources_[k].number == k;
}

// A view with gaps is one, where it is seen.
bool OneFunction::lies_as_traced() const {
  for (size_t k = 0; k < made_.size(); ++k)
    if (made_[k].strides != graph_.values[graph_.results[k]].strides) return false;
  return true;
}

std::optional<dynamic::Tensors> OneFunction::run(const dynamic::Tensors& args) const {
  if (is_for_threads_ && !at::in_parallel_region() && at::get_num_threads() > 1) return std::nullopt;
  c10::SmallVector<const void*, 8> from(args.size()), constants;
  for (size_t k = 0; k < args.size(); ++k) {
    const ValueId id = graph_.arguments[k];
    if (id == kNoValue) continue;
    if (!lies_as(graph_.values[id], args[k])) return std::nullopt;
    from[k] = args[k].const_data_ptr();
  }
  for (const ValueId id : captured_)
    if (!lies_as(graph_.values[id], graph_.values[id].tensor)) return std::nullopt;
  if (!captured_.empty())
    for (const auto& [tensor, captured] : program_->constants()) constants.push_back(tensor.const_data_ptr());
  dynamic::Tensors made;
  made.reserve(sources_.size());
  c10::SmallVector<void*, 8> to;
  for (const Made& result : made_) {
    made.push_back(at::detail::empty_strided_cpu(result.sizes, result.strides, result.dtype));
    to.push_back(made.back().mutable_data_ptr());
  }
  program_->run_once(from.data(), to.data(), !captured_.empty() ? constants.data() : nullptr);
  if (all_computed_) return made;
  dynamic::Tensors results;
  OwnMemory own;
  for (const auto& [from_what, number] : sources_) {
    if (from_what == Source::computed) results.push_back(made[number]);
    if (from_what == Source::argument) results.push_back(args[number]);
    if (from_what != Source::held) continue;
    const Value& v = graph_.values[ValueId{static_cast<int64_t>(number)}];
    results.push_back(v.origin == Origin::constant ? own.copy(v.tensor) : v.tensor);
  }
  return results;
}

}  // namespace tower::compiler
