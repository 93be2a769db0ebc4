#include "compile/traced_choice.h"

#include <algorithm>

#include "compile/stored_code.h"
#include "compile/traced_function.h"
#include "compile/traced_loop.h"
#include "core/in_force.h"
#include "core/tensor_lists.h"

namespace tower::compiler {

using dynamic::Function;
using dynamic::Tensors;

Choice::Choice(Graph when_true, Graph when_false)
    : when_true_(std::move(when_true)), when_false_(std::move(when_false)) {
  note_calls(*this, graph(true));
  note_calls(*this, graph(false));
}

std::optional<KnownCode::Kinds> Choice::kinds() const {
  Kinds kinds{{{{}, at::kBool}}, kinds_of(graph(true), graph(true).results)};
  for (size_t k = 0; k < graph(true).arguments.size(); ++k) {
    const bool which = graph(true).arguments[k] != kNoValue;
    kinds.operands.push_back(kind_of(graph(which), graph(which).arguments[k]));
  }
  return kinds;
}

bool Choice::does_the_same(const KnownCode& other) const {
  if (this == &other) return true;
  const auto* choice = dynamic_cast<const Choice*>(&other);
  return choice && same_graph(graph(true), choice->graph(true)) && same_graph(graph(false), choice->graph(false));
}

// The rules of cond need a record of each call only for what branches draw and say to each other, which these do not.
HigherOrderRules Choice::rules() const {
  const auto branch = [self = shared_from_this()](bool which) -> Function {
    return
        [self, which](const Tensors& operands) { return (which ? self->when_true_ : self->when_false_).run(operands); };
  };
  HigherOrderRules rules = branch_rules({branch(true), branch(false)});
  rules.forward = [rule = rules.forward](const Tensors& all, const Attributes&) {
    return rule(all, branch_attributes());
  };
  rules.vjp = [rule = rules.vjp](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                                 const Attributes&) { return rule(saved, cotangents, needs, branch_attributes()); };
  rules.jvp = [rule = rules.jvp](const Residuals& saved, const Tensors& tangents, const Attributes&) {
    return rule(saved, tangents, branch_attributes());
  };
  rules.lift = nullptr;  // what a graph captured is an operand already
  return rules;
}

// ---- files ---------------------------------------------------------------------------------------------------------

bool Choice::store(GraphWriter& graphs) const {
  graphs.out().number(static_cast<int64_t>(StoredCode::choice));
  graphs.write(graph(true));
  graphs.write(graph(false));
  return true;
}

std::shared_ptr<const Choice> Choice::read(GraphReader& graphs, ByteReader& in) {
  Graph a = graphs.read(in), b = graphs.read(in);
  check_is_function(a);
  check_is_function(b);
  if (a.arguments.size() != b.arguments.size() || kinds_of(a, a.results) != kinds_of(b, b.results)) ByteReader::fail();
  for (size_t k = 0; k < a.arguments.size(); ++k) {
    const ValueId in_a = a.arguments[k], in_b = b.arguments[k];
    if (in_a == kNoValue ? in_b == kNoValue : in_b != kNoValue && kind_of(a, in_a) != kind_of(b, in_b))
      ByteReader::fail();
  }
  auto choice = std::make_shared<const Choice>(std::move(a), std::move(b));
  if (choice->random || choice->foreign) ByteReader::fail();
  return choice;
}

// ---- tracing -------------------------------------------------------------------------------------------------------

namespace {

// A function that calls itself in a branch, and ends by the other, has no graph.
constexpr int kDeepestChoice = 4;
struct ChoiceInChoice : InForce<ChoiceInChoice> {};

}  // namespace

std::optional<Tensors> traced_choice(const Branches& branches, const Tensor& predicate, const Tensors& operands) {
  const ChoiceInChoice deeper;
  const auto is_defined = [](const Tensor& t) { return t.defined(); };
  if (ChoiceInChoice::depth() > kDeepestChoice || !std::all_of(operands.begin(), operands.end(), is_defined))
    return std::nullopt;
  std::optional<Graph> a, b;
  try {
    a = traced_function(branches.when_true, operands, branches.op);
    if (a) b = traced_function(branches.when_false, operands, branches.op);
  } catch (const std::exception&) {
    return std::nullopt;  // where it is taken, the branch says what is wrong
  }
  if (!a || !b || a->results.size() != b->results.size() || kinds_of(*a, a->results) != kinds_of(*b, b->results))
    return std::nullopt;
  const Tensors captured = pass_captured(*a, *b);
  const auto choice = std::make_shared<const Choice>(*std::move(a), *std::move(b));
  return call_known(choice->rules(), choice, joined({predicate}, joined(operands, captured)));
}

}  // namespace tower::compiler
