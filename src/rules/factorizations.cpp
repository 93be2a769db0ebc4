// Matrix factorizations. The kernels take leading batch dimensions themselves. Eigenvectors and singular vectors are
// determined up to a phase: derivatives are those that LibTorch defines, right for functions that do not depend on it.
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/ops/_linalg_svd_meta_dispatch.h>
#include <ATen/ops/linalg_lu_factor_ex_meta_dispatch.h>
#include <ATen/ops/linalg_lu_meta_dispatch.h>
#include <ATen/ops/linalg_lu_solve_meta_dispatch.h>
#include <ATen/ops/linalg_qr_meta_dispatch.h>
#include <ATen/ops/lu_unpack_meta_dispatch.h>

#include "interpreters/vmap.h"
#include "records/demands.h"
#include "records/on_matrices.h"
#include "records/op.h"
#include "rules/registry.h"
#include "rules/shared_operand.h"
#include "rules/small_factorizations.h"
#include "rules/small_solves.h"
#include "rules/small_spectra.h"
#include "tower/errors.h"

namespace tower::rules {
namespace {

// Differences of values, column minus row, with ones on the diagonal to divide by.
Tensor gaps(const Tensor& values) {
  return values.unsqueeze(-2) - values.unsqueeze(-1) + at::eye(values.size(-1), values.options());
}
Tensor off_diagonal(const Tensor& m) { return m - at::diag_embed(m.diagonal(0, -2, -1)); }
Tensor skew(const Tensor& m) { return m - m.mH(); }
Tensor real_part(const Tensor& t) { return t.is_complex() ? at::real(t) : t; }
Tensor like(const Tensor& real, const Tensor& m) { return m.is_complex() ? real.to(m.scalar_type()) : real; }

Tensor svd_backward(const Tensor& gu, const Tensor& gs, const Tensor& gvh, const Tensor& u, const Tensor& s,
                    const Tensor& vh) {
  const int64_t m = u.size(-2), n = vh.size(-1), k = s.size(-1);
  if (!gu.defined() && !gvh.defined()) return at::matmul(u * like(gs, u).unsqueeze(-2), vh);
  const Tensor e = gaps(s * s);
  const Tensor ugu = gu.defined() ? skew(at::matmul(u.mH(), gu)) : Tensor();
  const Tensor vgv = gvh.defined() ? skew(at::matmul(vh, gvh.mH())) : Tensor();
  Tensor inner;
  if (ugu.defined()) inner = ugu / e * s.unsqueeze(-2);
  if (vgv.defined()) {
    const Tensor part = s.unsqueeze(-1) * (vgv / e);
    inner = inner.defined() ? inner + part : part;
  }
  if (gs.defined()) inner = inner + at::diag_embed(like(gs, u));
  if (u.is_complex() && gu.defined() && gvh.defined())
    inner = inner + at::diag_embed(ugu.diagonal(0, -2, -1) / (s * 2));
  if (m > k && gu.defined()) {
    const Tensor scaled = gu / s.unsqueeze(-2);
    return at::matmul(at::matmul(u, inner) + scaled - at::matmul(u, at::matmul(u.mH(), scaled)), vh);
  }
  if (n > k && gvh.defined()) {
    const Tensor scaled = gvh / s.unsqueeze(-1);
    return at::matmul(u, at::matmul(inner, vh) + scaled - at::matmul(at::matmul(scaled, vh.mH()), vh));
  }
  return at::matmul(u, at::matmul(inner, vh));
}

// With dU = U Ω and dV = V Ψ, Ω and Ψ anti-Hermitian: Uᴴ dA V = Ω S + dS - S Ψ. The phase that complex vectors leave
// open is shared between both. Vectors beyond the singular values span a complement: no tangent.
std::tuple<Tensor, Tensor, Tensor> svd_forward(const Tensor& da, const Tensor& u, const Tensor& s, const Tensor& vh) {
  const int64_t m = u.size(-2), n = vh.size(-1), k = s.size(-1);
  const Tensor v = vh.mH(), dav = at::matmul(da, v), x = at::matmul(u.mH(), dav);
  const Tensor ds = real_part(x.diagonal(0, -2, -1)).clone(), e = gaps(s * s);
  const Tensor xs = x * s.unsqueeze(-2), sx = s.unsqueeze(-1) * x;
  Tensor omega = off_diagonal(xs + xs.mH()) / e, psi = off_diagonal(sx + sx.mH()) / e;
  if (u.is_complex()) {
    const Tensor diagonal = x.diagonal(0, -2, -1), phase = at::diag_embed((diagonal - diagonal.conj()) / (s * 4));
    omega = omega + phase;
    psi = psi - phase;
  }
  Tensor du = at::matmul(u, omega), dv = at::matmul(v, psi);
  if (m > k) du = du + (dav - at::matmul(u, x)) / s.unsqueeze(-2);
  if (n > k) dv = dv + (at::matmul(da.mH(), u) - at::matmul(v, x.mH())) / s.unsqueeze(-2);
  return {du, ds, dv.mH()};
}

// ---- QR ----

// The upper triangle T with real diagonal of which T + Tᴴ is the Hermitian matrix `h`.
Tensor upper_half(const Tensor& h) { return h.triu() - at::diag_embed(h.diagonal(0, -2, -1)) * 0.5; }
Tensor times_inverse(const Tensor& b, const Tensor& triangle, bool upper, bool unit = false) {
  return at::linalg_solve_triangular(triangle, b, upper, /*left=*/false, unit);
}
Tensor inverse_times(const Tensor& triangle, const Tensor& b, bool upper, bool unit = false) {
  return at::linalg_solve_triangular(triangle, b, upper, /*left=*/true, unit);
}

// Q and R of the reduced factorization, which derivatives are of.
std::pair<Tensor, Tensor> reduced_qr(const Tensor& a, const std::string& mode, const Tensor& q, const Tensor& r) {
  if (mode == "complete" && a.size(-2) > a.size(-1))
    throw DerivativeError(
        "aten::linalg_qr with mode 'complete' has no derivative for a tall matrix: the columns that complete "
        "the basis are arbitrary. Use mode 'reduced'.");
  if (mode != "r") return {q, r};
  auto [q2, r2] = at::linalg_qr(a, "reduced");
  return {q2, r2};
}

// With X and U the first columns of A and R that make U square, Y = Qᴴ dX U⁻¹ = Qᴴ dQ + T where T = dU U⁻¹ is upper
// triangular and Qᴴ dQ anti-Hermitian: T is the upper half of Y + Yᴴ.
std::tuple<Tensor, Tensor> qr_forward(const Tensor& da, const Tensor& q, const Tensor& r) {
  const int64_t k = q.size(-1);
  const Tensor dxu = times_inverse(da.narrow(-1, 0, k), r.narrow(-1, 0, k), true);
  const Tensor y = at::matmul(q.mH(), dxu), t = upper_half(y + y.mH());
  return {dxu - at::matmul(q, t), (at::matmul(q.mH(), da) - at::matmul(y - t, r)).triu()};
}

Tensor qr_backward(const Tensor& gq, const Tensor& gr, const Tensor& q, const Tensor& r) {
  const int64_t k = q.size(-1), n = r.size(-1);
  Tensor direct, g = gq;
  if (gr.defined()) {
    direct = at::matmul(q, gr.triu());
    const Tensor through_q = at::matmul(direct, r.mH());
    g = g.defined() ? g - through_q : -through_q;
  }
  const Tensor half = upper_half(at::matmul(q.mH(), g)), both = half + half.mH();
  const Tensor gx = times_inverse(g - at::matmul(q, both), r.narrow(-1, 0, k).mH(), false);
  const Tensor ga = n > k ? at::constant_pad_nd(gx, {0, n - k}) : gx;
  return direct.defined() ? ga + direct : ga;
}

// ---- LU ----

// With A = P L U square, L⁻¹ Pᴴ dA U⁻¹ = L⁻¹ dL + dU U⁻¹ is a strictly lower and an upper triangle. What a tall A has
// below, or a wide one has to the right, is solved for when these are known.
std::tuple<Tensor, Tensor> lu_forward(const Tensor& da, const Tensor& p, const Tensor& l, const Tensor& u) {
  const int64_t m = l.size(-2), n = u.size(-1), k = l.size(-1);
  const Tensor pda = at::matmul(p.mH(), da), l1 = l.narrow(-2, 0, k), u1 = u.narrow(-1, 0, k);
  const Tensor f = times_inverse(inverse_times(l1, pda.narrow(-2, 0, k).narrow(-1, 0, k), false, true), u1, true);
  Tensor dl = at::matmul(l1, f.tril(-1)), du = at::matmul(f.triu(), u1);
  if (m > k)
    dl = at::cat({dl, times_inverse(pda.narrow(-2, k, m - k) - at::matmul(l.narrow(-2, k, m - k), du), u1, true)}, -2);
  if (n > k)
    du = at::cat(
        {du, inverse_times(l1, pda.narrow(-1, k, n - k) - at::matmul(dl, u.narrow(-1, k, n - k)), false, true)}, -1);
  return {dl, du};
}

Tensor lu_backward(const Tensor& gl, const Tensor& gu, const Tensor& p, const Tensor& l, const Tensor& u) {
  const int64_t m = l.size(-2), n = u.size(-1), k = l.size(-1);
  const Tensor l1h = l.narrow(-2, 0, k).mH(), u1h = u.narrow(-1, 0, k).mH();
  Tensor gl1 = gl.defined() ? gl.narrow(-2, 0, k) : at::zeros_like(l1h),
         gu1 = gu.defined() ? gu.narrow(-1, 0, k) : at::zeros_like(u1h);
  Tensor below, right;
  if (m > k && gl.defined()) {
    below = times_inverse(gl.narrow(-2, k, m - k), u1h, false);
    gu1 = gu1 - at::matmul(l.narrow(-2, k, m - k).mH(), below);
  }
  if (n > k && gu.defined()) {
    right = inverse_times(l1h, gu.narrow(-1, k, n - k), true, true);
    gl1 = gl1 - at::matmul(right, u.narrow(-1, k, n - k).mH());
  }
  const Tensor inner = at::matmul(l1h, gl1).tril(-1) + at::matmul(gu1, u1h).triu();
  Tensor g = inverse_times(l1h, times_inverse(inner, u1h, false), true, true);
  if (m > k) g = below.defined() ? at::cat({g, below}, -2) : at::constant_pad_nd(g, {0, 0, 0, m - k});
  if (n > k) g = right.defined() ? at::cat({g, right}, -1) : at::constant_pad_nd(g, {0, n - k});
  return at::matmul(p, g);
}

// L and U packed in one matrix: L without its diagonal of ones.
Tensor lu_pack(const Tensor& l, const Tensor& u) {
  const int64_t m = l.size(-2), n = u.size(-1), k = l.size(-1);
  return at::constant_pad_nd(l.tril(-1), {0, n - k}) + at::constant_pad_nd(u.triu(), {0, 0, 0, m - k});
}

Tensor lu_solve(const Tensor& lu, const Tensor& pivots, const Tensor& b, bool left, bool adjoint) {
  auto [p, l, u] = at::lu_unpack(lu, pivots);
  if (left && !adjoint) return inverse_times(u, inverse_times(l, at::matmul(p.mT(), b), false, true), true);
  if (left) return at::matmul(p, inverse_times(l.mH(), inverse_times(u.mH(), b, false), true, true));
  if (!adjoint) return at::matmul(times_inverse(times_inverse(b, u, true), l, false, true), p.mT());
  return times_inverse(times_inverse(at::matmul(b, p), l.mH(), true, true), u.mH(), false);
}

// Right-hand sides may have more batch dimensions than the factors have, or fewer.
void lu_solve_vmap(VmapFrame& f) {
  if (!f.batched(0) && !f.batched(1)) return solve_shared_system(f, 2, 3);
  const int64_t rank = std::max(f.logical_dim(0), f.logical_dim(2));
  for (uint8_t i : f.op.tensor_args()) {
    f.to_front(i, true);
    for (int64_t r = f.tensor(i).dim() - 1; r < rank - (i == 1); ++r) f.stack[i] = f.tensor(i).unsqueeze(1);
  }
  f.stack[1] = f.tensor(1).contiguous();  // read through a pointer
  f.call();
}

// exp of [[A, B], [0, A]] has the derivative of exp at A along B in its upper right corner (Mathias 1996).
Tensor matrix_exp_along(const Tensor& a, const Tensor& b) {
  const int64_t n = a.size(-1);
  const Tensor upper = at::cat({a, b}, -1), lower = at::cat({at::zeros_like(a), a}, -1);
  return at::linalg_matrix_exp(at::cat({upper, lower}, -2)).narrow(-2, 0, n).narrow(-1, n, n);
}

// The kernels do not broadcast batch dimensions (some read past the end instead): every operand gets the batch.
void vmap_expanded(VmapFrame& f) {
  for (uint8_t i : f.op.tensor_args())
    if (f.is_tensor(i)) f.to_front(i, true);
  f.call();
  f.out_dims.assign(f.stack.size(), 0);
}

// Vectors that were not asked for come back as an empty tensor without the batch.
void values_first_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.call();
  f.out_dims.clear();
  for (const auto& out : f.stack) {
    const Tensor& t = out.toTensor();
    f.out_dims.push_back(t.dim() == 1 && t.numel() == 0 ? VmapFrame::kUnbatched : 0);
  }
}

// Golub and Pereyra's derivative of the pseudoinverse P of A (1973), transposed.
Tensor pinv_backward(const Tensor& ct, const Tensor& a, const Tensor& p) {
  const Tensor gh = ct.mH(), ph = p.mH();
  if (a.size(-2) <= a.size(-1)) {
    const Tensor k = at::matmul(gh, p), kph = at::matmul(k, ph);
    return -at::matmul(p, k).mH() + kph - at::matmul(at::matmul(a, p), kph) +
           at::matmul(at::matmul(ph, p), gh - at::matmul(k, a));
  }
  const Tensor k = at::matmul(p, gh), phk = at::matmul(ph, k);
  return -at::matmul(k, p).mH() + at::matmul(at::matmul(gh - at::matmul(a, k), p), ph) + phk -
         at::matmul(at::matmul(phk, p), a);
}

void pinv_vmap(VmapFrame& f) {
  if (f.batched(1) || f.batched(2)) return run_loop(f.level, f, false);  // tolerances of their own
  f.to_front(0, false);
  f.call();
}

// Without Q there is an empty tensor in its place, whatever the batch.
void qr_vmap(VmapFrame& f) {
  const bool q = f.stack[1].toStringRef() != "r";
  vmap_natively(f);
  if (!q) f.stack[0] = at::empty({f.batch_size, 0}, f.stack[0].toTensor().options());
}

}  // namespace

