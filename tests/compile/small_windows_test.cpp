// Windows of small images inside of kernels: paddings, patches, resampling, pooling and convolutions of random sizes
// and settings, against LibTorch's operators, one example after the other, and against LibTorch's gradients.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/dynamic.h>

#include <cstdio>
#include <limits>
#include <map>
#include <random>

#include "compile/kernels.h"
#include "graph/plan.h"
#include "support/compare.h"
#include "support/seeds.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using td::Tensors;
using Ints = std::vector<int64_t>;

// ---- random programs ----

class Random {
 public:
  explicit Random(uint64_t seed) : random_(static_cast<std::mt19937::result_type>(seed)) {}

  int64_t between(int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random_); }
  bool chance(int64_t one_in) { return between(1, one_in) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[between(0, static_cast<int64_t>(all.size()) - 1)];
  }
  // One for each dimension.
  Ints each(size_t dims, int64_t from, int64_t to) {
    Ints result;
    for (size_t d = 0; d < dims; ++d) result.push_back(between(from, to));
    return result;
  }
  std::optional<double> scale(int64_t from, int64_t to) {
    if (chance(2)) return std::nullopt;
    return static_cast<double>(to) / static_cast<double>(from) + (chance(2) ? 0.01 : 0);
  }

 private:
  std::mt19937 random_;
};

// What is of bits: elements that are moved, chosen, or added up in the order of LibTorch's kernels.
enum class Exact : bool { no, yes };

struct Program {
  std::string name;
  std::vector<Ints> sizes;  // of the arguments
  std::function<Tensor(const Tensors&)> f;
  Exact exact = Exact::no;
  bool has_gradient = true;  // of LibTorch's
};

std::string named(const char* name, size_t dims) { return std::string(name) + std::to_string(dims) + "d"; }

// An image with or without a dimension of items, of small sizes in `dims` dimensions.
Ints image(Random& random, size_t dims, int64_t from, bool always_items = false) {
  Ints sizes;
  if (always_items || random.chance(2)) sizes.push_back(random.between(1, 2));
  sizes.push_back(random.between(1, dims == 3 ? 1 : 2));
  for (size_t d = 0; d < dims; ++d) sizes.push_back(random.between(from, dims == 1 ? 7 : dims == 2 ? 4 : 3));
  return sizes;
}
int64_t size_of(const Ints& sizes, size_t dims, size_t d) { return sizes[sizes.size() - dims + d]; }

Program padding(Random& random) {
  const size_t dims = static_cast<size_t>(random.between(1, 3));
  const bool reflects = random.chance(2);
  const Ints sizes = image(random, dims, 2);
  Ints pads;
  for (size_t d = dims; d-- > 0;) {
    const int64_t most = reflects ? size_of(sizes, dims, d) - 1 : 3;
    for (int side = 0; side < 2; ++side) pads.push_back(random.between(side == 0 ? -1 : 0, std::min<int64_t>(most, 2)));
  }
  const auto f = [=](const Tensors& in) {
    const Tensor& x = in[0];
    if (dims == 1) return reflects ? at::reflection_pad1d(x, pads) : at::replication_pad1d(x, pads);
    if (dims == 2) return reflects ? at::reflection_pad2d(x, pads) : at::replication_pad2d(x, pads);
    return reflects ? at::reflection_pad3d(x, pads) : at::replication_pad3d(x, pads);
  };
  return {named(reflects ? "reflection_pad" : "replication_pad", dims), {sizes}, f, Exact::yes};
}

Program nearest(Random& random) {
  const size_t dims = static_cast<size_t>(random.between(1, 3));
  const bool exact = random.chance(2);
  const Ints sizes = image(random, dims, 1, true), to = random.each(dims, 1, dims == 3 ? 4 : 6);
  std::vector<std::optional<double>> s;
  for (size_t d = 0; d < dims; ++d) s.push_back(random.scale(size_of(sizes, dims, d), to[d]));
  const auto f = [=](const Tensors& in) {
    const Tensor& x = in[0];
    if (dims == 1) return exact ? at::_upsample_nearest_exact1d(x, to, s[0]) : at::upsample_nearest1d(x, to, s[0]);
    if (dims == 2)
      return exact ? at::_upsample_nearest_exact2d(x, to, s[0], s[1]) : at::upsample_nearest2d(x, to, s[0], s[1]);
    return exact ? at::_upsample_nearest_exact3d(x, to, s[0], s[1], s[2])
                 : at::upsample_nearest3d(x, to, s[0], s[1], s[2]);
  };
  return {named(exact ? "_upsample_nearest_exact" : "upsample_nearest", dims), {sizes}, f, Exact::yes};
}

