// Rules of operators that write elements where indices say.
#pragma once

#include "sparse/dependence.h"

namespace tower::sparse {

std::vector<Tensor> put_by_indices(const CallWithIds& call);
std::vector<Tensor> scattered(const CallWithIds& call);
std::vector<Tensor> added_at_index(const CallWithIds& call);

}  // namespace tower::sparse
