// Complex numbers: parts, modulus and argument, conjugation, and the views between complex and real tensors.
//
// A gradient is LibTorch's: for a real loss L of z = x + iy it is ∂L/∂x + i ∂L/∂y, so a map with the real-linear
// derivative D has vjp Dᵀ under the inner product Re(conj(a) b).
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <algorithm>
#include <cmath>

#include "core/wrapper.h"
#include "numbers/element.h"
#include "records/demands.h"
#include "records/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

using compiler::E;

Scalar i_unit() { return c10::complex<double>(0, 1); }

// The two halves of the last dimension as one complex number. Unlike view_as_complex it asks nothing of the strides,
// which tangents and cotangents do not promise.
Tensor join(const Tensor& pairs) { return at::complex(pairs.select(-1, 0), pairs.select(-1, 1)); }

// What turns z without lengthening it leaves sgn(z) = z / |z| as it is up to 1 / |z|; what lengthens it is lost.
// Its own transpose.
Tensor sgn_derivative(const Tensor& t, const Tensor& z, const Tensor& y) {
  if (!z.is_complex()) return {};
  const Tensor modulus = z.abs();
  const Tensor across = t - y * at::real(y.conj() * t);
  return at::where(modulus == 0, Scalar(0), across / modulus);
}

// Whether a tensor of pairs can be viewed as one of complex numbers.
bool pairs_adjacent(const Tensor& t) {
  const auto strides = t.strides();
  const auto even = [](int64_t stride) { return stride % 2 == 0; };
  return strides.back() == 1 && std::all_of(strides.begin(), strides.end() - 1, even);
}

// Inside a transform no tensor is conjugated or negated lazily. But what LibTorch leaves lazy is a view here, too, and
// a copy where that is resolved.
bool is_lazily(const Operator& view, const Tensor& t) {
  bool lazily = false;
  for (Wrapper* w = as_wrapper(t); w && w->view(); w = &base_of(*w->view())) lazily ^= w->view()->op == &view;
  return lazily;
}

}  // namespace

