// Views of what a compiled function has written to. Oracle: the function itself on plain tensors.
#include <tower/compile.h>

#include "support/prelude.h"

namespace {

template <class F>
void expect_like_plain(const F& f, const Tensor& x) {
  const auto compiled = tower::compile(f);
  const Tensor expected = f(x.clone());
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(same(compiled(x.clone()), expected)) << "call " << call;
}

// reshape() looks at the strides of the tensor as it was before; the new values lie otherwise.
TEST(CompileWrittenViews, AreReshapedByTheirSizesNotByStrides) {
  expect_like_plain(
      [](const Tensor& x) {
        const Tensor y = x.clone();
        Tensor below = y.diagonal(-1);
        below.add_(0.25);
        return below.reshape(-1).clone();
      },
      waves({3, 3}));
  expect_like_plain(
      [](const Tensor& x) {
        const Tensor y = x.clone();
        y.unfold(0, 1, 2).select(0, 0).copy_(x.narrow(0, 2, 1));
        return y;
      },
      waves({3}));
}

TEST(CompileWrittenViews, AreReadByPlaceAsTheCallerSeesThem) {
  expect_like_plain(
      [](const Tensor& x) {
        const Tensor y = x.t() * 2, first = y.as_strided({2}, {1}, 0);
        y.mul_(0.5);
        return first + 0;
      },
      waves({2, 3}));
}

}  // namespace
