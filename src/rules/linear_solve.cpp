// Linear systems: solve, inverse, triangular and Cholesky solves, determinants. The kernels take leading batch
// dimensions themselves; derivatives follow from A X = B by differentiating both sides (Giles, "Collected matrix
// derivative results", 2008).
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/linalg_ldl_solve_meta_dispatch.h>
#include <ATen/ops/triangular_solve_meta_dispatch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/broadcast.h"
#include "core/torch_version.h"
#include "core/wrapper.h"
#include "records/demands.h"
#include "records/on_matrices.h"
#include "records/op.h"
#include "rules/registry.h"
#include "rules/shared_operand.h"
#include "rules/small_factorizations.h"
#include "rules/small_solves.h"

namespace tower::rules {
namespace {

// X with A X = B (left) or X A = B.
Tensor solve(const Tensor& a, const Tensor& b, bool left) {
  return std::get<0>(at::linalg_solve_ex(a, b, left, false));
}

// The right-hand side as columns: a vector becomes a matrix with one.
Tensor columns(const Tensor& b, bool vector) { return vector ? b.unsqueeze(-1) : b; }
Tensor uncolumns(const Tensor& x, bool vector) { return vector ? x.squeeze(-1) : x; }

// _linalg_solve_ex(A, B, left, check_errors) → (X, LU, pivots, info). The logical shapes decide whether B is a vector;
// physically it is made a matrix, so that the batch cannot be mistaken for one.
void solve_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.to_front(1, false);
  Tensor a = f.tensor(0), b = f.tensor(1);
  const bool vector = is_for_vector(a.sizes().slice(f.batched(0)), b.sizes().slice(f.batched(1)));
  b = columns(b, vector);
  if (!f.batched(0)) {
    const SharedSystem system(b, a.dim(), f.stack[2].toBool());
    f.stack[1] = system.right_hand_sides();
    f.call();
    f.stack[0] = uncolumns(system.solutions(f.tensor(0)), vector);
    f.out_dims.assign({0, VmapFrame::kUnbatched, VmapFrame::kUnbatched, VmapFrame::kUnbatched});
    return;
  }
  if (!f.batched(1)) b = b.unsqueeze(0);  // or its rows could be taken for a batch of vectors
  const int64_t rank_a = a.dim() - 1, rank_b = b.dim() - 1, inserted = std::max<int64_t>(rank_b - rank_a, 0);
  for (int64_t r = 0; r < inserted; ++r) a = a.unsqueeze(1);
  for (int64_t r = rank_b; f.batched(1) && r < rank_a; ++r) b = b.unsqueeze(1);
  f.stack[0] = a;
  f.stack[1] = b;
  f.call();
  f.stack[0] = uncolumns(f.tensor(0), vector);
  for (size_t of_a : {1, 2, 3})
    for (int64_t r = 0; r < inserted; ++r) f.stack[of_a] = f.tensor(of_a).squeeze(1);
  f.out_dims.assign(4, 0);
}

// linalg_solve_triangular(A, B, upper, left, unitriangular).
void solve_triangular_vmap(VmapFrame& f) {
  if (f.batched(0) || f.logical_dim(1) < 2) return vmap_natively(f);
  solve_shared_system(f, 1, 3);
}

Tensor solve_jvp(const Tensor& da, const Tensor& db, const Tensor& a, const Tensor& b, bool left, const Tensor& x) {
  const bool vector = is_for_vector(a.sizes(), b.sizes());
  const Tensor xs = columns(x, vector);
  Tensor rhs = db.defined() ? columns(db, vector) : Tensor();
  if (da.defined()) {
    const Tensor product = left ? at::matmul(da, xs) : at::matmul(xs, da);
    rhs = rhs.defined() ? rhs - product : -product;
  }
  return uncolumns(solve(a, rhs, left), vector);
}

Tensor lower_half(const Tensor& m) {
  const Tensor lower = m.tril();
  return lower - at::diag_embed(lower.diagonal(0, -2, -1)) * 0.5;
}

// The part of a matrix that a triangular solve reads.
Tensor triangle(const Tensor& m, bool upper, bool unit) { return upper ? m.triu(unit ? 1 : 0) : m.tril(unit ? -1 : 0); }

Tensor with_matrix(const Tensor& scalars) { return scalars.unsqueeze(-1).unsqueeze(-1); }
Tensor inverse_of(const Tensor& a) { return std::get<0>(at::linalg_inv_ex(a, false)); }
Tensor trace_of_product(const Tensor& a, const Tensor& b) { return (a * b.mT()).sum(std::vector<int64_t>{-2, -1}); }

// The factors, their pivots (one dimension less) and B: batch dimensions in front, of one number.
void ldl_solve_vmap(VmapFrame& f) {
  const int64_t rank = std::max(f.logical_dim(0), f.logical_dim(2));
  for (const size_t arg : {0, 1, 2}) {
    f.to_front(arg, true);
    while (f.tensor(arg).dim() < rank + (arg != 1)) f.stack[arg] = f.tensor(arg).unsqueeze(1);
  }
  // The kernel reads as many pivots as there are right-hand sides, through a pointer.
  const Tensor b = f.tensor(2);
  Ints sizes = at::infer_size(f.tensor(1).sizes().slice(0, static_cast<size_t>(f.tensor(1).dim() - 1)),
                              b.sizes().slice(0, static_cast<size_t>(b.dim() - 2)));
  const int64_t n = f.tensor(1).size(-1);
  sizes.push_back(n);
  f.stack[1] = f.tensor(1).expand(sizes).contiguous();
  sizes.push_back(n);
  f.stack[0] = f.tensor(0).expand(sizes);
  f.call();
}

// ---- determinants ----

// The value without the wrappers of transforms: all examples together.
Tensor plain(Tensor t) {
  while (Wrapper* w = as_wrapper(t)) t = Tensor(w->payload().value);  // a copy: the wrapper may go with `t`
  return t;
}

// NOTE [Determinants of singular matrices]
// det is a polynomial, and its gradient, the adjugate, exists where the inverse does not: adj A = lim det(B) B⁻¹ for
// B → A. Where A = P L U has pivots near zero, B = A + t P L N with N a one at each of those has pivots t there, and
// det(B) B⁻¹ is a polynomial in t of as many degrees as there are such pivots. So its value at t = 0 is extrapolated
// from four points at which B is regular: exact up to degree three, and where four or more pivots vanish the adjugate
// and its first derivatives do, too. Derivatives of any order go through the four terms.
// Which formula is used is decided on values, for all examples together: both are right for a regular matrix. A trace,
// whose graph is run on other values, gets the general one.
double epsilon_of(const Tensor& t) {
  return c10::toRealValueType(t.scalar_type()) == at::kFloat ? std::numeric_limits<float>::epsilon()
                                                             : std::numeric_limits<double>::epsilon();
}

Tensor vanishing_pivots(const Tensor& lu) {
  const Tensor sizes = lu.diagonal(0, -2, -1).abs();
  return sizes.le(sizes.amax(-1, true) * std::pow(epsilon_of(lu), 0.4));
}

// `kept` is the factorization that came with the determinant, of the matrix or its transpose.
Tensor adjugate(const Tensor& a, const Tensor& det, const Tensor& kept) {
  if (a.size(-1) == 0) return at::zeros_like(a);
  if (!tracing()) {
    const Tensor vanishing = plain(vanishing_pivots(kept));
    DispatchGuard keys;
    keys.see_every_operator(false);
    if (!vanishing.any().item<bool>()) return with_matrix(det) * inverse_of(a);
  }
  const auto [lu, pivots, info] = at::linalg_lu_factor_ex(a.detach());
  const auto [p, l, u] = at::lu_unpack(lu, pivots);
  const Tensor largest = u.diagonal(0, -2, -1).abs().amax(-1, true);
  const Tensor step = largest.masked_fill(largest == 0, 1) * std::pow(epsilon_of(a), 0.2);
  const Tensor steps = (vanishing_pivots(lu).to(step.scalar_type()) * step).to(a.scalar_type());
  const Tensor direction = at::matmul(p, at::matmul(l, at::diag_embed(steps)));
  Tensor sum;
  for (const auto& [t, weight] : {std::pair(1.0, 4.0 / 6), {-1.0, 4.0 / 6}, {2.0, -1.0 / 6}, {-2.0, -1.0 / 6}}) {
    const Tensor b = a + direction * t;
    const Tensor term = with_matrix(at::linalg_det(b) * weight) * inverse_of(b);
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

// (a × b)ₖ = aₖ₊₁ bₖ₊₂ − aₖ₊₂ bₖ₊₁ along a dimension, as LibTorch rounds it: the second product by itself, the first
// one with the difference.
compiler::SmallResults cross_of_small(const compiler::SmallCall& c) {
  const compiler::Small &a = *c.operands[0], &b = *c.operands[1];
  const Sizes sizes(at::infer_size(a.sizes, b.sizes));
  const auto dim = static_cast<size_t>(at::maybe_wrap_dim(c.arg(2).toInt(), static_cast<int64_t>(sizes.size())));
  const std::vector<size_t> of_a = compiler::broadcast(a.sizes, sizes), of_b = compiler::broadcast(b.sizes, sizes);
  size_t step = 1, elements = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    elements *= static_cast<size_t>(sizes[d]);
    if (d > dim) step *= static_cast<size_t>(sizes[d]);
  }
  std::vector<compiler::E> result;
  for (size_t i = 0; i < elements; ++i) {
    const size_t k = i / step % 3, first = i - k * step;
    const size_t next = first + (k + 1) % 3 * step, after = first + (k + 2) % 3 * step;
    result.push_back(
        fma(c.at(a, of_a[next], 0), c.at(b, of_b[after], 0), -(c.at(a, of_a[after], 0) * c.at(b, of_b[next], 0))));
  }
  return c.give(sizes, result);
}

}  // namespace

void linear_solve() {
  // A X = B:  dX = A⁻¹ (dB - dA X)
  op<at::_ops::_linalg_solve_ex>()
      .small(small::solve)
      .depends(Depends::on_matrices)
      .vmap(solve_vmap)
      .nondifferentiable_outputs<1, 2, 3>()
      .vjp<0, 1>(
          [](Ct<0> ct, const Tensor& a, Shape b, bool left, Out<0> x, Wants<0> wants_a) -> std::tuple<Tensor, Tensor> {
            if (!ct->defined()) return {};
            const bool vector = is_for_vector(a.sizes(), b.sizes);
            const Tensor gb = solve(a.mH(), columns(*ct, vector), left);
            Tensor ga;
            if (wants_a) {
              const Tensor xh = columns(*x, vector).mH();
              ga = summed_to(left ? -at::matmul(gb, xh) : -at::matmul(xh, gb), a.sizes());
            }
            return {ga, summed_to(uncolumns(gb, vector), b.sizes)};
          })
      .jvp<0, 1>([](Tan<0> da, Tan<1> db, const Tensor& a, const Tensor& b, bool left, Skip, Out<0> x) {
        return solve_jvp(*da, *db, a, b, left, *x);
      });

  on_matrices<at::_ops::_linalg_solve_ex>([](const MatrixArguments& c) {
    return OnMatrices{.given = OnMatrices::to_lu,
                      .left = c.args[2].toBool(),
                      .vectors = is_for_vector(c.operands[0], c.operands[1]),
                      .sides = 1,
                      .solution = 0,
                      .factor = 1,
                      .exchanges = 2,
                      .info = 3};
  });

  op<at::_ops::linalg_inv_ex>()
      .small(small::inverse)
      .depends(Depends::on_matrices)
      .batches_natively()
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, Skip, Skip, Out<0> inv) { return -at::matmul(inv->mH(), at::matmul(*ct, inv->mH())); })
      .jvp<0>([](Tan<0> da, Skip, Skip, Out<0> inv) { return -at::matmul(*inv, at::matmul(*da, *inv)); });

  on_matrices<at::_ops::linalg_inv_ex>(
      [](const MatrixArguments&) { return OnMatrices{.given = OnMatrices::to_lu, .solution = 0, .info = 1}; });

  op<at::_ops::linalg_solve_triangular>()
      .small(small::solve_triangular)
      .depends(Depends::on_matrices)
      .vmap(solve_triangular_vmap)
      .vjp<0, 1>([](Ct<0> ct, const Tensor& a, Shape b, bool upper, bool left, bool unit, Out<0> x, Wants<0> wants_a) {
        const Tensor gb = at::linalg_solve_triangular(a.mH(), *ct, !upper, left, unit);
        Tensor ga;
        if (wants_a) {
          const Tensor product = left ? -at::matmul(gb, x->mH()) : -at::matmul(x->mH(), gb);
          ga = summed_to(triangle(product, upper, unit), a.sizes());
        }
        return std::tuple(ga, summed_to(gb, b.sizes));
      })
      .jvp<0, 1>([](Tan<0> da, Tan<1> db, const Tensor& a, Skip, bool upper, bool left, bool unit, Out<0> x) {
        Tensor rhs = *db;
        if (da->defined()) {
          const Tensor d = triangle(*da, upper, unit);
          const Tensor product = left ? at::matmul(d, *x) : at::matmul(*x, d);
          rhs = rhs.defined() ? rhs - product : -product;
        }
        return at::linalg_solve_triangular(a, rhs, upper, left, unit);
      });
  on_matrices<at::_ops::linalg_solve_triangular>([](const MatrixArguments& c) {
    return OnMatrices{.given = OnMatrices::triangle,
                      .upper = c.args[2].toBool(),
                      .unit = c.args[4].toBool(),
                      .left = c.args[3].toBool(),
                      .sides = 1,
                      .solution = 0};
  });
  op<at::_ops::triangular_solve>()
      .depends(Depends::on_matrices)
      .decomposes([](const Tensor& b, const Tensor& a, bool upper, bool transposed, bool unit) {
        const Tensor x = at::linalg_solve_triangular(transposed ? a.mT() : a, b, upper != transposed, true, unit);
        Ints copied(x.sizes().begin(), x.sizes().end() - 2);
        copied.insert(copied.end(), a.sizes().end() - 2, a.sizes().end());
        return std::tuple(x, a.expand(copied).clone());
      });

  // A = L Lᴴ:  dL = L φ(L⁻¹ dA L⁻ᴴ), φ = the lower half. The gradient is taken in the space of Hermitian matrices.
  op<at::_ops::linalg_cholesky_ex>()
      .small(small::cholesky)
      .depends(Depends::on_matrices)
      .batches_natively()
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, Skip, bool upper, Skip, Out<0> factor) {
        const Tensor l = upper ? factor->mH() : *factor, gl = upper ? ct->mH() : *ct;
        const Tensor phi = lower_half(at::matmul(l.mH(), gl));
        const Tensor half = at::linalg_solve_triangular(l.mH(), phi, true, true, false);
        const Tensor g = at::linalg_solve_triangular(l, half, false, false, false);
        return (g + g.mH()) * 0.5;
      })
      .jvp<0>([](Tan<0> da, Skip, bool upper, Skip, Out<0> factor) {
        const Tensor l = upper ? factor->mH() : *factor;
        const Tensor half = at::linalg_solve_triangular(l, *da, false, true, false);
        const Tensor dl = at::matmul(l, lower_half(at::linalg_solve_triangular(l.mH(), half, true, false, false)));
        return upper ? dl.mH() : dl;
      });
  on_matrices<at::_ops::linalg_cholesky_ex>([](const MatrixArguments& c) {
    return OnMatrices{.given = OnMatrices::to_cholesky, .upper = c.args[1].toBool(), .factor = 0, .info = 1};
  });
  op<at::_ops::linalg_ldl_factor_ex>().batches_natively();
  op<at::_ops::linalg_ldl_solve>().vmap(ldl_solve_vmap);
