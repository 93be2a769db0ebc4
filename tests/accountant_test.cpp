// The privacy accountant of examples/private_digits, against published values and against the definition.
#include "private_digits/accountant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace {

using privacy::Accountant;
using privacy::SampledGaussian;

double epsilon_after(const SampledGaussian& step, int64_t count, double delta) {
  Accountant accountant;
  accountant.compose(step, count);
  return accountant.epsilon(delta);
}

// TensorFlow Privacy, compute_dp_sgd_privacy_test.py: the rows whose best order is an integer (19 and 13).
TEST(AccountantTest, AgreesWithTensorFlowPrivacyOnDpSgd) {
  EXPECT_NEAR(epsilon_after({150.0 / 60000, 1.3}, 15 * 60000 / 150, 1e-5), 0.7242234026109595, 1e-9);
  EXPECT_NEAR(epsilon_after({100.0 / 100000, 1.0}, 30 * 100000 / 100, 1e-7), 1.4154988495444842, 1e-9);
}

// Google's dp_accounting, rdp_privacy_accountant_test.py (fifty steps), and TensorFlow Privacy, rdp_accountant_test.py.
TEST(AccountantTest, AgreesWithPublishedRenyiDivergences) {
  const SampledGaussian step{0.01, 2.5};
  EXPECT_NEAR(50 * privacy::renyi_divergence(step, 5), 2.18075656e-3, 1e-4 * 2.18075656e-3);
  EXPECT_NEAR(50 * privacy::renyi_divergence(step, 50), 2.38460375e-2, 1e-4 * 2.38460375e-2);
  EXPECT_NEAR(50 * privacy::renyi_divergence(step, 100), 1.67416308e+2, 1e-4 * 1.67416308e+2);
  EXPECT_NEAR(10 * privacy::renyi_divergence({0.1, 2.0}, 5), 0.07737, 1e-5);
}

// The table in TensorFlow Privacy's tutorial on MNIST (batches of 256 of 60,000, δ = 1e-5), two decimals. It was made
// with the older conversion, ε = divergence + log(1/δ) / (α - 1), which the accountant's improves on.
TEST(AccountantTest, AgreesWithTheMnistTutorial) {
  struct Row {
    double noise_multiplier;
    int epochs;
    double epsilon;
  };
  for (const Row& row : {Row{1.12, 60, 2.92}, Row{1.2, 10, 1.20}}) {
    const SampledGaussian step{256.0 / 60000, row.noise_multiplier};
    const int steps = row.epochs * 60000 / 256;
    double older = std::numeric_limits<double>::infinity();
    for (int order = 2; order < 64; ++order)
      older = std::min(older, steps * privacy::renyi_divergence(step, order) + std::log(1e5) / (order - 1));
    EXPECT_NEAR(older, row.epsilon, 0.005);
    EXPECT_LT(epsilon_after(step, steps, 1e-5), older);
  }
}

// dp_accounting, test_compute_epsilon_delta_pure_dp: a constant divergence of 1.1, computed by hand at order 32.
TEST(AccountantTest, ConvertsADivergenceLikeThePublishedExample) {
  EXPECT_NEAR(privacy::epsilon_of(1.1, 32, 1e-5), 1.32783806176, 1e-10);
}

// The definition itself: the divergence of the mixture (1 - q) N(0, z²) + q N(1, z²) from N(0, z²), by quadrature.
double divergence_by_quadrature(const SampledGaussian& step, int order) {
  const auto [q, z] = step;
  const double from = -15 * z, to = 15 * z + order, width = (to - from) / 200000;
  double sum = 0;
  for (double x = from; x <= to; x += width) {
    const double log_density = -x * x / (2 * z * z) - std::log(z * std::sqrt(2 * M_PI));
    const double log_ratio = std::log((1 - q) + q * std::exp((2 * x - 1) / (2 * z * z)));
    sum += std::exp(log_density + order * log_ratio) * width;
  }
  return std::log(sum) / (order - 1);
}

