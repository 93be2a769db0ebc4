// Fourier transforms: linear, along dimensions. The transpose of a transform is the transform the other way round.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "interpreters/vmap.h"
#include "records/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

// The kernels' library refuses to transform nothing, though LibTorch knows the shape of the result.
void fft_vmap(VmapFrame& f) {
  if (f.batch_size == 0) return run_loop(f.level, f, false);
  vmap_along(f, {1});
}

}  // namespace

void fourier() {
  op<at::_ops::_fft_c2c>()
      .family("along dimensions", fft_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Ints& dims, int64_t norm, bool forward) {
        return at::_fft_c2c(*ct, dims, norm, !forward);
      });

  // Real input: half of the spectrum says everything, and the other half has no cotangent of its own.
  op<at::_ops::_fft_r2c>()
      .family("along dimensions", fft_vmap)
      .linear<0>([](Ct<0> ct, Shape x, const Ints& dims, int64_t norm, bool onesided) {
        Tensor spectrum = *ct;
        if (onesided) {
          const int64_t dim = dims.back() < 0 ? dims.back() + x.dim() : dims.back();
          std::vector<int64_t> padding(static_cast<size_t>(2 * (x.dim() - dim)), 0);
          padding.back() = x.sizes[static_cast<size_t>(dim)] - spectrum.size(dim);
          spectrum = at::constant_pad_nd(spectrum, padding, 0);
        }
        return at::real(at::_fft_c2c(spectrum, dims, norm, false));
      });

  // Real output: the inner frequencies stand for two, themselves and their mirror images.
  op<at::_ops::_fft_c2r>()
      .family("along dimensions", fft_vmap)
      .linear<0>([](Ct<0> ct, Shape x, const Ints& dims, int64_t norm, int64_t) {
        const Tensor spectrum = at::_fft_r2c(*ct, dims, norm, true);
        const int64_t dim = dims.back() < 0 ? dims.back() + x.dim() : dims.back();
        const int64_t twice = ct->size(dim) - spectrum.size(dim), kept = spectrum.size(dim);
        if (twice <= 0) return spectrum;
        const auto real = ct->options();
        const Tensor weights =
            at::cat({at::ones({1}, real), at::full({twice}, 2, real), at::ones({kept - 1 - twice}, real)});
        std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
        shape[static_cast<size_t>(dim)] = kept;
        return spectrum * weights.view(shape);
      });
}

}  // namespace tower::rules
