// Sampling at the points of a grid, and affine grids. The kernels do the sampling and its gradients; derivatives of the
// gradients come from the formula, which is written here for any number of spatial dimensions.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <array>

#include "records/demands.h"
#include "records/masks.h"
#include "records/op.h"
#include "records/pull_back.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

// LibTorch's codes.
enum Mode : int64_t { bilinear, nearest, bicubic };
enum Padding : int64_t { zeros, border, reflection };

// ---- the formula ----

// Where the coordinate `x` in [-1, 1] is among `size` points.
Tensor unnormalized(const Tensor& x, int64_t size, bool corners) {
  const auto n = static_cast<double>(size);
  return corners ? (x + 1) / 2 * (n - 1) : ((x + 1) * n - 1) / 2;
}

// The kernels give no derivative at the ends themselves, which clamp() would.
Tensor clipped(const Tensor& x, int64_t size) {
  const Tensor from_below = at::where(x > 0, x, Scalar(0));
  return at::where(x < size - 1, from_below, Scalar(static_cast<double>(size - 1)));
}

// Reflected at low and high, which are given times two, as often as it takes.
Tensor reflected(const Tensor& x, int64_t twice_low, int64_t twice_high) {
  if (twice_low == twice_high) return at::zeros_like(x);
  const double low = static_cast<double>(twice_low) / 2, span = static_cast<double>(twice_high - twice_low) / 2;
  const Tensor shifted = x - low, distance = at::where(shifted < 0, -shifted, shifted);
  const Tensor flips = (distance / span).floor(), extra = distance - flips * span;
  return at::where(flips.remainder(2) == 0, extra + low, span - extra + low);
}

Tensor padded(const Tensor& x, int64_t size, int64_t padding, bool corners) {
  if (padding == border) return clipped(x, size);
  if (padding != reflection) return x;
  return clipped(corners ? reflected(x, 0, 2 * (size - 1)) : reflected(x, -1, 2 * size - 1), size);
}

// The values at whole coordinates [N, points], one tensor for each spatial dimension; zero outside. [N, C, points]
Tensor values_at(const Tensor& x, const std::vector<Tensor>& coordinates) {
  Tensor place, inside;
  for (size_t d = 0; d < coordinates.size(); ++d) {
    const int64_t size = x.size(static_cast<int64_t>(d) + 2);
    const Tensor& c = coordinates[d];
    const Tensor here = (c >= 0).logical_and(c < size), index = keep_where(here, c).to(at::kLong);
    place = place.defined() ? place * size + index : index;
    inside = inside.defined() ? inside.logical_and(here) : here;
  }
  const Tensor found = x.flatten(2).gather(2, place.unsqueeze(1).expand({-1, x.size(1), -1}));
  return keep_where(inside.unsqueeze(1), found);
}

// The weights of the four points around, at distance t from the second (Keys 1981, with a = -3/4).
std::array<Tensor, 4> cubic_weights(const Tensor& t) {
  constexpr double a = -0.75;
  const auto near = [](const Tensor& s) { return ((s * (a + 2) - (a + 3)) * s) * s + 1; };
  const auto far = [](const Tensor& s) { return ((s * a - 5 * a) * s + 8 * a) * s - 4 * a; };
  return {far(t + 1), near(t), near(1 - t), far(2 - t)};
}

