// What reading by index, and putting where several indices point to, comes to in numbers, for the operators' records.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

compiler::SmallResults index(const compiler::SmallCall& c);
compiler::SmallResults index_select(const compiler::SmallCall& c);
compiler::SmallResults gather(const compiler::SmallCall& c);
compiler::SmallResults take(const compiler::SmallCall& c);
compiler::SmallResults embedding(const compiler::SmallCall& c);

compiler::SmallResults index_put(const compiler::SmallCall& c);
compiler::SmallResults embedding_dense_backward(const compiler::SmallCall& c);

// By an index in a plane, the last so many dimensions of an image, as maximum pooling gives it.
compiler::SmallRule added_in_planes(size_t dims);
compiler::SmallRule put_in_planes(size_t dims);

}  // namespace tower::rules::small
