#include "numbers/fold.h"

#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <numeric>

#include "records/rule_table.h"

namespace tower::compiler {

std::optional<E> RowCall::tensor(size_t arg) const {
  for (size_t k = 0; k < operands_.size(); ++k)
    if (places_[k].arg == arg) return (*this)[k];
  return std::nullopt;
}

E RowCall::of_row(const OfRow& wanted, Type type) {
  const auto known = std::find(of_row_.begin(), of_row_.end(), wanted);
  const auto number = static_cast<uint64_t>(known - of_row_.begin());
  if (known == of_row_.end()) of_row_.push_back(wanted);
  return {graph_, graph_.input(type, OfRow::kFirst + number)};
}

std::vector<int64_t> FoldRule::dims(c10::ArrayRef<IValue> args, int64_t dims) const {
  std::vector<int64_t> result;
  if (over.which == rules::FoldDims::in_argument) {
    const IValue& v = args[over.arg];
    if (v.isInt()) result = {v.toInt()};
    else if (!v.isNone()) result = v.toIntVector();
  }
  if (over.which == rules::FoldDims::last) {
    result.resize(args[over.arg].toIntVector().size());
    std::iota(result.begin(), result.end(), dims - static_cast<int64_t>(result.size()));
  } else if (result.empty()) {
    result.resize(static_cast<size_t>(dims));
    std::iota(result.begin(), result.end(), 0);
  } else if (dims == 0) {
    result.clear();
  }
  for (int64_t& d : result) d = at::maybe_wrap_dim(d, dims);
  return result;
}

namespace {

rules::RuleTable<FoldRule>& fold_rules() {
  static auto& table = *new rules::RuleTable<FoldRule>;
  return table;
}

}  // namespace

const FoldRule* fold_rule(const Operator& op) { return fold_rules().find(op); }
void set_fold_rule(const Operator& op, FoldRule rule) { fold_rules().set(op, std::move(rule)); }

SimpleFold simple_fold(const Operator& op, c10::ArrayRef<IValue> args, Type type) {
  const FoldRule* rule = fold_rule(op);
  if (!rule || rule->goes_on || op.num_outs() != 1) return SimpleFold::no;
  Expressions graph;
  std::vector<OfRow> of_row;
  std::vector<LeafRef> places;
  std::vector<Id> operands;
  for (const uint8_t arg : op.tensor_args()) {
    places.push_back({arg, 0});
    operands.push_back(graph.input(type, operands.size()));
  }
  if (operands.size() != 1) return SimpleFold::no;
  // Of one number a mean is its sum, and of two what is divided by one less.
  constexpr int64_t kLength = 7;
  RowCall call(graph, of_row, args, places, kLength, operands, {type});
  const std::vector<Id> ids = rule->elements(call);
  if (ids.size() != 1 || of_row.size() != 1 || of_row[0].how != OfRow::sum) return SimpleFold::no;
  const Id sum = graph.input(type, OfRow::kFirst);
  if (ids[0] == sum && of_row[0].folded == operands[0]) return SimpleFold::sum;
  const Node &root = graph[ids[0]], &square = graph[of_row[0].folded];
  const bool squares = square.op == Op::mul && square.args[0] == operands[0] && square.args[1] == operands[0];
  return root.op == Op::sqrt && root.args[0] == sum && squares ? SimpleFold::root_of_squares : SimpleFold::no;
}

}  // namespace tower::compiler
