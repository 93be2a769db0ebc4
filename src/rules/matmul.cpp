// Matrix and vector products. All are bilinear: a batching rule and the two transposes say everything. And attention,
// which is made of them.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <cmath>
#include <limits>

#include "rules/demands.h"
#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

Tensor adjoint_of(const Tensor& m) { return conjugate(m.transpose(-2, -1)); }

// The operands with the batch in front where they have one. at::matmul folds an unbatched right operand into one
// product with all examples' rows, but not a left one: AB = (Bᵀ Aᵀ)ᵀ brings that to the right.
void mm_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.to_front(1, false);
  const Tensor a = f.tensor(0), b = f.tensor(1);
  f.result(f.batched(0) ? at::matmul(a, b) : at::matmul(b.mT(), a.t()).mT());
}

// bmm has a dimension of its own in front, over which both operands run together.
void bmm_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.to_front(1, false);
  f.result(at::matmul(f.tensor(0), f.tensor(1)));
}

void mv_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.to_front(1, false);
  const Tensor m = f.tensor(0), v = f.tensor(1);
  // One matrix and many vectors are one matrix product.
  if (!f.batched(0)) return f.result(at::mm(v, m.t()));
  f.result(at::matmul(m, v.unsqueeze(-1)).squeeze(-1));
}

void dot_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.to_front(1, false);
  const Tensor a = f.tensor(0), b = f.tensor(1);
  if (f.batched(0) && !f.batched(1)) return f.result(at::mv(a, b));
  if (!f.batched(0)) return f.result(at::mv(b, a));
  f.result(at::matmul(a.unsqueeze(-2), b.unsqueeze(-1)).squeeze(-1).squeeze(-1));
}

void vdot_vmap(VmapFrame& f) {
  f.stack[0] = conjugate(f.tensor(0));
  dot_vmap(f);
}

// beta·self + alpha·product, for the fused products.
Tensor combine(const Tensor& self, const Tensor& product, const Scalar& given_beta, const Scalar& given_alpha) {
  // The kernels turn the numbers into those of the dtype.
  const bool whole = c10::isIntegralType(product.scalar_type(), true);
  const Scalar beta = whole ? Scalar(given_beta.toLong()) : given_beta;
  const Scalar alpha = whole ? Scalar(given_alpha.toLong()) : given_alpha;
  Tensor scaled = times(product, alpha);
  // As the kernels do: beta = 0 ignores self, even its nan.
  const Tensor addend = self.expand(product.sizes());
  if (beta.equal(0)) return scaled;
  return at::add(scaled, addend, beta);
}

// ---- attention ----

// The backward kernel for the CPU: every tensor has a dimension of items in front, into which the batch is folded. A
// mask is [queries, keys] or [items, heads, queries, keys], where items and heads may be one.
void flash_backward_vmap(VmapFrame& f) {
  constexpr size_t mask_at = 8;
  f.to_front(0, true);
  const int64_t items = f.tensor(0).size(1);
  for (size_t i = 0; i < 6; ++i) {
    f.to_front(i, true);
    f.stack[i] = f.tensor(i).flatten(0, 1).contiguous();  // the kernel takes features for adjacent in memory
  }
  if (f.is_tensor(mask_at) && (f.batched(mask_at) || f.logical_dim(mask_at) == 4)) {
    f.to_front(mask_at, true);
    Tensor mask = f.tensor(mask_at);
    if (mask.dim() == 3) mask = mask.unsqueeze(1).unsqueeze(1);
    f.stack[mask_at] = mask.expand({-1, items, -1, -1, -1}).flatten(0, 1);
  }
  f.call();
  for (auto& out : f.stack) out = out.toTensor().unflatten(0, {f.batch_size, items});
  f.out_dims.assign(3, 0);
}

// With p = softmax: its rows are what the kernel recomputes from logsumexp.
std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& g, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& logsumexp, double dropout,
                                                  bool causal, const Tensor& mask,
                                                  const std::optional<double>& given_scale) {
  TORCH_CHECK(dropout == 0, "_scaled_dot_product_flash_attention_for_cpu_backward: dropout is not supported");
  const auto type = q.scalar_type(), wide = logsumexp.scalar_type();
  const double scale = given_scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  const Tensor gs = g.to(wide), qs = q.to(wide) * scale, ks = k.to(wide);
  Tensor scores = at::matmul(qs, ks.mT());
  if (mask.defined()) {
    TORCH_CHECK(mask.scalar_type() != at::kBool, "Expected a mask of numbers that are added to the scores");
    scores = scores + mask;
  }
  Tensor p = (scores - logsumexp.unsqueeze(-1)).exp();
  if (causal) p = p.tril();
  const Tensor dp = at::matmul(gs, v.to(wide).mT());
  const Tensor ds = p * (dp - (gs * out).sum(-1, true));
  return {(at::matmul(ds, ks) * scale).to(type), at::matmul(ds.mT(), qs).to(type), at::matmul(p.mT(), gs).to(type)};
}

