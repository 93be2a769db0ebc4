// Histograms: the bin of every value, found in the edges, then a sum over the values of each bin. Counts do not change
// with the values; they are linear in the weights, and densities depend on the edges.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <cmath>

#include "records/demands.h"
#include "records/masks.h"
#include "records/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

using MaybeRange = std::optional<std::vector<double>>;
using Pair = std::tuple<Tensor, Tensor>;

// The ends of the outermost bins: as given, or the least and greatest value; a little more if they are one.
Pair outer_edges(const Tensor& values, const MaybeRange& range, size_t dimension) {
  Tensor low = at::zeros({}, values.options()), high = at::ones({}, values.options());
  if (range) {
    const double from = range->at(2 * dimension), to = range->at(2 * dimension + 1);
    TORCH_CHECK(std::isfinite(from) && std::isfinite(to), "torch.histogramdd: dimension ", dimension, "'s range [",
                from, ", ", to, "] is not finite");
    TORCH_CHECK(from <= to, "torch.histogramdd: min should not exceed max, but got min ", from, " max ", to,
                " for dimension ", dimension);
    low = at::full({}, from, values.options());
    high = at::full({}, to, values.options());
  } else if (values.numel() > 0) {
    low = values.amin();
    high = values.amax();
  }
  const Tensor margin = keep_where(low == high, at::full({}, 0.5, values.options()));
  return {low - margin, high + margin};
}

Tensor edges_of(const Tensor& values, int64_t bins, const MaybeRange& range, size_t dimension) {
  TORCH_CHECK(bins > 0, "torch.histogram(): bins must be > 0, but got ", bins, " for dimension ", dimension);
  const auto [low, high] = outer_edges(values, range, dimension);
  return at::linspace(low, high, bins + 1, values.options());
}

// The number of the bin of each value, and which are in any. The last bin includes its upper edge.
Pair bins_of(const Tensor& values, const Tensor& edges) {
  const Tensor last = edges.select(0, -1), first = edges.select(0, 0);
  const Tensor inside = (values >= first).logical_and(values <= last);
  const Tensor found = at::searchsorted(edges, values.contiguous(), /*out_int32=*/false, /*right=*/true) - 1;
  return {found.clamp(0, std::max<int64_t>(edges.size(0) - 2, 0)), inside};
}

// `points` [count, dimensions] sorted into the boxes that the edges make.
Tensor sorted_in(const Tensor& points, const std::vector<Tensor>& edges, const Tensor& weight, bool density) {
  Ints shape;
  Tensor box, inside;
  for (size_t d = 0; d < edges.size(); ++d) {
    shape.push_back(edges[d].size(0) - 1);
    const auto [bin, here] = bins_of(points.select(1, static_cast<int64_t>(d)), edges[d]);
    box = box.defined() ? box * shape.back() + bin : bin;
    inside = inside.defined() ? inside.logical_and(here) : here;
  }
  int64_t boxes = 1;
  for (int64_t size : shape) boxes *= size;
  const Tensor each = keep_where(inside, weight.defined() ? weight.reshape(-1) : at::ones({}, points.options()))
                          .to(points.scalar_type());
  Tensor histogram = at::zeros({boxes}, points.options()).index_add(0, box, each).view(shape);
  if (!density) return histogram;
  histogram = histogram / histogram.sum();
  for (size_t d = 0; d < edges.size(); ++d) {
    Ints along(shape.size(), 1);
    along[d] = -1;
    histogram = histogram / edges[d].diff().view(along);
  }
  return histogram;
}

void check_values(const Tensor& x, const Tensor& weight, int64_t count) {
  TORCH_CHECK(x.is_floating_point(), "torch.histogram: input tensor must be of a floating dtype");
  TORCH_CHECK(!weight.defined() || (weight.scalar_type() == x.scalar_type() && weight.numel() == count),
              "torch.histogram: weight tensor must have the dtype of the input and a number for each of its values");
}

void check_edges(const Tensor& edges, const Tensor& x) {
  TORCH_CHECK(edges.dim() == 1 && edges.size(0) > 0,
              "torch.histogram: bins tensor should have one dimension and no "
              "zero size, got ",
              edges.sizes());
  TORCH_CHECK(edges.scalar_type() == x.scalar_type(), "torch.histogram: bins and input must have the same dtype");
}

// Points, in the last dimension of x.
Tensor points_of(const Tensor& x, size_t dimensions, const Tensor& weight) {
  TORCH_CHECK(x.dim() >= 2, "torch.histogramdd: input tensor should have at least 2 dimensions, but got ", x.dim());
  check_values(x, weight, c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)));
  TORCH_CHECK(static_cast<size_t>(x.size(-1)) == dimensions,
              "torch.histogramdd: expected as many sequences of bins as the size of the innermost dimension, ",
              x.size(-1));
  return x.reshape({c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), x.size(-1)});
}