void complex() {
  op<at::_ops::abs>()
      .pointwise()
      .element([](E x) { return abs(x); })
      .vjp<0>([](Ct<0> ct, const Tensor& z) { return *ct * z.sgn(); })
      .jvp<0>([](Tan<0> t, const Tensor& z) { return z.is_complex() ? at::real(*t * z.sgn().conj()) : *t * z.sgn(); });
  // dθ = Im(conj(z) dz) / |z|², and nothing for real numbers.
  op<at::_ops::angle>()
      .pointwise()
      .element([](E x) { return where(isnan(x), x, where(x < 0, x.like(M_PI), 0)); })
      .vjp<0>([](Ct<0> ct, const Tensor& z) {
        if (!z.is_complex()) return Tensor();
        return at::where(z == 0, Scalar(0), *ct * (z * i_unit()) / z.abs().square());
      })
      .jvp<0>([](Tan<0> t, const Tensor& z) {
        if (!z.is_complex()) return Tensor();
        return at::where(z == 0, Scalar(0), at::imag(*t * z.conj()) / z.abs().square());
      });
  op<at::_ops::sgn>()
      .pointwise()
      .element([](E x) { return where(x > 0, 1, where(x < 0, -1, x.like(0))); })
      .vjp<0>([](Ct<0> ct, const Tensor& z, Out<0> y) { return sgn_derivative(*ct, z, *y); })
      .jvp<0>([](Tan<0> t, const Tensor& z, Out<0> y) { return sgn_derivative(*t, z, *y); });

  op<at::_ops::complex>().pointwise().derivative<0>([]() { return Scalar(1); }).derivative<1>([]() {
    return i_unit();
  });
  op<at::_ops::polar>()
      .pointwise()
      .derivative<0>([](Skip, const Tensor& angle) { return at::polar(at::ones_like(angle), angle); })
      .derivative<1>([](Out<0> y) { return *y * i_unit(); });

  // ---- conjugation ----
  op<at::_ops::_conj_physical>().pointwise().vjp<0>([](Ct<0> ct) { return ct->conj(); }).jvp<0>([](Tan<0> t) {
    return t->conj();
  });
  op<at::_ops::_conj>()
      .depends(Depends::on_its_place)
      .pointwise()
      .vjp<0>([](Ct<0> ct) { return ct->conj(); })
      .jvp<0>([](Tan<0> t) { return t->conj(); })
      .inverse([](const Tensor&, const Tensor& written, c10::ArrayRef<IValue>, size_t) { return written.conj(); });
  op<at::_ops::_neg_view>()
      .depends(Depends::on_its_place)
      .pointwise()
      .derivative<0>([]() { return Scalar(-1); })
      .inverse([](const Tensor&, const Tensor& written, c10::ArrayRef<IValue>, size_t) { return -written; });

  // ---- views between complex numbers and pairs of real ones ----
  op<at::_ops::view_as_real>()
      .depends(Depends::on_all)
      .vmap([](VmapFrame& frame) { frame.result(at::view_as_real(frame.tensor(0)), frame.in_dims[0]); })
      .vjp<0>([](Ct<0> ct) { return join(*ct); })
      .jvp<0>([](Tan<0> t) { return at::view_as_real(t->resolve_conj()); })
      .inverse([](const Tensor&, const Tensor& written, c10::ArrayRef<IValue>, size_t) { return join(written); })
      .keeps_dims([](const Sizes& base, c10::ArrayRef<IValue>, size_t) {
        Sizes dims;
        for (size_t d = 0; d < base.size(); ++d) dims.push_back(static_cast<int64_t>(d));
        dims.push_back(-1);
        return dims;
      });
  op<at::_ops::view_as_complex>()
      .depends(Depends::on_all)
      .vmap([](VmapFrame& frame) {
        frame.to_front(0, false);
        const Tensor t = frame.tensor(0);
        TORCH_CHECK(t.dim() > 1 && t.size(-1) == 2, "view_as_complex: the last dimension must be of size 2");
        frame.result(pairs_adjacent(t) ? at::view_as_complex(t) : join(t));
      })
      .vjp<0>([](Ct<0> ct) { return at::view_as_real(ct->resolve_conj()); })
      .jvp<0>([](Tan<0> t) { return join(*t); })
      .inverse([](const Tensor&, const Tensor& written, c10::ArrayRef<IValue>, size_t) {
        return at::view_as_real(written.resolve_conj());
      })
      .keeps_dims([](const Sizes& base, c10::ArrayRef<IValue>, size_t) {
        Sizes dims;
        for (size_t d = 0; d + 1 < base.size(); ++d) dims.push_back(static_cast<int64_t>(d));
        return dims;
      });

  op<at::_ops::resolve_conj>().decomposes([](const Tensor& z) {
    static const Operator& conj = *Operator::find("aten::_conj", "");
    return z.is_conj() || is_lazily(conj, z) ? z.clone() : z;
  });
  op<at::_ops::resolve_neg>().decomposes([](const Tensor& x) {
    static const Operator& negative = *Operator::find("aten::_neg_view", "");
    return x.is_neg() || is_lazily(negative, x) ? x.clone() : x;
  });

  // ---- copies of these views ----
  op<at::_ops::_conj_copy>().decomposes([](const Tensor& z) { return at::_conj_physical(z); });
  op<at::_ops::_neg_view_copy>().decomposes([](const Tensor& x) { return -x; });
  op<at::_ops::view_as_real_copy>().decomposes(
      [](const Tensor& z) { return at::view_as_real(z).clone(at::MemoryFormat::Contiguous); });
  op<at::_ops::view_as_complex_copy>().decomposes(
      [](const Tensor& x) { return at::view_as_complex(x).clone(at::MemoryFormat::Contiguous); });
  demands<at::_ops::complex>([](const Example& e) { demand_same_dtype(e, {0, 1}); });
  demands<at::_ops::polar>([](const Example& e) { demand_same_dtype(e, {0, 1}); });
}

}  // namespace tower::rules