void factorizations() {
  // A = V diag(λ) Vᴴ. LibTorch leaves V out when nobody seems to need it; derivatives then compute it again. They are
  // those of the Hermitian part of A, so gradients are Hermitian.
  op<at::_ops::_linalg_eigh>()
      .small(small::symmetric_eigenvalues)
      .depends(Depends::on_matrices)
      .vmap(values_first_vmap)
      .vjp<0>([](Ct<0> gl, Ct<1> gv, const Tensor& a, const std::string& uplo, bool compute_v, Out<0> l, Out<1> v) {
        const Tensor vectors = compute_v ? *v : std::get<1>(at::_linalg_eigh(a, uplo, true));
        Tensor inner;
        if (gv->defined()) {
          const Tensor turned = at::matmul(vectors.mH(), *gv);
          inner = off_diagonal(turned - turned.mH()) / (2 * gaps(*l));
        }
        if (gl->defined()) {
          const Tensor diagonal = at::diag_embed(like(*gl, vectors));
          inner = inner.defined() ? inner + diagonal : diagonal;
        }
        return at::matmul(vectors, at::matmul(inner, vectors.mH()));
      })
      .jvp<0>([](Tan<0> da, const Tensor& a, const std::string& uplo, bool compute_v, Out<0> l, Out<1> v) {
        const Tensor vectors = compute_v ? *v : std::get<1>(at::_linalg_eigh(a, uplo, true));
        const Tensor turned = at::matmul(vectors.mH(), at::matmul(*da, vectors));
        const Tensor p = (turned + turned.mH()) / 2;
        const Tensor dl = real_part(p.diagonal(0, -2, -1)).clone();
        return std::tuple(dl, compute_v ? at::matmul(vectors, off_diagonal(p) / gaps(*l)) : Tensor());
      });

  // A = U diag(S) Vᴴ
  op<at::_ops::_linalg_svd>()
      .small(small::singular_values)
      .depends(Depends::on_matrices)
      .vmap(values_first_vmap)
      .vjp<0>([](Ct<0> gu, Ct<1> gs, Ct<2> gvh, const Tensor& a, bool full, bool compute_uv,
                 const std::optional<std::string>& driver, Out<0> u, Out<1> s, Out<2> vh) {
        if (!compute_uv) {
          auto [u2, s2, vh2] = at::_linalg_svd(a, false, true, driver);
          return svd_backward({}, *gs, {}, u2, s2, vh2);
        }
        const int64_t k = s->size(-1);
        const auto some = [&](const Tensor& t, int64_t dim) { return full && t.defined() ? t.narrow(dim, 0, k) : t; };
        return svd_backward(some(*gu, -1), *gs, some(*gvh, -2), some(*u, -1), *s, some(*vh, -2));
      })
      .jvp<0>([](Tan<0> da, const Tensor& a, bool full, bool compute_uv, const std::optional<std::string>& driver,
                 Out<0> u, Out<1> s, Out<2> vh) {
        if (!compute_uv) {
          auto [u2, s2, vh2] = at::_linalg_svd(a, false, true, driver);
          return std::tuple(Tensor(), std::get<1>(svd_forward(*da, u2, s2, vh2)), Tensor());
        }
        if (!full) return svd_forward(*da, *u, *s, *vh);
        const int64_t k = s->size(-1);
        auto [du, ds, dvh] = svd_forward(*da, u->narrow(-1, 0, k), *s, vh->narrow(-2, 0, k));
        return std::tuple(at::constant_pad_nd(du, {0, u->size(-1) - k}), ds,
                          at::constant_pad_nd(dvh, {0, 0, 0, vh->size(-2) - k}));
      });

  op<at::_ops::linalg_pinv_atol_rtol_tensor>()
      .depends(Depends::on_matrices)
      .vmap(pinv_vmap)
      .inactive<1, 2>()
      .vjp<0>([](Ct<0> ct, const Tensor& a, Skip, Skip, Skip, Out<0> p) { return pinv_backward(*ct, a, *p); })
      .jvp<0>([](Tan<0> da, const Tensor& a, Skip, Skip, Skip, Out<0> p) {
        const Tensor dah = da->mH(), ph = p->mH(), pphda = at::matmul(at::matmul(*p, ph), dah),
                     dahphp = at::matmul(dah, at::matmul(ph, *p));
        return pphda - at::matmul(at::matmul(pphda, a), *p) + dahphp - at::matmul(*p, at::matmul(a, dahphp)) -
               at::matmul(at::matmul(*p, *da), *p);
      });

  op<at::_ops::linalg_matrix_exp>()
      .small(small::exponential)
      .depends(Depends::on_matrices)
      .vmap([](VmapFrame& f) {
        f.to_front(0, false);
        f.stack[0] = f.tensor(0).contiguous();  // the kernel views it as a list of matrices
        f.call();
      })
      .vjp<0>([](Ct<0> ct, const Tensor& a) { return matrix_exp_along(a.mH(), *ct); })
      .jvp<0>([](Tan<0> da, const Tensor& a) { return matrix_exp_along(a, *da); });

  op<at::_ops::linalg_qr>()
      .small(small::qr)
      .depends(Depends::on_matrices)
      .vmap(qr_vmap)
      .vjp<0>([](Ct<0> gq, Ct<1> gr, const Tensor& a, const std::string& mode, Out<0> q, Out<1> r) {
        auto [q1, r1] = reduced_qr(a, mode, *q, *r);
        return qr_backward(mode == "r" ? Tensor() : *gq, *gr, q1, r1);
      })
      .jvp<0>([](Tan<0> da, const Tensor& a, const std::string& mode, Out<0> q, Out<1> r) {
        auto [q1, r1] = reduced_qr(a, mode, *q, *r);
        auto [dq, dr] = qr_forward(*da, q1, r1);
        return std::tuple(mode == "r" ? Tensor() : dq, dr);
      });

  op<at::_ops::linalg_lu>()
      .small(small::lu)
      .depends(Depends::on_matrices)
      .batches_natively()
      .nondifferentiable_outputs<0>()
      .vjp<0>([](Ct<1> gl, Ct<2> gu, Skip, Skip, Out<0> p, Out<1> l, Out<2> u) {
        return lu_backward(*gl, *gu, *p, *l, *u);
      })
      .jvp<0>([](Tan<0> da, Skip, Skip, Out<0> p, Out<1> l, Out<2> u) {
        auto [dl, du] = lu_forward(*da, *p, *l, *u);
        return std::tuple(Tensor(), dl, du);
      });
  on_matrices<at::_ops::linalg_lu>([](const MatrixArguments& c) -> std::optional<OnMatrices> {
    if (!c.args[1].toBool()) return std::nullopt;
    return OnMatrices{.given = OnMatrices::to_lu, .permutation = 0, .lower_factor = 1, .upper_factor = 2};
  });
  op<at::_ops::linalg_lu_factor_ex>()
      .small(small::lu_factor)
      .depends(Depends::on_matrices)
      .batches_natively()
      .nondifferentiable_outputs<1, 2>()
      .vjp<0>([](Ct<0> g, Skip, Skip, Skip, Out<0> lu, Out<1> pivots) {
        auto [p, l, u] = at::lu_unpack(*lu, *pivots);
        const int64_t k = l.size(-1);
        return lu_backward(g->narrow(-1, 0, k).tril(-1), g->narrow(-2, 0, k).triu(), p, l, u);
      })
      .jvp<0>([](Tan<0> da, Skip, Skip, Skip, Out<0> lu, Out<1> pivots) {
        auto [p, l, u] = at::lu_unpack(*lu, *pivots);
        auto [dl, du] = lu_forward(*da, p, l, u);
        return std::tuple(lu_pack(dl, du), Tensor(), Tensor());
      });
  on_matrices<at::_ops::linalg_lu_factor_ex>([](const MatrixArguments& c) -> std::optional<OnMatrices> {
    if (!c.args[1].toBool()) return std::nullopt;
    return OnMatrices{.given = OnMatrices::to_lu, .factor = 0, .exchanges = 1, .info = 2};
  });
  op<at::_ops::lu_unpack>()
      .small(small::lu_unpack)
      .depends(Depends::on_matrices)
      .vmap([](VmapFrame& f) {
        vmap_expanded(f);
        for (c10::IValue& out : f.stack)  // what was not asked for is empty, of no example's
          if (out.toTensor().dim() == 1) out = out.toTensor().expand({f.batch_size, 0});
      })
      .inactive<1>()
      .nondifferentiable_outputs<0>()
      .vjp<0>([](Ct<1> gl, Ct<2> gu, Shape lu, Skip, bool unpack_data) {
        if (!unpack_data) return Tensor();
        const int64_t m = lu.sizes.end()[-2], n = lu.sizes.end()[-1], k = std::min(m, n);
        Tensor g;
        if (gl->defined()) g = at::constant_pad_nd(gl->tril(-1), {0, n - k});
        if (!gu->defined()) return g;
        const Tensor upper = at::constant_pad_nd(gu->triu(), {0, 0, 0, m - k});
        return g.defined() ? g + upper : upper;
      })
      .jvp<0>([](Tan<0> dlu, Skip, Skip, bool unpack_data) {
        if (!unpack_data) return std::tuple(Tensor(), Tensor(), Tensor());
        const int64_t k = std::min(dlu->size(-2), dlu->size(-1));
        return std::tuple(Tensor(), dlu->narrow(-1, 0, k).tril(-1), dlu->narrow(-2, 0, k).triu());
      });
  on_matrices<at::_ops::lu_unpack>([](const MatrixArguments& c) {
    // What is not asked for is an empty tensor.
    const bool factors = c.args[2].toBool(), permutation = c.args[3].toBool();
    return OnMatrices{.given = OnMatrices::lu,
                      .pivots = 1,
                      .permutation = permutation ? 0 : OnMatrices::kNone,
                      .lower_factor = factors ? 1 : OnMatrices::kNone,
                      .upper_factor = factors ? 2 : OnMatrices::kNone};
  });
  op<at::_ops::linalg_lu_solve>()
      .small(small::lu_solve)
      .depends(Depends::on_matrices)
      .vmap(lu_solve_vmap)
      .inactive<1>()
      .decomposes(lu_solve);
  on_matrices<at::_ops::linalg_lu_solve>([](const MatrixArguments& c) {
    return OnMatrices{.given = OnMatrices::lu,
                      .left = c.args[3].toBool(),
                      .transposed = c.args[4].toBool(),
                      .pivots = 1,
                      .sides = 2,
                      .solution = 0};
  });

  // A V = V diag(λ): with P = V⁻¹ dA V, dλ = diag P and dV = V (P / (λ_j - λ_i)) off the diagonal. The eigenvectors
  // have length one, which takes away what the part of dV along them adds to it.
  op<at::_ops::linalg_eig>()
      .batches_natively()
      .vjp<0>([](Ct<0> gl, Ct<1> gv, Skip, Out<0> l, Out<1> v) {
        Tensor inner;
        if (gv->defined()) {
          const Tensor vgv = at::matmul(v->mH(), *gv), along = at::real(vgv.diagonal(0, -2, -1)).unsqueeze(-2);
          inner = off_diagonal(vgv - at::matmul(v->mH(), *v * along)) / gaps(*l).conj();
        }
        if (gl->defined()) {
          const Tensor diagonal = at::diag_embed(*gl);
          inner = inner.defined() ? inner + diagonal : diagonal;
        }
        return at::linalg_solve(v->mH(), at::matmul(inner, v->mH()));
      })
      .jvp<0>([](Tan<0> da, Skip, Out<0> l, Out<1> v) {
        const Tensor p = at::linalg_solve(*v, at::matmul(like(*da, *v), *v));
        const Tensor turned = at::matmul(*v, off_diagonal(p) / gaps(*l));
        const Tensor along = at::real((v->conj() * turned).sum(-2, true));
        return std::tuple(p.diagonal(0, -2, -1).clone(), turned - *v * along);
      });
  op<at::_ops::_linalg_eigvals>().batches_natively().decomposes(
      [](const Tensor& a) { return std::get<0>(at::linalg_eig(a)); });

  const char* packed = "the reflectors that it packs are LAPACK's own and have no derivative. Use linalg_qr().";
  op<at::_ops::geqrf>()
      .small(small::geqrf)
      .depends(Depends::on_matrices)
      .batches_natively()
      .unsupported(Kind::vjp, packed)
      .unsupported(Kind::jvp, packed);
  // A batch of vectors is a matrix to the kernels.
  demands<at::_ops::_linalg_svd>(own_demands<at::meta::_linalg_svd>);
  demands<at::_ops::linalg_qr>(own_demands<at::meta::linalg_qr>);
  demands<at::_ops::linalg_lu>(own_demands<at::meta::linalg_lu>);
  demands<at::_ops::linalg_lu_factor_ex>(own_demands<at::meta::linalg_lu_factor_ex>);
  demands<at::_ops::lu_unpack>([](const Example& e) {
    own_demands<at::meta::lu_unpack>(e);
    // The kernel reads this many through a pointer.
    Sizes pivots = e.sizes(0);
    const int64_t columns = pivots.back();
    pivots.pop_back();
    pivots.back() = std::min(pivots.back(), columns);
    TORCH_CHECK(e.sizes(1) == pivots, "torch.lu_unpack: Expected LU_pivots of shape ", at::IntArrayRef(pivots),
                " for LU_data of shape ", at::IntArrayRef(e.sizes(0)), ", but got ", at::IntArrayRef(e.sizes(1)));
  });
  demands<at::_ops::linalg_lu_solve>(own_demands<at::meta::linalg_lu_solve>);
  demands<at::_ops::linalg_pinv_atol_rtol_tensor>([](const Example& e) { demand_matrix(e, 0); });
  demands<at::_ops::geqrf>([](const Example& e) { demand_matrix(e, 0); });
}

}  // namespace tower::rules
