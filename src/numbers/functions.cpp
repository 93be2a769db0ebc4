#include "numbers/functions.h"

#include <c10/util/Exception.h>

#include "numbers/exponentials.h"

namespace tower::compiler {
namespace {

// And those of float32 that are the same.
E of_double(Op op, E x, E y) {
  switch (op) {
    case Op::exp:
      return formulas::exp(x);
    case Op::exp2:
      return formulas::exp2(x);
    case Op::expm1:
      return formulas::expm1(x);
    case Op::log:
      return formulas::log(x);
    case Op::log2:
      return formulas::log2(x);
    case Op::log10:
      return formulas::log10(x);
    case Op::log1p:
      return formulas::log1p(x);
    case Op::asin:
      return formulas::asin(x);
    case Op::acos:
      return formulas::acos(x);
    case Op::atan:
      return formulas::atan(x);
    case Op::sinh:
      return formulas::sinh(x);
    case Op::cosh:
      return formulas::cosh(x);
    case Op::tanh:
      return formulas::tanh(x);
    case Op::asinh:
      return formulas::asinh(x);
    case Op::acosh:
      return formulas::acosh(x);
    case Op::atanh:
      return formulas::atanh(x);
    case Op::erf:
      return formulas::erf(x);
    case Op::erfc:
      return formulas::erfc(x);
    case Op::lgamma:
      return formulas::lgamma(x);
    case Op::pow:
      return power_or_special(x, y, formulas::pow(x, y));
    case Op::atan2:
      return formulas::atan2(x, y);
    case Op::hypot:
      return formulas::hypot(x, y);
    default:
      TORCH_INTERNAL_ASSERT(false, name(op), " has no formula");
  }
}

E of_single(Op op, E x, E y) {
  switch (op) {
    case Op::exp:
      return formulas::exp_of_single(x);
    case Op::exp2:
      return formulas::exp2_of_single(x);
    case Op::expm1:
      return single_precision::expm1(x);
    case Op::log1p:
      return formulas::log1p_of_single(x);
    case Op::sinh:
      return single_precision::sinh(x);
    case Op::cosh:
      return single_precision::cosh(x);
    case Op::tanh:
      return single_precision::tanh(x);
    case Op::asinh:
      return single_precision::asinh(x);
    case Op::acosh:
      return single_precision::acosh(x);
    case Op::atanh:
      return single_precision::atanh(x);
    case Op::erf:
      return single_precision::erf(x);
    case Op::erfc:
      return single_precision::erfc(x);
    case Op::lgamma:
      return single_precision::lgamma(x);
    case Op::pow:
      return power_or_special(x, y, single_precision::pow(x, y));
    case Op::hypot:
      return single_precision::hypot(x, y);
    default:
      return of_double(op, x, y);
  }
}

}  // namespace

E formula(Op op, E x, E y) { return x.type() == Type::f64 ? of_double(op, x, y) : of_single(op, x, y); }

}  // namespace tower::compiler
