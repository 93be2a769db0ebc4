#include "sparse/windows.h"

#include <ATen/Functions.h>

#include "core/operator.h"
#include "sparse/ids.h"

namespace tower::sparse {

namespace {

using Ints = std::vector<int64_t>;

struct Window {
  Ints size, stride, padding, dilation;

  int64_t places() const { return c10::multiply_integers(size); }
  int64_t outputs(size_t d, int64_t padded) const { return (padded - dilation[d] * (size[d] - 1) - 1) / stride[d] + 1; }
};

// What each place of the window sees, one place after the other, of the last dimensions.
Tensor seen_through(const Window& window, const Tensor& ids) {
  const auto rank = static_cast<int64_t>(window.size.size());
  Ints pad;
  for (size_t d = window.size.size(); d-- > 0;) pad.insert(pad.end(), 2, window.padding[d]);
  const Tensor padded = at::constant_pad_nd(ids, pad);
  std::vector<Tensor> seen;
  for (int64_t place = 0; place < window.places(); ++place) {
    Tensor part = padded;
    int64_t rest = place;
    for (size_t d = window.size.size(); d-- > 0;) {
      const auto dim = static_cast<int64_t>(d) - rank;
      const int64_t start = rest % window.size[d] * window.dilation[d];
      const int64_t count = window.outputs(d, padded.size(dim));
      if (count <= 0) return {};
      part = part.slice(dim, start, start + (count - 1) * window.stride[d] + 1, window.stride[d]);
      rest /= window.size[d];
    }
    seen.push_back(part);
  }
  return at::stack(seen, 0);
}

// With zeros between the elements, and around them, a transposed convolution is a convolution.
Tensor spread(const Tensor& ids, const Ints& stride) {
  const auto rank = static_cast<int64_t>(stride.size());
  Ints sizes = ids.sizes().vec();
  for (size_t d = 0; d < stride.size(); ++d) {
    int64_t& size = sizes[sizes.size() - stride.size() + d];
    size = (size - 1) * stride[d] + 1;
  }
  Tensor result = at::zeros(sizes, ids.options()), places = result;
  for (size_t d = 0; d < stride.size(); ++d)
    places = places.slice(static_cast<int64_t>(d) - rank, 0, std::nullopt, stride[d]);
  places.copy_(ids);
  return result;
}

// A list of one number stands for one of `rank` such.
Ints for_each_dim(Ints given, size_t rank) {
  if (given.size() == 1) given.resize(rank, given[0]);
  return given;
}

}  // namespace

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
std::vector<Tensor> convolved(const CallWithIds& call) {
  const Tensor weight = call.args[1].toTensor(), out = call.outputs()[0];
  const int64_t rank = weight.dim() - 2, groups = call.args[8].toInt();
  const bool transposed = call.args[6].toBool();
  if (out.dim() != weight.dim() || out.numel() == 0 || weight.is_complex()) return {};
  if (transposed && call.known_ids(1).defined()) return {};
  const auto numbers = [&](size_t arg) {
    return for_each_dim(call.args[arg].toIntVector(), static_cast<size_t>(rank));
  };
  Window window{weight.sizes().slice(2).vec(), numbers(3), numbers(4), numbers(5)};
  const int64_t outputs = out.size(1) / groups, inputs = call.args[0].toTensor().size(1) / groups;
  Tensor result;
  const auto add = [&](const Tensor& ids) {
    result = result.defined() ? united(call.sets, result, ids, out.sizes()) : ids.expand(out.sizes());
  };
  if (Tensor ids = call.known_ids(0); ids.defined()) {
    Tensor entries = call.is_constant(1) ? weight.ne(0) : at::ones(weight.sizes(), at::kBool);
    if (transposed) {
      ids = spread(ids, window.stride);
      const Ints more = numbers(7);
      Ints pad;
      for (size_t d = window.size.size(); d-- > 0;) pad.insert(pad.end(), {0, more[d]});
      ids = at::constant_pad_nd(ids, pad);
      for (size_t d = 0; d < window.size.size(); ++d) {
        window.padding[d] = window.dilation[d] * (window.size[d] - 1) - window.padding[d];
        window.stride[d] = 1;
        entries = entries.flip(static_cast<int64_t>(d) + 2);
      }
      entries = entries.reshape({groups, inputs, outputs, -1}).transpose(1, 2);
    }
    entries = entries.reshape({groups, outputs, inputs * window.places()});
    // (places, N, groups, inputs, …) as (N, …, groups, inputs, places)
    Tensor seen = seen_through(window, ids);
    if (!seen.defined()) return {};
    Ints sizes = seen.sizes().vec(), order{1};
    sizes[2] = inputs;
    sizes.insert(sizes.begin() + 2, groups);
    for (int64_t d = 0; d < rank; ++d) order.push_back(4 + d);
    for (const int64_t d : {2, 3, 0}) order.push_back(d);
    seen = seen.reshape(sizes).permute(order).reshape({-1, groups, inputs * window.places()});
    std::vector<Tensor> of_outputs;
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t o = 0; o < outputs; ++o) {
        const Tensor chosen = at::nonzero(entries[g][o]).flatten();
        of_outputs.push_back(chosen.numel() == 0
                                 ? at::zeros({seen.size(0)}, ids.options())
                                 : united_rows(call.sets, seen.select(1, g).index_select(1, chosen), chosen.numel()));
      }
    Ints of_channels = out.sizes().vec();
    std::swap(of_channels[0], of_channels[1]);
    add(at::stack(of_outputs, 0).reshape(of_channels).transpose(0, 1));
  }
  Ints as_channels(static_cast<size_t>(out.dim()), 1);
  as_channels[1] = out.size(1);
  if (const Tensor ids = call.known_ids(1); ids.defined())
    add(united_rows(call.sets, ids, ids.numel() / ids.size(0)).reshape(as_channels));
  if (const Tensor ids = call.known_ids(2); ids.defined()) add(ids.reshape(as_channels));
  return {result};
}

std::vector<Tensor> pooled(const CallWithIds& call) {
  const Tensor ids = call.known_ids(0), out = call.outputs()[0];
  const auto named = [&](const char* name) -> const IValue* {
    const size_t arg = call.argument(name);
    return arg == call.op.num_args() ? nullptr : &call.args[arg];
  };
  if (named("ceil_mode")->toBool()) return {};
  // `int[2] kernel_size`: a single number stands for as many.
  const auto rank = static_cast<size_t>(*call.op.schema().arguments()[call.argument("kernel_size")].N());
  const auto numbers = [&](const char* name, const Ints& otherwise) {
    const IValue* value = named(name);
    Ints found = value ? value->toIntVector() : Ints();
    if (found.empty()) found = otherwise;
    return for_each_dim(std::move(found), rank);
  };
  const Ints size = numbers("kernel_size", {});
  const Window window{size, numbers("stride", size), numbers("padding", {0}), numbers("dilation", {1})};
  const Tensor seen = seen_through(window, ids);
  if (!seen.defined() || !seen[0].sizes().equals(out.sizes())) return {};
  return std::vector<Tensor>(call.outputs().size(), united_over(call.sets, seen, {0}).squeeze(0));
}

}  // namespace tower::sparse
