// Random operators inside transforms: what they mean for a batch, seeds and generators, and what backward sees.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/dropout.h>

#include "support/oracles.h"
#include "support/prelude.h"

namespace {

using tower::Randomness;
namespace F = torch::nn::functional;

void seed(uint64_t value) {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  std::lock_guard lock(generator.mutex());
  generator.set_current_seed(value);
}

Function mapped(const Function& f, Randomness randomness, std::optional<int64_t> chunk_size = std::nullopt) {
  return td::vmap(f, {0}, {0}, {.randomness = randomness, .chunk_size = chunk_size});
}

/// A function of one example (six positive numbers) that draws; what it returns has the example's draws in it.
struct Drawing {
  const char* name;
  Tensor (*draw)(const Tensor& x);
  bool parameters = false;  // the distribution depends on the example
};

Tensor probabilities(const Tensor& x) { return x / x.max() * 0.8 + 0.1; }
at::Generator own_generator() {
  static auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  return generator;
}

const Drawing kDrawings[] = {
    {"rand", [](const Tensor&) { return at::rand({6}, at::kDouble); }},
    {"randn", [](const Tensor&) { return at::randn({6}, at::kDouble); }},
    {"rand_out",
     [](const Tensor&) {
       Tensor out = at::empty({6}, at::kDouble);
       return at::rand_out(out, {6});
     }},
    {"randn_out",
     [](const Tensor&) {
       Tensor out = at::empty({6}, at::kDouble);
       return at::randn_out(out, {6});
     }},
    {"randint", [](const Tensor&) { return at::randint(1000000, {6}, at::kLong); }},
    {"randint_low", [](const Tensor&) { return at::randint(10, 1000000, {6}, at::kLong); }},
    {"randint_out",
     [](const Tensor&) {
       Tensor out = at::empty({6}, at::kLong);
       return at::randint_out(out, 10, 1000000, {6});
     }},
    {"randperm", [](const Tensor&) { return at::randperm(30); }},
    {"randperm_out",
     [](const Tensor&) {
       Tensor out = at::empty({30}, at::kLong);
       return at::randperm_out(out, 30);
     }},
    {"rand_like", [](const Tensor& x) { return at::rand_like(x); }},
    {"randn_like", [](const Tensor& x) { return at::randn_like(x); }},
    {"randint_like", [](const Tensor& x) { return at::randint_like(x, 1000000); }},
    {"randint_like_low", [](const Tensor& x) { return at::randint_like(x, 5, 1000000); }},
    {"normal_of_numbers", [](const Tensor&) { return at::normal(0.0, 1.0, {6}, std::nullopt, at::kDouble); }},
    {"normal_mean", [](const Tensor& x) { return at::normal(x, 1.0); }, true},
    {"normal_std", [](const Tensor& x) { return at::normal(0.0, x); }, true},
    {"normal_both", [](const Tensor& x) { return at::normal(x, x); }, true},
    {"normal_in_place", [](const Tensor& x) { return at::empty_like(x).normal_(); }},
    {"normal_in_place_on_a_batch", [](const Tensor& x) { return x.clone().normal_(); }},
    {"uniform_in_place", [](const Tensor&) { return at::empty({6}, at::kDouble).uniform_(); }},
    {"uniform_in_place_through_a_view",
     [](const Tensor&) {
       const Tensor y = at::zeros({12}, at::kDouble);
       y.slice(0, 0, 12, 2).uniform_();
       return y;
     }},
    {"exponential_in_place", [](const Tensor&) { return at::empty({6}, at::kDouble).exponential_(); }},
    {"cauchy_in_place", [](const Tensor&) { return at::empty({6}, at::kDouble).cauchy_(); }},
    {"log_normal_in_place", [](const Tensor&) { return at::empty({6}, at::kDouble).log_normal_(); }},
    {"geometric_in_place", [](const Tensor&) { return at::empty({60}, at::kDouble).geometric_(0.01); }},
    {"random_in_place", [](const Tensor&) { return at::empty({6}, at::kLong).random_(); }},
    {"random_in_place_to", [](const Tensor&) { return at::empty({6}, at::kLong).random_(1000000); }},
    {"random_in_place_from", [](const Tensor&) { return at::empty({6}, at::kLong).random_(5, 1000000); }},
    {"bernoulli_in_place", [](const Tensor&) { return at::empty({60}, at::kDouble).bernoulli_(0.5); }},
    {"bernoulli_in_place_of_probabilities",
     [](const Tensor& x) {
       return at::empty({40, 6}, at::kDouble).bernoulli_(probabilities(x).expand({40, 6}));
     },
     true},
    {"bernoulli",
     [](const Tensor& x) {
       return at::bernoulli(probabilities(x).expand({40, 6}));
     },
     true},
    {"bernoulli_p",
     [](const Tensor& x) {
       return at::bernoulli(x.expand({40, 6}), 0.5);
     }},
    {"poisson",
     [](const Tensor& x) {
       return at::poisson(x.expand({9, 6}) * 1000);
     },
     true},
    {"binomial",
     [](const Tensor& x) {
       return at::binomial(at::full({9, 6}, 1000, at::kDouble), probabilities(x).expand({9, 6}));
     },
     true},
    {"standard_gamma", [](const Tensor& x) { return at::_standard_gamma(x); }, true},
    {"dirichlet", [](const Tensor& x) { return at::_sample_dirichlet(x); }, true},
    {"multinomial", [](const Tensor& x) { return at::multinomial(x, 40, /*replacement=*/true); }, true},
    {"multinomial_without_replacement",
     [](const Tensor& x) { return at::multinomial(x.repeat({10}), 40, /*replacement=*/false); }, true},
    {"native_dropout",
     [](const Tensor& x) {
       return std::get<0>(at::native_dropout(x.expand({9, 6}), 0.5, true));
     }},
    {"dropout",
     [](const Tensor& x) {
       return at::dropout(x.repeat({9, 1}), 0.5, true);
     }},
    {"dropout_in_place",
     [](const Tensor& x) {
       Tensor y = x.repeat({9, 1});
       return at::dropout_(y, 0.5, true);
     }},
    {"feature_dropout",
     [](const Tensor& x) {
       return at::feature_dropout(x.expand({2, 40, 6}).clone(), 0.5, true);
     }},
    {"alpha_dropout",
     [](const Tensor& x) {
       return at::alpha_dropout(x.repeat({9, 1}), 0.5, true);
     }},
    {"feature_alpha_dropout",
     [](const Tensor& x) {
       return at::feature_alpha_dropout(x.expand({2, 40, 6}).clone(), 0.5, true);
     }},
    {"dropout2d",
     [](const Tensor& x) {
       return F::dropout2d(x.expand({40, 1, 6}).clone());
     }},
    {"rrelu", [](const Tensor& x) { return at::rrelu(-x, 0.1, 0.9, true); }},
    {"rrelu_in_place",
     [](const Tensor& x) {
       Tensor y = -x;
       return at::rrelu_(y, 0.1, 0.9, true);
     }},
    {"gumbel_softmax", [](const Tensor& x) { return F::gumbel_softmax(x, F::GumbelSoftmaxFuncOptions().tau(1)); }},
    {"attention_with_dropout",
     [](const Tensor& x) {
       const Tensor q = x.expand({1, 1, 20, 6});
       return at::scaled_dot_product_attention(q, q, q, {}, 0.5);
     }},
    {"a_generator_of_its_own", [](const Tensor&) { return at::rand({6}, own_generator(), at::kDouble); }},
    {"a_generator_of_its_own_in_place",
     [](const Tensor& x) { return at::empty_like(x).normal_(0, 1, own_generator()); }},
    {"a_generator_of_its_own_randperm", [](const Tensor&) { return at::randperm(30, own_generator()); }},
    {"a_generator_of_its_own_rrelu", [](const Tensor& x) { return at::rrelu(-x, 0.1, 0.9, true, own_generator()); }},
    {"a_generator_of_its_own_multinomial",
     [](const Tensor& x) { return at::multinomial(x, 40, true, own_generator()); }},
};

void reset_generators() {
  seed(11);
  auto generator = own_generator();
  std::lock_guard lock(generator.mutex());
  generator.set_current_seed(11);
}

class RandomOperators : public testing::TestWithParam<Drawing> {
 protected:
  Function f() { return of_one(GetParam().draw); }
  // Equal examples, so that what differs in the results was drawn.
  Tensor equal_rows() { return (numbers({6}) / 3).expand({4, 6}).clone(); }
  Tensor rows() { return numbers({4, 6}) / 5; }
};

TEST_P(RandomOperators, AreRefusedByNameUnlessAModeIsChosen) {
  const std::string text = refusal<tower::RandomnessError>([&] { td::vmap(f(), {0}, {0})({equal_rows()}); });
  EXPECT_TRUE(
      says(text, {"vmap (level 1): aten::", "draws random numbers", "Randomness::different", "Randomness::same"}));
}

TEST_P(RandomOperators, DrawForEachExampleWhereDrawsAreDifferent) {
  const Tensor y = mapped(f(), Randomness::different)({equal_rows()})[0];
  for (int64_t i = 1; i < 4; ++i) EXPECT_FALSE(y[0].equal(y[i]));
  for (int64_t chunk : {1, 3}) {
    const Tensor z = mapped(f(), Randomness::different, chunk)({equal_rows()})[0];
    for (int64_t i = 1; i < 4; ++i) EXPECT_FALSE(z[0].equal(z[i]));
  }
}

TEST_P(RandomOperators, ShareOneDrawWhereDrawsAreTheSame) {
  for (std::optional<int64_t> chunk :
       {std::optional<int64_t>(), std::optional<int64_t>(1), std::optional<int64_t>(3)}) {
    const Tensor y = mapped(f(), Randomness::same, chunk)({equal_rows()})[0];
    for (int64_t i = 1; i < 4; ++i) EXPECT_TRUE(same(y[i], y[0]));
  }
}

TEST_P(RandomOperators, WithTheSameDrawGiveEachExampleWhatItWouldDrawItself) {
  reset_generators();
  const Tensor y = mapped(f(), Randomness::same)({rows()})[0];
  for (int64_t i = 0; i < 4; ++i) {
    reset_generators();
    EXPECT_TRUE(same(y[i], f()({rows()[i]})[0])) << "example " << i;
  }
}

TEST_P(RandomOperators, GiveTheSameFromTheSameSeed) {
  for (Randomness mode : {Randomness::different, Randomness::same}) {
    reset_generators();
    const Tensor first = mapped(f(), mode)({rows()})[0];
    const Tensor between = mapped(f(), mode)({rows()})[0];
    reset_generators();
    EXPECT_TRUE(same(mapped(f(), mode)({rows()})[0], first));
    EXPECT_FALSE(between.equal(first));
  }
}

TEST_P(RandomOperators, DrawWhatTheyDrawPlainlyWhereOnlyDerivativesAreTaken) {
  const Function g = of_one([](const Tensor& x) { return GetParam().draw(x).to(at::kDouble) * x.sum(); });
  const Tensor x = rows()[1];
  reset_generators();
  const Tensor expected = g({x})[0];
  reset_generators();
  EXPECT_TRUE(same(td::vjp(g, {x}).first[0], expected));
  reset_generators();
  EXPECT_TRUE(same(td::jvp(g, {x}, {x}).first[0], expected));
}

TEST_P(RandomOperators, OfNestedMapsFollowTheModeOfEachLevel) {
  const Tensor x = (numbers({6}) / 3).expand({2, 3, 6}).clone();
  const Tensor outer_different = mapped(mapped(f(), Randomness::same), Randomness::different)({x})[0];
  EXPECT_TRUE(same(outer_different[0][0], outer_different[0][2]));
  EXPECT_FALSE(outer_different[0][0].equal(outer_different[1][0]));
  const Tensor inner_different = mapped(mapped(f(), Randomness::different), Randomness::same)({x})[0];
  EXPECT_FALSE(inner_different[0][0].equal(inner_different[0][2]));
  EXPECT_TRUE(same(inner_different[0], inner_different[1]));
}

INSTANTIATE_TEST_SUITE_P(Each, RandomOperators, testing::ValuesIn(kDrawings),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- backward ------------------------------------------------------------------------------------------------------

struct Masked {
  const char* name;
  Tensor (*draw)(const Tensor& x);
};
const Masked kMasked[] = {
    {"native_dropout", [](const Tensor& x) { return std::get<0>(at::native_dropout(x, 0.4, true)); }},
    {"dropout", [](const Tensor& x) { return at::dropout(x, 0.4, true); }},
    {"feature_dropout",
     [](const Tensor& x) {
       return at::feature_dropout(x.view({2, 3}), 0.4, true).view({6});
     }},
    {"alpha_dropout", [](const Tensor& x) { return at::alpha_dropout(x, 0.4, true); }},
    {"rrelu", [](const Tensor& x) { return at::rrelu(x - 2, 0.1, 0.9, true); }},
    {"rrelu_in_place",
     [](const Tensor& x) {
       Tensor y = x - 2;
       return at::rrelu_(y, 0.1, 0.9, true);
     }},
    {"scaled_noise", [](const Tensor& x) { return x * at::randn_like(x); }},
    {"standard_gamma", [](const Tensor& x) { return at::_standard_gamma(x); }},
};

class RandomBackward : public testing::TestWithParam<Masked> {};

TEST_P(RandomBackward, SeesTheDrawOfForward) {
  const Function f = of_one([](const Tensor& x) { return (GetParam().draw(x) * x).sum(); });
  const Tensor x = numbers({6}) / 2;
  seed(5);
  const Tensor g = td::grad(f, {0})({x})[0];
  seed(5);
  EXPECT_TRUE(same(g, support::autograd_vjp(f, {x}, {at::ones({}, at::kDouble)})[0]));
  seed(5);
  const Tensor t = td::jvp(f, {x}, {at::ones_like(x)}).second[0];
  EXPECT_TRUE(same(t, g.sum()));
}

TEST_P(RandomBackward, SeesTheDrawOfEachExample) {
  const Function f = of_one([](const Tensor& x) { return (GetParam().draw(x) * x).sum(); });
  const Tensor x = numbers({4, 6}) / 2;
  for (Randomness mode : {Randomness::different, Randomness::same}) {
    // The gradients of each example, and those of the whole batch with the same draws.
    seed(5);
    const Tensor inside = mapped(td::grad(f, {0}), mode)({x})[0];
    seed(5);
    const auto [y, pullback] = td::vjp(mapped(f, mode), {x});
    EXPECT_TRUE(same(inside, pullback({at::ones({4}, at::kDouble)})[0]));
  }
  seed(5);
  const Tensor shared = mapped(td::grad(f, {0}), Randomness::same)({x})[0];
  for (int64_t i = 0; i < 4; ++i) {
    seed(5);
    EXPECT_TRUE(same(shared[i], support::autograd_vjp(f, {x[i]}, {at::ones({}, at::kDouble)})[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, RandomBackward, testing::ValuesIn(kMasked),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RandomBackwards, OfADirichletVariateIsLibTorchsDistributionsFormula) {
  const Function f = of_one([](const Tensor& x) { return (at::_sample_dirichlet(x) * numbers({6}).sin()).sum(); });
  const Tensor alpha = numbers({6}) / 2;
  seed(5);
  const Tensor g = td::grad(f, {0})({alpha})[0];
  seed(5);
  const Tensor y = at::_sample_dirichlet(alpha), ct = numbers({6}).sin();
  const Tensor slope = at::_dirichlet_grad(y, alpha, alpha.sum().expand_as(alpha));
  EXPECT_TRUE(same(g, slope * (ct - (y * ct).sum())));
  seed(5);
  EXPECT_TRUE(same(td::jvp(f, {alpha}, {ct}).second[0], (g * ct).sum()));
}

// ---- statistics ----------------------------------------------------------------------------------------------------

TEST(DifferentDraws, AreStatisticallyIndependentBetweenExamples) {
  const Function draws[] = {
      of_one([](const Tensor&) { return at::rand({4000}, at::kDouble); }),
      of_one([](const Tensor& x) { return at::randn_like(x.expand({4000})); }),
      of_one([](const Tensor& x) { return at::normal(x.expand({4000}), 1.0); }),
      of_one([](const Tensor& x) { return at::bernoulli(at::full({4000}, 0.5, x.options())); }),
      of_one([](const Tensor& x) { return at::dropout(x.abs().add(1).expand({4000}), 0.5, true); }),
      of_one([](const Tensor&) { return at::empty({4000}, at::kDouble).uniform_(); }),
      of_one([](const Tensor&) { return at::randperm(4000).to(at::kDouble); }),
  };
  seed(17);
  for (const Function& f : draws) {
    const Tensor y = mapped(f, Randomness::different)({numbers({6}) * 0})[0];
    const Tensor correlations = at::corrcoef(y) - at::eye(6, at::kDouble);
    // Correlations of 4000 independent pairs have standard deviation 1/63; 15 pairs stay below five of them.
    EXPECT_LT(correlations.abs().max().item<double>(), 5.0 / 63);
    // Neither are they the same numbers in another order.
    EXPECT_LT(at::corrcoef(at::stack({y[0], y[1].roll(1)}))[0][1].abs().item<double>(), 5.0 / 63);
  }
}

TEST(DifferentDraws, HaveTheDistributionThatEachExampleAskedFor) {
  seed(19);
  const Tensor mean = vec({-2, 0, 5}), deviation = vec({0.5, 1, 2});
  const auto f = [](const Tensors& in) { return Tensors{at::normal(in[0].expand({9000}), in[1].expand({9000}))}; };
  const Tensor y = td::vmap(f, {0, 0}, {0}, {.randomness = Randomness::different})({mean, deviation})[0];
  EXPECT_LT(((y.mean(1) - mean).abs() / deviation).max().item<double>(), 5 / std::sqrt(9000.0));
  EXPECT_LT((y.std(1) / deviation - 1).abs().max().item<double>(), 5 / std::sqrt(2 * 9000.0));
}

// ---- captured tensors and modes ------------------------------------------------------------------------------------

TEST(RandomWritesToCapturedTensors, HappenOnceWhereTheDrawIsShared) {
  const Tensor captured = at::zeros({3}, at::kDouble);
  const Function f = of_one([&](const Tensor& x) {
    captured.uniform_();
    return x * captured;
  });
  seed(3);
  const Tensor y = mapped(f, Randomness::same)({numbers({2, 3})})[0];
  seed(3);
  const Tensor expected = at::zeros({3}, at::kDouble).uniform_();
  EXPECT_TRUE(same(captured, expected));
  EXPECT_TRUE(same(y, numbers({2, 3}) * expected));
  // A map around that draws for each of its examples cannot share it.
  const Tensor before = captured.clone();
  EXPECT_TRUE(says(refusal<tower::MutationError>([&] {
                     mapped(mapped(f, Randomness::same), Randomness::different)({numbers({2, 2, 3})});
                   }),
                   {"vmap (level 1): aten::uniform_", "Double [3]", "random numbers of its own", "Randomness::same"}));
  EXPECT_TRUE(same(captured, before));
}

TEST(RandomWritesToCapturedTensors, AreRefusedWhereEachExampleDrawsOrNothingWasSaid) {
  const Tensor captured = vec({1, 2, 3});
  const Function f = of_one([&](const Tensor& x) { return x * captured.normal_(); });
  EXPECT_TRUE(says(refusal<tower::MutationError>([&] {
                     mapped(f, Randomness::different)({numbers({2, 3})});
                   }),
                   {"vmap (level 1): aten::normal_", "Double [3]", "made outside", "Make the tensor inside"}));
  EXPECT_TRUE(says(refusal<tower::RandomnessError>([&] {
                     mapped(f, Randomness::error)({numbers({2, 3})});
                   }),
                   {"vmap (level 1): aten::normal_", "draws random numbers"}));
  EXPECT_TRUE(same(captured, vec({1, 2, 3})));
}

TEST(RandomOperatorsInEvaluation, DrawNothingAndAreNotRefused) {
  const Function f = of_one([](const Tensor& x) {
    return at::dropout(x, 0.5, false) + at::alpha_dropout(x, 0.5, false) +
           at::feature_dropout(x.view({1, 6}), 0.5, false) + at::rrelu(-x, 0.1, 0.3, false) +
           F::dropout(x, F::DropoutFuncOptions().training(false)) + std::get<0>(at::native_dropout(x, 0.5, false));
  });
  const Tensor x = numbers({2, 6});
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({x})[0].view({2, 6}), 5 * x - 0.2 * x));
}

}  // namespace