Tensor sample(const Tensor& x, const Tensor& grid, int64_t mode, int64_t padding, bool corners) {
  const int64_t rank = grid.size(-1), items = x.size(0);
  std::vector<Tensor> where;  // by spatial dimension; the grid lists them last first
  for (int64_t d = 0; d < rank; ++d) {
    const int64_t size = x.size(d + 2);
    const Tensor at = unnormalized(grid.select(-1, rank - 1 - d).flatten(1), size, corners);
    where.push_back(mode == bicubic ? at : padded(at, size, padding, corners));
  }
  Tensor result;
  if (mode == nearest) {
    std::vector<Tensor> rounded;
    for (const Tensor& at : where) rounded.push_back(at.round());
    result = values_at(x, rounded);
  } else {
    // All points around: two or four along each dimension.
    const int64_t along = mode == bicubic ? 4 : 2, before = mode == bicubic ? 1 : 0;
    std::vector<std::array<Tensor, 4>> weights;
    std::vector<Tensor> floors;
    for (const Tensor& at : where) {
      floors.push_back(at.floor());
      const Tensor t = at - floors.back();
      weights.push_back(mode == bicubic ? cubic_weights(t) : std::array<Tensor, 4>{1 - t, t});
    }
    const int64_t count = rank == 2 ? along * along : along * along * along;
    for (int64_t k = 0; k < count; ++k) {
      std::vector<Tensor> point;
      Tensor weight;
      for (int64_t d = 0, rest = k; d < rank; ++d, rest /= along) {
        const auto i = static_cast<size_t>(d);
        const Tensor c = floors[i] + (rest % along - before);
        point.push_back(mode == bicubic ? padded(c, x.size(d + 2), padding, corners) : c);
        const Tensor& w = weights[i][static_cast<size_t>(rest % along)];
        weight = weight.defined() ? weight * w : w;
      }
      const Tensor term = values_at(x, point) * weight.unsqueeze(1);
      result = result.defined() ? result + term : term;
    }
  }
  Ints shape{items, x.size(1)};
  shape.insert(shape.end(), grid.sizes().begin() + 1, grid.sizes().end() - 1);
  return result.view(shape);
}

// ---- records ----

// Of an image that the examples share, their grids are one with as many rows.
template <int64_t rank>
void grid_sampler_vmap(VmapFrame& f) {
  if (f.batched(0) || f.logical_dim(0) != rank || f.logical_dim(1) != rank) return vmap_fold(f, rank);
  f.to_front(1, false);
  const int64_t rows = f.tensor(1).size(2);
  f.stack[1] = f.tensor(1).movedim(0, 1).flatten(1, 2);
  f.call();
  f.result(f.tensor(0).unflatten(2, {f.batch_size, rows}).movedim(2, 0).contiguous());
}

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
      .depends(Depends::on_plane)
      .vmap(grid_sampler_vmap<rank>)
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
  demands<Sampler>([](const Example& e) {
    TORCH_CHECK(e.dim(0) == rank && e.dim(1) == rank, "grid_sampler(): expected ", rank,
                "D input and grid with same number of dimensions, but got input with sizes ",
                at::IntArrayRef(e.sizes(0)), " and grid with sizes ", at::IntArrayRef(e.sizes(1)));
    TORCH_CHECK(e.size(1, -1) == rank - 2, "grid_sampler(): expected grid to have size ", rank - 2,
                " in last dimension, but got grid with sizes ", at::IntArrayRef(e.sizes(1)));
  });
  op<Backward>().folds_into_items(rank).decomposes([](const Tensor& ct, const Tensor& x, const Tensor& grid,
                                                      int64_t mode, int64_t padding, bool corners,
                                                      const std::vector<bool>& mask) {
    const auto gradients = pull_back(
        [&](const std::vector<Tensor>& in) { return sample(in[0], in[1], mode, padding, corners); }, {x, grid}, ct);
    return std::tuple(mask[0] ? gradients[0] : Tensor(), gradients[1]);
  });
}

// Points of the sampling grid on [-1, 1] along a dimension: at its ends, or at the middles of its cells.
Tensor points(int64_t count, bool align_corners, const at::TensorOptions& options) {
  if (count <= 1) return at::zeros({count}, options);
  const Tensor ends = at::linspace(-1, 1, count, options);
  if (align_corners) return ends;
  return (ends * (static_cast<double>(count - 1) / static_cast<double>(count))).to(ends.scalar_type());
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

void grid_sampling() {
  using namespace at::_ops;
  grid_sampler<grid_sampler_2d, grid_sampler_2d_backward, 4>();
  grid_sampler<grid_sampler_3d, grid_sampler_3d_backward, 5>();
  op<_grid_sampler_2d_cpu_fallback>().decomposes(
      [](const Tensor& x, const Tensor& grid, int64_t mode, int64_t padding, bool corners) {
        return at::grid_sampler_2d(x, grid, mode, padding, corners);
      });
  op<_grid_sampler_2d_cpu_fallback_backward>().decomposes(
      [](const Tensor& ct, const Tensor& x, const Tensor& grid, int64_t mode, int64_t padding, bool corners) {
        return at::grid_sampler_2d_backward(ct, x, grid, mode, padding, corners, {true, true});
      });
  op<affine_grid_generator>().decomposes(affine_grid);
}

}  // namespace tower::rules
