// The text of a tensor inside of a transform.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <sstream>

#include "support/compositions.h"
#include "support/expect.h"
#include "support/functions.h"
#include "support/intact.h"
#include "tower/tower.h"

namespace {

using at::Tensor;
using support::contains, support::message_of, support::number, support::same, support::vec;

std::string in_one_line(const Tensor& t) { return "plain " + std::to_string(t.numel()); }

TEST(ToString, SaysTransformLevelAndWhatIsHeld) {
  std::string text;
  const auto look = [&](const Tensor& x) {
    text = tower::to_string(x, in_one_line);
    return x * 1;
  };
  tower::vmap(look, {.in_dims = {1}})(at::ones({3, 2}));
  EXPECT_EQ(text, "BatchedTensor(level=1, bdim=1, value=plain 6)");
  tower::grad(look)(number(2));
  EXPECT_EQ(text, "TapedTensor(level=1, value=plain 1)");
  tower::jvp(look, vec({1, 2}), vec({3, 4}));
  EXPECT_EQ(text, "DualTensor(level=1, value=plain 2, tangent=plain 2)");
  tower::vmap(tower::grad(look))(vec({1, 2}));
  EXPECT_EQ(text, "TapedTensor(level=2, value=BatchedTensor(level=1, bdim=0, value=plain 2))");
  support::expect_intact();
}

TEST(ToString, OfPlainTensorsAndConstantsIsLibTorchsText) {
  const Tensor plain = vec({1, 2});
  std::ostringstream expected;
  expected << plain;
  EXPECT_EQ(tower::to_string(plain), expected.str());
  tower::vmap([&](const Tensor& x) {
    EXPECT_EQ(tower::to_string(plain), expected.str());
    EXPECT_EQ(tower::to_string(plain * 1), expected.str());
    return x;
  })(vec({1, 2}));
}

TEST(ToString, IndentsWhatTakesSeveralLines) {
  tower::vmap([](const Tensor& x) {
    EXPECT_EQ(tower::to_string(x),
              "BatchedTensor(\n  level=1,\n  bdim=0,\n  value= 1\n   2\n  [ CPUDoubleType{2} ]\n)");
    return x;
  })(vec({1, 2}));
}

TEST(ToString, IsWhatTheErrorOfLibTorchsPrintingNames) {
  const auto print = [](const Tensor& x) {
    std::ostringstream text;
    text << x;
    return x;
  };
  const std::string error = message_of<std::exception>([&] { tower::vmap(print)(vec({1, 2})); });
  EXPECT_TRUE(contains(error, "tower::to_string(x)")) << error;
}

}  // namespace
