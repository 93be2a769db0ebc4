// Interpolation to another size and sampling at the points of a grid. Interpolation is linear and treats channels
// alike: the backward operator is its transpose and the reverse. A batch is folded into the items.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

std::vector<c10::SymInt> symbolic(at::IntArrayRef sizes) { return {sizes.begin(), sizes.end()}; }

// `Up(x, size, attributes…)` and its transpose `Down(g, size, input_size, attributes…)`.
template <class Up, class Down, int64_t rank, class... Attributes>
void interpolation() {
  op<Up>().folds_into_items(rank).template linear<0>(
      [](Ct<0> ct, Shape x, const Ints& size, const Attributes&... attributes) {
        return Down::call(*ct, symbolic(size), symbolic(x.sizes), attributes...);
      });
  op<Down>()
      .family("folded into items",
              [](VmapFrame& f) {
                Ints input_size = f.stack[2].toIntVector();
                const int64_t items = input_size[0];
                input_size[0] *= f.batch_size;
                f.stack[2] = input_size;
                f.to_front(0, false);
                f.stack[0] = f.tensor(0).flatten(0, 1);
                f.call();
                f.result(f.tensor(0).unflatten(0, {f.batch_size, items}));
              })
      .template linear<0>([](Ct<0> ct, Skip, const Ints& size, Skip, const Attributes&... attributes) {
        return Up::call(*ct, symbolic(size), attributes...);
      });
}

using Scale = std::optional<double>;

// The derivative along `dgrid`. A sample depends on its own point of the grid alone, so that with one channel an item
// the backward operator gives for ones the partial derivatives of every sample.
template <class Backward>
Tensor along_grid(const Tensor& x, const Tensor& grid, const Tensor& dgrid, int64_t mode, int64_t padding,
                  bool corners) {
  const int64_t n = x.size(0), c = x.size(1);
  const auto for_channels = [&](const Tensor& t) {
    Ints shape = t.sizes().vec();
    shape.insert(shape.begin() + 1, c);
    return t.unsqueeze(1).expand(shape).flatten(0, 1);
  };
  const Tensor points = for_channels(grid);
  const Tensor ones = at::ones_like(points.select(-1, 0)).unsqueeze(1);
  const Tensor partial =
      std::get<1>(Backward::call(ones, x.flatten(0, 1).unsqueeze(1), points, mode, padding, corners, {false, true}));
  return (partial * for_channels(dgrid)).sum(-1).unflatten(0, {n, c});
}

template <class Sampler, class Backward, int64_t rank>
void grid_sampler() {
  op<Sampler>()
      .folds_into_items(rank)
      .template vjp<0, 1>([](Ct<0> ct, const Tensor& x, const Tensor& grid, int64_t mode, int64_t padding, bool corners,
                             Wants<0> wants_x, Wants<1> wants_grid) {
        return Backward::call(*ct, x, grid, mode, padding, corners, {wants_x.wanted, wants_grid.wanted});
      })
      .template jvp<0, 1>([](Tan<0> dx, Tan<1> dgrid, const Tensor& x, const Tensor& grid, int64_t mode,
                             int64_t padding, bool corners) {
        Tensor dy;
        if (dx->defined()) dy = Sampler::call(*dx, grid, mode, padding, corners);
        if (!dgrid->defined()) return dy;
        const Tensor moved = along_grid<Backward>(x, grid, *dgrid, mode, padding, corners);
        return dy.defined() ? dy + moved : moved;
      });
  op<Backward>().folds_into_items(rank);
}

// Points of the sampling grid on [-1, 1] along a dimension: at its ends, or at the middles of its cells.
Tensor points(int64_t count, bool align_corners, const at::TensorOptions& options) {
  if (count <= 1) return at::zeros({count}, options);
  const Tensor ends = at::linspace(-1, 1, count, options);
  return align_corners ? ends : ends * (static_cast<double>(count - 1) / static_cast<double>(count));
}

// The regular grid, in homogeneous coordinates (x, y[, z], 1), under the affine map theta of every item.
Tensor affine_grid(const Tensor& theta, const Ints& size, bool align_corners) {
  TORCH_CHECK(size.size() == 4 || size.size() == 5,
              "AffineGridGenerator needs 4d (spatial) or 5d (volumetric) inputs.");
  const Ints spatial(size.begin() + 2, size.end());
  const auto rank = static_cast<int64_t>(spatial.size());
  std::vector<Tensor> coordinates;
  for (int64_t d = rank; d-- > 0;) {
    Ints shape(static_cast<size_t>(rank), 1);
    shape[static_cast<size_t>(d)] = spatial[static_cast<size_t>(d)];
    coordinates.push_back(
        points(spatial[static_cast<size_t>(d)], align_corners, theta.options()).view(shape).expand(spatial));
  }
  coordinates.push_back(at::ones(spatial, theta.options()));
  const Tensor base = at::stack(coordinates, -1).flatten(0, -2).expand({size[0], -1, rank + 1});
  Ints shape{size[0]};
  shape.insert(shape.end(), spatial.begin(), spatial.end());
  shape.push_back(rank);
  return base.bmm(theta.transpose(1, 2)).view(shape);
}

}  // namespace

void resampling() {
  using namespace at::_ops;
  interpolation<upsample_nearest1d, upsample_nearest1d_backward, 3, Scale>();
  interpolation<upsample_nearest2d, upsample_nearest2d_backward, 4, Scale, Scale>();
  interpolation<upsample_nearest3d, upsample_nearest3d_backward, 5, Scale, Scale, Scale>();
  interpolation<_upsample_nearest_exact1d, _upsample_nearest_exact1d_backward, 3, Scale>();
  interpolation<_upsample_nearest_exact2d, _upsample_nearest_exact2d_backward, 4, Scale, Scale>();
  interpolation<_upsample_nearest_exact3d, _upsample_nearest_exact3d_backward, 5, Scale, Scale, Scale>();
  interpolation<upsample_linear1d, upsample_linear1d_backward, 3, bool, Scale>();
  interpolation<upsample_bilinear2d, upsample_bilinear2d_backward, 4, bool, Scale, Scale>();
  interpolation<upsample_bicubic2d, upsample_bicubic2d_backward, 4, bool, Scale, Scale>();
  interpolation<upsample_trilinear3d, upsample_trilinear3d_backward, 5, bool, Scale, Scale, Scale>();
  interpolation<_upsample_bilinear2d_aa, _upsample_bilinear2d_aa_backward, 4, bool, Scale, Scale>();
  interpolation<_upsample_bicubic2d_aa, _upsample_bicubic2d_aa_backward, 4, bool, Scale, Scale>();

  grid_sampler<grid_sampler_2d, grid_sampler_2d_backward, 4>();
  grid_sampler<grid_sampler_3d, grid_sampler_3d_backward, 5>();
  op<affine_grid_generator>().decomposes(affine_grid);
}

}  // namespace tower::rules
