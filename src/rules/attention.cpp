// Attention: products of matrices around a softmax.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <cmath>
#include <limits>

#include "records/demands.h"
#include "records/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

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

}  // namespace

void attention() {
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
