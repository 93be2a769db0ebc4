// What operators that see windows of an image make of small examples, in numbers, for their records: paddings,
// patches, resampling and pooling, and the transposes of all of these.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

// Operators that are linear in their first operand, and do not read the values of the others. Each element of the
// result is …
/// … a sum of elements.
compiler::SmallResults sums(const compiler::SmallCall& c);
/// … such a sum, divided by a whole number.
compiler::SmallResults means(const compiler::SmallCall& c);
/// … a sum of elements, each divided by a whole number.
compiler::SmallResults shares(const compiler::SmallCall& c);
/// … a sum of products with constants.
compiler::SmallResults weighted(const compiler::SmallCall& c);

/// The greatest element of each window, and its place in the plane.
compiler::SmallResults greatest_of_windows(const compiler::SmallCall& c);

}  // namespace tower::rules::small