std::vector<Tensor> all_edges(const Tensor& points, const Ints& bins, const MaybeRange& range) {
  TORCH_CHECK(!range || range->size() == 2 * bins.size(),
              "torch.histogramdd: expected a range of two numbers for each "
              "dimension");
  std::vector<Tensor> edges;
  for (size_t d = 0; d < bins.size(); ++d)
    edges.push_back(edges_of(points.select(1, static_cast<int64_t>(d)), bins[d], range, d));
  return edges;
}

// Without edges of its own: the kernel works the bin out, instead of looking it up.
Tensor histc(const Tensor& x, int64_t bins, const Scalar& min, const Scalar& max) {
  TORCH_CHECK(x.is_floating_point(), "histogram_cpu is not implemented for ", x.scalar_type());
  TORCH_CHECK(bins > 0, "bins must be > 0, but got ", bins);
  const double from = min.toDouble(), to = max.toDouble();
  TORCH_CHECK(std::isfinite(from) && std::isfinite(to), "torch.histc: range of [", from, ", ", to, "] is not finite");
  TORCH_CHECK(from <= to, "torch.histc: max must be larger than min");
  const Tensor values = x.reshape(-1);
  Tensor low = at::full({}, min, x.options()), high = at::full({}, max, x.options());
  if (from == to && values.numel() > 0) {
    low = values.amin();
    high = values.amax();
  }
  const Tensor same = low == high;
  low = low - same.to(x.scalar_type());
  high = high + same.to(x.scalar_type());
  const Tensor inside = (values >= low).logical_and(values <= high);
  const Tensor bin = keep_where(inside, (values - low) * bins / (high - low)).to(at::kLong).clamp_max(bins - 1);
  return at::zeros({bins}, x.options()).index_add(0, bin, inside.to(x.scalar_type()));
}

void demand_weight_of_points(const Example& e, size_t weight) {
  if (!e.has(weight) || e.dim(0) == 0) return;
  Sizes points = e.sizes(0);
  points.pop_back();
  TORCH_CHECK(e.sizes(weight) == points,
              "torch.histogramdd: if weight tensor is provided it should have the same "
              "shape as the input tensor excluding its innermost dimension, but got input with shape ",
              at::IntArrayRef(e.sizes(0)), " and weight with shape ", at::IntArrayRef(e.sizes(weight)));
}

}  // namespace

void histograms() {
  // Counts do not change with the values, where they change at all.
  op<at::_ops::histc>().no_derivative().decomposes(histc);
  op<at::_ops::histogram_bins_tensor>().decomposes(
      [](const Tensor& x, const Tensor& edges, const Tensor& weight, bool density) {
        check_edges(edges, x);
        TORCH_CHECK(edges.size(0) > 1, "torch.histogram(): bins must be > 0, but got 0 for dimension 0");
        check_values(x, weight, x.numel());
        return std::tuple(sorted_in(x.reshape({-1, 1}), {edges}, weight, density), edges.clone());
      });
  op<at::_ops::histogram_bin_ct>().decomposes(
      [](const Tensor& x, int64_t bins, const MaybeRange& range, const Tensor& weight, bool density) {
        check_values(x, weight, x.numel());
        const Tensor points = x.reshape({x.numel(), 1});
        const auto edges = all_edges(points, {bins}, range);
        return std::tuple(sorted_in(points, edges, weight, density), edges[0]);
      });
  op<at::_ops::_histogramdd_bin_edges>().decomposes(
      [](const Tensor& x, const Ints& bins, const MaybeRange& range, const Tensor& weight, bool) {
        return all_edges(points_of(x, bins.size(), weight), bins, range);
      });
  op<at::_ops::_histogramdd_from_bin_cts>().decomposes(
      [](const Tensor& x, const Ints& bins, const MaybeRange& range, const Tensor& weight, bool density) {
        const Tensor points = points_of(x, bins.size(), weight);
        return sorted_in(points, all_edges(points, bins, range), weight, density);
      });
  op<at::_ops::_histogramdd_from_bin_tensors>().decomposes(
      [](const Tensor& x, const std::vector<Tensor>& edges, const Tensor& weight, bool density) {
        for (const Tensor& of_one : edges) check_edges(of_one, x);
        return sorted_in(points_of(x, edges.size(), weight), edges, weight, density);
      });
  for (const char* name : {"aten::_histogramdd_bin_edges", "aten::_histogramdd_from_bin_cts"})
    guard(record_of(name, ""), [](const Example& e) { demand_weight_of_points(e, 3); });
  demands<at::_ops::_histogramdd_from_bin_tensors>([](const Example& e) { demand_weight_of_points(e, 2); });
}

}  // namespace tower::rules
