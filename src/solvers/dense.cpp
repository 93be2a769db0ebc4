#include "solvers/dense.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>

#include "solvers/vectors.h"
#include "tower/errors.h"

namespace tower::solvers {

using dynamic::Function;
using dynamic::Tensors;

namespace {

// LU factors leave a small residual whatever the condition of the matrix is.
void check_linear(const std::string& name, const VectorFunction& f, const Tensor& matrix, const Tensor& x,
                  const Tensor& b) {
  const double epsilon = epsilon_of(b.scalar_type());
  const auto size = [](const Tensor& t) { return at::linalg_vector_norm(t); };
  if (any_example(size(f(x) - b) > std::sqrt(epsilon) * (size(b) + size(matrix) * size(x))))
    throw ArgumentError(name +
                        ": the function is not linear: at the solution it is not what the matrix of its values at the "
                        "unit vectors says. Take off what does not depend on its argument; of complex numbers a "
                        "function that conjugates is linear in the real and imaginary parts only (view_as_real).");
}

}  // namespace

LinearSystem::Solver dense_solver(std::string name, bool check, Singular singular) {
  return [name = std::move(name), check, singular](const Tensors&, const Function& apply, const Tensors& b) {
    const Unknowns like(name, b);
    const VectorFunction f = like.on_vectors(apply, "the function");
    const Tensor rhs = like.vector(b, "the right-hand side");
    if (like.size() == 0) return b;
    if (!mixed_axes(f, rhs).empty())
      throw ArgumentError(name +
                          ": the function speaks of its argument to other examples, by a collective, so that it is "
                          "one system of the unknowns of all examples. A dense matrix is made of those of one "
                          "example: solve by the method gmres, bicgstab or cg, or around the mapped function.");
    const Function column = [&](const Tensors& unit) { return Tensors{f(unit[0])}; };
    // Columns lie one after the other, as LAPACK wants them.
    const Tensor matrix = dynamic::vmap(column, {0}, {0})({at::eye(like.size(), like.options())})[0].t();
    const auto solve = [&] {
      if (singular == Singular::error) return at::linalg_solve(matrix, rhs);
      const auto [found, info] = at::linalg_solve_ex(matrix, rhs);
      return at::where(info == 0, found, std::numeric_limits<double>::quiet_NaN());
    };
    const Tensor x = solve();
    if (check) check_linear(name, f, matrix, x, rhs);
    return like.list(x);
  };
}

void leave_singular_as_nan(const std::string& name, int64_t unknowns, LinearSolveOptions<Tensors>& options) {
  if (options.method != LinearMethod::automatic || unknowns > options.dense_up_to) return;
  const auto dense = dense_solver(name, /*check=*/false, Singular::nan);
  options.solve =
      options.solve_transposed = [dense](const Function& apply, const Tensors& b) { return dense({}, apply, b); };
}

}  // namespace tower::solvers
