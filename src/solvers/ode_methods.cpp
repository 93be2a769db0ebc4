#include "solvers/ode_methods.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace tower::solvers {

using dynamic::Tensors;

namespace {

// Σ weightᵢ termᵢ, and nothing of the terms whose weight is zero.
template <size_t n>
Tensor weighted(const std::array<double, n>& weights, const Tensors& terms) {
  Tensor sum;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (weights[i] == 0) continue;
    sum = sum.defined() ? at::add(sum, terms[i], weights[i]) : terms[i] * weights[i];
  }
  return sum;
}

class Explicit final : public OdeMethod {
 public:
  explicit Explicit(const ExplicitPair& pair) : pair_(pair) {}

  int order() const override { return 5; }
  Tensors first_memory(const Tensor& slope) const override { return {slope}; }

  OdeStep step(const Slope& f, const Tensor& t, const Tensor& y, const Tensors& memory, const Tensor& h,
               bool with_path) const override {
    Tensors slopes = memory;
    Tensor next;
    for (size_t stage = 1; stage < ExplicitPair::kStages; ++stage) {
      next = y + h * weighted(pair_.a[stage], slopes);
      slopes.push_back(f(t + pair_.c[stage] * h, next));
    }
    OdeStep made{next, h * weighted(pair_.error, slopes), {slopes.back()}, {}};
    for (size_t power = 0; with_path && power < kPath; ++power) {
      ExplicitPair::Row weights{};
      for (size_t stage = 0; stage < weights.size(); ++stage) weights[stage] = pair_.path[stage][power];
      made.path.push_back(h * weighted(weights, slopes));
    }
    return made;
  }

 private:
  const ExplicitPair& pair_;
};

class Stiff final : public OdeMethod {
 public:
  explicit Stiff(const StiffPair& pair) : pair_(pair) {}

  int order() const override { return 5; }
  Tensors first_memory(const Tensor&) const override { return {}; }

  OdeStep step(const Slope& f, const Tensor& t, const Tensor& y, const Tensors&, const Tensor& h,
               bool with_path) const override {
    const auto by_y = [&](const Tensors& at) {
      const Tensor slope = f(t, at[0]);
      return std::pair(Tensors{slope}, Tensors{slope});
    };
    const auto [jacobian, slope] = dynamic::jacfwd(dynamic::FunctionWithAux(by_y), {0})({y});
    const auto by_t = [&](const Tensors& at) { return Tensors{f(at[0], y)}; };
    const Tensor drift = h * dynamic::jvp(by_t, {t}, {at::ones_like(t)}).second[0];
    const Tensor diagonal = (1 / (pair_.gamma * h)).expand({y.numel()});
    // A singular matrix leaves infinities and nan, with which no step is made.
    const auto [factors, pivots, info] = at::linalg_lu_factor_ex(at::diag_embed(diagonal) - jacobian[0]);
    Tensors u;
    Tensor next = y;
    for (size_t stage = 0; stage < StiffPair::kStages; ++stage) {
      Tensor rhs = slope[0];
      if (stage > 0) {
        next = y + weighted(pair_.a[stage], u);
        rhs = f(t + pair_.c[stage] * h, next) + weighted(pair_.c_by_h[stage], u) / h;
      }
      if (pair_.d[stage] != 0) rhs = at::add(rhs, drift, pair_.d[stage]);
      u.push_back(at::linalg_lu_solve(factors, pivots, rhs.unsqueeze(1)).squeeze(1));
    }
    OdeStep made{next + u.back(), u.back(), {}, {}};
    if (with_path) {
      const Tensor k1 = weighted(pair_.path[0], u), k2 = weighted(pair_.path[1], u), k3 = weighted(pair_.path[2], u);
      made.path = {made.y - y + k1, k2 - k1, k3 - k2, -k3};
    }
    return made;
  }

 private:
  const StiffPair& pair_;
};

}  // namespace

const OdeMethod& ode_method(Ode name) {
  static const Explicit tsit5(kTsit5), dopri5(kDopri5);
  static const Stiff rodas5p(kRodas5P);
  switch (name) {
    case Ode::tsit5:
      return tsit5;
    case Ode::dopri5:
      return dopri5;
    case Ode::rodas5p:
      return rodas5p;
  }
  throw ArgumentError("odeint: there is no such method. Those that there are: tsit5, dopri5, rodas5p.");
}

}  // namespace tower::solvers
