// Sums, softmax and their kin over rows of a small tensor: the operator's rule says what one lane of a row gives, and
// is written out for each element in turn.
#include "fuse/small.h"
#include "graph/operand_dims.h"
#include "numbers/fold.h"

namespace tower::compiler {
namespace {

E both(OfRow::How how, E a, E b) {
  switch (how) {
    case OfRow::product:
      return a * b;
    case OfRow::greatest:
      return a.type() == Type::b1 ? a | b : maximum(a, b);
    case OfRow::least:
      return a.type() == Type::b1 ? a & b : minimum(a, b);
    default:
      return a + b;
  }
}

// The elements of each row, and each row's place in a result without the dimensions of rows.
std::vector<std::vector<size_t>> rows_of(const Sizes& sizes, const std::vector<bool>& in_row) {
  size_t count = 1;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (!in_row[d]) count *= static_cast<size_t>(sizes[d]);
  std::vector<std::vector<size_t>> rows(count);
  const auto all = static_cast<size_t>(c10::multiply_integers(sizes));
  for (size_t i = 0; i < all; ++i) {
    size_t left = i, row = 0, stride = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      const auto n = static_cast<size_t>(sizes[d]);
      if (!in_row[d]) {
        row += left % n * stride;
        stride *= n;
      }
      left /= n;
    }
    rows[row].push_back(i);
  }
  return rows;
}

bool keeps_dims(const SmallCall& c) {
  const auto keepdim = c.op.schema().argumentIndexWithName("keepdim");
  return keepdim && c.arg(static_cast<size_t>(*keepdim)).toBool();
}

// What a rule made of elements that stand for any, written out for those of one row.
class WrittenOut {
 public:
  WrittenOut(const SmallCall& call, const Expressions& pattern, const std::vector<OfRow>& of_row,
             const std::vector<std::vector<size_t>>& read, const std::vector<size_t>& row)
      : call_(call), pattern_(pattern), of_row_(of_row), read_(read), row_(row), folds_(of_row.size(), kNone) {
    made_.assign(row.size(), ById<Id, Id>(pattern.size(), kNone));
  }

  Id at(Id id, size_t lane) {
    Id& known = made_[lane][id];
    if (known == kNone) known = make(pattern_[id], lane);
    return known;
  }

 private:
  Id make(const Node& n, size_t lane) {
    if (n.op == Op::input && n.bits >= OfRow::kFirst) return of_row(n.bits - OfRow::kFirst, lane);
    if (n.op == Op::input) return call_.operands[n.bits]->ids[read_[n.bits][row_[lane]]];
    std::array<Id, 3> args = n.args;
    for (Id& a : args)
      if (a != kNone) a = at(a, lane);
    return call_.graph.again(n, args);
  }
  Id of_row(size_t number, size_t lane) {
    const OfRow& wanted = of_row_[number];
    if (wanted.folded == kNone) return call_.graph.constant(Type::i32, static_cast<int64_t>(lane));
    if (folds_[number] != kNone) return folds_[number];
    E all(call_.graph, at(wanted.folded, 0));
    for (size_t k = 1; k < row_.size(); ++k) all = both(wanted.how, all, E(call_.graph, at(wanted.folded, k)));
    return folds_[number] = all.id();
  }

  const SmallCall& call_;
  const Expressions& pattern_;
  const std::vector<OfRow>& of_row_;
  const std::vector<std::vector<size_t>>& read_;  // of each element, each operand's
  const std::vector<size_t>& row_;
  std::vector<ById<Id, Id>> made_;  // by lanes
  std::vector<Id> folds_;
};

}  // namespace

SmallResults folded(const SmallCall& c) {
  const FoldRule& rule = *fold_rule(c.op);
  const Sizes& sizes = c.operands[0]->sizes;
  std::vector<bool> in_row(sizes.size());
  int64_t length = 1;
  for (const int64_t d : rule.dims(c.args, static_cast<int64_t>(sizes.size()))) {
    along(in_row, d) = true;
    length *= along(sizes, d);
  }
  if (c10::multiply_integers(sizes) == 0) return {};
  std::vector<std::vector<size_t>> read;
  for (const Small* t : c.operands) {
    if (t->sizes.size() > sizes.size()) return {};
    for (size_t d = 0; d < t->sizes.size(); ++d)
      if (t->sizes[d] != 1 && t->sizes[d] != sizes[d + sizes.size() - t->sizes.size()]) return {};
    read.push_back(broadcast(t->sizes, sizes));
  }

  Expressions pattern;
  std::vector<OfRow> of_row;
  std::vector<Id> operands;
  std::vector<Type> types;
  for (const Small* t : c.operands) operands.push_back(pattern.input(*type_of(t->dtype), operands.size()));
  for (size_t k = 0; k < c.dtypes.size(); ++k) types.push_back(c.type(k));
  RowCall row_call(pattern, of_row, c.args, c.places, length, std::move(operands), types);
  const std::vector<Id> results = rule.elements(row_call);
  if (results.size() != types.size()) return {};

  const bool keeps = rule.goes_on || keeps_dims(c);
  Sizes of_rows;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (!in_row[d]) of_rows.push_back(sizes[d]);
    else if (keeps) of_rows.push_back(1);
  SmallResults all;
  for (size_t k = 0; k < results.size(); ++k) {
    const bool each = rule.goes_on && k == 0;
    all.push_back({each ? sizes : of_rows, {}, c.dtypes[k]});
    if (each) all[k].ids.assign(static_cast<size_t>(c10::multiply_integers(sizes)), kNone);
  }
  for (const auto& row : rows_of(sizes, in_row)) {
    WrittenOut written(c, pattern, of_row, read, row);
    for (size_t k = 0; k < results.size(); ++k) {
      if (!rule.goes_on || k > 0) all[k].ids.push_back(written.at(results[k], 0));
      else
        for (size_t lane = 0; lane < row.size(); ++lane) all[k].ids[row[lane]] = written.at(results[k], lane);
    }
  }
  return all;
}

}  // namespace tower::compiler
