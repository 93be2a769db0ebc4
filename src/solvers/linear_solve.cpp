#include "tower/linear_solve.h"

#include "frontend/autocast.h"
#include "solvers/captured.h"
#include "solvers/dense.h"
#include "solvers/iterative.h"
#include "solvers/method.h"

namespace tower::solvers {
namespace {

using dynamic::Function;
using dynamic::Tensors;
using Options = LinearSolveOptions<Tensors>;
using Solver = LinearSystem::Solver;

Solver by_method(const std::string& name, const Options& options, bool check) {
  const Solver dense = dense_solver(name, check);
  if (options.method == LinearMethod::dense) return dense;
  if (options.method != LinearMethod::automatic) return iterative_solver(options.method, options.iteration);
  return [dense, large = iterative_solver(LinearMethod::gmres, options.iteration), limit = options.dense_up_to](
             const Tensors& given, const Function& apply, const Tensors& b) {
    int64_t size = 0;
    for (const Tensor& t : b) size += t.numel();
    return (size <= limit ? dense : large)(given, apply, b);
  };
}

// Reports are of the iterative functions alone.
Solver without_reports(Solver solver) {
  return [solver = std::move(solver)](const Tensors& given, const Function& apply, const Tensors& b) {
    Tensors found = solver(given, apply, b);
    found.resize(b.size());
    return found;
  };
}

Solver by_user(const decltype(Options::solve)& solve) {
  return [solve](const Tensors&, const Function& apply, const Tensors& b) { return solve(apply, b); };
}

Options with_error(Options options) {
  options.iteration.on_no_convergence = NoConvergence::error;
  return options;
}

// For derivatives: from zero, and an end without convergence is always an error.
Options of_derivatives(Options options) {
  options.iteration.start.reset();
  return with_error(std::move(options));
}

// The preconditioner is transposed where the solver knows what it is applied to.
Solver of_transposed(const std::string& name, const Options& options) {
  if (!options.iteration.preconditioner || options.symmetric) return by_method(name, options, false);
  return [name, options](const Tensors& given, const Function& apply, const Tensors& b) {
    Options own = options;
    own.iteration.preconditioner = transposed(options.iteration.preconditioner, b);
    return by_method(name, own, false)(given, apply, b);
  };
}

}  // namespace

LinearSystem linear_system(std::string name, LinearSystem::Prepare apply, LinearSystem::Prepare transposed,
                           const Options& options, bool users) {
  const Options derived = of_derivatives(options);
  LinearSystem system{std::move(name), std::move(apply), {}, {}, {}, {}, users, options.per_example};
  system.transposed = options.symmetric ? system.apply : std::move(transposed);
  if (options.solve) {
    system.solve = system.solve_again = by_user(options.solve);
    system.solve_transposed = options.solve_transposed ? by_user(options.solve_transposed)
                              : options.symmetric      ? system.solve
                                                       : without_reports(of_transposed(system.name, derived));
  } else {
    system.solve = without_reports(by_method(system.name, with_error(options), users));
    system.solve_again = without_reports(by_method(system.name, derived, false));
    system.solve_transposed = options.solve_transposed ? by_user(options.solve_transposed)
                                                       : without_reports(of_transposed(system.name, derived));
  }
  return system;
}

}  // namespace tower::solvers

namespace tower::dynamic {
namespace {

using solvers::LinearSystem;

LinearSystem::Prepare always(const Function& f) {
  return [f](const Tensors&, const Tensors&) { return f; };
}
LinearSystem::Prepare always_transposed(const Function& f) {
  return [f](const Tensors&, const Tensors& like) { return solvers::transposed(f, like); };
}

IterativeSolution<Tensors> iterate(LinearMethod method, const Function& given, const Tensors& b,
                                   const IterativeOptions<Tensors>& given_options) {
  const Function apply = solvers::without_effects(solvers::name(method), "the function", given);
  const IterativeOptions<Tensors> iteration = solvers::without_effects(solvers::name(method), given_options);
  const LinearSolveOptions<Tensors> options{
      .method = method, .symmetric = method == LinearMethod::cg, .iteration = iteration};
  LinearSystem system = solvers::linear_system(solvers::name(method), always(apply), always_transposed(apply), options,
                                               /*users=*/true);
  LinearSolveOptions<Tensors> derived = solvers::of_derivatives(options);
  system.solve = solvers::iterative_solver(method, iteration);
  system.solve_again = solvers::iterative_solver(method, derived.iteration);
  Tensors found = solvers::solve(system, b, {});
  const Tensors reports(found.begin() + static_cast<std::ptrdiff_t>(b.size()), found.end());
  found.resize(b.size());
  return {std::move(found), reports[0], reports[1], reports[2]};
}

}  // namespace

Tensors linear_solve(Function apply, const Tensors& b, LinearSolveOptions<Tensors> options) {
  apply = solvers::without_effects("linear_solve", "the function", frontend::under_this_autocast(std::move(apply)));
  options = solvers::without_effects("linear_solve", std::move(options));
  return solvers::solve(
      solvers::linear_system("linear_solve", always(apply), always_transposed(apply), options, /*users=*/true), b, {});
}

IterativeSolution<Tensors> cg(Function apply, const Tensors& b, IterativeOptions<Tensors> options) {
  return iterate(LinearMethod::cg, apply, b, options);
}
IterativeSolution<Tensors> bicgstab(Function apply, const Tensors& b, IterativeOptions<Tensors> options) {
  return iterate(LinearMethod::bicgstab, apply, b, options);
}
IterativeSolution<Tensors> gmres(Function apply, const Tensors& b, IterativeOptions<Tensors> options) {
  return iterate(LinearMethod::gmres, apply, b, options);
}

}  // namespace tower::dynamic