// ---- what the kernels demand ----

void demand_matrices(const Example& e) {
  TORCH_CHECK(e.dim(0) == 2, "self must be a matrix");
  TORCH_CHECK(e.dim(1) == 2, "mat2 must be a matrix");
  TORCH_CHECK(e.size(0, 1) == e.size(1, 0), "mat1 and mat2 shapes cannot be multiplied (", e.size(0, 0), "x",
              e.size(0, 1), " and ", e.size(1, 0), "x", e.size(1, 1), ")");
  demand_same_dtype(e, {0, 1});
}

void demand_batches(const Example& e, size_t a, size_t b) {
  TORCH_CHECK(e.dim(a) == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(e.dim(b) == 3, "batch2 must be a 3D tensor");
  TORCH_CHECK(e.size(a, 0) == e.size(b, 0) && e.size(a, 2) == e.size(b, 1),
              "Expected size for first two dimensions of batch2 tensor to be: [", e.size(a, 0), ", ", e.size(a, 2),
              "] but got: [", e.size(b, 0), ", ", e.size(b, 1), "].");
  demand_same_dtype(e, {a, b});
}

void demand_matrix_and_vector(const Example& e, size_t m, size_t v) {
  TORCH_CHECK(e.dim(m) == 2 && e.dim(v) == 1, "vector + matrix @ vector expected, got ", e.dim(m), " and ", e.dim(v),
              " dimensions");
  TORCH_CHECK(e.size(m, 1) == e.size(v, 0), "size mismatch, got mat (", e.size(m, 0), "x", e.size(m, 1), "), vec (",
              e.size(v, 0), ")");
  demand_same_dtype(e, {m, v});
}

void demand_vectors(const Example& e) {
  TORCH_CHECK(e.dim(0) == 1 && e.dim(1) == 1, "1D tensors expected, but got ", e.dim(0), "D and ", e.dim(1),
              "D tensors");
  TORCH_CHECK(e.size(0, 0) == e.size(1, 0),
              "inconsistent tensor size, expected tensors to have the same number of "
              "elements, but got ",
              e.size(0, 0), " and ", e.size(1, 0), " elements respectively");
  demand_same_dtype(e, {0, 1});
}

}  // namespace

