// Matrix factorizations: Cholesky, QR, LU, eigenvalues, singular values.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void factorizations() {}

}  // namespace tower::rules
