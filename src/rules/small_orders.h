// What sorting, selecting by rank, running extrema and searching in what is sorted come to in numbers, for the
// operators' records.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

compiler::SmallResults sort(const compiler::SmallCall& c);
compiler::SmallResults sort_stable(const compiler::SmallCall& c);
compiler::SmallResults argsort_stable(const compiler::SmallCall& c);
compiler::SmallResults topk(const compiler::SmallCall& c);

compiler::SmallResults kthvalue(const compiler::SmallCall& c);
compiler::SmallResults median(const compiler::SmallCall& c);
compiler::SmallResults median_dim(const compiler::SmallCall& c);
compiler::SmallResults nanmedian(const compiler::SmallCall& c);
compiler::SmallResults nanmedian_dim(const compiler::SmallCall& c);
compiler::SmallResults mode(const compiler::SmallCall& c);

compiler::SmallResults cummax(const compiler::SmallCall& c);
compiler::SmallResults cummin(const compiler::SmallCall& c);

compiler::SmallResults searchsorted(const compiler::SmallCall& c);

}  // namespace tower::rules::small
