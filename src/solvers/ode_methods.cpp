#include "solvers/ode_methods.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "solvers/dop853.h"

namespace tower::solvers {

using dynamic::Tensors;

namespace {

// Σ weightᵢ termᵢ, and nothing of the terms whose weight is zero; undefined where all are.
template <size_t n>
Tensor weighted(const std::array<double, n>& weights, const Tensors& terms) {
  Tensor sum;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (weights[i] == 0) continue;
    sum = sum.defined() ? at::add(sum, terms[i], weights[i]) : terms[i] * weights[i];
  }
  return sum;
}

template <class Pair>
class Explicit final : public OdeMethod {
 public:
  explicit Explicit(const Pair& pair) : pair_(pair) {}

  int order() const override { return pair_.order; }
  size_t powers() const override { return Pair::kPowers; }
  Tensors first_memory(const Tensor& slope) const override { return {slope}; }

  OdeStep step(const Slope& f, const Tensor& t, const Tensor& y, const Tensors& memory, const Tensor& h,
               bool with_path) const override {
    Tensors slopes = memory;
    const auto next_stage = [&] {
      const size_t stage = slopes.size();
      const Tensor next = y + h * weighted(pair_.a[stage], slopes);
      slopes.push_back(f(t + pair_.c[stage] * h, next));
      return next;
    };
    Tensor next;
    while (slopes.size() < Pair::kStages) next = next_stage();
    const Tensor coarse = weighted(pair_.coarse_error, slopes);
    OdeStep made{next, h * weighted(pair_.error, slopes), coarse.defined() ? h * coarse : coarse, {slopes.back()}, {}};
    if (!with_path) return made;
    while (slopes.size() < Pair::kAll) next_stage();
    for (size_t power = 0; power < Pair::kPowers; ++power) {
      typename Pair::Row weights{};
      for (size_t stage = 0; stage < weights.size(); ++stage) weights[stage] = pair_.path[stage][power];
      made.path.push_back(h * weighted(weights, slopes));
    }
    return made;
  }

 private:
  const Pair& pair_;
};

class Stiff final : public OdeMethod {
 public:
  explicit Stiff(const StiffPair& pair) : pair_(pair) {}

  int order() const override { return 5; }
  size_t powers() const override { return pair_.path.size() + 1; }
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
    OdeStep made{next + u.back(), u.back(), {}, {}, {}};
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
  static const Explicit dop853(kDop853);
  static const Stiff rodas5p(kRodas5P);
  switch (name) {
    case Ode::tsit5:
      return tsit5;
    case Ode::dopri5:
      return dopri5;
    case Ode::dop853:
      return dop853;
    case Ode::rodas5p:
      return rodas5p;
  }
  throw ArgumentError("odeint: there is no such method. Those that there are: tsit5, dopri5, dop853, rodas5p.");
}

}  // namespace tower::solvers
