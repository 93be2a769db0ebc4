// A checkpoint as a call of a graph: an operator whose function is a graph of one example, so that files can have it.
// It saves its operands alone, and its derivatives are those of the graph, evaluated again, operator by operator: what
// they call is traced in turn. Where the function draws random numbers, writes, reads values, calls a collective or
// code that is not known, or where results are kept by a policy, the checkpoint is code that is run again at each call
// (control/checkpoint.cpp).
#pragma once

#include <memory>
#include <optional>

#include "graph/plan.h"
#include "operators/known_code.h"

namespace tower::compiler {

class ByteReader;
class GraphReader;

class Checkpointed final : public KnownCode, public std::enable_shared_from_this<Checkpointed> {
 public:
  /// A function of the operands, captured tensors among them.
  explicit Checkpointed(Graph function);

  std::optional<Kinds> kinds() const override;
  bool does_the_same(const KnownCode& other) const override;
  bool store(GraphWriter& out) const override;
  /// What `store` wrote. Throws as GraphReader does.
  static std::shared_ptr<const Checkpointed> read(GraphReader& graphs, ByteReader& in);
  /// Of its operator.
  HigherOrderRules rules() const;

 private:
  Plan function_;
};

/// What a checkpoint that keeps nothing gives, as one call; none where its function cannot be a graph.
std::optional<dynamic::Tensors> traced_checkpoint(const dynamic::Function& f, const dynamic::Tensors& operands);

}  // namespace tower::compiler
