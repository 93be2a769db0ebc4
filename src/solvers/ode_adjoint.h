// The continuous adjoint of odeint: reverse mode by a differential equation of its own.
#pragma once

#include "tower/odeint.h"

namespace tower::solvers {

/// dynamic::odeint by `options`, which say OdeAdjoint::continuous, where `y0` and `ts` have been found to be right.
OdeSolution<dynamic::Tensors> odeint_with_adjoint(const dynamic::OdeFunction& f, const dynamic::Tensors& y0,
                                                  const at::Tensor& ts, OdeOptions options);

}  // namespace tower::solvers
