// The implicit step: Newton's method with the sparse Jacobian and Eigen's sparse Cholesky factors, and its derivative
// by the implicit function theorem, whose linear systems are solved in the same way.
#pragma once

#include <fmt/format.h>
#include <tower/tower.h>

#include <Eigen/SparseCholesky>
#include <memory>
#include <stdexcept>

#include "equation.h"

namespace reaction_diffusion {

/// What depends on the grid alone: the Jacobian's pattern, its colouring, the order in which Eigen eliminates.
class Stepper {
 public:
  explicit Stepper(const Grid& grid) : grid_(grid), plan_(pattern_of(grid), {.layout = at::kSparseCsc}, false) {
    factors_.analyzePattern(as_eigen(plan_.matrix(at::ones({plan_.pattern().num_entries()}, at::kDouble))));
  }

  const Grid& grid() const { return grid_; }
  const tower::dynamic::SparsePlan& plan() const { return plan_; }
  int factorizations() const { return factorizations_; }

  /// u after the step: a function of what was before and of the coefficients, with all derivatives.
  Tensor operator()(const Step& step, const Tensor& before, const Coefficients& c) {
    const auto residual = [step](const Tensor& u, const Tensor& before, const Coefficients& c) {
      return step.residual(u, before, c);
    };
    const auto newton = [this, step](const Tensor& before, const Coefficients& c) { return solve(step, before, c); };
    tower::ImplicitOptions options;
    // The Jacobian is symmetric. What a linear function is made of is its Jacobian, anywhere.
    options.linear.symmetric = true;
    options.linear.solve = [this](const auto& apply, const tower::dynamic::Tensors& b) -> tower::dynamic::Tensors {
      return {solve(plan_.values(apply, b), b[0])};
    };
    return tower::implicit_root(residual, newton, options)(before, c);
  }

 private:
  using Matrix = Eigen::SparseMatrix<double, Eigen::ColMajor, int64_t>;

  static tower::Sparsity pattern_of(const Grid& grid) {
    const Tensor u = at::zeros({grid.n, grid.n}, at::kDouble);
    const Step step = step_at(grid, 0, 1);
    return tower::jacobian_sparsity([&](const Tensor& u) { return step.residual(u, u.detach(), of_the_closed_form()); },
                                    u);
  }

  static Eigen::Map<const Matrix> as_eigen(const Tensor& csc) {
    return {csc.size(0),
            csc.size(1),
            csc.values().numel(),
            csc.ccol_indices().const_data_ptr<int64_t>(),
            csc.row_indices().const_data_ptr<int64_t>(),
            csc.values().const_data_ptr<double>()};
  }

  Tensor solve(const Tensor& entries, const Tensor& b) {
    factors_.factorize(as_eigen(plan_.matrix(entries)));
    ++factorizations_;
    if (factors_.info() != Eigen::Success) throw std::runtime_error("the Jacobian is not positive definite");
    const Tensor rhs = b.contiguous();
    Tensor x = at::empty_like(rhs);
    Eigen::Map<Eigen::VectorXd>(x.mutable_data_ptr<double>(), x.numel()) =
        factors_.solve(Eigen::Map<const Eigen::VectorXd>(rhs.const_data_ptr<double>(), rhs.numel()));
    return x;
  }

  Tensor solve(const Step& step, const Tensor& before, const Coefficients& c) {
    constexpr int kMost = 10;
    const tower::dynamic::Function residual = [&](const tower::dynamic::Tensors& u) {
      return tower::dynamic::Tensors{step.residual(u[0], before, c)};
    };
    Tensor u = before;
    for (int correction = 0; correction < kMost; ++correction) {
      const Tensor r = residual({u})[0];
      if (r.abs().max().item<double>() < 1e-11) return u;
      u = u - solve(plan_.values(residual, {u}), r);
    }
    throw std::runtime_error(fmt::format("Newton: no solution after {} corrections", kMost));
  }

  Grid grid_;
  tower::dynamic::SparsePlan plan_;
  Eigen::SimplicialLDLT<Matrix> factors_;
  int factorizations_ = 0;
};

/// From u at time 0 over `steps` equal steps to `end`.
inline Tensor run(Stepper& stepper, Tensor u, const Coefficients& c, double end, int64_t steps) {
  const double duration = end / static_cast<double>(steps);
  for (int64_t k = 0; k < steps; ++k)
    u = stepper(step_at(stepper.grid(), static_cast<double>(k) * duration, duration), u, c);
  return u;
}

}  // namespace reaction_diffusion
