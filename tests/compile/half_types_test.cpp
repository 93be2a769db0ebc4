// float16 and bfloat16 in kernels: bit by bit what LibTorch's operators give, on all numbers of the types.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/dynamic.h>

#include "compile/kernels.h"

namespace {

using at::Tensor;
using tower::dynamic::Tensors;

const std::vector<at::ScalarType> kHalfTypes = {at::kHalf, at::kBFloat16};

// Each upper half of a float, with lower halves around those at which rounding changes.
Tensor floats_around_halves() {
  const Tensor upper = at::arange(-32768, 32768, at::kInt).mul(65536);
  const Tensor lower =
      at::tensor({0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff}, at::kInt);
  return (upper.unsqueeze(1) + lower).flatten().view(at::kFloat);
}

std::string difference(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  const auto found = kernels::computed([&](const Tensors& in) { return Tensors{f(in[0])}; }, {x});
  return found ? kernels::bit_difference(found->at(0), f(x), {x}) : "there is no kernel";
}

TEST(HalfTypes, AreConvertedAsLibTorchConvertsThem) {
  TOWER_NEEDS_LLVM();
  const Tensor floats = floats_around_halves();
  for (const auto half : kHalfTypes) {
    SCOPED_TRACE(toString(half));
    EXPECT_EQ(difference([half](const Tensor& x) { return x.to(half); }, floats), "");
    EXPECT_EQ(difference([half](const Tensor& x) { return x.to(half); }, floats.to(at::kDouble) * (1 + 0x1p-30)), "");
    for (const auto whole : {at::kInt, at::kLong})
      EXPECT_EQ(difference([half](const Tensor& x) { return x.to(half); }, at::arange(-70000, 70000, whole)), "");
    const Tensor all = kernels::all_of(half);
    const auto other = half == at::kHalf ? at::kBFloat16 : at::kHalf;
    for (const auto to : {at::kFloat, at::kDouble, at::kBool, other})
      EXPECT_EQ(difference([to](const Tensor& x) { return x.to(to); }, all), "") << toString(to);
    const Tensor in_range = all.masked_select(all.abs() < 1e9);
    for (const auto to : {at::kInt, at::kLong})
      EXPECT_EQ(difference([to](const Tensor& x) { return x.to(to); }, in_range), "") << toString(to);
  }
}

}  // namespace
