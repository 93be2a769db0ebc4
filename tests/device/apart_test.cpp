// The second device is apart from the CPU, and otherwise as LibTorch's devices are.
#include "apart/apart.h"

#include <ATen/CPUGeneratorImpl.h>

#include "support/device.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

class Apart : public testing::Test {
 protected:
  void SetUp() override {
    if (!apart::installed()) GTEST_SKIP() << "the device is registered for TOWER_TEST_DEVICE=apart:1";
    far = near.to(at::Device("apart:1"));
  }
  const Tensor near = waves({3, 4});
  Tensor far;
};

TEST_F(Apart, ItsMemoryIsNoneOfTheProcess) {
  EXPECT_DEATH(std::printf("%f", far.const_data_ptr<double>()[0]), "");
  EXPECT_TRUE(same(far.cpu(), near));
}

TEST_F(Apart, ViewsShareAndWritesGoThrough) {
  const Tensor x = far.clone(), y = near.clone();
  for (const Tensor& t : {x, y}) {
    t.t()[1].slice(0, 1).mul_(3);
    t.unfold(1, 2, 1).select(2, 0)[0].fill_(7);
    t.view({12}).index_put_({at::tensor({2, 5}, at::kLong).to(t.device())}, at::zeros({2}, t.options()));
  }
  EXPECT_TRUE(same(x.cpu(), y));
  EXPECT_TRUE(x.t().is_alias_of(x));
}

TEST_F(Apart, OutVariantsResizeTheirTensor) {
  Tensor out = at::empty({0}, far.options());
  at::mul_out(out, far, 2);
  EXPECT_TRUE(same(out.cpu(), near * 2));
  out.resize_({5, 5});
  EXPECT_EQ(out.numel(), 25);
  EXPECT_TRUE(same(out.view({25}).slice(0, 0, 12).cpu(), near.view({12}) * 2));
}

TEST_F(Apart, TensorsOfItsOtherDeviceAreRefused) {
  const Tensor other = near.to(at::Device("apart:0"));
  EXPECT_TRUE(contains(message_of<c10::Error>([&] { far + other; }), "apart:1 and apart:0"));
  EXPECT_TRUE(contains(message_of<c10::Error>([&] { at::matmul(far, near.t()); }), "apart:1 and cpu"));
  EXPECT_TRUE(same(other.to(far.device()).cpu(), near));
  const Tensor places = at::tensor({2, 0}, at::kLong);
  EXPECT_TRUE(same(far.index({places}).cpu(), near.index({places})));
  EXPECT_TRUE(contains(message_of<c10::Error>([&] { near.index({places.to(far.device())}); }), "apart:1 and cpu"));
}

TEST_F(Apart, WrongValuesLoseIt) {
  const auto refused = [&](const Tensor& index) {
    return !message_of<c10::Error>([&] { far.index_select(0, index); }).empty();
  };
  const Tensor right = at::tensor({2, 0}, far.options().dtype(at::kLong)), wrong = right + 2;
  EXPECT_TRUE(refused(right.view({1, 2})));
  EXPECT_TRUE(same(far.index_select(0, right).cpu(), near.index_select(0, right.cpu())));  // a wrong shape does not
  EXPECT_TRUE(refused(wrong));
  EXPECT_TRUE(contains(message_of<c10::Error>([&] { far + 1; }), "the device is lost"));
  apart::recover();
  EXPECT_TRUE(same((far + 1).cpu(), near + 1));
}

TEST_F(Apart, ItsDrawsAreItsGenerators) {
  const Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  at::Generator generator = at::globalContext().defaultGenerator(far.device());
  generator.set_current_seed(5);
  const Tensor first = at::rand_like(far);
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), state));
  generator.set_current_seed(5);
  EXPECT_TRUE(same(at::rand_like(far), first));
  EXPECT_FALSE(same(at::rand_like(far), first));
}

TEST_F(Apart, TransformsDoNotWait) {
  const auto f = [](const Tensor& x) {
    Tensor y = at::softmax(at::matmul(x, x.t()), 0).clone();
    y[0] = x.sum();
    return at::linalg_vector_norm(y) + at::cat({x, x * 2}).amax() +
           x.index_select(0, at::zeros({2}, x.options().dtype(at::kLong))).sum();
  };
  const Tensor x = far.slice(1, 0, 3), xs = at::stack({x, 2 * x});
  const long before = apart::waits();
  tower::grad(f)(x);
  tower::jvp(f, x, x);
  tower::vmap(f)(xs);
  tower::vmap(tower::grad(f))(xs);
  tower::hessian(f)(x);
  EXPECT_EQ(apart::waits(), before);
  x.cpu();
  EXPECT_EQ(apart::waits(), before + 1);
}

}  // namespace
