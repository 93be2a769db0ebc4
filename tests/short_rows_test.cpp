// Sums of short rows are products with ones, for the sake of time. Values are those of LibTorch's sum outside of
// transforms.
#include <limits>

#include "support/prelude.h"

namespace {

using support::gradient;
using support::mapped;
using support::summed;

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

TEST(SumsOfShortRows, AreLibTorchs) {
  const std::vector<int64_t> shapes[] = {{300, 2},  {300, 3},    {20, 30, 3}, {300, 16},
                                         {300, 17}, {300, 2, 3}, {300, 1},    {5, 3}};
  const std::vector<int64_t> dims[] = {{-1}, {0}, {1}, {-1, -2}, {1, -1}};
  for (const auto& shape : shapes)
    for (const auto& over : dims) {
      const auto rank = static_cast<int64_t>(shape.size());
      if (over.size() == 2 && (rank < 3 || over == std::vector<int64_t>{1, -1})) continue;
      for (const bool keepdim : {false, true}) {
        const auto sum = of_one([&](const Tensor& t) { return t.sum(over, keepdim); });
        for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kLong, at::kComplexDouble}) {
          const Tensor x = (waves(shape) * 100).to(type);
          EXPECT_TRUE(same(mapped(sum, at::stack({x, x.flip(0)})), at::stack({sum({x})[0], sum({x.flip(0)})[0]})))
              << at::IntArrayRef(shape) << at::IntArrayRef(over) << type;
        }
        // Other orders in memory, and numbers that are not.
        Tensor x = waves(shape);
        x.flatten()[3] = kNan;
        x.flatten()[1] = kInf;
        EXPECT_TRUE(same(mapped(sum, at::stack({x, x}, -1).movedim(-1, 0)), at::stack({sum({x})[0], sum({x})[0]})));
        EXPECT_TRUE(same(gradient(summed(sum))({x})[0], at::ones_like(x)));
      }
    }
}

TEST(SumsOfShortRows, OfAllOfEachExampleTakeATypeAndDerivatives) {
  const Tensor x = waves({400, 3}), floats = x.to(at::kFloat);
  const auto all = of_one([](const Tensor& t) { return t.sum(); });
  const auto in_double = of_one([](const Tensor& t) { return t.sum(at::kDouble); });
  EXPECT_TRUE(same(mapped(all, x), x.sum(1)));
  EXPECT_TRUE(same(mapped(in_double, floats), floats.sum(1, false, at::kDouble)));
  const auto squares = of_one([](const Tensor& t) { return t.square().sum().square(); });
  EXPECT_TRUE(same(mapped(gradient(squares), x), 4 * x.square().sum(1, true) * x));
  Tensor followed = x.clone().requires_grad_();
  mapped(squares, followed).sum().backward();
  EXPECT_TRUE(same(followed.grad(), 4 * x.square().sum(1, true) * x));
}

}  // namespace
