// Matrix and vector products. All are bilinear: a batching rule and the two transposes say everything. What adds
// something to a product is in affine.cpp.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "records/demands.h"
#include "records/linearity.h"
#include "records/op.h"
#include "rules/folds.h"
#include "rules/products.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

// The operands with the batch in front where they have one. at::matmul folds an unbatched right operand into one
// product with all examples' rows.
void mm_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.to_front(1, false);
  const Tensor a = f.tensor(0), b = f.tensor(1);
  // A column times a row: memory is all that it costs, and a product of matrices goes through it less evenly.
  if (f.batched(0) && f.batched(1) && a.size(-1) == 1 && b.size(-2) == 1 && a.scalar_type() == b.scalar_type())
    return f.result(at::mul(a, b));
  f.result(f.batched(0) ? product_of_batches(a, b) : one_by_many(a, b));
}

// bmm has a dimension of its own in front, over which both operands run together.
void bmm_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.to_front(1, false);
  f.result(product_of_examples(f, 0, 1));
}

void mv_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.to_front(1, false);
  const Tensor m = f.tensor(0), v = f.tensor(1);
  // One matrix and many vectors are one matrix product.
  if (!f.batched(0)) return f.result(at::mm(v, m.t()));
  f.result(product_of_batches(m, v.unsqueeze(-1)).squeeze(-1));
}

void dot_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.to_front(1, false);
  const Tensor a = f.tensor(0), b = f.tensor(1);
  if (f.batched(0) && !f.batched(1)) return f.result(at::mv(a, b));
  if (!f.batched(0)) return f.result(at::mv(b, a));
  // Products of matrices as thin as these are slower; half precision would round each term.
  if (at::isReducedFloatingType(a.scalar_type()))
    return f.result(at::matmul(a.unsqueeze(-2), b.unsqueeze(-1)).squeeze(-1).squeeze(-1));
  f.result(at::mul(a, b).sum({-1}, false, a.scalar_type()));
}

void vdot_vmap(VmapFrame& f) {
  f.stack[0] = conjugate(f.tensor(0));
  dot_vmap(f);
}

// For matrices, and for batches of them. The second term of a tangent is added to the first as it is computed.
template <class Op>
void of_matrices(const char* letters, void (*vmap)(VmapFrame&)) {
  op<Op>()
      .contracts(letters)
      .vmap(vmap)
      .template linear<0>([](Ct<0> ct, Skip, const Tensor& b, Like<0> a) { return left_gradient(*ct, b, a.meta); })
      .template vjp<1>([](Ct<0> ct, const Tensor& a, Like<1> b) { return right_gradient(*ct, a, b.meta); });
  record_of(Op::name, Op::overload_name).jvp.push_back({Mask{2}, Keeps{Mask{1}, 0, 0}, [](JvpFrame& f) {
                                                          const Tensor& db = f.tangent(1);
                                                          if (!db.defined()) return;
                                                          Tensor& sum = f.tangents[0];
                                                          if (sum.defined())
                                                            sum = add_product(std::move(sum), f.tensor(0), db);
                                                          else f.give(0, Op::call(f.tensor(0), db));
                                                        }});
  linearity<Op>(Linearity::bilinear);
}

// ---- what the kernels demand ----

void demand_matrices(const Example& e) {
  TORCH_CHECK(e.dim(0) == 2, "self must be a matrix");
  TORCH_CHECK(e.dim(1) == 2, "mat2 must be a matrix");
  TORCH_CHECK(e.size(0, 1) == e.size(1, 0), "mat1 and mat2 shapes cannot be multiplied (", e.size(0, 0), "x",
              e.size(0, 1), " and ", e.size(1, 0), "x", e.size(1, 1), ")");
  demand_same_dtype(e, {0, 1});
}

// Kernels of a batch take booleans; those of single matrices and vectors do not.
void demand_no_booleans(const Example& e, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(e.dtype(0) != at::kBool, "\"", kernel, "\" not implemented for 'Bool'");
}

void demand_vectors(const Example& e) {
  TORCH_CHECK(e.dim(0) == 1 && e.dim(1) == 1, "1D tensors expected, but got ", e.dim(0), "D and ", e.dim(1),
              "D tensors");
  TORCH_CHECK(e.size(0, 0) == e.size(1, 0),
              "inconsistent tensor size, expected tensors to have the same number of "
              "elements, but got ",
              e.size(0, 0), " and ", e.size(1, 0), " elements respectively");
  demand_same_dtype(e, {0, 1});
  demand_no_booleans(e, "dot");
}

}  // namespace

void matmul() {
  of_matrices<at::_ops::mm>("mk,kn->mn", mm_vmap);
  of_matrices<at::_ops::bmm>("bmk,bkn->bmn", bmm_vmap);

  op<at::_ops::mv>()
      .contracts("mk,k->m")
      .vmap(mv_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Tensor& v) { return at::outer(*ct, conjugate(v)); })
      .linear<1>([](Ct<0> ct, const Tensor& m) { return adjoint_of(m).mv(*ct); });

  op<at::_ops::dot>()
      .fold(over_all(), folds::dot)
      .contracts("k,k->")
      .vmap(dot_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Tensor& b) { return at::mul(*ct, conjugate(b)); })
      .linear<1>([](Ct<0> ct, const Tensor& a) { return at::mul(*ct, conjugate(a)); });

  // sum(conj(a) b): antilinear in a.
  op<at::_ops::vdot>()
      .contracts("k,k->")
      .vmap(vdot_vmap)
      .vjp<0>([](Ct<0> ct, Skip, const Tensor& b) { return at::mul(conjugate(*ct), b); })
      .jvp<0>([](Tan<0> da, Skip, const Tensor& b) { return at::vdot(*da, b); })
      .linear<1>([](Ct<0> ct, const Tensor& a) { return at::mul(*ct, a); });

  // Σ over the dimensions in sumdim of the product of three tensors, each given missing dimensions of size one.
  op<at::_ops::_trilinear>().decomposes([](const Tensor& i1, const Tensor& i2, const Tensor& i3, const Ints& expand1,
                                           const Ints& expand2, const Ints& expand3, const Ints& sumdim) {
    const auto widened = [](Tensor t, const Ints& dims) {
      for (int64_t d : dims) t = t.unsqueeze(d);
      return t;
    };
    const Tensor product = at::mul(at::mul(widened(i1, expand1), widened(i2, expand2)), widened(i3, expand3));
    return sumdim.empty() ? product : product.sum(sumdim, /*keepdim=*/false, product.scalar_type());
  });
  // at::matmul, which serves batches, takes vectors and broadcasts; formulas promote dtypes.
  demands<at::_ops::mm>([](const Example& e) {
    demand_matrices(e);
    demand_no_booleans(e, "addmm_impl_cpu_");
  });
  demands<at::_ops::_trilinear>([](const Example& e) { demand_no_booleans(e, "bmm"); });
  demands<at::_ops::bmm>([](const Example& e) { demand_batches(e, 0, 1); });
  demands<at::_ops::mv>([](const Example& e) { demand_matrix_and_vector(e, 0, 1); });
  demands<at::_ops::dot>(demand_vectors);
  demands<at::_ops::vdot>(demand_vectors);
}

}  // namespace tower::rules
