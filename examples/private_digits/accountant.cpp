#include "accountant.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace privacy {
namespace {

// Integer orders alone make every ε at most a few percent larger than all real orders would.
constexpr int kSmallestOrder = 2;
constexpr int kLargestOrder = 256;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double log_binomial(int n, int k) { return std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0); }

double log_sum_exp(const std::vector<double>& terms) {
  const double largest = *std::max_element(terms.begin(), terms.end());
  double sum = 0;
  for (const double term : terms) sum += std::exp(term - largest);
  return largest + std::log(sum);
}

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace

double renyi_divergence(const SampledGaussian& step, int order) {
  const auto [q, z] = step;
  require(q >= 0 && q <= 1, "the sampling rate is a probability");
  require(z >= 0, "the noise multiplier is not negative");
  require(order >= 2, "the order is an integer of at least 2");
  if (q == 0) return 0;
  if (z == 0) return kInfinity;
  if (q == 1) return order / (2 * z * z);

  // The α-th moment of the mixture's density over the plain Gaussian's, expanded binomially:
  //   E[((1 - q) + q exp((2x - 1) / 2z²))^α],  x ~ N(0, z²)
  std::vector<double> log_terms;
  for (int k = 0; k <= order; ++k)
    log_terms.push_back(log_binomial(order, k) + k * std::log(q) + (order - k) * std::log1p(-q) +
                        k * (k - 1.0) / (2 * z * z));
  return log_sum_exp(log_terms) / (order - 1);
}

double epsilon_of(double renyi_divergence, int order, double delta) {
  require(delta > 0 && delta < 1, "delta is a probability, neither 0 nor 1");
  if (renyi_divergence == 0) return 0;  // the two distributions are the same; the bound below is not tight there
  const double epsilon =
      renyi_divergence + std::log1p(-1.0 / order) - (std::log(delta) + std::log(order)) / (order - 1);
  return std::max(epsilon, 0.0);
}

Accountant::Accountant() : spent_(kLargestOrder - kSmallestOrder + 1, 0.0) {}

void Accountant::compose(const SampledGaussian& step, int64_t count) {
  require(count >= 0, "the number of steps is not negative");
  if (count == 0) return;
  for (int order = kSmallestOrder; order <= kLargestOrder; ++order)
    spent_[order - kSmallestOrder] += static_cast<double>(count) * renyi_divergence(step, order);
}

double Accountant::epsilon(double delta) const {
  double smallest = kInfinity;
  for (int order = kSmallestOrder; order <= kLargestOrder; ++order)
    smallest = std::min(smallest, epsilon_of(spent_[order - kSmallestOrder], order, delta));
  return smallest;
}

double noise_multiplier_for(double epsilon, double delta, double sampling_rate, int64_t steps) {
  require(epsilon > 0, "epsilon is positive");
  const auto suffices = [&](double noise_multiplier) {
    Accountant accountant;
    accountant.compose({sampling_rate, noise_multiplier}, steps);
    return accountant.epsilon(delta) <= epsilon;
  };
  double enough = 1;
  while (!suffices(enough)) {
    enough *= 2;
    require(enough < 1e6, "no amount of noise reaches this epsilon with this delta");
  }
  double too_little = 0;
  while (enough - too_little > 1e-4 * enough) {
    const double middle = (enough + too_little) / 2;
    (suffices(middle) ? enough : too_little) = middle;
  }
  return enough;
}

}  // namespace privacy
