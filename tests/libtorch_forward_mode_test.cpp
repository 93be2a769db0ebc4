// LibTorch's forward mode inside of transforms, which do not see its tangents: an error, and never zeros.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "support/compositions.h"
#include "support/functions.h"
#include "support/intact.h"
#include "support/libtorch_duals.h"
#include "tower/errors.h"

namespace {

using at::Tensor;
using support::LibtorchForwardMode, support::of_one, support::refusal, support::same, support::says, support::vec;
using tower::UnsupportedError;
namespace td = tower::dynamic;

void expect_refused(const std::function<Tensor(const Tensor&)>& f, const char* op) {
  const Tensor x = vec({1, 2, 3});
  const auto list = of_one(f);
  const auto sum = of_one([&](const Tensor& v) { return f(v).sum(); });
  const auto refused = [&](auto call) { return refusal<UnsupportedError>(call); };
  EXPECT_TRUE(says(refused([&] { td::vmap(list, {0}, {0})({at::stack({x, x})}); }), {"vmap (level 1)", op, "jacfwd"}));
  EXPECT_TRUE(says(refused([&] { td::grad(sum, {0})({x}); }), {"grad (level 1)", op, "jacfwd"}));
  EXPECT_TRUE(says(refused([&] { td::jvp(list, {x}, {x}); }), {"jvp (level 1)", op, "jacfwd"}));
}

TEST(LibtorchForwardModeInside, IsRefusedWhereADualIsMade) {
  const LibtorchForwardMode mode;
  const Tensor captured = vec({4, 5, 6});
  expect_refused([&](const Tensor& x) { return mode.tangent(mode.dual(x, x).sin()); }, "aten::_make_dual");
  expect_refused([&](const Tensor& x) { return x * mode.tangent(mode.dual(captured, captured).sin()); },
                 "aten::_make_dual");
  expect_refused([&](const Tensor& x) { return mode.dual(captured, x); }, "aten::_make_dual");
  expect_refused([&](const Tensor& x) { return std::get<0>(at::_unpack_dual(x * 2, 0)); }, "aten::_unpack_dual");
  expect_refused([&](const Tensor& x) { return x._fw_primal(0); }, "aten::_fw_primal");
}

TEST(LibtorchForwardModeInside, ReadsDualsThatWereMadeOutside) {
  const LibtorchForwardMode mode;
  const Tensor primal = vec({1, 2, 3}), tangent = vec({4, 5, 6}), dual = mode.dual(primal, tangent), x = vec({1, 1, 2});
  const auto f = of_one([&](const Tensor& v) { return (v * mode.tangent(dual)).sum(); });
  EXPECT_TRUE(same(td::grad(f, {0})({x})[0], tangent));
  const auto scaled = of_one([&](const Tensor& v) { return v * dual; });
  EXPECT_TRUE(same(mode.tangent(td::vmap(scaled, {0}, {0})({at::stack({x, x})})[0]), at::stack({x, x}) * tangent));
}

}  // namespace
