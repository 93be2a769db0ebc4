// What writing, adding and reducing where an index along one dimension points to comes to in numbers, for the
// operators' records.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

// Each element of the index points for itself.
compiler::SmallResults scatter_src(const compiler::SmallCall& c);
compiler::SmallResults scatter_value(const compiler::SmallCall& c);
compiler::SmallResults scatter_add(const compiler::SmallCall& c);
compiler::SmallResults scatter_reduce(const compiler::SmallCall& c);

// Whole slices.
compiler::SmallResults index_copy(const compiler::SmallCall& c);
compiler::SmallResults index_fill(const compiler::SmallCall& c);
compiler::SmallResults index_add(const compiler::SmallCall& c);

}  // namespace tower::rules::small
