// One element of each special function, for kernels: what the rules in special_functions.cpp are made of.
//
// They are LibTorch's algorithms (ATen/native/Math.h), most of which are Cephes' (S. Moshier, netlib.org/cephes), in
// the type that LibTorch computes in, so that results agree with LibTorch's to the last places and special values are
// the same. What is a branch there is a choice between numbers here: all branches are computed, none of them can trap,
// and what a branch gives outside of where it holds is not chosen.
//
//   gamma_elements.cpp           digamma, trigamma; sums of given series
//   normal_elements.cpp          quantiles of the normal distribution
//   bessel_elements.cpp          Bessel functions J and Y, Airy's function
//   modified_bessel_elements.cpp Bessel functions I and K
//   polynomial_elements.cpp      orthogonal polynomials of a degree that is a number
//
// Not here is what LibTorch computes faster than a kernel would: erfinv, of a library of its own, and erfcx and
// log_ndtr, of a table of a hundred polynomials.
#pragma once

#include <c10/core/Scalar.h>

#include <limits>
#include <optional>
#include <span>

#include "numbers/element.h"

namespace tower::rules {

using compiler::E;

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

/// c₀ xⁿ + … + cₙ by Horner's scheme, each product and sum rounded.
E polynomial(E x, std::span<const double> coefficients);
/// Σ' cₖ Tₖ(x / 2) by Clenshaw's recurrence, the highest order first.
E chebyshev_series(E x, std::span<const double> coefficients);

E digamma(E x);
E trigamma(E x);

E normal_quantile(E p);

E bessel_j0(E x);
E bessel_j1(E x);
E bessel_y0(E x);
E bessel_y1(E x);
E spherical_bessel_j0(E x);
E airy_ai(E x);
/// LibTorch has two of each of these, which differ in float32: `i0`, and `modified_bessel_i0`.
enum class Scaled : bool { no, yes };
E i0(E x, Scaled scaled);
E i1(E x, Scaled scaled);
E modified_bessel_i0(E x);
E modified_bessel_i1(E x);
E modified_bessel_k0(E x, Scaled scaled);
E modified_bessel_k1(E x, Scaled scaled);

/// None for a degree that is no small number: the recurrence is written out.
using Polynomial = std::optional<E>(E x, const at::Scalar& degree);
Polynomial chebyshev_t, chebyshev_u, chebyshev_v, chebyshev_w;
Polynomial shifted_chebyshev_t, shifted_chebyshev_u, shifted_chebyshev_v, shifted_chebyshev_w;
Polynomial hermite_h, hermite_he, laguerre_l, legendre_p;

}  // namespace tower::rules
