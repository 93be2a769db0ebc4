// Products of Householder reflectors, and least squares.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "core/broadcast.h"
#include "records/demands.h"
#include "records/dims.h"
#include "records/op.h"
#include "rules/registry.h"
#include "rules/shared_operand.h"
#include "rules/small_factorizations.h"
#include "rules/terms.h"

namespace tower::rules {
namespace {

// ---- reflectors ----
//
// Column i of a matrix holds a vector v below its diagonal (with a one on it), which stands for H = I - tau v vᴴ.
// Their product Q = H₁ H₂ … is never formed: one after the other is applied.

Tensor reflector(const Tensor& reflectors, int64_t i) {
  const int64_t m = reflectors.size(-2);
  const Tensor below = reflectors.select(-1, i).narrow(-1, i + 1, m - i - 1);
  Sizes one(below.sizes());
  one.back() = 1;
  return at::constant_pad_nd(at::cat({at::ones(one, below.options()), below}, -1), {i, 0}).unsqueeze(-1);
}

// Q C (left) or C Q; with `adjoint`, Qᴴ in place of Q.
Tensor apply_reflectors(const Tensor& reflectors, const Tensor& tau, Tensor c, bool left, bool adjoint) {
  const int64_t k = tau.size(-1);
  for (int64_t step = 0; step < k; ++step) {
    const int64_t i = left == adjoint ? step : k - 1 - step;
    const Tensor v = reflector(reflectors, i);
    const Tensor weight = (adjoint ? conjugate(tau) : tau).select(-1, i).unsqueeze(-1).unsqueeze(-1);
    c = left ? c - weight * at::matmul(v, at::matmul(v.mH(), c)) : c - weight * at::matmul(at::matmul(c, v), v.mH());
  }
  return c;
}

Tensor householder_product(const Tensor& reflectors, const Tensor& tau) {
  TORCH_CHECK(reflectors.dim() >= 2, "torch.linalg.householder_product: input must have at least 2 dimensions.");
  const int64_t m = reflectors.size(-2), n = reflectors.size(-1);
  TORCH_CHECK(m >= n,
              "torch.linalg.householder_product: input.shape[-2] must be greater than or equal to "
              "input.shape[-1]");
  TORCH_CHECK(n >= tau.size(-1),
              "torch.linalg.householder_product: input.shape[-1] must be greater than or equal to "
              "tau.shape[-1]");
  TORCH_CHECK(tau.dim() + 1 == reflectors.dim() &&
                  tau.sizes().slice(0, tau.dim() - 1).equals(reflectors.sizes().slice(0, tau.dim() - 1)),
              "torch.linalg.householder_product: Expected tau to be a batch of vectors as input is one of matrices");
  TORCH_CHECK(reflectors.scalar_type() == tau.scalar_type(),
              "torch.linalg.householder_product: tau and input must have the same dtype");
  const Tensor columns = at::eye(m, n, reflectors.options()).expand(reflectors.sizes());
  return apply_reflectors(reflectors, tau, columns, true, false);
}

Tensor ormqr(const Tensor& reflectors, const Tensor& tau, const Tensor& other, bool left, bool transpose) {
  TORCH_CHECK(reflectors.dim() >= 2 && other.dim() >= 2, "torch.ormqr: input must have at least 2 dimensions.");
  const int64_t m = other.size(left ? -2 : -1);
  TORCH_CHECK(tau.dim() >= 1 && m >= tau.size(-1) && m == reflectors.size(-2),
              "torch.ormqr: the sizes of input, tau and other do not fit each other");
  TORCH_CHECK(tau.size(-1) == std::min(m, reflectors.size(-1)),
              "torch.ormqr: tau.shape[-1] must be equal to min(other.shape[-2], input.shape[-1])");
  TORCH_CHECK(reflectors.dim() == tau.dim() + 1 && reflectors.dim() == other.dim(),
              "torch.ormqr: Expected tau to have one dimension less than input, and other to have as many");
  const auto batch = reflectors.sizes().slice(0, reflectors.dim() - 2);
  TORCH_CHECK(tau.sizes().slice(0, batch.size()).equals(batch) && other.sizes().slice(0, batch.size()).equals(batch),
              "torch.ormqr: Expected batch dimensions of tau and other to be those of input, ", batch);
  TORCH_CHECK(reflectors.scalar_type() == tau.scalar_type() && reflectors.scalar_type() == other.scalar_type(),
              "torch.ormqr: input, tau and other must have the same dtype");
  return apply_reflectors(reflectors, tau, other, left, transpose);
}

void ormqr_vmap(VmapFrame& f) {
  if (!f.batched(0) && !f.batched(1)) return solve_shared_system(f, 2, 3);
  for (size_t i : {0, 1, 2}) f.to_front(i, true);
  f.call();
}

// ---- least squares ----

// LibTorch takes B for a vector, or a batch of vectors, by its shape.
bool is_vector(at::IntArrayRef a, at::IntArrayRef b) {
  return b.size() + 1 == a.size() && b.equals(a.slice(0, b.size()));
}

// Which of a driver's results there are; the others come back empty.
struct Computed {
  bool residuals, rank, values;

