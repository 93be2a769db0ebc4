#include "compile/traced_checkpoint.h"

#include <algorithm>

#include "compile/stored_code.h"
#include "compile/traced_function.h"
#include "compile/traced_loop.h"
#include "core/tensor_lists.h"
#include "operators/differentiate.h"

namespace tower::compiler {

using dynamic::Function;
using dynamic::Tensors;

Checkpointed::Checkpointed(Graph function) : function_(std::move(function)) { note_calls(*this, function_.graph()); }

std::optional<KnownCode::Kinds> Checkpointed::kinds() const {
  const Graph& graph = function_.graph();
  return Kinds{kinds_of(graph, graph.arguments), kinds_of(graph, graph.results)};
}

bool Checkpointed::does_the_same(const KnownCode& other) const {
  if (this == &other) return true;
  const auto* checkpointed = dynamic_cast<const Checkpointed*>(&other);
  return checkpointed && same_graph(function_.graph(), checkpointed->function_.graph());
}

// They are written down, and not generated from `forward`, as LibTorch's autograd, too, is to keep the operands alone.
HigherOrderRules Checkpointed::rules() const {
  const Function run = [self = shared_from_this()](const Tensors& operands) { return self->function_.run(operands); };
  HigherOrderRules rules;
  rules.name = "checkpoint";
  rules.forward = [run](const Tensors& operands, const Attributes&) { return run(operands); };
  rules.sparsity = rules.forward;
  rules.save = [](const Tensors& operands, const Tensors&, const Attributes&) { return Residuals{operands, {}}; };
  rules.vjp = [run](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                    const Attributes&) { return pull_back_through(run, saved.tensors, cotangents, needs); };
  rules.jvp = [run](const Residuals& saved, const Tensors& tangents, const Attributes&) {
    return dynamic::jvp(run, saved.tensors, tangents).second;
  };
  return rules;
}

bool Checkpointed::store(GraphWriter& graphs) const {
  graphs.out().number(static_cast<int64_t>(StoredCode::checkpoint));
  graphs.write(function_.graph());
  return true;
}

std::shared_ptr<const Checkpointed> Checkpointed::read(GraphReader& graphs, ByteReader& in) {
  Graph function = graphs.read(in);
  check_is_function(function);
  for (const ValueId argument : function.arguments) kind_of(function, argument);  // each is there
  auto checkpointed = std::make_shared<const Checkpointed>(std::move(function));
  if (checkpointed->random || checkpointed->foreign) ByteReader::fail();
  return checkpointed;
}

std::optional<Tensors> traced_checkpoint(const Function& f, const Tensors& operands) {
  const auto is_defined = [](const Tensor& t) { return t.defined(); };
  if (!std::all_of(operands.begin(), operands.end(), is_defined)) return std::nullopt;
  std::optional<Graph> function;
  try {
    function = traced_function(f, operands, "checkpoint");
  } catch (const std::exception&) {
    return std::nullopt;  // evaluated, the function says what is wrong
  }
  if (!function) return std::nullopt;
  const Tensors captured = pass_captured(*function);
  const auto code = std::make_shared<const Checkpointed>(*std::move(function));
  return call_known(code->rules(), code, joined(operands, captured));
}

}  // namespace tower::compiler
