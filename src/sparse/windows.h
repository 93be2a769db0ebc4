// Rules of operators that go over a tensor with a window.
#pragma once

#include "sparse/dependence.h"

namespace tower::sparse {

std::vector<Tensor> convolved(const CallWithIds& call);
std::vector<Tensor> pooled(const CallWithIds& call);

}  // namespace tower::sparse
