#include "compile/compiled_graph.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "compile/graph_operator.h"
#include "core/bind.h"
#include "core/wrapper.h"
#include "frontend/substitution.h"
#include "graph/split.h"
#include "operators/lifting.h"

namespace tower::compiler {
namespace {

// A part that is an operator of its own has its price at each level: more than that of so few calls one by one.
constexpr size_t kFewCalls = 3;

bool libtorch_would_record(const Tensor& t) { return libtorch_records(t) && autograd_state().get_grad_mode(); }

// A part of a graph, which runs as an operator of its own.
class PartOperator final : public KernelOperator {
 public:
  PartOperator(Graph graph, const std::shared_ptr<Kernels>& kernels)
      : KernelOperator("tower::part"),
        differentiable_by_(differentiable_by(graph)),
        operator_(std::move(graph), kernels) {}

  Report report() const { return operator_.report(); }

 private:
  void compute(c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results) const override {
    dynamic::Tensors given;
    for (const Tensor* t : operands) given.push_back(*t);
    dynamic::Tensors made = operator_(given);
    for (size_t k = 0; k < results.size(); ++k) {
      // To LibTorch, all results of an operator require grad if one operand does.
      const bool detached = made[k].defined() && made[k].requires_grad() && !requires_grad(k, operands);
      *results[k] = detached ? made[k].detach() : std::move(made[k]);
    }
  }
  bool requires_grad(size_t result, c10::ArrayRef<const Tensor*> operands) const {
    for (size_t i = 0; i < operands.size(); ++i)
      if (differentiable_by_[result][i] && operands[i]->requires_grad()) return true;
    return false;
  }

  const std::vector<std::vector<bool>> differentiable_by_;  // of each result, by which operands
  GraphOperator operator_;
};

}  // namespace

struct CompiledGraph::InParts {
  Plan plan;
  std::vector<c10::intrusive_ptr<const PartOperator>> parts;
};

CompiledGraph::CompiledGraph(Graph graph, std::shared_ptr<Kernels> kernels, Assumptions assumptions, Reads reads)
    : plan_(std::move(graph), kernels),
      kernels_(std::move(kernels)),
      assumptions_(std::move(assumptions)),
      read_(std::move(reads.values)) {
  if (read_.empty()) return;
  reads.graph.simplify();
  reading_ = std::make_unique<const CompiledGraph>(std::move(reads.graph), kernels_);
}
CompiledGraph::~CompiledGraph() = default;

bool CompiledGraph::assumptions_hold(const dynamic::Tensors& args) const {
  if (!std::all_of(assumptions_.begin(), assumptions_.end(), [](const auto& still) { return still(); })) return false;
  if (!reads_values()) return true;
  if (!fits()) return false;
  dynamic::Tensors now;
  try {
    now = reading_->run(args);
  } catch (const c10::Error&) {
    return false;  // the function itself raises it, or goes another way and does not
  }
  for (size_t k = 0; k < read_.size(); ++k)
    if (at::is_nonzero(now[k]) != read_[k]) return false;
  return true;
}

const CompiledGraph::InParts* CompiledGraph::in_parts() const {
  const auto make = [&]() -> std::unique_ptr<const InParts> {
    std::vector<c10::intrusive_ptr<const PartOperator>> parts;
    auto graph = with_parts(plan_.graph(), kFewCalls + 1, [&](ComputingPart part) {
      auto op = c10::make_intrusive<PartOperator>(std::move(part.graph), kernels_);
      parts.push_back(op);
      return KernelOperator::call_of(std::move(op), plan_.graph(), std::move(part.operands), std::move(part.results));
    });
    if (!graph) return nullptr;
    return std::unique_ptr<const InParts>(new InParts{Plan(std::move(*graph)), std::move(parts)});
  };
  return in_parts_.get(make).get();
}

bool CompiledGraph::is_looked_at(const dynamic::Tensors& args) const {
  if (tracing() || listens_to_operators()) return false;
  bool found = false, strange = false;
  const auto look = [&](const Tensor& t) {
    if (!t.defined()) return;
    const bool wrapped = as_wrapper(t) != nullptr;
    found = found || wrapped || libtorch_would_record(t);
    // LibTorch's forward mode follows LibTorch's operators alone.
    strange = strange || is_libtorch_dual(wrapped ? value_under_all_levels(t) : t);
  };
  std::for_each(args.begin(), args.end(), look);
  std::for_each(plan_.captured().begin(), plan_.captured().end(), look);
  return found && !strange;
}

// For arguments stands already what is to stand for them. Where nothing is substituted that the graph captured, either,
// its operators meet no original: the kernels need not make way for operators that would look for some.
bool CompiledGraph::meets_originals() const {
  const dynamic::Tensors captured(plan_.captured().begin(), plan_.captured().end()),
      now = frontend::stand_ins(captured);
  for (size_t k = 0; k < now.size(); ++k)
    if (!now[k].is_same(captured[k])) return true;
  return false;
}

dynamic::Tensors CompiledGraph::run(const dynamic::Tensors& args) const {
  std::optional<frontend::SubstitutedAs> nothing;
  if (thread_state.substitutions && !meets_originals()) nothing.emplace(nullptr);
  if (auto results = plan_.run_fused(args)) return std::move(*results);
  const InParts* parts = is_looked_at(args) ? in_parts() : nullptr;
  return (parts ? parts->plan : plan_.plain()).run(args);
}

Report CompiledGraph::report() const {
  Report report = plan_.report();
  if (const auto* in_parts = in_parts_.if_made(); in_parts && *in_parts)
    for (const auto& part : (*in_parts)->parts) report.add(part->report());
  return report;
}

}  // namespace tower::compiler
