// implicit_root for solvers that have more to say than the root.
#pragma once

#include <string>

#include "tower/implicit.h"

namespace tower::solvers {

/// dynamic::implicit_root by the name of `name`, whose solver gives behind x as many `reports`, tensors without
/// derivatives. The first of them is a bool that says whether x is a root: where it is not, derivatives of x are nan.
/// The solver is made of operators: in a compiled function it is compiled, too.
dynamic::Tensors implicit_root_with_reports(std::string name, const dynamic::Residual& residual,
                                            const dynamic::Function& solver, const dynamic::Tensors& params,
                                            size_t reports, const ImplicitOptions& options);

}  // namespace tower::solvers
