#include "compile/kernels.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "graph/plan.h"
#include "graph/trace.h"

namespace kernels {

using tower::compiler::FusedGraph;
using tower::compiler::Graph;
using tower::dynamic::Function;
using tower::dynamic::Tensors;

Graph graph_of(const Function& f, const Tensors& args) {
  Graph graph = tower::compiler::trace(f, args, "test").graph;
  graph.simplify();
  return graph;
}

FusedGraph fused(const Function& f, const Tensors& args, tower::compiler::Kernels& kernels,
                 tower::compiler::Worth worth) {
  return tower::compiler::fuse(graph_of(f, args), kernels, worth);
}
FusedGraph fused(const Function& f, const Tensors& args, tower::compiler::Worth worth) {
  tower::compiler::Kernels kernels;
  return fused(f, args, kernels, worth);
}

void expect_as_operators(Graph graph, const Function& f, const Tensors& args, double tolerance) {
  const Tensors expected = f(args), actual = tower::compiler::Plan(std::move(graph)).run(args);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(actual[k].scalar_type(), expected[k].scalar_type());
    EXPECT_EQ(actual[k].sizes(), expected[k].sizes());
    EXPECT_EQ(actual[k].strides(), expected[k].strides()) << k;
    EXPECT_TRUE(actual[k].allclose(expected[k], tolerance, tolerance, /*equal_nan=*/true)) << k;
  }
}

std::optional<Tensors> computed(const Function& f, const Tensors& args) {
  Graph graph = tower::compiler::trace(f, args, "test").graph;
  tower::compiler::Kernels kernels;
  FusedGraph fused = tower::compiler::fuse(graph, kernels, tower::compiler::Worth::all);
  if (fused.kernels.empty()) return std::nullopt;
  return tower::compiler::Plan(std::move(fused.graph)).run(args);
}

size_t calls_left(const tower::dynamic::Function& f, const tower::dynamic::Tensors& args, double tolerance) {
  tower::compiler::FusedGraph few = fused(f, args);
  const size_t calls = few.graph.calls.size();
  expect_as_operators(std::move(few.graph), f, args, tolerance);
  return calls;
}

Region region_of(const std::vector<at::ScalarType>& dtypes, const Build& build, const std::vector<bool>& repeated) {
  Region region;
  std::vector<Id> inputs;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const Type type = *tower::compiler::type_of(dtypes[i]);
    region.inputs.push_back({type, i < repeated.size() && repeated[i]});
    inputs.push_back(region.graph.input(type, i));
  }
  region.outputs = build(region.graph, inputs);
  return region;
}

std::vector<at::Tensor> run(const Region& region, const std::vector<at::Tensor>& inputs, int64_t lanes) {
  const Kernel kernel(region);
  std::vector<const void*> from;
  for (const at::Tensor& t : inputs) from.push_back(t.const_data_ptr());
  std::vector<at::Tensor> results;
  std::vector<void*> to;
  for (const Id id : region.outputs) {
    results.push_back(at::empty({lanes}, at::TensorOptions().dtype(tower::compiler::dtype_of(region.graph[id].type))));
    to.push_back(results.back().mutable_data_ptr());
  }
  kernel.run(lanes, from, to);
  return results;
}

at::Tensor compute(const std::vector<at::Tensor>& inputs, const Build& build) {
  std::vector<at::ScalarType> dtypes;
  for (const at::Tensor& t : inputs) dtypes.push_back(t.scalar_type());
  return run(region_of(dtypes, build), inputs, inputs[0].numel())[0];
}

namespace {

template <class T>
std::vector<double> special_floats() {
  using Limits = std::numeric_limits<T>;
  std::vector<double> values = {0.0,
                                Limits::denorm_min(),
                                5 * static_cast<double>(Limits::denorm_min()),
                                Limits::min(),
                                Limits::min() / 3,
                                Limits::epsilon(),
                                0.1,
                                0.25,
                                0.5,
                                0.75,
                                1.0,
                                1.0 + Limits::epsilon(),
                                1.5,
                                2.0,
                                2.5,
                                3.0,
                                3.5,
                                M_PI,
                                7.0,
                                10.25,
                                1e3,
                                123456.789,
                                2147483648.0,
                                1e15,
                                4503599627370497.5,
                                Limits::max() / 4,
                                Limits::max(),
                                Limits::infinity()};
  const size_t positive = values.size();
  for (size_t i = 0; i < positive; ++i) values.push_back(-values[i]);
  values.push_back(Limits::quiet_NaN());
  return values;
}

template <class T>
std::vector<int64_t> special_integers() {
  using Limits = std::numeric_limits<T>;
  return {0,
          1,
          -1,
          2,
          -2,
          3,
          -3,
          5,
          7,
          -8,
          31,
          32,
          63,
          64,
          1000,
          -1001,
          46341,
          Limits::max(),
          Limits::max() - 1,
          Limits::max() / 2,
          Limits::min(),
          Limits::min() + 1};
}

}  // namespace

at::Tensor special(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return at::tensor(special_floats<double>(), at::kDouble);
    case at::kFloat:
      return at::tensor(special_floats<float>(), at::kDouble).to(at::kFloat);
    case at::kHalf:
      return at::tensor(special_floats<at::Half>(), at::kDouble).to(at::kHalf);
    case at::kBFloat16:
      return at::tensor(special_floats<at::BFloat16>(), at::kDouble).to(at::kBFloat16);
    case at::kLong:
      return at::tensor(special_integers<int64_t>(), at::kLong);
    case at::kInt:
      return at::tensor(special_integers<int32_t>(), at::kLong).to(at::kInt);
    default:
      return at::tensor({false, true, true}, at::kLong).to(at::kBool);
  }
}

at::Tensor all_of(at::ScalarType dtype) { return at::arange(-32768, 32768, at::kInt).to(at::kShort).view(dtype); }

at::Tensor quarters(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randint(-8, 9, sizes, at::kLong).to(dtype).div(4).to(dtype);
}

std::pair<at::Tensor, at::Tensor> special_pairs(at::ScalarType dtype) {
  const at::Tensor values = special(dtype);
  const int64_t n = values.numel();
  return {values.repeat_interleave(n), values.repeat({n})};
}

std::string bit_difference(const at::Tensor& actual, const at::Tensor& expected,
                           const std::vector<at::Tensor>& inputs) {
  if (actual.scalar_type() != expected.scalar_type() || actual.numel() != expected.numel())
    return "other dtypes or numbers of elements";
  const bool floating = actual.is_floating_point();
  const at::ScalarType bits = actual.element_size() == 8   ? at::kLong
                              : actual.element_size() == 4 ? at::kInt
                                                           : at::kShort;
  at::Tensor differs = floating ? actual.view(bits) != expected.view(bits) : actual != expected;
  if (floating) differs = differs.logical_and(actual.isnan().logical_and(expected.isnan()).logical_not());
  const at::Tensor where = differs.nonzero();
  if (where.numel() == 0) return "";
  std::ostringstream text;
  text.precision(17);
  const int64_t at = where[0].item<int64_t>();
  text << where.numel() << " of " << actual.numel() << " differ; of";
  for (const at::Tensor& t : inputs) text << ' ' << t[at].item<double>();
  text << ": " << actual[at].item<double>() << " instead of " << expected[at].item<double>();
  return text.str();
}

}  // namespace kernels