Program interpolation(Random& random) {
  const std::string name = random.one_of<const char*>(
      {"linear1d", "bilinear2d", "bicubic2d", "trilinear3d", "bilinear2d_aa", "bicubic2d_aa"});
  const size_t dims = name == "linear1d" ? 1 : name == "trilinear3d" ? 3 : 2;
  const bool corners = random.chance(2);
  const Ints sizes = image(random, dims, 1, true), to = random.each(dims, 1, dims == 3 ? 3 : 5);
  std::vector<std::optional<double>> s;
  for (size_t d = 0; d < dims; ++d) s.push_back(random.scale(size_of(sizes, dims, d), to[d]));
  const auto f = [=](const Tensors& in) {
    const Tensor& x = in[0];
    if (name == "linear1d") return at::upsample_linear1d(x, to, corners, s[0]);
    if (name == "bilinear2d") return at::upsample_bilinear2d(x, to, corners, s[0], s[1]);
    if (name == "bicubic2d") return at::upsample_bicubic2d(x, to, corners, s[0], s[1]);
    if (name == "trilinear3d") return at::upsample_trilinear3d(x, to, corners, s[0], s[1], s[2]);
    if (name == "bilinear2d_aa") return at::_upsample_bilinear2d_aa(x, to, corners, s[0], s[1]);
    return at::_upsample_bicubic2d_aa(x, to, corners, s[0], s[1]);
  };
  return {"upsample_" + name, {sizes}, f};
}

Program patches(Random& random) {
  const Ints kernel = random.each(2, 1, 2), dilation = random.each(2, 1, 2), pad = random.each(2, 0, 1),
             stride = random.each(2, 1, 2);
  Ints sizes = image(random, 2, 3);
  if (random.chance(2))
    return {"im2col",
            {sizes},
            [=](const Tensors& in) { return at::im2col(in[0], kernel, dilation, pad, stride); },
            Exact::yes};
  const Ints plane{size_of(sizes, 2, 0), size_of(sizes, 2, 1)};
  const Tensor patches = at::im2col(at::zeros(sizes), kernel, dilation, pad, stride);
  return {"col2im",
          {patches.sizes().vec()},
          [=](const Tensors& in) { return at::col2im(in[0], plane, kernel, dilation, pad, stride); },
          Exact::yes};
}

Program others_that_move(Random& random) {
  if (random.chance(2)) {
    const int64_t groups = random.between(1, 3);
    return {"native_channel_shuffle",
            {{random.between(1, 2), groups * random.between(1, 3), 2}},
            [=](const Tensors& in) { return at::native_channel_shuffle(in[0], groups); },
            Exact::yes,
            false};
  }
  const int64_t size = random.between(1, 3), step = random.between(1, 3), dim = random.between(0, 1);
  return {"unfold",
          {{random.between(3, 6), random.between(3, 6)}},
          [=](const Tensors& in) { return in[0].unfold(dim, size, step) * 2; },
          Exact::yes};
}

// Kernel, stride, padding, dilation: windows have their middle in the image.
struct Pool {
  Ints kernel, stride, padding, dilation;
  bool ceil;
  Pool(Random& random, size_t dims, bool dilates)
      : kernel(random.each(dims, 1, 3)),
        stride(random.each(dims, 1, 2)),
        dilation(random.each(dims, 1, 1)),
        ceil(random.chance(2)) {
    for (size_t d = 0; d < dims; ++d) {
      padding.push_back(random.between(0, kernel[d] / 2));
      if (dilates && kernel[d] == 2 && random.chance(2)) dilation[d] = 2;
    }
  }
};

Program mean_pool(Random& random) {
  const size_t dims = static_cast<size_t>(random.between(2, 3));
  const Ints sizes = image(random, dims, 3);
  if (random.chance(3)) {
    const Ints to = random.each(dims, 1, 3);
    return {named("_adaptive_avg_pool", dims), {sizes}, [=](const Tensors& in) {
              return dims == 2 ? at::_adaptive_avg_pool2d(in[0], to) : at::_adaptive_avg_pool3d(in[0], to);
            }};
  }
  const Pool p(random, dims, false);
  const bool count_pads = random.chance(2);
  const std::optional<int64_t> divisor =
      random.chance(3) ? std::optional<int64_t>(random.one_of({-3, 1, 7})) : std::nullopt;
  return {named("avg_pool", dims), {sizes}, [=](const Tensors& in) {
            return dims == 2 ? at::avg_pool2d(in[0], p.kernel, p.stride, p.padding, p.ceil, count_pads, divisor)
                             : at::avg_pool3d(in[0], p.kernel, p.stride, p.padding, p.ceil, count_pads, divisor);
          }};
}