TEST(AccountantTest, AgreesWithTheDivergencesDefinition) {
  for (const SampledGaussian step : {SampledGaussian{0.25, 2.9}, {0.25, 1.0}, {0.01, 1.1}, {0.9, 5.0}})
    for (const int order : {2, 3, 7, 20}) {
      const double expected = divergence_by_quadrature(step, order);
      EXPECT_NEAR(privacy::renyi_divergence(step, order), expected, 1e-7 * expected)
          << "q " << step.sampling_rate << ", z " << step.noise_multiplier << ", order " << order;
    }
}

// Without sampling the exact δ(ε) is known in closed form (Balle and Wang, arXiv:1805.06530, Theorem 8): accounting
// may not promise more, and should not lose much.
TEST(AccountantTest, BoundsTheGaussianMechanismTightly) {
  const auto exact_delta = [](double epsilon, double z) {
    const auto normal_tail = [](double x) { return std::erfc(x / std::sqrt(2.0)) / 2; };
    return normal_tail(epsilon * z - 0.5 / z) - std::exp(epsilon) * normal_tail(epsilon * z + 0.5 / z);
  };
  for (const double z : {0.8, 1.5, 4.0}) {
    const double epsilon = epsilon_after({1.0, z}, 1, 1e-5);
    EXPECT_LT(exact_delta(epsilon, z), 1e-5) << "z " << z;
    EXPECT_GT(exact_delta(0.85 * epsilon, z), 1e-5) << "z " << z;
  }
}

TEST(AccountantTest, AddsUpStepsOfDifferentKinds) {
  Accountant at_once, in_parts;
  at_once.compose({0.1, 2.0}, 30);
  at_once.compose({0.2, 3.0}, 5);
  for (int i = 0; i < 5; ++i) {
    in_parts.compose({0.2, 3.0}, 1);
    in_parts.compose({0.1, 2.0}, 6);
  }
  EXPECT_NEAR(at_once.epsilon(1e-5), in_parts.epsilon(1e-5), 1e-12);
  EXPECT_GT(at_once.epsilon(1e-5), epsilon_after({0.1, 2.0}, 30, 1e-5));
}

TEST(AccountantTest, KnowsTheLimits) {
  EXPECT_EQ(Accountant().epsilon(1e-5), 0);
  EXPECT_EQ(privacy::renyi_divergence({0.0, 1.0}, 2), 0);
  EXPECT_EQ(privacy::renyi_divergence({1.0, 10.0}, 20), 0.1);
  EXPECT_TRUE(std::isinf(epsilon_after({0.1, 0.0}, 1, 1e-5)));
  EXPECT_TRUE(std::isfinite(epsilon_after({0.25, 3.0}, 1'000'000, 1e-5)));
}

TEST(AccountantTest, FindsTheLeastNoiseForABudget) {
  for (const double budget : {0.5, 2.0, 8.0}) {
    const double z = privacy::noise_multiplier_for(budget, 1e-5, 0.25, 300);
    EXPECT_LE(epsilon_after({0.25, z}, 300, 1e-5), budget);
    EXPECT_GT(epsilon_after({0.25, 0.99 * z}, 300, 1e-5), budget);
  }
}

TEST(AccountantTest, RefusesWhatIsNotAProbability) {
  const auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_EQ(message([] { privacy::renyi_divergence({1.1, 1.0}, 2); }), "the sampling rate is a probability");
  EXPECT_EQ(message([] { privacy::renyi_divergence({0.1, -1.0}, 2); }), "the noise multiplier is not negative");
  EXPECT_EQ(message([] { privacy::renyi_divergence({0.1, 1.0}, 1); }), "the order is an integer of at least 2");
  EXPECT_EQ(message([] { Accountant().epsilon(0); }), "delta is a probability, neither 0 nor 1");
  EXPECT_EQ(message([] { Accountant().compose({0.1, 1.0}, -1); }), "the number of steps is not negative");
}

}  // namespace
