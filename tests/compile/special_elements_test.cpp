// Special functions in kernels beside LibTorch's: over the whole range of their types, and thickly around the points
// where their formulas change, have poles or are zero.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <tower/tower.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <tuple>
#include <vector>

#include "compile/beside.h"
#include "compile/kernels.h"
#include "graph/plan.h"
#include "graph/trace.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using td::Tensors;
using Function = Tensor (*)(const Tensor&);

struct Case {
  const char* name;
  Function f;
  std::vector<double> points;
  beside::Tolerance tolerance = {8};
};

// Where a logarithm's multiple, or one series, is subtracted from what is of its size.
constexpr beside::Tolerance kOfDifferences{16}, kOfWaves{8, 4, 0.25};
const std::vector<double> kLadder{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 20, 30};

const std::vector<Case> kCases = {
    {"lgamma", at::lgamma, kLadder},
    {"digamma", at::digamma, {0, 1, 2, 3, 5, 9, 10, 11, 1.4616321449683623, -0.504083008264455409, 1e17, 123456}},
    {"polygamma(0)", [](const Tensor& x) { return at::polygamma(0, x); }, kLadder},
    {"polygamma(1)", [](const Tensor& x) { return at::polygamma(1, x); }, {0.5, 1, 0, 2, 5, 6, 10}},
    {"mvlgamma(1)", [](const Tensor& x) { return at::mvlgamma(x, 1); }, kLadder},
    {"mvlgamma(3)", [](const Tensor& x) { return at::mvlgamma(x, 3); }, {1, 1.5, 2, 2.5, 3, 10}},
    {"ndtri", at::special_ndtri, {0, 0.13533528323661269189, 0.5, 1 - 0.13533528323661269189, 1, 1.2664165549e-14}},
    {"i0", at::i0, {0, 8, 88.7, 709.78}},
    {"i0e", at::special_i0e, {0, 8}},
    {"i1", at::special_i1, {0, 8, 88.7, 709.78}},
    {"i1e", at::special_i1e, {0, 8}},
    {"modified_bessel_i0", at::special_modified_bessel_i0, {0, 8}},
    {"modified_bessel_i1", at::special_modified_bessel_i1, {0, 8}},
    {"modified_bessel_k0", at::special_modified_bessel_k0, {0, 2, 700}, kOfDifferences},
    {"modified_bessel_k1", at::special_modified_bessel_k1, {0, 2, 700}, kOfDifferences},
    {"scaled_modified_bessel_k0", at::special_scaled_modified_bessel_k0, {0, 2, 700}, kOfDifferences},
    {"scaled_modified_bessel_k1", at::special_scaled_modified_bessel_k1, {0, 2, 700}, kOfDifferences},
    {"bessel_j0", at::special_bessel_j0, {0, 0.00001, 2.404825557695773, 5, 5.520078110286311, 1e5}},
    {"bessel_j1", at::special_bessel_j1, {0, 3.8317059702075123, 5, 7.0155866698156188, 1e5}},
    {"bessel_y0", at::special_bessel_y0, {0, 0.89357696627916752, 3.9576784193148579, 5, 1e5}, kOfWaves},
    {"bessel_y1", at::special_bessel_y1, {0, 2.1971413260310170, 5, 5.4296810407941351, 1e5}, kOfWaves},
    {"spherical_bessel_j0", at::special_spherical_bessel_j0, {0, 0.5, M_PI}},
    {"airy_ai", at::special_airy_ai, {0, 2.09, 2.3381074104597670, 8.3203353, 103.892}, kOfWaves},
};

// Points and their neighbours, of both signs; a fine grid from -20 to 20; all orders of magnitude; special numbers.
Tensor numbers(const std::vector<double>& points, at::ScalarType dtype) {
  Tensors all{kernels::special(dtype)};
  Tensor below = at::tensor(points, at::kDouble).to(dtype), above = below;
  const Tensor inf = at::full_like(below, std::numeric_limits<double>::infinity());
  for (int step = 0; step < 4; ++step) {
    for (const Tensor& t : {below, above}) all.insert(all.end(), {t, -t});
    below = at::nextafter(below, -inf);
    above = at::nextafter(above, inf);
  }
  all.push_back(at::linspace(-20, 20, 4001, at::kDouble).to(dtype));
  const double orders = dtype == at::kDouble ? 307 : 38;
  const Tensor magnitudes = at::pow(10, at::linspace(-orders, orders, 1001, at::kDouble)).to(dtype);
  all.insert(all.end(), {magnitudes, -magnitudes});
  Tensor whole = at::cat(all);
  // Whole vectors: single numbers at the end are computed by other code of LibTorch's.
  return at::cat({whole, at::ones({64 - whole.numel() % 64}, dtype)});
}

