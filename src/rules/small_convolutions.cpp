// A convolution is a sum of products, as is a transposed one, and as are the derivatives of both. All of them are over
// the same triples: a window, a pixel that it sees, and the element of the weight that the two meet in. A convolution's
// result has an element for each window, and its operand are the pixels; of a transposed one it is the other way round.
// A derivative gives one of the three of the two others.
//
// What lies in the padding is in no triple. (Some of LibTorch's kernels multiply it, as zeros, with the weight: where
// that is infinite, they have NaN for it.)
#include "rules/small_convolutions.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "rules/small_places.h"

namespace tower::rules::small {

using namespace compiler;

namespace {

struct Geometry {
  std::vector<int64_t> stride, padding, dilation;
  bool transposed;
  std::vector<int64_t> output_padding;
  int64_t groups;

  // `first`: argument of the strides. Of a list with one number, that is all dimensions'.
  Geometry(const SmallCall& c, size_t first, size_t dims) {
    const auto list = [&](size_t arg) {
      std::vector<int64_t> numbers = c.arg(first + arg).toIntVector();
      if (numbers.size() == 1) numbers.assign(dims, numbers[0]);
      return numbers;
    };
    stride = list(0), padding = list(1), dilation = list(2), transposed = c.arg(first + 3).toBool();
    output_padding = list(4), groups = c.arg(first + 5).toInt();
  }
};

Sizes behind(const Sizes& sizes, size_t first) {
  return Sizes(sizes.begin() + static_cast<int64_t>(first), sizes.end());
}

// The elements that meet: numbers in the three tensors.
enum Of : size_t { windows, pixels, weights };
using Triple = std::array<size_t, 3>;

// `of_windows`, `of_pixels`: [items, channels, …]; `of_weight`: [channels of windows, channels of pixels in a group,
// …].
std::vector<Triple> triples(const Geometry& g, const Sizes& of_windows, const Sizes& of_pixels,
                            const Sizes& of_weight) {
  const Sizes plane = behind(of_pixels, 2);
  const std::vector<Sizes> places = places_in(behind(of_windows, 2)), kernel = places_in(behind(of_weight, 2));
  const size_t plane_size = count(plane);
  const int64_t in_group = of_windows[1] / g.groups;
  std::vector<Triple> all;
  size_t window = 0;
  for (int64_t item = 0; item < of_windows[0]; ++item)
    for (int64_t a = 0; a < of_windows[1]; ++a)
      for (const Sizes& place : places) {
        size_t weight = static_cast<size_t>(a) * static_cast<size_t>(of_weight[1]) * kernel.size();
        for (int64_t b = 0; b < of_weight[1]; ++b) {
          const int64_t channel = a / in_group * of_weight[1] + b;
          const size_t first = static_cast<size_t>(item * of_pixels[1] + channel) * plane_size;
          for (const Sizes& tap : kernel) {
            size_t pixel = 0;
            bool inside = true;
            for (size_t d = 0; d < plane.size(); ++d) {
              const int64_t at = place[d] * g.stride[d] - g.padding[d] + tap[d] * g.dilation[d];
              inside = inside && at >= 0 && at < plane[d];
              pixel = pixel * static_cast<size_t>(plane[d]) + static_cast<size_t>(at);
            }
            if (inside) all.push_back({window, first + pixel, weight});
            ++weight;
          }
        }
        ++window;
      }
  return all;
}

// One of the three, of the two others.
std::vector<E> sums_of_products(const SmallCall& c, const std::vector<Triple>& all, Of to, size_t size, Of from_x,
                                const Small& x, Of from_y, const Small& y) {
  std::vector<std::optional<E>> sums(size);
  for (const Triple& t : all) {
    const E a = c.at(x, t[from_x]), b = c.at(y, t[from_y]);
    std::optional<E>& sum = sums[t[to]];
    sum = sum ? fma(a, b, *sum) : a * b;
  }
  std::vector<E> elements;
  for (const auto& sum : sums) elements.push_back(sum ? *sum : c.at(x, 0).like(0));
  return elements;
}

bool are_floats_of_one_type(const SmallCall& c) {
  const at::ScalarType dtype = c.operands[0]->dtype;
  return is_float(*type_of(dtype)) &&
         std::all_of(c.operands.begin(), c.operands.end(), [&](const Small* t) { return t->dtype == dtype; });
}
// Of images and a weight: at least one dimension of pixels, and channels in whole groups.
bool fit(const Small& x, const Small& weight, const Geometry& g) {
  const size_t dims = weight.sizes.size();
  if (dims < 3 || x.sizes.size() != dims || g.groups <= 0 || weight.sizes[0] % g.groups != 0) return false;
  for (const auto* list : {&g.stride, &g.padding, &g.dilation, &g.output_padding})
    if (list->size() != dims - 2) return false;
  return x.sizes[1] == (g.transposed ? weight.sizes[0] : weight.sizes[1] * g.groups);
}

Sizes sizes_of_result(const Small& x, const Small& weight, const Geometry& g) {
  Sizes sizes{x.sizes[0], g.transposed ? weight.sizes[1] * g.groups : weight.sizes[0]};
  for (size_t d = 0; d < g.stride.size(); ++d) {
    const int64_t n = x.sizes[d + 2], reach = g.dilation[d] * (weight.sizes[d + 2] - 1), pad = 2 * g.padding[d];
    sizes.push_back(g.transposed ? (n - 1) * g.stride[d] - pad + reach + g.output_padding[d] + 1
                                 : (n + pad - reach - 1) / g.stride[d] + 1);
  }
  return sizes;
}

}  // namespace

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
SmallResults convolution(const SmallCall& c) {
  const Small &x = *c.operands[0], &weight = *c.operands[1], *bias = c.tensor(2);
  if (!are_floats_of_one_type(c) || weight.sizes.size() < 3) return {};
  const Geometry g(c, 3, weight.sizes.size() - 2);
  if (!fit(x, weight, g)) return {};
  const Sizes sizes = sizes_of_result(x, weight, g);
  const Of of_x = g.transposed ? windows : pixels, of_y = g.transposed ? pixels : windows;
  const auto all = g.transposed ? triples(g, x.sizes, sizes, weight.sizes) : triples(g, sizes, x.sizes, weight.sizes);
  std::vector<E> elements = sums_of_products(c, all, of_y, count(sizes), of_x, x, weights, weight);
  const size_t plane = count(behind(sizes, 2)), channels = static_cast<size_t>(sizes[1]);
  if (bias && bias->ids.size() != channels) return {};
  for (size_t i = 0; bias && i < elements.size(); ++i) elements[i] = elements[i] + c.at(*bias, i / plane % channels);
  return c.give(sizes, elements);
}

// (cotangent, input, weight, bias sizes, stride, padding, dilation, transposed, output_padding, groups, which of the
// three derivatives)
SmallResults convolution_backward(const SmallCall& c) {
  const Small &ct = *c.operands[0], &x = *c.operands[1], &weight = *c.operands[2];
  if (!are_floats_of_one_type(c) || weight.sizes.size() < 3) return {};
  const Geometry g(c, 4, weight.sizes.size() - 2);
  if (!fit(x, weight, g) || ct.sizes != sizes_of_result(x, weight, g)) return {};
  const Of of_x = g.transposed ? windows : pixels, of_ct = g.transposed ? pixels : windows;
  const auto all =
      g.transposed ? triples(g, x.sizes, ct.sizes, weight.sizes) : triples(g, ct.sizes, x.sizes, weight.sizes);
  SmallResults results(c.dtypes.size());
  const auto give = [&](size_t k, const Sizes& sizes, const std::vector<E>& elements) {
    results[k] = {sizes, {}, c.dtypes[k]};
    for (const E& e : elements) results[k].ids.push_back(e.id());
  };
  const c10::List<bool> wanted = c.arg(10).toBoolList();
  if (wanted[0]) give(0, x.sizes, sums_of_products(c, all, of_x, x.ids.size(), of_ct, ct, weights, weight));
  if (wanted[1]) give(1, weight.sizes, sums_of_products(c, all, weights, weight.ids.size(), of_ct, ct, of_x, x));
  if (wanted[2]) {
    const size_t plane = count(behind(ct.sizes, 2)), channels = static_cast<size_t>(ct.sizes[1]);
    std::vector<std::optional<E>> sums(channels);
    for (size_t i = 0; i < ct.ids.size(); ++i) {
      std::optional<E>& sum = sums[i / plane % channels];
      sum = sum ? *sum + c.at(ct, i) : c.at(ct, i);
    }
    std::vector<E> elements;
    for (const auto& sum : sums) elements.push_back(*sum);
    give(2, {ct.sizes[1]}, elements);
  }
  return results;
}

}  // namespace tower::rules::small
