// How much privacy a training run has spent: Rényi accounting for the sampled Gaussian mechanism.
//
// One step of DP-SGD takes every example with probability q, adds the clipped gradients of those it took, and adds
// Gaussian noise of z times the clipping norm. Mironov, Talwar and Zhang ("Rényi Differential Privacy of the Sampled
// Gaussian Mechanism", arXiv:1908.10530) bound what one example, added or removed, can change: the Rényi divergence of
// order α between the two distributions of the result. Divergences of one order add up over the steps. At the end the
// best order gives (ε, δ) by Proposition 12 of Canonne, Kamath and Steinke (arXiv:2004.00010).
//
//   privacy::Accountant accountant;
//   accountant.compose({.sampling_rate = 150.0 / 60000, .noise_multiplier = 1.3}, 6000);
//   accountant.epsilon(1e-5);                                                             // 0.724
//
// Not for fixed-size or shuffled batches: their guarantee is a different, weaker one.
#pragma once

#include <cstdint>
#include <vector>

namespace privacy {

struct SampledGaussian {
  double sampling_rate;     ///< q: the probability with which a step takes an example
  double noise_multiplier;  ///< z: the noise's standard deviation over the clipping norm
};

/// The Rényi divergence of integer order `order` (at least 2) that one step can cause.
double renyi_divergence(const SampledGaussian& step, int order);

/// The ε for which a divergence of order `order` implies (ε, δ)-differential privacy.
double epsilon_of(double renyi_divergence, int order, double delta);

class Accountant {
 public:
  Accountant();
  void compose(const SampledGaussian& step, int64_t count);
  /// The smallest ε that holds, with this δ, for all that has been composed.
  double epsilon(double delta) const;

 private:
  std::vector<double> spent_;  // one divergence per order, from the smallest order on
};

/// The least noise with which `steps` steps stay within (ε, δ).
double noise_multiplier_for(double epsilon, double delta, double sampling_rate, int64_t steps);

}  // namespace privacy