// The values, and behind them the places.
Tensor with_places(const std::tuple<Tensor, Tensor>& pooled) {
  const auto& [values, places] = pooled;
  return at::cat({values.flatten(), places.to(values.scalar_type()).flatten()});
}
Program max_pool(Random& random) {
  const size_t dims = static_cast<size_t>(random.between(2, 3));
  const Ints sizes = image(random, dims, 3, dims == 3);
  const int64_t kind = random.between(1, 4);
  if (kind == 1) {
    const Ints to = random.each(dims, 1, 3);
    return {named("adaptive_max_pool", dims),
            {sizes},
            [=](const Tensors& in) {
              return with_places(dims == 2 ? at::adaptive_max_pool2d(in[0], to) : at::adaptive_max_pool3d(in[0], to));
            },
            Exact::yes};
  }
  if (kind == 2) {
    const Ints kernel = random.each(dims, 1, 2), to = random.each(dims, 1, 2);
    std::vector<double> samples;
    const bool single = sizes.size() == dims + 1;
    const int64_t planes = single ? sizes[0] : sizes[0] * sizes[1];
    for (int64_t i = 0; i < planes * static_cast<int64_t>(dims); ++i)
      samples.push_back(static_cast<double>(random.between(0, 999)) / 1000);
    const Ints shape{single ? 1 : sizes[0], single ? sizes[0] : sizes[1], static_cast<int64_t>(dims)};
    return {named("fractional_max_pool", dims),
            {sizes},
            [=](const Tensors& in) {
              const Tensor where = at::tensor(samples, at::kDouble).to(in[0].scalar_type()).view(shape);
              return with_places(dims == 2 ? at::fractional_max_pool2d(in[0], kernel, to, where)
                                           : at::fractional_max_pool3d(in[0], kernel, to, where));
            },
            Exact::yes};
  }
  const Pool p(random, dims, true);
  return {named("max_pool", dims),
          {sizes},
          [=](const Tensors& in) {
            return with_places(
                dims == 2 ? at::max_pool2d_with_indices(in[0], p.kernel, p.stride, p.padding, p.dilation, p.ceil)
                          : at::max_pool3d_with_indices(in[0], p.kernel, p.stride, p.padding, p.dilation, p.ceil));
          },
          Exact::yes};
}

Program unpool(Random& random) {
  const size_t dims = static_cast<size_t>(random.between(2, 3));
  const Ints sizes = image(random, dims, 3, dims == 3);
  const Ints kernel = random.each(dims, 1, 2);
  return {named("max_unpool", dims),
          {sizes},
          [=](const Tensors& in) {
            const Ints plane(sizes.end() - static_cast<int64_t>(dims), sizes.end());
            if (dims == 2) {
              const auto [values, places] = at::max_pool2d_with_indices(in[0], kernel);
              return at::max_unpool2d(values * 2, places, plane);
            }
            const auto [values, places] = at::max_pool3d_with_indices(in[0], kernel);
            return at::max_unpool3d(values * 2, places, plane, kernel, Ints(dims, 0));
          },
          Exact::yes};
}

Program convolution(Random& random) {
  const size_t dims = static_cast<size_t>(random.between(1, 3));
  const bool transposed = random.chance(2), has_bias = random.chance(2);
  const int64_t groups = random.between(1, 2), in = groups * random.between(1, 2), out = groups * random.between(1, 2);
  const int64_t most = dims == 1 ? 6 : dims == 2 ? 3 : 2;
  Ints x{random.between(1, 2), in}, weight{transposed ? in : out, (transposed ? out : in) / groups};
  Ints stride = random.each(dims, 1, 2), padding, dilation = random.each(dims, 1, 2), output_padding;
  for (size_t d = 0; d < dims; ++d) {
    const int64_t kernel = random.between(1, dims == 3 ? 2 : 3), reach = dilation[d] * (kernel - 1) + 1;
    padding.push_back(random.between(0, reach / 2));
    output_padding.push_back(transposed && stride[d] == 2 && random.chance(2) ? 1 : 0);
    const int64_t least = transposed ? 2 : std::max<int64_t>(reach - 2 * padding[d], 1);
    x.push_back(random.between(least, std::max(least, most)));
    weight.push_back(kernel);
  }
  std::vector<Ints> sizes{x, weight};
  if (has_bias) sizes.push_back({out});
  return {named(transposed ? "transposed convolution" : "convolution", dims), sizes, [=](const Tensors& given) {
            return at::convolution(given[0], given[1], has_bias ? std::optional<Tensor>(given[2]) : std::nullopt,
                                   stride, padding, dilation, transposed, output_padding, groups);
          }};
}

