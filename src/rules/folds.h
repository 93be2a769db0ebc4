// What operators over rows of elements give, for their records: sums and their kin, extrema, norms, softmaxes.
#pragma once

#include "numbers/fold.h"

namespace tower::rules::folds {

using compiler::E;
using compiler::RowCall;
using compiler::Type;
using Ids = std::vector<compiler::Id>;

Ids sum(RowCall& c);
Ids nansum(RowCall& c);
Ids mean(RowCall& c);
Ids product(RowCall& c);
Ids greatest(RowCall& c);
Ids least(RowCall& c);
Ids any(RowCall& c);
Ids every(RowCall& c);
Ids count_nonzero(RowCall& c);
Ids least_and_greatest(RowCall& c);
Ids dot(RowCall& c);
Ids place_of_greatest(RowCall& c);
Ids place_of_least(RowCall& c);
Ids greatest_and_place(RowCall& c);
Ids least_and_place(RowCall& c);
Ids variance(RowCall& c);
Ids deviation(RowCall& c);
Ids variance_and_mean(RowCall& c);
Ids deviation_and_mean(RowCall& c);
Ids norm(RowCall& c);
Ids logsumexp(RowCall& c);
Ids softmax(RowCall& c);
Ids safe_softmax(RowCall& c);
Ids log_softmax(RowCall& c);
Ids softmax_backward(RowCall& c);
Ids log_softmax_backward(RowCall& c);
Ids layer_norm(RowCall& c);

}  // namespace tower::rules::folds
