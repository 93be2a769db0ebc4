// beta·self + alpha·product in one operator, as linear layers compute it: one pass through memory and one allocation
// where a product and an addition take two.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "core/broadcast.h"
#include "records/demands.h"
#include "records/linearity.h"
#include "records/op.h"
#include "rules/products.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

// Where there is no fused kernel for the shapes at hand. A product that nobody else has gives its memory.
Tensor combine(const Tensor& self, Tensor product, const Scalar& given_beta, const Scalar& given_alpha) {
  // The kernels turn the numbers into those of the dtype.
  const bool whole = c10::isIntegralType(product.scalar_type(), true);
  const Scalar beta = whole ? Scalar(given_beta.toLong()) : given_beta;
  const Scalar alpha = whole ? Scalar(given_alpha.toLong()) : given_alpha;
  if (is_own(product) && !alpha.equal(1)) product.mul_(alpha);
  else product = times(product, alpha);
  // As the kernels do: beta = 0 ignores self, even its nan.
  const Tensor addend = self.expand(product.sizes());
  if (beta.equal(0)) return product;
  return may_hold_result(product, addend) ? product.add_(addend, beta) : at::add(product, addend, beta);
}

// The same where only one of the two is batched.
Tensor combine_broadcast(const Tensor& self, Tensor product, const Scalar& beta, const Scalar& alpha) {
  const auto sizes = at::infer_size(self.sizes(), product.sizes());
  if (!product.sizes().equals(sizes)) product = product.expand(sizes);
  return combine(self.expand(sizes), std::move(product), beta, alpha);
}

// ---- batching ------------------------------------------------------------------------------------------------------

// An operand of every example's, whether or not they differ in it.
Tensor for_each_example(const VmapFrame& f, size_t arg) {
  const Tensor t = f.tensor(arg);
  if (f.batched(arg)) return t;
  Sizes sizes{f.batch_size};
  sizes.append(t.sizes().begin(), t.sizes().end());
  return t.expand(sizes);
}

// What is added, so that it broadcasts against results of `rank` dimensions behind the batch.
Tensor addend(const VmapFrame& f, int64_t rank) {
  Tensor self = f.tensor(0);
  if (f.batched(0))
    while (self.dim() <= rank) self = self.unsqueeze(1);
  return self;
}

struct Numbers {
  Scalar beta, alpha;
  explicit Numbers(const VmapFrame& f) : beta(f.stack[3].toScalar()), alpha(f.stack[4].toScalar()) {}
};

void all_to_front(VmapFrame& f) {
  for (size_t arg : {0, 1, 2}) f.to_front(arg, false);
}

void addmm_vmap(VmapFrame& f) {
  all_to_front(f);
  const Numbers n(f);
  const Tensor self = addend(f, 2), a = f.tensor(1), b = f.tensor(2);
  if (f.batched(2) && !f.batched(1) && is_differentiated(a))
    return f.result(combine_broadcast(self, one_by_many(a, b), n.beta, n.alpha));
  if (f.batched(2)) return f.result(add_product_of_batches(self, for_each_example(f, 1), b, n.beta, n.alpha));
  // One matrix on the right: the rows of all examples are one product.
  const bool same_for_rows = self.dim() < 2 || (self.dim() == 2 && self.size(0) == 1);
  if (f.batched(1) && !f.batched(0) && same_for_rows)
    return f.result(at::addmm(self, a.flatten(0, 1), b, n.beta, n.alpha).unflatten(0, {a.size(0), a.size(1)}));
  f.result(combine_broadcast(self, at::matmul(a, b), n.beta, n.alpha));
}

void addmv_vmap(VmapFrame& f) {
  all_to_front(f);
  const Numbers n(f);
  const Tensor m = f.tensor(1), v = f.tensor(2);
  if (f.batched(1)) {
    Tensor self = addend(f, 1);
    if (self.dim() > 0) self = self.unsqueeze(-1);
    const Tensor column = for_each_example(f, 2).unsqueeze(-1);
    return f.result(add_product_of_batches(self, m, column, n.beta, n.alpha).squeeze(-1));
  }
  if (f.batched(2)) return f.result(at::addmm(addend(f, 1), v, m.t(), n.beta, n.alpha));
  f.result(combine_broadcast(addend(f, 1), at::mv(m, v), n.beta, n.alpha));
}

void baddbmm_vmap(VmapFrame& f) {
  all_to_front(f);
  const Numbers n(f);
  const Tensor self = addend(f, 3), a = f.tensor(1), b = f.tensor(2);
  // Batches of batches are one batch, if that moves no memory.
  if (f.batched(1) && f.batched(2) && a.is_contiguous() && b.is_contiguous()) {
    const int64_t all = a.size(0) * a.size(1);
    const Tensor sum = self.expand({a.size(0), a.size(1), a.size(2), b.size(3)}).reshape({all, a.size(2), b.size(3)});
    return f.result(
        at::baddbmm(sum, a.flatten(0, 1), b.flatten(0, 1), n.beta, n.alpha).unflatten(0, {a.size(0), a.size(1)}));
  }
  Tensor product = f.batched(1) || f.batched(2) ? product_of_examples(f, 1, 2) : at::bmm(a, b);
  f.result(combine_broadcast(self, std::move(product), n.beta, n.alpha));
}

