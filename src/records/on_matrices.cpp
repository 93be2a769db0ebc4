#include "records/on_matrices.h"

#include <utility>

#include "records/rule_table.h"

namespace tower::rules {
namespace {

RuleTable<MatrixRule>& matrix_rules() {
  static auto& table = *new RuleTable<MatrixRule>;
  return table;
}

}  // namespace

const MatrixRule* matrix_rule(const Operator& op) { return matrix_rules().find(op); }
void set_matrix_rule(const Operator& op, MatrixRule rule) { matrix_rules().set(op, std::move(rule)); }

}  // namespace tower::rules
