// What a kernel reports of the numbers that it meets: a division by zero, a singular matrix, a loop that did not end.
// An output that needs none of the numbers that come of it must not take it away.
#pragma once

#include "numbers/expression.h"

namespace tower::compiler {

/// Whether it is an integer's division by what may be zero.
bool may_divide_by_zero(const Expressions& expressions, Id id);

/// Of what stands in the loop, but in none inside it: the nodes that report and are not `live`; of loops, a number that
/// they leave.
std::vector<Id> lost_reports(const Expressions& expressions, const ById<Id, bool>& live, LoopId loop);

/// Lets the first of the outputs come after all that reports.
void keep_reports(Expressions& expressions, std::vector<Id>& outputs);

}  // namespace tower::compiler