// What is added must broadcast to the product, not the other way round.
void demand_expandable(const Example& e, at::IntArrayRef product) {
  TORCH_CHECK(at::is_expandable_to(e.sizes(0), product), "The expanded size of the tensor ", product,
              " must match the existing size ", at::IntArrayRef(e.sizes(0)));
}

// ---- derivatives ---------------------------------------------------------------------------------------------------

// Tangent of the fused product of that name, from those of its operands: each term in one call.
template <class Product>
Tensor push_forward(const Tensor& self, const Tensor& da, const Tensor& db, const Tensor& a, const Tensor& b,
                    const Scalar& beta, const Scalar& alpha, Product product) {
  Tensor sum = self;
  Scalar factor = beta;
  const auto add = [&](const Tensor& x, const Tensor& y) {
    sum = product(sum.defined() ? sum : at::zeros({}, x.options()), x, y, sum.defined() ? factor : Scalar(0), alpha);
    factor = 1;
  };
  if (da.defined()) add(da, b);
  if (db.defined()) add(a, db);
  return da.defined() || db.defined() ? sum : times(self, beta);
}

template <class Op>
Rule<Op> fused(const char* letters) {
  return op<Op>().adds_contraction(letters).template vjp<0>(
      [](Ct<0> ct, Skip, Skip, Skip, const Scalar& beta, Like<0> self) {
        return summed_to(times(*ct, beta.conj()), self->sizes);
      });
}

// For matrices, and for batches of them.
template <class Op>
void fused_matrices(const char* letters, void (*vmap)(VmapFrame&)) {
  fused<Op>(letters)
      .vmap(vmap)
      .template vjp<1>([](Ct<0> ct, Skip, Skip, const Tensor& b, Skip, const Scalar& alpha, Like<1> a) {
        return times(left_gradient(*ct, b, a.meta), alpha.conj());
      })
      .template vjp<2>([](Ct<0> ct, Skip, const Tensor& a, Skip, Skip, const Scalar& alpha, Like<2> b) {
        return times(right_gradient(*ct, a, b.meta), alpha.conj());
      })
      .template jvp<0, 1, 2>([](Skip, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                                Tan<0> dself, Tan<1> da, Tan<2> db) {
        return push_forward(dself, da, db, a, b, beta, alpha, [](auto&&... x) { return Op::call(x...); });
      });
}

// ---- linear --------------------------------------------------------------------------------------------------------

Tensor linear_by_products(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (bias.defined() && x.dim() == 2) return at::addmm(bias, x, weight.t());
  const bool usual = bias.defined() && bias.dim() == 1 && weight.dim() == 2;
  if (usual && x.dim() == 1) return at::addmv(bias, weight, x);
  if (usual && x.dim() > 2) {
    Sizes sizes(x.sizes());
    sizes.back() = weight.size(0);
    return at::addmm(bias, x.flatten(0, -2), weight.t()).view(sizes);
  }
  const Tensor product = at::matmul(x, weight.t());
  if (!bias.defined()) return product;
  Tensor addend = bias;
  while (addend.dim() > product.dim() && addend.size(0) == 1) addend = addend.squeeze(0);
  TORCH_CHECK(at::is_expandable_to(addend.sizes(), product.sizes()), "output with shape ", product.sizes(),
              " doesn't match the broadcast shape of the bias, ", bias.sizes());
  return at::add(product, addend);
}

Tensor input_gradient(const Tensor& ct, const Tensor& weight, const Meta& x) {
  if (weight.dim() == 1) return at::mul(ct.unsqueeze(-1), conjugate(weight));
  if (x.dim() == 1) return at::mv(adjoint_of(weight), ct);
  return x.dim() == 2 && x.by_columns ? left_gradient(ct, weight.t(), x) : at::matmul(ct, conjugate(weight));
}

// With respect to the weight. A single row and vectors are the products that they look like.
Tensor weight_gradient(const Tensor& ct, const Tensor& x, const Meta& weight) {
  if (weight.dim() == 1 && x.dim() == 1) return at::mul(ct, conjugate(x));
  if (weight.dim() == 1) return at::mv(adjoint_of(x.flatten(0, -2)), ct.reshape({-1}));
  if (x.dim() == 1) {
    const Tensor row = conjugate(x);
    return weight.by_columns ? at::mul(row.unsqueeze(-1), ct).t() : at::mul(ct.unsqueeze(-1), row);
  }
  const Tensor rows = x.flatten(0, -2), of_rows = ct.flatten(0, -2);
  return weight.by_columns ? at::mm(adjoint_of(rows), of_rows).t() : at::mm(of_rows.t(), conjugate(rows));
}

}  // namespace