void matmul() {
  op<at::_ops::mm>()
      .vmap(mm_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Tensor& b) { return ct->mm(adjoint_of(b)); })
      .linear<1>([](Ct<0> ct, const Tensor& a) { return adjoint_of(a).mm(*ct); });

  op<at::_ops::bmm>()
      .vmap(bmm_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Tensor& b) { return ct->bmm(adjoint_of(b)); })
      .linear<1>([](Ct<0> ct, const Tensor& a) { return adjoint_of(a).bmm(*ct); });

  op<at::_ops::mv>()
      .vmap(mv_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Tensor& v) { return at::outer(*ct, conjugate(v)); })
      .linear<1>([](Ct<0> ct, const Tensor& m) { return adjoint_of(m).mv(*ct); });

  op<at::_ops::dot>()
      .vmap(dot_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Tensor& b) { return at::mul(*ct, conjugate(b)); })
      .linear<1>([](Ct<0> ct, const Tensor& a) { return at::mul(*ct, conjugate(a)); });

  // sum(conj(a) b): antilinear in a.
  op<at::_ops::vdot>()
      .vmap(vdot_vmap)
      .vjp<0>([](Ct<0> ct, Skip, const Tensor& b) { return at::mul(conjugate(*ct), b); })
      .jvp<0>([](Tan<0> da, Skip, const Tensor& b) { return at::vdot(*da, b); })
      .linear<1>([](Ct<0> ct, const Tensor& a) { return at::mul(*ct, a); });

  op<at::_ops::addmm>().decomposes([](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                                      const Scalar& alpha) { return combine(self, at::mm(a, b), beta, alpha); });
  op<at::_ops::addmv>().decomposes([](const Tensor& self, const Tensor& m, const Tensor& v, const Scalar& beta,
                                      const Scalar& alpha) { return combine(self, at::mv(m, v), beta, alpha); });
  op<at::_ops::addr>().decomposes([](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                                     const Scalar& alpha) {
    return combine(self,
                   at::outer(a, b).to(at::result_type(self, at::empty({1}, a.options().dtype(at::result_type(a, b))))),
                   beta, alpha);
  });
  op<at::_ops::baddbmm>().decomposes([](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                                        const Scalar& alpha) { return combine(self, at::bmm(a, b), beta, alpha); });
  op<at::_ops::addbmm>().decomposes(
      [](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
        return combine(self, at::bmm(a, b).sum(0, false, a.scalar_type()), beta, alpha);
      });
  op<at::_ops::_addmm_activation>().decomposes(
      [](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha, bool gelu) {
        const Tensor linear = combine(self, at::mm(a, b), beta, alpha);
        // The kernel fused on other devices approximates.
        return gelu ? at::gelu(linear, linear.is_cpu() ? "none" : "tanh") : at::relu(linear);
      });

  // The fused kernels that LibTorch would choose have no second derivative; the formula has every one.
  op<at::_ops::scaled_dot_product_attention>().decomposes([](const Tensor& q, const Tensor& k, const Tensor& v,
                                                             const Tensor& mask, double dropout, bool causal,
                                                             const std::optional<double>& scale, bool grouped) {
    std::optional<Tensor> attn_mask;
    if (mask.defined() && mask.scalar_type() == at::kBool)
      attn_mask =
          at::zeros_like(mask, q.options()).masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
    else if (mask.defined()) attn_mask = mask;
    return std::get<0>(
        at::_scaled_dot_product_attention_math(q, k, v, attn_mask, dropout, causal, std::nullopt, scale, grouped));
  });

  op<at::_ops::_scaled_dot_product_flash_attention_for_cpu_backward>()
      .vmap(flash_backward_vmap)
      .decomposes(flash_backward);

  // Σ over the dimensions in sumdim of the product of three tensors, each given missing dimensions of size one.
  op<at::_ops::_trilinear>().decomposes([](const Tensor& i1, const Tensor& i2, const Tensor& i3, const Ints& expand1,
                                           const Ints& expand2, const Ints& expand3, const Ints& sumdim) {
    const auto widened = [](Tensor t, const Ints& dims) {
      for (int64_t d : dims) t = t.unsqueeze(d);
      return t;
    };
    const Tensor product = at::mul(at::mul(widened(i1, expand1), widened(i2, expand2)), widened(i3, expand3));
    return sumdim.empty() ? product : product.sum(sumdim);
  });
  // at::matmul, which serves batches, takes vectors and broadcasts; formulas promote dtypes.
  demands<at::_ops::mm>(demand_matrices);
  demands<at::_ops::bmm>([](const Example& e) { demand_batches(e, 0, 1); });
  demands<at::_ops::mv>([](const Example& e) { demand_matrix_and_vector(e, 0, 1); });
  demands<at::_ops::dot>(demand_vectors);
  demands<at::_ops::vdot>(demand_vectors);
  demands<at::_ops::addmm>([](const Example& e) { demand_same_dtype(e, {0, 1, 2}); });
  demands<at::_ops::_addmm_activation>([](const Example& e) { demand_same_dtype(e, {0, 1, 2}); });
  demands<at::_ops::addmv>([](const Example& e) { demand_same_dtype(e, {0, 1, 2}); });
  demands<at::_ops::baddbmm>([](const Example& e) { demand_same_dtype(e, {0, 1, 2}); });
  demands<at::_ops::addbmm>([](const Example& e) {
    demand_same_dtype(e, {0, 1, 2});
    demand_batches(e, 1, 2);
  });
  demands<at::_ops::scaled_dot_product_attention>([](const Example& e) {
    demand_same_dtype(e, {0, 1, 2});
    if (!e.has(3)) return;
    TORCH_CHECK(e.dtype(3) == at::kBool || e.dtype(3) == at::kFloat || e.dtype(3) == e.dtype(0),
                "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: ",
                e.dtype(3), " and query.dtype: ", e.dtype(0));
    TORCH_CHECK_INDEX(e.dim(3) >= 2,
                      "scaled_dot_product_attention: attn_mask must have at least 2 dimensions, but has ", e.dim(3));
  });
}

}  // namespace tower::rules
