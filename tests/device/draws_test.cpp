// Random numbers on the device under test: they are the device's, or the CPU's where a kernel runs there.
#include <ATen/Context.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "device/on_the_device.h"
#include "support/warnings.h"
#include "tower/checkpoint.h"
#include "tower/function.h"
#include "tower/tower.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using tower::Randomness;

TEST_F(OnTheDevice, DrawsComeFromItsGeneratorAndAreRepeated) {
  const Tensor x = some({40}) + 2;
  const auto kept = [](const Tensor& x) { return (x * at::rand_like(x)).sum(); };
  const auto [value, gradient] = tower::value_and_grad(tower::checkpoint(kept))(x);
  EXPECT_TRUE(same(value, (x * gradient).sum()));
  const auto moves_its_generator = [](const auto& draw) {
    at::Generator generator = at::globalContext().defaultGenerator(support::device());
    const Tensor before = generator.get_state();
    draw();
    return !at::equal(generator.get_state(), before);
  };
  Tensor drawn;
  EXPECT_EQ(moves_its_generator([&] {
              drawn = tower::vmap(kept, {.randomness = Randomness::same})(at::stack({x, x}));
            }),
            moves_its_generator([&] { at::rand_like(x); }));
  EXPECT_TRUE(same(drawn[0], drawn[1]));
}

// As a kernel of the CPU that runs for the device.
TORCH_LIBRARY(tower_device_test, m) { m.def("noisy(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(tower_device_test, CompositeExplicitAutograd, m) {
  m.impl("noisy", [](const Tensor& x) { return x + at::rand(x.sizes(), at::kDouble).to(x.device()); });
}
Tensor noisy(const Tensor& x) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tower_device_test::noisy", "").typed<Tensor(const Tensor&)>();
  return op.call(x);
}

TEST_F(OnTheDevice, DrawsFromTheCpusGeneratorAreWhatRandomnessSays) {
  const support::Warnings of_loops;
  const Tensor x = some({3}), xs = at::stack({x, x});
  const auto drawn = [&](Randomness randomness, std::optional<int64_t> chunk) {
    return tower::vmap(noisy, {.randomness = randomness, .chunk_size = chunk})(xs);
  };
  for (const std::optional<int64_t> chunk : {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
    const Tensor shared = drawn(Randomness::same, chunk), own = drawn(Randomness::different, chunk);
    EXPECT_TRUE(same(shared[0], shared[1]));
    EXPECT_FALSE(same(own[0], own[1]));
  }
  EXPECT_TRUE(says(refusal<tower::RandomnessError>([&] { drawn(Randomness::error, {}); }),
                   {"vmap (level 1)", "tower_device_test::noisy draws random numbers"}));
}

struct Dropout : tower::Function<Dropout> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    const Tensor mask = at::rand_like(x) < 0.5;
    ctx->save_for_backward({mask});
    return x * mask;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    return {grads[0] * ctx->get_saved_variables()[0]};
  }
};

// A mask drawn a second time would be another one.
TEST_F(OnTheDevice, AFunctionThatSavesWhatItDrewThereIsRefusedWhereItWouldDrawAgain) {
  const auto gradient = tower::grad([](const Tensor& x) { return Dropout::apply(x).sum(); });
  EXPECT_TRUE(says(refusal<tower::UnsupportedError>(
                       [&] { tower::grad([&](const Tensor& x) { return gradient(x).sum(); })(some({8})); }),
                   {"Dropout", "random"}));
}

}  // namespace
