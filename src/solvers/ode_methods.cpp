#include "solvers/ode_methods.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>
#include <optional>

#include "solvers/dop853.h"
#include "tower/linear_solve.h"

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

// Solves a step's systems, of one matrix.
using StepSolver = std::function<Tensor(const Tensor& b)>;

StepSolver by_factors(const Tensor& shift, const Tensor& jacobian) {
  const Tensor matrix = at::diag_embed(shift.expand({jacobian.size(0)})) - jacobian;
  // A singular matrix leaves infinities and nan, with which no step is made.
  const auto [factors, pivots, info] = at::linalg_lu_factor_ex(matrix);
  return [factors = factors, pivots = pivots](const Tensor& b) {
    return at::linalg_lu_solve(factors, pivots, b.unsqueeze(1)).squeeze(1);
  };
}

// Of (shift − J) u = b for the Jacobian of `by_y` at y.
StepSolver by_products(const Tensor& shift, const dynamic::Function& by_y, const Tensor& y,
                       LinearSolveOptions<Tensors> linear) {
  const dynamic::Function apply = [=](const Tensors& v) {
    return Tensors{shift * v[0] - dynamic::jvp(by_y, {y}, v).second[0]};
  };
  if (linear.solve || linear.method == LinearMethod::dense)
    return [=](const Tensor& b) { return dynamic::linear_solve(apply, {b}, linear)[0]; };
  linear.iteration.on_no_convergence = NoConvergence::report;
  const auto iterate = linear.method == LinearMethod::cg         ? dynamic::cg
                       : linear.method == LinearMethod::bicgstab ? dynamic::bicgstab
                                                                 : dynamic::gmres;
  return [apply, iterate, iteration = linear.iteration](const Tensor& b) {
    const auto found = iterate(apply, {b}, iteration);
    return at::where(found.converged, found.x[0], std::numeric_limits<double>::quiet_NaN());
  };
}

class Stiff final : public OdeMethod {
 public:
  Stiff(const StiffPair& pair, std::optional<LinearSolveOptions<Tensors>> linear)
      : pair_(pair), linear_(std::move(linear)) {}

  int order() const override { return 5; }
  size_t powers() const override { return pair_.path.size() + 1; }
  Tensors first_memory(const Tensor&) const override { return {}; }

  OdeStep step(const Slope& f, const Tensor& t, const Tensor& y, const Tensors&, const Tensor& h,
               bool with_path) const override {
    const auto [slope, solved] = prepared(f, t, y, 1 / (pair_.gamma * h));
    const auto by_t = [&](const Tensors& at) { return Tensors{f(at[0], y)}; };
    const Tensor drift = h * dynamic::jvp(by_t, {t}, {at::ones_like(t)}).second[0];
    Tensors u;
    Tensor next = y;
    for (size_t stage = 0; stage < StiffPair::kStages; ++stage) {
      Tensor rhs = slope;
      if (stage > 0) {
        next = y + weighted(pair_.a[stage], u);
        rhs = f(t + pair_.c[stage] * h, next) + weighted(pair_.c_by_h[stage], u) / h;
      }
      if (pair_.d[stage] != 0) rhs = at::add(rhs, drift, pair_.d[stage]);
      u.push_back(solved(rhs));
    }
    OdeStep made{next + u.back(), u.back(), {}, {}, {}};
    if (with_path) {
      const Tensor k1 = weighted(pair_.path[0], u), k2 = weighted(pair_.path[1], u), k3 = weighted(pair_.path[2], u);
      made.path = {made.y - y + k1, k2 - k1, k3 - k2, -k3};
    }
    return made;
  }

 private:
  // The slope at y, and what solves with the Jacobian there.
  std::pair<Tensor, StepSolver> prepared(const Slope& f, const Tensor& t, const Tensor& y, const Tensor& shift) const {
    if (linear_) {
      const dynamic::Function by_y = [f, t](const Tensors& at) { return Tensors{f(t, at[0])}; };
      return {f(t, y), by_products(shift, by_y, y, *linear_)};
    }
    const auto by_y = [&](const Tensors& at) {
      const Tensor slope = f(t, at[0]);
      return std::pair(Tensors{slope}, Tensors{slope});
    };
    const auto [jacobian, slope] = dynamic::jacfwd(dynamic::FunctionWithAux(by_y), {0})({y});
    return {slope[0], by_factors(shift, jacobian[0])};
  }

  const StiffPair& pair_;
  std::optional<LinearSolveOptions<Tensors>> linear_;
};

// Where nothing else is said, the systems of a step are solved so well that its error is another.
std::optional<LinearSolveOptions<Tensors>> linear_of(const OdeOptions& options) {
  constexpr double kOfTolerance = 0.01;
  auto linear = options.linear;
  if (linear && !linear->iteration.tolerance && options.rtol.is_number() && options.rtol.number() > 0)
    linear->iteration.tolerance = kOfTolerance * options.rtol.number();
  return linear;
}

}  // namespace

std::shared_ptr<const OdeMethod> ode_method(const OdeOptions& options) {
  switch (options.method) {
    case Ode::tsit5:
      return std::make_shared<Explicit<Pair5>>(kTsit5);
    case Ode::dopri5:
      return std::make_shared<Explicit<Pair5>>(kDopri5);
    case Ode::dop853:
      return std::make_shared<Explicit<std::remove_const_t<decltype(kDop853)>>>(kDop853);
    case Ode::rodas5p:
      return std::make_shared<Stiff>(kRodas5P, linear_of(options));
  }
  throw ArgumentError("odeint: there is no such method. Those that there are: tsit5, dopri5, dop853, rodas5p.");
}

}  // namespace tower::solvers
