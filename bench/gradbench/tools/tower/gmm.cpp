// A mixture of Gaussians, fitted to points: the logarithm of its posterior, and the gradient by all parameters. Inverse
// covariances are given by their triangular factors: logarithms of diagonals, q, and what is below them, l, column by
// column.
#include <ATen/Functions.h>
#include <tower/tower.h>

#include <cmath>
#include <numbers>

#include "evaluation.h"

using at::Tensor;

namespace {

struct Parameters {
  Tensor alpha, mu, q, l;
};
constexpr auto tower_fields(const Parameters&) {
  return std::tuple(&Parameters::alpha, &Parameters::mu, &Parameters::q, &Parameters::l);
}

struct Prior {
  double gamma;
  int64_t m;
};

double log_multivariate_gamma(double a, int64_t d) {
  double sum = 0.25 * static_cast<double>(d * (d - 1)) * std::log(std::numbers::pi);
  for (int64_t j = 1; j <= d; ++j) sum += std::lgamma(a + 0.5 * static_cast<double>(1 - j));
  return sum;
}

// Of one component: a triangular matrix of its diagonal, and of what is below, column by column.
auto factor_of(int64_t d) {
  const Tensor below = at::ones({d, d}, at::kBool).triu(1).nonzero();  // column, row
  const Tensor places = below.select(1, 1) * d + below.select(1, 0);
  return [d, places](const Tensor& q, const Tensor& l) {
    return at::zeros({d * d}, q.options()).scatter(0, places, l).view({d, d}) + at::diag_embed(q.exp());
  };
}

auto log_posterior(const Tensor& x, const Prior& prior) {
  const int64_t n = x.size(0), d = x.size(1);
  const double constant = -0.5 * static_cast<double>(n * d) * std::log(2 * std::numbers::pi);
  const double nu = static_cast<double>(d + prior.m + 1);
  const double of_prior = nu * static_cast<double>(d) * (std::log(prior.gamma) - 0.5 * std::numbers::ln2) -
                          log_multivariate_gamma(0.5 * nu, d);
  return [=, factor = factor_of(d)](const Parameters& p) {
    const int64_t components = p.alpha.size(0);
    const Tensor factors = tower::vmap(factor)(p.q, p.l);
    // Q (x - mu) is Q x - Q mu, of all components at once.
    const Tensor all = factors.view({components * d, d});
    const Tensor centres = tower::vmap(at::mv)(factors, p.mu);
    const Tensor weights = p.alpha + p.q.sum(1);
    const auto log_likelihood = [=](const Tensor& point) {
      const Tensor distances = at::mv(all, point).view({components, d}) - centres;
      return (weights - 0.5 * distances.square().sum(1)).logsumexp(0);
    };
    const Tensor likelihood = tower::vmap(log_likelihood)(x).sum() - static_cast<double>(n) * p.alpha.logsumexp(0);
    const Tensor wishart =
        0.5 * prior.gamma * prior.gamma * factors.square().sum() - static_cast<double>(prior.m) * p.q.sum();
    return constant + likelihood - wishart + static_cast<double>(components) * of_prior;
  };
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  const auto posterior = [](const json& input) {
    return log_posterior(tensor(input["x"]), {.gamma = input["gamma"], .m = input["m"]});
  };
  const auto parameters = [](const json& input) {
    return Parameters{tensor(input["alpha"]), tensor(input["mu"]), tensor(input["q"]), tensor(input["l"])};
  };
  return program(
      argc, argv,
      {{"objective",
        [=](const json& input) { return evaluation(tower::compile(posterior(input)), as_json, parameters(input)); }},
       {"jacobian", [=](const json& input) {
          return evaluation(
              tower::compile(tower::grad(posterior(input))),
              [](const Parameters& p) {
                return json{
                    {"alpha", as_json(p.alpha)}, {"mu", as_json(p.mu)}, {"q", as_json(p.q)}, {"l", as_json(p.l)}};
              },
              parameters(input));
        }}});
}
