// Values of a compiled function lie in memory as LibTorch lays them: otherwise a view that was recorded fits no more.
// Oracle: the function itself on plain tensors.
#include <tower/compile.h>

#include "support/prelude.h"

namespace {

// In bfloat16 no kernels stand between the calls.
template <class F>
void expect_order(const F& f, const Tensor& x, const Tensor& y) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto compiled = tower::compile(f);
    const Tensor a = x.to(type), b = y.to(type), expected = f(a, b);
    compiled(a, b);
    const Tensor actual = compiled(a, b);
    EXPECT_TRUE(same(actual, expected)) << type;
    EXPECT_EQ(actual.strides(), expected.strides()) << type;
  }
}

// A temporary may hold the result, where that lies as the temporary does: the first operand says how.
TEST(OrderInMemory, IsThatOfTheFirstOperandThatHasOne) {
  const Tensor x = waves({3, 4}), y = waves({2, 3}), wide = waves({2, 3, 4});
  expect_order([](const Tensor& x, const Tensor& y) { return (x.narrow(1, 0, 2) * y.exp().t()).view(6); }, x, y);
  expect_order([](const Tensor& x, const Tensor& y) { return (x.narrow(1, 0, 2) + y.exp().t()).view(6); }, x, y);
  expect_order([](const Tensor& x, const Tensor& y) { return (x.narrow(1, 0, 2) - y.exp().t()).view(6); }, x, y);
  expect_order([](const Tensor& x, const Tensor& y) { return (y.exp().t() * x.narrow(1, 0, 2)).t().view(6); }, x, y);
  // A dimension that is broadcast has no stride that counts; the others have.
  expect_order([](const Tensor& x, const Tensor& y) { return x.narrow(1, 0, 1) * y.exp().t(); }, x, y);
  expect_order(
      [](const Tensor& x, const Tensor& y) {
        return x.select(1, 0).unsqueeze(1).expand({3, 2}) * y.exp().t();
      },
      x, y);
  expect_order([](const Tensor& x, const Tensor& y) { return (x.t() * y.exp().transpose(1, 2)).reshape({24}); }, x,
               wide);
  expect_order([](const Tensor& x, const Tensor& y) { return (x.t() * y.exp()).reshape({24}); }, x,
               wide.transpose(1, 2));
}

}  // namespace
