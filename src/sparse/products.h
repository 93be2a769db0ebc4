// The rule of products of matrices and vectors (Operator::contraction).
#pragma once

#include "sparse/dependence.h"

namespace tower::sparse {

std::vector<Tensor> contracted(const CallWithIds& call);

}  // namespace tower::sparse
