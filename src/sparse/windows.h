// Rules of operators that go over a tensor with a window.
#pragma once

#include "sparse/dependence.h"

namespace tower::sparse {

std::vector<Tensor> convolved(const Call& call);
std::vector<Tensor> pooled(const Call& call);

}  // namespace tower::sparse
