// Tensors of the CPU beside those of the device under test.
#include "device/on_the_device.h"
#include "tower/tower.h"

namespace {

TEST_F(OnTheDevice, TensorsOfTwoDevicesAreRefusedAsLibTorchRefusesThem) {
  const Tensor here = some({3}), there = waves({3});
  const char* same_device = "Expected all tensors to be on the same device";
  EXPECT_TRUE(says(message_of<c10::Error>([&] { here + there; }), {same_device}));
  const auto sum = [&](const Tensor& x) { return (x + there).sum(); };
  const auto product = [&](const Tensor& x) { return at::matmul(x, there); };
  const std::vector<std::function<void()>> calls{
      [&] { tower::grad(sum)(here); },
      [&] {
        tower::vmap(sum)(at::stack({here, here}));
      },
      [&] { tower::jvp(sum, here, here); }, [&] { tower::grad(product)(here); },
      [&] {
        tower::vmap([](const Tensor& x, const Tensor& y) { return x * y; })(at::stack({here}), at::stack({there}));
      }};
  for (const auto& call : calls) {
    const std::string text = refusal<std::exception>(call);
    EXPECT_TRUE(says(text, {same_device, "cpu", support::device().str().c_str()}));
  }
}

TEST_F(OnTheDevice, NumbersOfTheCpuGoBesideItsTensorsUnderEveryTransform) {
  const Tensor x = some({3}), number = vec({1.5})[0], many = waves({4}, 0.6), three = waves({3}, 0.9);
  const auto scaled = [](const Tensor& x) {
    return [x](const Tensor& s) { return (x * s).sin().sum() + s * x.sum(); };
  };
  const auto run = [&](const Tensor& x) {
    const auto f = scaled(x);
    const auto second = [&](const Tensor& s) { return tower::jvp(tower::grad(f), s, at::ones_like(s)).second; };
    return Tensors{tower::vmap(f)(many),
                   tower::vmap([](const Tensor& a, const Tensor& s) { return a * s + s * a; })(x, three),
                   tower::vmap([&](const Tensor& s) { return at::where(s > 0, x, s); })(many),
                   tower::jvp(f, number, at::ones_like(number)).second,
                   tower::grad(f)(number),
                   tower::vmap(tower::grad(f))(many),
                   tower::vmap(second)(many),
                   tower::grad([&](const Tensor& x) { return scaled(x)(number); })(x)};
  };
  const Tensors expected = run(x.cpu()), actual = run(x);
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_TRUE(same(actual[k].cpu(), expected[k])) << "result " << k;
    const bool of_number = k >= 4 && k < 7;  // where what it is the derivative by is
    EXPECT_EQ(actual[k].device(), of_number ? at::Device(at::kCPU) : support::device()) << "result " << k;
  }
}

}  // namespace