  explicit Computed(const VmapFrame& f) {
    const Tensor a = f.tensor(0);
    const auto driver = f.stack[3].to<std::optional<std::string>>().value_or(a.is_cuda() ? "gels" : "gelsy");
    residuals = driver != "gelsy" && a.size(-2) > a.size(-1);
    rank = driver != "gels";
    values = driver == "gelsd" || driver == "gelss";
  }
};

void lstsq_vmap(VmapFrame& f) {
  for (size_t i : {0, 1}) f.to_front(i, false);
  const Ints a_sizes = f.tensor(0).sizes().slice(f.batched(0)).vec();
  const Ints b_sizes = f.tensor(1).sizes().slice(f.batched(1)).vec();
  TORCH_CHECK(a_sizes.size() >= 2 && !b_sizes.empty(), "torch.linalg.lstsq: input must have at least 2 dimensions");
  const bool vector = is_vector(a_sizes, b_sizes);
  if (vector) f.stack[1] = f.tensor(1).unsqueeze(-1);
  const Computed computed(f);
  const bool shared = !f.batched(0) && f.tensor(1).numel() > 0;  // LAPACK's routines take no systems without columns
  if (shared) {
    const SharedSystem system(f.tensor(1), f.tensor(0).dim(), /*left=*/true);
    const int64_t columns = f.tensor(1).size(-1);
    f.stack[1] = system.right_hand_sides();
    f.call();
    f.out_dims = {0, VmapFrame::kUnbatched, VmapFrame::kUnbatched, VmapFrame::kUnbatched};
    const Tensor x = system.solutions(f.tensor(0)), r = f.tensor(1);
    f.stack[0] = vector ? x.squeeze(-1) : x;
    if (computed.residuals && r.dim() > 0 && r.size(-1) == f.batch_size * columns) {
      f.stack[1] = from_side_by_side(r, f.batch_size, columns);
      f.out_dims[1] = 0;
    }
    return;
  }
  for (size_t i : {0, 1}) f.to_front(i, true);
  while (f.tensor(0).dim() < f.tensor(1).dim()) f.stack[0] = f.tensor(0).unsqueeze(1);
  while (f.tensor(1).dim() < f.tensor(0).dim()) f.stack[1] = f.tensor(1).unsqueeze(1);
  f.call();
  if (vector) f.stack[0] = f.tensor(0).squeeze(-1);
  f.out_dims = {0};
  // What a driver does not compute comes back without the batch.
  for (const auto& [out, given] : {std::pair{1, computed.residuals}, {2, computed.rank}, {3, computed.values}}) {
    const Tensor t = f.tensor(static_cast<size_t>(out));
    const bool batched = given && t.dim() > 0 && t.size(0) == f.batch_size;  // of an empty system nothing is
    f.out_dims.push_back(batched ? 0 : VmapFrame::kUnbatched);
  }
}

// The solution of least norm is A⁺ B, and the residuals are the squared lengths of the columns of A X - B.
struct LeastSquares {
  Tensor a, x, pinv, gap;  // X and A X - B as columns
  bool vector;

  LeastSquares(const Tensor& a, const Tensor& b, const Tensor& x)
      : a(a), pinv(at::linalg_pinv(a)), vector(is_vector(a.sizes(), b.sizes())) {
    this->x = vector ? x.unsqueeze(-1) : x;
    gap = at::matmul(a, this->x) - columns(b);
  }
  Tensor columns(const Tensor& t) const { return vector ? t.unsqueeze(-1) : t; }
  Tensor uncolumns(const Tensor& t) const { return vector ? t.squeeze(-1) : t; }

  // d(A⁺ B) = A⁺ (dB - dA X) - (Aᴴ A)⁺ dAᴴ (A X - B) + (I - A⁺ A) dAᴴ (A⁺)ᴴ X   (Golub and Pereyra 1973)
  Tensor solution_along(const Tensor& da, const Tensor& db) const {
    Tensor dx;
    if (db.defined()) dx = at::matmul(pinv, columns(db));
    if (da.defined()) {
      const Tensor moved = at::matmul(da.mH(), at::matmul(pinv.mH(), x));
      const Tensor part = -at::matmul(pinv, at::matmul(da, x)) -
                          at::matmul(pinv, at::matmul(pinv.mH(), at::matmul(da.mH(), gap))) + moved -
                          at::matmul(pinv, at::matmul(a, moved));
      dx = dx.defined() ? dx + part : part;
    }
    return uncolumns(dx);
  }
  Tensor residuals_along(const Tensor& da, const Tensor& db) const {
    Tensor dgap;
    if (da.defined()) dgap = at::matmul(da, x);
    if (db.defined()) dgap = dgap.defined() ? dgap - columns(db) : -columns(db);
    const Tensor product = gap.is_complex() ? at::real(gap.conj() * dgap) : gap * dgap;
    return product.sum(-2) * 2;
  }

