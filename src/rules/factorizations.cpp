// Matrix factorizations. The kernels take leading batch dimensions themselves. Eigenvectors and singular vectors are
// determined up to a phase: derivatives are those that LibTorch defines, right for functions that do not depend on it.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "interpreters/vmap.h"
#include "rules/op.h"
#include "rules/registry.h"

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

Tensor svd_backward(const Tensor& gu, const Tensor& gs, const Tensor& gvh, const Tensor& u, const Tensor& s, const Tensor& vh) {
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

}  // namespace

void factorizations() {
  // A = V diag(λ) Vᴴ. LibTorch leaves V out when nobody seems to need it; derivatives then compute it again.
  op<at::_ops::_linalg_eigh>()
      .vmap(values_first_vmap)
      .vjp<0>([](Ct<0> gl, Ct<1> gv, const Tensor& a, const std::string& uplo, bool compute_v, Out<0> l, Out<1> v) {
        const Tensor vectors = compute_v ? *v : std::get<1>(at::_linalg_eigh(a, uplo, true));
        Tensor inner;
        if (gv->defined()) inner = off_diagonal(at::matmul(vectors.mH(), *gv)) / gaps(*l);
        if (gl->defined()) {
          const Tensor diagonal = at::diag_embed(like(*gl, vectors));
          inner = inner.defined() ? inner + diagonal : diagonal;
        }
        return at::matmul(vectors, at::matmul(inner, vectors.mH()));
      })
      .jvp<0>([](Tan<0> da, const Tensor& a, const std::string& uplo, bool compute_v, Out<0> l, Out<1> v) {
        const Tensor vectors = compute_v ? *v : std::get<1>(at::_linalg_eigh(a, uplo, true));
        const Tensor p = at::matmul(vectors.mH(), at::matmul(*da, vectors));
        const Tensor dl = real_part(p.diagonal(0, -2, -1)).clone();
        return std::tuple(dl, compute_v ? at::matmul(vectors, off_diagonal(p) / gaps(*l)) : Tensor());
      });

  // A = U diag(S) Vᴴ
  op<at::_ops::_linalg_svd>().vmap(values_first_vmap).vjp<0>(
      [](Ct<0> gu, Ct<1> gs, Ct<2> gvh, const Tensor& a, bool full, bool compute_uv, const std::optional<std::string>& driver,
         Out<0> u, Out<1> s, Out<2> vh) {
        if (!compute_uv) {
          auto [u2, s2, vh2] = at::_linalg_svd(a, false, true, driver);
          return svd_backward({}, *gs, {}, u2, s2, vh2);
        }
        const int64_t k = s->size(-1);
        const auto some = [&](const Tensor& t, int64_t dim) { return full && t.defined() ? t.narrow(dim, 0, k) : t; };
        return svd_backward(some(*gu, -1), *gs, some(*gvh, -2), some(*u, -1), *s, some(*vh, -2));
      });

  op<at::_ops::linalg_pinv_atol_rtol_tensor>()
      .vmap(pinv_vmap)
      .inactive<1, 2>()
      .vjp<0>([](Ct<0> ct, const Tensor& a, Skip, Skip, Skip, Out<0> p) { return pinv_backward(*ct, a, *p); });

  op<at::_ops::linalg_matrix_exp>()
      .vmap([](VmapFrame& f) {
        f.to_front(0, false);
        f.stack[0] = f.tensor(0).contiguous();  // the kernel views it as a list of matrices
        f.call();
      })
      .vjp<0>([](Ct<0> ct, const Tensor& a) { return matrix_exp_along(a.mH(), *ct); })
      .jvp<0>([](Tan<0> da, const Tensor& a) { return matrix_exp_along(a, *da); });

  // Derivatives of these come from LibTorch.
  op<at::_ops::linalg_qr>().batches_natively();
  op<at::_ops::linalg_eig>().batches_natively();
  op<at::_ops::linalg_lu>().batches_natively();
  op<at::_ops::linalg_lu_factor_ex>().batches_natively();
  op<at::_ops::geqrf>().batches_natively();
  op<at::_ops::linalg_lu_solve>().vmap(vmap_expanded);
  op<at::_ops::lu_unpack>().vmap(vmap_expanded);
  op<at::_ops::linalg_householder_product>().vmap(vmap_expanded);
}

}  // namespace tower::rules