void affine() {
  fused_matrices<at::_ops::addmm>("mk,kn->mn", addmm_vmap);
  fused<at::_ops::addmv>("mk,k->m")
      .vmap(addmv_vmap)
      .vjp<1>([](Ct<0> ct, Skip, Skip, const Tensor& v, Skip, const Scalar& alpha) {
        return times(at::outer(*ct, conjugate(v)), alpha.conj());
      })
      .vjp<2>([](Ct<0> ct, Skip, const Tensor& m, Skip, Skip, const Scalar& alpha) {
        return times(at::mv(adjoint_of(m), *ct), alpha.conj());
      })
      .jvp<0, 1, 2>([](Skip, const Tensor& m, const Tensor& v, const Scalar& beta, const Scalar& alpha, Tan<0> dself,
                       Tan<1> dm, Tan<2> dv) {
        return push_forward(dself, dm, dv, m, v, beta, alpha, [](auto&&... x) { return at::addmv(x...); });
      });
  fused_matrices<at::_ops::baddbmm>("bmk,bkn->bmn", baddbmm_vmap);
  op<at::_ops::addr>().decomposes([](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                                     const Scalar& alpha) {
    return combine(self,
                   at::outer(a, b).to(at::result_type(self, at::empty({1}, a.options().dtype(at::result_type(a, b))))),
                   beta, alpha);
  });
  op<at::_ops::addbmm>().decomposes(
      [](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
        return combine(self, at::bmm(a, b).sum(0, false, a.scalar_type()), beta, alpha);
      });
  op<at::_ops::_addmm_activation>().decomposes(
      [](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha, bool gelu) {
        const Tensor linear = at::addmm(self, a, b, beta, alpha);
        // The fused kernel of GPUs approximates.
        return gelu ? at::gelu(linear, linear.is_cuda() ? "tanh" : "none") : at::relu(linear);
      });

  demands<at::_ops::addmm>([](const Example& e) {
    demand_same_dtype(e, {0, 1, 2});
    TORCH_CHECK(e.dim(1) == 2 && e.dim(2) == 2, "mat1 and mat2 must be matrices, but they have ", e.dim(1), " and ",
                e.dim(2), " dimensions");
    TORCH_CHECK(e.size(1, 1) == e.size(2, 0), "mat1 and mat2 shapes cannot be multiplied (", e.size(1, 0), "x",
                e.size(1, 1), " and ", e.size(2, 0), "x", e.size(2, 1), ")");
    demand_expandable(e, {e.size(1, 0), e.size(2, 1)});
  });
  demands<at::_ops::addmv>([](const Example& e) {
    demand_same_dtype(e, {0, 1, 2});
    demand_matrix_and_vector(e, 1, 2);
    demand_expandable(e, {e.size(1, 0)});
  });
  demands<at::_ops::baddbmm>([](const Example& e) {
    demand_same_dtype(e, {0, 1, 2});
    demand_batches(e, 1, 2);
    demand_expandable(e, {e.size(1, 0), e.size(1, 1), e.size(2, 2)});
  });
  demands<at::_ops::addbmm>([](const Example& e) {
    demand_same_dtype(e, {0, 1, 2});
    demand_batches(e, 1, 2);
  });
  demands<at::_ops::_addmm_activation>([](const Example& e) { demand_same_dtype(e, {0, 1, 2}); });

  // x·weightᵀ + bias. Its derivatives are its own, so that a layer is one entry of a tape.
  op<at::_ops::linear>()
      .decomposes(linear_by_products)
      .vjp<0>([](Ct<0> ct, Skip, const Tensor& weight, Like<0> x) { return input_gradient(*ct, weight, x.meta); })
      .vjp<1>([](Ct<0> ct, const Tensor& x, Like<1> weight) { return weight_gradient(*ct, x, weight.meta); })
      .vjp<2>([](Ct<0> ct, Like<2> bias) { return summed_to(*ct, bias->sizes); })
      .jvp<0, 1, 2>([](const Tensor& x, const Tensor& weight, Tan<0> dx, Tan<1> dweight, Tan<2> dbias) {
        std::optional<Tensor> rest;
        if (dbias->defined()) rest = *dbias;
        Tensor tangent;
        if (dx->defined()) tangent = at::linear(*dx, weight, std::exchange(rest, std::nullopt));
        if (!dweight->defined()) return tangent.defined() ? tangent : *dbias;
        if (!tangent.defined()) return at::linear(x, *dweight, rest);
        if (x.dim() == 2 && weight.dim() == 2) return add_product(std::move(tangent), x, dweight->t());
        return at::add(tangent, at::linear(x, *dweight));
      });
  linearity<at::_ops::linear>(Linearity::affine_in_each);
}

}  // namespace tower::rules