using MakesProgram = Program (*)(Random&);
constexpr MakesProgram kPrograms[] = {padding,   nearest,  interpolation, patches,    others_that_move,
                                      mean_pool, max_pool, unpool,        convolution};

// Settings that LibTorch has no result for.
bool is_refused(const Program& p) {
  Tensors zeros;
  for (const Ints& sizes : p.sizes) zeros.push_back(at::zeros(sizes));
  try {
    p.f(zeros);
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

// ---- what they give ----

struct Fused {
  Tensors results;
  size_t calls;
};
Fused run(const td::Function& f, const Tensors& args) {
  compiler::FusedGraph graph = kernels::fused(f, args);
  const size_t calls = graph.graph.calls.size();
  return {compiler::Plan(std::move(graph.graph)).run(args), calls};
}

struct Count {
  int programs = 0, in_one_kernel = 0;
};

// The value and all gradients along a random cotangent: of each example by LibTorch, and of all in a kernel.
void expect_as_libtorch(const Program& p, Random& random, at::ScalarType dtype, std::map<std::string, Count>& counts) {
  const int64_t examples = random.one_of<int64_t>({1, 2, 7, 16, 37});
  const double close = dtype == at::kDouble ? 1e-12 : 2e-5;
  Tensors args;
  td::Dims dims;
  for (const Ints& sizes : p.sizes) {
    const bool shared = !args.empty() && random.chance(3);
    Ints all = sizes;
    if (!shared) all.insert(all.begin(), examples);
    args.push_back(at::randn(all, dtype));
    dims.push_back(shared ? std::nullopt : std::optional<int64_t>(0));
  }
  const auto one = [&](const Tensors& in) {
    Tensors given = in;
    given[0] = given[0].sin();
    return p.f(given).mul(2);
  };
  Tensors outs, cotangents;
  std::vector<Tensors> gradients(args.size());
  for (int64_t b = 0; b < examples; ++b) {
    Tensors leaves;
    for (size_t k = 0; k < args.size(); ++k)
      leaves.push_back((dims[k] ? args[k][b] : args[k]).clone().requires_grad_(true));
    const Tensor y = one(leaves);
    outs.push_back(y.detach());
    if (!p.has_gradient) continue;
    cotangents.push_back(at::randn_like(y));
    y.backward(cotangents.back());
    for (size_t k = 0; k < args.size(); ++k) gradients[k].push_back(leaves[k].grad());
  }
  const td::Function forward = [&](const Tensors& in) { return Tensors{one(in)}; };
  const td::Function both = [&](const Tensors& in) {
    const Tensors given(in.begin(), in.end() - 1);
    auto [y, pull] = td::vjp([&](const Tensors& v) { return Tensors{one(v)}; }, given);
    Tensors all = pull({in.back()});
    all.push_back(y[0]);
    return all;
  };
  const Fused y = run(td::vmap(forward, dims, {0}), args);
  EXPECT_EQ(support::difference(y.results[0], at::stack(outs), {close, close}), "");
  Count& count = counts[p.name];
  ++count.programs;
  if (!p.has_gradient) {
    count.in_one_kernel += y.calls == 1;
    return;
  }
  args.push_back(at::stack(cotangents));
  dims.push_back(0);
  const Fused g = run(td::vmap(both, dims, td::Dims(args.size(), 0)), args);
  for (size_t k = 0; k < gradients.size(); ++k)
    EXPECT_EQ(support::difference(g.results[k], at::stack(gradients[k]), {close, close}), "") << "gradient " << k;
  count.in_one_kernel += y.calls == 1 && g.calls == 1;
}

TEST(SmallWindows, AreThoseOfLibTorchWithGradients) {
  TOWER_NEEDS_LLVM();
  std::map<std::string, Count> counts;
  const support::Seeds seeds = support::seeds("TOWER_WINDOWS", 180);
  for (const uint64_t seed : seeds) {
    at::manual_seed(seed);
    Random random(seed);
    const Program p = kPrograms[seed % std::size(kPrograms)](random);
    SCOPED_TRACE(p.name + ", seed " + std::to_string(seed));
    if (is_refused(p)) continue;
    expect_as_libtorch(p, random, random.chance(2) ? at::kDouble : at::kFloat, counts);
  }
  // The others have more operations than is worth a kernel.
  int programs = 0, in_one_kernel = 0;
  for (const auto& [name, count] : counts) {
    programs += count.programs;
    in_one_kernel += count.in_one_kernel;
    if (seeds.wanted) std::printf("%-26s %d of %d in one kernel\n", name.c_str(), count.in_one_kernel, count.programs);
  }
  EXPECT_GE(in_one_kernel, programs / 2) << "of " << programs;
}

// What is moved, chosen or added up keeps NaN, infinities and the signs of zeros; what is weighted has them where
// LibTorch's has.
TEST(SmallWindows, OfSpecialNumbersAreThoseOfLibTorch) {
  TOWER_NEEDS_LLVM();
  for (const uint64_t seed : support::seeds("TOWER_WINDOWS", 160)) {
    at::manual_seed(seed);
    Random random(seed);
    const Program p = kPrograms[seed % (std::size(kPrograms) - 1)](random);  // not convolutions, which have padding
    const at::ScalarType dtype = random.chance(2) ? at::kDouble : at::kFloat;
    SCOPED_TRACE(p.name + ", seed " + std::to_string(seed));
    if (is_refused(p)) continue;
    constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const Tensor special = at::tensor({nan, inf, -inf, -0.0, 0.0, 1e-310, 1e-42}, at::kDouble).to(dtype);
    constexpr int64_t examples = 24;
    Ints sizes = p.sizes[0], column(sizes.size() + 1, 1);
    sizes.insert(sizes.begin(), examples);
    column[0] = examples;
    // Examples of some such numbers, of many, of no others, and of none.
    const Tensor share = at::arange(examples).remainder(4).div(3).view(column);
    const Tensor chosen = special.index({at::randint(0, special.size(0), sizes, at::kLong)});
    const Tensor x = at::where(at::rand(sizes) < share, chosen, at::randn(sizes, dtype));
    Tensors outs;
    for (int64_t b = 0; b < examples; ++b) outs.push_back(p.f({x[b]}));
    const td::Function f = [&](const Tensors& in) { return Tensors{p.f({in[0].neg().neg()})}; };
    const Tensor actual = run(td::vmap(f, {0}, {0}), {x}).results[0], expected = at::stack(outs);
    if (p.exact == Exact::yes) EXPECT_EQ(kernels::bit_difference(actual.flatten(), expected.flatten(), {}), "");
    else EXPECT_EQ(support::difference(actual, expected, {1e-6, 1e-6}), "");
  }
}

// Of one example, whose elements cannot be lanes, there is one lane, for up to some hundred operations.
TEST(SmallWindows, OfOneExampleAreInAKernelOfOneLane) {
  TOWER_NEEDS_LLVM();
  const std::vector<std::pair<const char*, td::Function>> functions = {
      {"max_pool2d",
       [](const Tensors& in) {
         return Tensors{at::max_pool2d(in[0], {2, 2}) * 2};
       }},
      {"avg_pool2d",
       [](const Tensors& in) {
         return Tensors{at::avg_pool2d(in[0], {3, 3}, 2) * 2};
       }},
      {"upsample_bilinear2d",
       [](const Tensors& in) {
         return Tensors{at::upsample_bilinear2d(in[0], at::IntArrayRef{4, 5}, false) * 2};
       }},
      {"scatter_add",
       [](const Tensors& in) {
         const Tensor x = in[0].flatten();
         return Tensors{at::scatter_add(x.narrow(0, 0, 4), 0, (x * 3).abs().to(at::kLong).remainder(4), x) * 2};
       }},
  };
  for (const auto& [name, f] : functions) {
    EXPECT_EQ(kernels::calls_left(f, {at::randn({1, 1, 5, 5}, at::kDouble)}, 1e-13), 1u) << name;
    // Large ones are not.
    EXPECT_GE(kernels::calls_left(f, {at::randn({1, 2, 20, 30}, at::kDouble)}, 1e-13), 2u) << name;
  }
}

}  // namespace
