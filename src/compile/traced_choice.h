// A cond as a call of a graph: an operator whose branches are graphs of one example, so that files can have it. It does
// what cond does (control/cond.h), and has the same rules; its derivatives are conds over those of its branches, which
// are traced in turn. Where a branch draws random numbers, writes, reads values, calls a collective or code that is not
// known, or where the branches give tensors of different kinds, cond is code that is run again at each call.
#pragma once

#include <memory>
#include <optional>

#include "control/cond.h"
#include "graph/plan.h"
#include "operators/known_code.h"

namespace tower::compiler {

class ByteReader;
class GraphReader;

class Choice final : public KnownCode, public std::enable_shared_from_this<Choice> {
 public:
  /// Functions of the operands behind the predicate, captured tensors among them. An argument that one of the graphs
  /// does not have, the other has.
  Choice(Graph when_true, Graph when_false);

  std::optional<Kinds> kinds() const override;
  bool does_the_same(const KnownCode& other) const override;
  bool store(GraphWriter& out) const override;
  /// What `store` wrote. Throws as GraphReader does.
  static std::shared_ptr<const Choice> read(GraphReader& graphs, ByteReader& in);
  /// Of its operator.
  HigherOrderRules rules() const;

 private:
  const Graph& graph(bool which) const { return (which ? when_true_ : when_false_).graph(); }

  Plan when_true_, when_false_;
};

/// What cond gives, as one call; none where a branch cannot be a graph.
std::optional<dynamic::Tensors> traced_choice(const Branches& branches, const Tensor& predicate,
                                              const dynamic::Tensors& operands);

}  // namespace tower::compiler
