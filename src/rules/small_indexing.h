// What reading by index, and adding where an index points to, comes to in numbers, for the operators' records.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

compiler::SmallResults index(const compiler::SmallCall& c);
compiler::SmallResults index_select(const compiler::SmallCall& c);
compiler::SmallResults gather(const compiler::SmallCall& c);
compiler::SmallResults take(const compiler::SmallCall& c);
compiler::SmallResults embedding(const compiler::SmallCall& c);

compiler::SmallResults index_put(const compiler::SmallCall& c);
compiler::SmallResults index_add(const compiler::SmallCall& c);
compiler::SmallResults scatter_add(const compiler::SmallCall& c);
compiler::SmallResults embedding_dense_backward(const compiler::SmallCall& c);

}  // namespace tower::rules::small