  // The transposes: gradients for A and B.
  std::tuple<Tensor, Tensor> solution_back(const Tensor& ct) const {
    const Tensor g = columns(ct), gb = at::matmul(pinv.mH(), g);
    const Tensor outside = g - at::matmul(a.mH(), gb);  // (I - A⁺ A) g
    const Tensor ga = -at::matmul(gb, x.mH()) - at::matmul(gap, at::matmul(pinv, gb).mH()) +
                      at::matmul(at::matmul(pinv.mH(), x), outside.mH());
    return {ga, gb};
  }
  std::tuple<Tensor, Tensor> residuals_back(const Tensor& ct) const {
    const Tensor g = gap * ct.unsqueeze(-2) * 2;
    return {at::matmul(g, x.mH()), -g};
  }
};

// Residuals come only with some drivers, and only for more equations than unknowns.
bool has_residuals(const Tensor& residuals) { return residuals.numel() > 0; }

}  // namespace

void orthogonal() {
  op<at::_ops::linalg_householder_product>()
      .small(small::householder_product)
      .depends(Depends::on_matrices)
      .vmap([](VmapFrame& f) {
        for (size_t i : {0, 1}) f.to_front(i, true);
        f.call();
      })
      .decomposes(householder_product);
  op<at::_ops::ormqr>().small(small::ormqr).depends(Depends::on_matrices).vmap(ormqr_vmap).decomposes(ormqr);

  op<at::_ops::linalg_lstsq>()
      .vmap(lstsq_vmap)
      .nondifferentiable_outputs<2, 3>()
      // The drivers that find the rank give no residuals where it is not full.
      .shape_by_values([](c10::ArrayRef<IValue> args) {
        const std::string driver = args[3].isString() ? args[3].toStringRef() : "";
        return driver == "gelss" || driver == "gelsd";
      })
      .vjp<0, 1>([](Ct<0> gx, Ct<1> gr, const Tensor& a, const Tensor& b, Out<0> x, Out<1> r) {
        const LeastSquares at_point(a, b, *x);
        Tensor ga, gb;
        if (gx->defined()) std::tie(ga, gb) = at_point.solution_back(*gx);
        if (gr->defined() && has_residuals(*r)) {
          const auto [more_a, more_b] = at_point.residuals_back(*gr);
          ga = plus(ga, more_a);
          gb = plus(gb, more_b);
        }
        if (gb.defined()) gb = summed_to(at_point.uncolumns(gb), b.sizes());
        return std::tuple(ga.defined() ? summed_to(ga, a.sizes()) : ga, gb);
      })
      .jvp<0, 1>([](Tan<0> da, Tan<1> db, const Tensor& a, const Tensor& b, Skip, Skip, Out<0> x, Out<1> r) {
        const LeastSquares at_point(a, b, *x);
        const Tensor dr = has_residuals(*r) ? at_point.residuals_along(*da, *db) : Tensor();
        return std::tuple(at_point.solution_along(*da, *db), dr);
      });
  demands<at::_ops::linalg_lstsq>([](const Example& e) {
    demand_matrix(e, 0);
    const Sizes a = e.sizes(0), b = e.sizes(1);
    TORCH_CHECK(!b.empty() && a.size() >= b.size() && a.size() <= b.size() + 1,
                "torch.linalg.lstsq: input.dim() must be greater or equal to other.dim() and (input.dim() - "
                "other.dim()) <= 1, but got ",
                a.size(), " and ", b.size());
    const bool vector = b.size() == 1 || (a.size() == b.size() + 1 && std::equal(b.begin(), b.end(), a.begin()));
    TORCH_CHECK(b.size() + vector >= 2 && a[a.size() - 2] == b[b.size() - (vector ? 1 : 2)],
                "torch.linalg.lstsq: input.size(-2) should match "
                "other.size(",
                vector ? -1 : -2, ")");
    const auto batch_of = [](at::IntArrayRef sizes, size_t item) { return sizes.slice(0, sizes.size() - item); };
    at::infer_size(batch_of(a, 2), batch_of(b, vector ? 1 : 2));
    demand_same_dtype(e, {0, 1});
  });
}

}  // namespace tower::rules
