// Elements of Bessel's functions J and Y, of the spherical one of order zero, and of Airy's function
// (special_elements.h). The rational functions are those of Cephes (j0.c, j1.c, airy.c).
#include <cmath>
#include <limits>

#include "rules/special_elements.h"

namespace tower::rules {
namespace {

// Beyond 5, by order: Hankel's expansion in (5 / x)², P and Q, each a quotient.
constexpr double kJ0Pp[] = {7.96936729297347051624e-04, 8.28352392107440799803e-02, 1.23953371646414299388e+00,
                            5.44725003058768775090e+00, 8.74716500199817011941e+00, 5.30324038235394892183e+00,
                            9.99999999999999997821e-01};
constexpr double kJ0Pq[] = {9.24408810558863637013e-04, 8.56288474354474431428e-02, 1.25352743901058953537e+00,
                            5.47097740330417105182e+00, 8.76190883237069594232e+00, 5.30605288235394617618e+00,
                            1.00000000000000000218e+00};
constexpr double kJ0Qp[] = {-1.13663838898469149931e-02, -1.28252718670509318512e+00, -1.95539544257735972385e+01,
                            -9.32060152123768231369e+01, -1.77681167980488050595e+02, -1.47077505154951170175e+02,
                            -5.14105326766599330220e+01, -6.05014350600728481186e+00};
constexpr double kJ0Qq[] = {6.43178256118178023184e+01, 8.56430025976980587198e+02, 3.88240183605401609683e+03,
                            7.24046774195652478189e+03, 5.93072701187316984827e+03, 2.06209331660327847417e+03,
                            2.42005740240291393179e+02};
constexpr double kJ1Pp[] = {7.62125616208173112003e-04, 7.31397056940917570436e-02, 1.12719608129684925192e+00,
                            5.11207951146807644818e+00, 8.42404590141772420927e+00, 5.21451598682361504063e+00,
                            1.00000000000000000254e+00};
constexpr double kJ1Pq[] = {5.71323128072548699714e-04, 6.88455908754495404082e-02, 1.10514232634061696926e+00,
                            5.07386386128601488557e+00, 8.39985554327604159757e+00, 5.20982848682361821619e+00,
                            9.99999999999999997461e-01};
constexpr double kJ1Qp[] = {5.10862594750176621635e-02, 4.98213872951233449420e+00, 7.58238284132545283818e+01,
                            3.66779609360150777800e+02, 7.10856304998926107277e+02, 5.97489612400613639965e+02,
                            2.11688757100572135698e+02, 2.52070205858023719784e+01};
constexpr double kJ1Qq[] = {7.42373277035675149943e+01, 1.05644886038262816351e+03, 4.98641058337653607651e+03,
                            9.56231892404756170795e+03, 7.99704160447350683650e+03, 2.82619278517639096600e+03,
                            3.36093607810698293419e+02};
// Up to 5: J without its first two zeros, and what is left of Y beside (2 / π) J log x, as quotients in x².
constexpr double kJ0Rp[] = {-4.79443220978201773821e+09, 1.95617491946556577543e+12, -2.49248344360967716204e+14,
                            9.70862251047306323952e+15};
constexpr double kJ0Rq[] = {4.99563147152651017219e+02, 1.73785401676374683123e+05, 4.84409658339962045305e+07,
                            1.11855537045356834862e+10, 2.11277520115489217587e+12, 3.10518229857422583814e+14,
                            3.18121955943204943306e+16, 1.71086294081043136091e+18};
constexpr double kJ1Rp[] = {-8.99971225705559398224e+08, 4.52228297998194034323e+11, -7.27494245221818276015e+13,
                            3.68295732863852883286e+15};
constexpr double kJ1Rq[] = {6.20836478118054335476e+02, 2.56987256757748830383e+05, 8.35146791431949253037e+07,
                            2.21511595479792499675e+10, 4.74914122079991414898e+12, 7.84369607876235854894e+14,
                            8.95222336184627338078e+16, 5.32278620332680085395e+18};
constexpr double kY0Yp[] = {1.55924367855235737965e+04,  -1.46639295903971606143e+07, 5.43526477051876500413e+09,
                            -9.82136065717911466409e+11, 8.75906394395366999549e+13,  -3.46628303384729719441e+15,
                            4.42733268572569800351e+16,  -1.84950800436986690637e+16};
constexpr double kY0Yq[] = {1.04128353664259848412e+03, 6.26107330137134956842e+05, 2.68919633393814121987e+08,
                            8.64002487103935000337e+10, 2.02979612750105546709e+13, 3.17157752842975028269e+15,
                            2.50596256172653059228e+17};
constexpr double kY1Yp[] = {1.26320474790178026440e+09,  -6.47355876379160291031e+11, 1.14509511541823727583e+14,
                            -8.12770255501325109621e+15, 2.02439475713594898196e+17,  -7.78877196265950026825e+17};
constexpr double kY1Yq[] = {5.94301592346128195359e+02, 2.35564092943068577943e+05, 7.34811944459721705660e+07,
                            1.87601316108706159478e+10, 3.88231277496238566008e+12, 6.20557727146953693363e+14,
                            6.87141087355300489866e+16, 3.97270608116560655612e+18};
// Airy's function: by its phase below -2.09, by a decreasing exponential above 2.09.
constexpr double kAn[] = {3.46538101525629032477e-01, 1.20075952739645805542e+01, 7.62796053615234516538e+01,
                          1.68089224934630576269e+02, 1.59756391350164413639e+02, 7.05360906840444183113e+01,
                          1.40264691163389668864e+01, 9.99999999999999995305e-01};
constexpr double kAd[] = {5.67594532638770212846e-01, 1.47562562584847203173e+01, 8.45138970141474626562e+01,
                          1.77318088145400459522e+02, 1.64234692871529701831e+02, 7.14778400825575695274e+01,
                          1.40959135607834029598e+01, 1.00000000000000000470e+00};
constexpr double kAfn[] = {-1.31696323418331795333e-01, -6.26456544431912369773e-01, -6.93158036036933542233e-01,
                           -2.79779981545119124951e-01, -4.91900132609500318020e-02, -4.06265923594885404393e-03,
                           -1.59276496239262096340e-04, -2.77649108155232920844e-06, -1.67787698489114633780e-08};
constexpr double kAfd[] = {1.33560420706553243746e+01, 3.26825032795224613948e+01, 2.67367040941499554804e+01,
                           9.18707402907259625840e+00, 1.47529146771666414581e+00, 1.15687173795188044134e-01,
                           4.40291641615211203805e-03, 7.54720348287414296618e-05, 4.51850092970580378464e-07};
constexpr double kAgn[] = {1.97339932091685679179e-02, 3.91103029615688277255e-01, 1.06579897599595591108e+00,
                           9.39169229816650230044e-01, 3.51465656105547619242e-01, 6.33888919628925490927e-02,
                           5.85804113048388458567e-03, 2.82851600836737019778e-04, 6.98793669997260967291e-06,
                           8.11789239554389293311e-08, 3.41551784765923618484e-10};
constexpr double kAgd[] = {9.30892908077441974853e+00, 1.98352928718312140417e+01, 1.55646628932864612953e+01,
                           5.47686069422975497931e+00, 9.54293611618961883998e-01, 8.64580826352392193095e-02,
                           4.12656523824222607191e-03, 1.01259085116509135510e-04, 1.17166733214413521882e-06,
                           4.91834570062930015649e-09};

constexpr double kTwoOverPi = 0.636619772367581343075535053490057448,
                 kRootTwoOverPi = 0.797884560802865355879892119868763737;

struct Hankel {
  std::span<const double> pp, pq, qp, qq;
  double phase;  // π/4 more for each half order
};
constexpr Hankel kOrder0{kJ0Pp, kJ0Pq, kJ0Qp, kJ0Qq, 0.785398163397448309615660845819875721};
constexpr Hankel kOrder1{kJ1Pp, kJ1Pq, kJ1Qp, kJ1Qq, 2.356194490192344928846982537459627163};

enum class Which : bool { j, y };
// √(2 / πx) (P cos φ − Q sin φ) or (P sin φ + Q cos φ), φ = x − phase. `z`: (5 / x)².
E by_hankel(const Hankel& order, Which which, E x, E z) {
  const E p = polynomial(z, order.pp) / polynomial(z, order.pq);
  const E q = 5 / x * (polynomial(z, order.qp) / polynomial(z, order.qq));
  const E phase = x - order.phase;
  const E wave = which == Which::j ? p * cos(phase) - q * sin(phase) : p * sin(phase) + q * cos(phase);
  return wave * kRootTwoOverPi / sqrt(x);
}
E order_0_beyond_5(Which which, E x) { return by_hankel(kOrder0, which, x, 25 / (x * x)); }
E order_1_beyond_5(Which which, E x) {
  const E z = 5 / x;
  return by_hankel(kOrder1, which, x, z * z);
}

E j0_up_to_5(E x) {
  const E square = x * x;
  const E quotient = (square - 5.78318596294678452118) * (square - 30.4712623436620863991) * polynomial(square, kJ0Rp) /
                     polynomial(square, kJ0Rq);
  return where(x < 0.00001, 1 - square / 4, quotient);
}
E j1_up_to_5(E x) {
  const E square = x * x;
  return polynomial(square, kJ1Rp) / polynomial(square, kJ1Rq) * x * (square - 14.6819706421238932572) *
         (square - 49.2184563216946036703);
}

// Y has a pole at 0, and is no real number below.
E in_domain(E x, E value) { return where(x == 0, -kInf, where(x < 0, kNan, value)); }

}  // namespace

E bessel_j0(E x) {
  const E size = where(x < 0, -x, x);
  return where(size <= 5, j0_up_to_5(size), order_0_beyond_5(Which::j, size));
}

E bessel_j1(E x) {
  const E negative = x < 0, size = where(negative, -x, x);
  const E value = where(size <= 5, j1_up_to_5(size), order_1_beyond_5(Which::j, size));
  return where(negative, -value, value);
}

E bessel_y0(E x) {
  const E square = x * x;
  const E near = polynomial(square, kY0Yp) / polynomial(square, kY0Yq) + kTwoOverPi * log(x) * j0_up_to_5(x);
  return in_domain(x, where(x <= 5, near, order_0_beyond_5(Which::y, x)));
}

E bessel_y1(E x) {
  const E square = x * x;
  const E near =
      x * (polynomial(square, kY1Yp) / polynomial(square, kY1Yq)) + kTwoOverPi * (j1_up_to_5(x) * log(x) - 1 / x);
  return in_domain(x, where(x <= 5, near, order_1_beyond_5(Which::y, x)));
}

// sin x / x, by its series below 1/2.
E spherical_bessel_j0(E x) {
  const E square = x * x;
  E series = x.like(1) / 6227020800.0;
  for (const double factorial : {-39916800.0, 362880.0, -5040.0, 120.0, -6.0})
    series = x.like(factorial < 0 ? -1 : 1) / std::abs(factorial) + square * series;
  series = 1 + square * series;
  return where(abs(x) == kInf, 0, where(abs(x) < 0.5, series, sin(x) / x));
}

namespace {

// c₁ f − c₂ g by the series of f and g in x³, until a term of f is none beside their sum. For |x| <= 2.09 that is so
// after fifteen, whatever the sum; what f is next to its zeros has no part in the result.
E airy_by_series(E x) {
  const bool wide = x.type() == compiler::Type::f64;
  const double epsilon = wide ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  const E cube = x * x * x;
  E f = x.like(1), g = x, of_f = f, of_g = g, last = f;
  for (double k = 1; k <= 43; k += 3) {
    const E goes_on = last > epsilon;
    of_f = of_f * cube / (k + 1) / (k + 2);
    of_g = of_g * cube / (k + 2) / (k + 3);
    f = where(goes_on, f + of_f, f);
    g = where(goes_on, g + of_g, g);
    last = where(goes_on, abs(of_f / f), last);
  }
  return 0.355028053887817239260 * f - 0.258819403792806798405 * g;
}

}  // namespace

E airy_ai(E x) {
  constexpr double inverse_root_pi = 5.64189583547756286948e-01;
  const E down = -2 * x * sqrt(-x) / 3, z = 1 / down, square = z * z;
  const E phase = down + x.like(0.25) * x.like(M_PI);
  const E even = 1 + square * polynomial(square, kAfn) / polynomial(square, kAfd);
  const E odd = z * polynomial(square, kAgn) / polynomial(square, kAgd);
  const E waves = inverse_root_pi / sqrt(sqrt(-x)) * (sin(phase) * even - cos(phase) * odd);
  const E up = 2 * x * sqrt(x) / 3, inverse = 1 / up;
  const E falling =
      inverse_root_pi * (polynomial(inverse, kAn) / polynomial(inverse, kAd)) / (2 * sqrt(sqrt(x)) * exp(up));
  const E value = where(x < -2.09, waves, where(x >= 2.09, falling, airy_by_series(x)));
  return where(abs(x) == kInf, kNan, where(x > 103.892, 0, value));
}

}  // namespace tower::rules
