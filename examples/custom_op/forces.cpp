// Somebody else's library: the energy of a particle pair, (1 - exp(-(r - 1)))², by a kernel that reads memory. LibTorch
// can call it and nothing more: it cannot be differentiated or mapped.
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>

namespace {

at::Tensor morse(const at::Tensor& r, double stiffness) {
  const at::Tensor in = r.contiguous();
  at::Tensor energy = at::empty_like(in);
  AT_DISPATCH_FLOATING_TYPES(in.scalar_type(), "morse", [&] {
    const auto* distance = in.const_data_ptr<scalar_t>();
    auto* out = energy.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < in.numel(); ++i) {
      const auto open = static_cast<scalar_t>(1) - std::exp(-static_cast<scalar_t>(stiffness) * (distance[i] - 1));
      out[i] = open * open;
    }
  });
  return energy;
}

}  // namespace

TORCH_LIBRARY(forces, m) { m.def("morse(Tensor r, float stiffness=1.0) -> Tensor"); }
TORCH_LIBRARY_IMPL(forces, CPU, m) { m.impl("morse", &morse); }