Tensor computed_in_a_kernel(const td::Function& f, const Tensors& args) {
  compiler::Kernels kernels;
  compiler::FusedGraph fused = compiler::fuse(compiler::trace(f, args, "test").graph, kernels, compiler::Worth::all);
  EXPECT_EQ(fused.kernels.size(), 1u);
  EXPECT_EQ(fused.graph.calls.size(), 1u) << "there is no kernel";
  return compiler::Plan(std::move(fused.graph)).run(args)[0];
}

TEST(SpecialElements, AreLibTorchsOverTheWholeRange) {
  TOWER_NEEDS_LLVM();
  for (const auto& [name, f, points, tolerance] : kCases)
    for (const auto dtype : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(std::string(name) + " of " + toString(dtype));
      const td::Function g = [f = f](const Tensors& in) { return Tensors{f(in[0])}; };
      const Tensors x{numbers(points, dtype)};
      EXPECT_EQ(beside::difference(g, x, computed_in_a_kernel(g, x), tolerance), "");
    }
}

TEST(SpecialElements, OfOrthogonalPolynomialsAreLibTorchsForEachDegree) {
  TOWER_NEEDS_LLVM();
  using Polynomial = Tensor (*)(const Tensor&, const at::Scalar&);
  const std::vector<std::tuple<const char*, Polynomial, double>> polynomials = {
      {"chebyshev_t", at::special_chebyshev_polynomial_t, 6},
      {"chebyshev_u", at::special_chebyshev_polynomial_u, 8},
      {"chebyshev_v", at::special_chebyshev_polynomial_v, 8},
      {"chebyshev_w", at::special_chebyshev_polynomial_w, 8},
      {"shifted_chebyshev_t", at::special_shifted_chebyshev_polynomial_t, 6},
      {"shifted_chebyshev_u", at::special_shifted_chebyshev_polynomial_u, 6},
      {"shifted_chebyshev_v", at::special_shifted_chebyshev_polynomial_v, 6},
      {"shifted_chebyshev_w", at::special_shifted_chebyshev_polynomial_w, 4},
      {"hermite_h", at::special_hermite_polynomial_h, 8},
      {"hermite_he", at::special_hermite_polynomial_he, 8},
      {"laguerre_l", at::special_laguerre_polynomial_l, 8},
      {"legendre_p", at::special_legendre_polynomial_p, 8},
  };
  for (const auto& [name, polynomial, highest] : polynomials)
    for (const auto dtype : {at::kDouble, at::kFloat})
      for (const double n : {-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.5, 7.0, 8.0}) {
        if (n > highest) continue;
        SCOPED_TRACE(std::string(name) + "(" + std::to_string(n) + ") of " + toString(dtype));
        const td::Function g = [&, polynomial = polynomial](const Tensors& in) {
          return Tensors{polynomial(in[0], n)};
        };
        // What the recurrences add up is larger than what is left, and 2 x − 1 is rounded as a number of its size.
        const std::string_view kind = name;
        const double terms = kind.starts_with("hermite")    ? 32
                             : kind.starts_with("laguerre") ? 8
                             : kind.starts_with("shifted")  ? 4
                                                            : 2;
        // Of NaN some of LibTorch's recurrences give a number that was never set.
        const Tensors x{numbers({0, 0.25, 0.5, 0.75, 1, 2}, dtype).nan_to_num(0.3, INFINITY, -INFINITY)};
        EXPECT_EQ(beside::difference(g, x, computed_in_a_kernel(g, x), {8, 4, terms}), "");
      }
}

// The derivative's formula is in the record, and made of operators that kernels have: one kernel, mapped.
TEST(SpecialElements, HaveTheirDerivativesInTheKernel) {
  TOWER_NEEDS_LLVM();
  const std::vector<std::pair<const char*, Function>> functions = {
      {"lgamma", at::lgamma},
      {"digamma", at::digamma},
      {"ndtri", [](const Tensor& x) { return at::special_ndtri(x * 0.2); }},
      {"i0", at::i0},
      {"i0e", at::special_i0e},
      {"i1", at::special_i1},
      {"i1e", at::special_i1e},
      {"bessel_j0", at::special_bessel_j0},
      {"bessel_j1", at::special_bessel_j1},
      {"bessel_y0", at::special_bessel_y0},
      {"bessel_y1", at::special_bessel_y1},
      {"modified_bessel_k0", at::special_modified_bessel_k0},
      {"scaled_modified_bessel_k1", at::special_scaled_modified_bessel_k1},
  };
  for (const auto& [name, f] : functions) {
    SCOPED_TRACE(name);
    const auto slope = [f = f](const Tensor& x) {
      return tower::vmap(tower::grad([f](const Tensor& u) { return (f(u) * u).sum(); }))(x);
    };
    const auto fast = tower::compile(slope);
    const Tensor x = at::linspace(0.5, 4, 192, at::kDouble).reshape({64, 3});
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(fast(x).allclose(slope(x), 1e-12, 1e-12)) << "call " << call;
    EXPECT_NE(fast.report().find("calls left to LibTorch: 0"), std::string::npos) << fast.report();
  }
}

}  // namespace