#ifdef TOWER_HAS_CHOLESKY
  op<at::_ops::cholesky>().decomposes(
      [](const Tensor& a, bool upper) { return std::get<0>(at::linalg_cholesky_ex(a, upper, true)); });
#endif
  op<at::_ops::cholesky_solve>()
      .depends(Depends::on_matrices)
      .decomposes([](const Tensor& b, const Tensor& factor, bool upper) {
        const Tensor l = upper ? factor.mH() : factor;
        return at::linalg_solve_triangular(l.mH(), at::linalg_solve_triangular(l, b, false, true, false), true, true,
                                           false);
      });
  on_matrices<at::_ops::cholesky_solve>([](const MatrixArguments& c) {
    return OnMatrices{
        .given = OnMatrices::cholesky, .upper = c.args[2].toBool(), .matrix = 1, .sides = 0, .solution = 0};
  });
  op<at::_ops::cholesky_inverse>().decomposes([](const Tensor& factor, bool upper) {
    return at::cholesky_solve(at::eye(factor.size(-1), factor.options()).expand_as(factor), factor, upper);
  });
  on_matrices<at::_ops::cholesky_inverse>([](const MatrixArguments& c) {
    return OnMatrices{.given = OnMatrices::cholesky, .upper = c.args[1].toBool(), .solution = 0};
  });

  // d det = tr(adj(A) dA)
  op<at::_ops::_linalg_det>()
      .small(small::determinant)
      .depends(Depends::on_matrices)
      .batches_natively()
      .nondifferentiable_outputs<1, 2>()
      .vjp<0>([](Ct<0> ct, const Tensor& a, Out<0> det, Out<1> lu) {
        return with_matrix(*ct) * adjugate(a, *det, *lu).mH();
      })
      .jvp<0>([](Tan<0> da, const Tensor& a, Out<0> det, Out<1> lu) {
        return trace_of_product(adjugate(a, *det, *lu), *da);
      });
  on_matrices<at::_ops::_linalg_det>([](const MatrixArguments&) {
    return OnMatrices{.given = OnMatrices::to_lu, .factor = 1, .exchanges = 2, .determinant = 0};
  });

  // With z = tr(A⁻¹ dA):  d log|det| = Re z,  d sign = i Im(z) sign.
  op<at::_ops::_linalg_slogdet>()
      .small(small::log_determinant)
      .depends(Depends::on_matrices)
      .batches_natively()
      .nondifferentiable_outputs<2, 3>()
      .vjp<0>([](Ct<0> gsign, Ct<1> glog, const Tensor& a, Out<0> sign) -> Tensor {
        Tensor c = *glog;
        if (a.is_complex() && gsign->defined()) {
          const Tensor turn = -at::imag(gsign->conj() * *sign);
          c = at::complex(c.defined() ? c : at::zeros_like(turn), turn);
        }
        if (!c.defined()) return {};
        return with_matrix(c) * inverse_of(a).mH();
      })
      .jvp<0>([](Tan<0> da, const Tensor& a, Out<0> sign) {
        const Tensor z = trace_of_product(inverse_of(a), *da);
        if (!z.is_complex()) return std::tuple(Tensor(), z);
        return std::tuple(at::complex(at::zeros_like(at::imag(z)), at::imag(z)) * *sign, at::real(z).clone());
      });

  on_matrices<at::_ops::_linalg_slogdet>([](const MatrixArguments&) {
    return OnMatrices{.given = OnMatrices::to_lu, .factor = 2, .exchanges = 3, .sign = 0, .logarithm = 1};
  });

  op<at::_ops::linalg_cross>()
      .small(cross_of_small)
      .depends(Depends::on_other_two)
      .along({2})
      .vjp<0>([](Ct<0> ct, Shape a, const Tensor& b, int64_t dim) {
        return summed_to(at::linalg_cross(conjugate(b).expand_as(*ct), *ct, dim), a.sizes);
      })
      .vjp<1>([](Ct<0> ct, const Tensor& a, Shape b, int64_t dim) {
        return summed_to(at::linalg_cross(*ct, conjugate(a).expand_as(*ct), dim), b.sizes);
      })
      .jvp<0>([](Tan<0> da, Skip, const Tensor& b, int64_t dim) { return at::linalg_cross(*da, b, dim); })
      .jvp<1>([](Tan<1> db, const Tensor& a, Skip, int64_t dim) { return at::linalg_cross(a, *db, dim); });

  // Only looks whether something failed, in any example, and says in which.
  op<at::_ops::_linalg_check_errors>()
      .vmap([](VmapFrame& f) {
        f.stack[0] = f.tensor(0).contiguous();  // what is one number for all examples may be expanded
        f.stack[2] = false;                     // a batch of matrices
        f.call();
      })
      .no_derivative();
  demands<at::_ops::linalg_solve_triangular>([](const Example& e) {
    demand_matrix(e, 0);
    demand_matrix(e, 1);
  });
  demands<at::_ops::cholesky_solve>([](const Example& e) {
    demand_matrix(e, 0);
    demand_matrix(e, 1);
    demand_same_dtype(e, {0, 1});
  });
  demands<at::_ops::triangular_solve>(own_demands<at::meta::triangular_solve>);
  demands<at::_ops::linalg_ldl_solve>(own_demands<at::meta::linalg_ldl_solve>);
}

}  // namespace tower::rules
