#include "compile/compiled_graph.h"

#include <algorithm>

#include "compile/graph_operator.h"
#include "core/bind.h"
#include "core/wrapper.h"
#include "operators/lifting.h"

namespace tower::compiler {
namespace {

// An operator of a user's has its price at each level, which few of LibTorch's do not reach.
constexpr size_t kFewCalls = 3;

bool libtorch_would_record(const Tensor& t) { return libtorch_records(t) && autograd_state().get_grad_mode(); }

}  // namespace

struct CompiledGraph::AsOperator {
  AsOperator(WithoutEffects parts, const std::shared_ptr<Kernels>& kernels)
      : operands(std::move(parts.operands)),
        inside(std::move(parts.inside), kernels),
        outside(std::move(parts.outside)) {}

  std::vector<Operand> operands;
  GraphOperator inside;
  Plan outside;
};

CompiledGraph::CompiledGraph(Graph graph, std::shared_ptr<Kernels> kernels)
    : plan_(std::move(graph), kernels), kernels_(std::move(kernels)) {}
CompiledGraph::~CompiledGraph() = default;

const CompiledGraph::AsOperator* CompiledGraph::as_operator() const {
  std::call_once(once_, [&] {
    if (plan_.graph().calls.size() <= kFewCalls) return;
    if (auto parts = split_effects(plan_.graph()))
      as_operator_ = std::make_unique<const AsOperator>(std::move(*parts), kernels_);
  });
  return as_operator_.get();
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

dynamic::Tensors CompiledGraph::run(const dynamic::Tensors& args) const {
  if (auto results = plan_.run_fused(args)) return std::move(*results);
  const AsOperator* parts = is_looked_at(args) ? as_operator() : nullptr;
  if (!parts) return plan_.plain().run(args);
  dynamic::Tensors operands;
  for (const Operand& operand : parts->operands)
    operands.push_back(operand.captured.defined() ? operand.captured : args[operand.argument]);
  const dynamic::Tensors given = parts->inside(operands);
  dynamic::Tensors all = args;
  all.insert(all.end(), given.begin(), given.end());
  return parts->outside.run(all);
}

std::string CompiledGraph::report() const {
  return plan_.report() + (as_operator_ ? as_operator_->inside.report() : "");
}

}  // namespace tower::compiler
