// The database itself: samples call what they say, and the oracles agree with each other on them.
#include <c10/util/Exception.h>

#include <cmath>

#include "matrix/matrix.h"
#include "support/device.h"
#include "support/oracles.h"

namespace matrix {
namespace {

// The derivative of an example in one direction, by LibTorch's autograd and by a difference quotient.
struct Oracles {
  double derived, measured, tolerance;
  bool agree() const { return std::abs(derived - measured) <= tolerance; }
};

std::vector<Oracles> oracles_of(const Case& c) {
  const Problem problem = differentiable_problem_of(c);
  if (!has_derivatives(problem) || !is_double(problem) || c.entry.has("no_fd") || c.entry.has("no_autograd")) return {};
  std::vector<Oracles> result;
  for (const auto& example : problem.examples) {
    const auto f = partial_function(problem, example);
    const Tensors x = selected(example, problem.differentiable);
    const Tensors cotangents = support::random_like(f(x), 1);
    const Tensors direction = support::random_like(x, 2);
    const double measured = support::inner(cotangents, support::directional_derivative(f, x, direction));
    const Tensors gradients = support::autograd_vjp(f, x, cotangents);
    const double derived = support::inner(gradients, direction);
    result.push_back({derived, measured, c.entry.tolerance * (1 + support::magnitude(gradients))});
  }
  return result;
}

}  // namespace

bool libtorch_differentiates(const Case& c) {
  if (c.entry.has("no_autograd")) return false;
  return support::runs_on_device(c.entry.name + ", its derivative", [&] {
    for (const Oracles& o : oracles_of(c))
      TORCH_CHECK(o.agree(), "LibTorch's autograd differs from difference quotients there");
  });
}

void check_samples(const Case& c) {
  if (c.sample.bad) {
    c.report.run("the plain call throws", [&] {
      bool thrown = false;
      try {
        op_db::call(*c.entry.op, c.sample, op_db::make_leaves(c.entry, c.sample, c.dtype, 0));
      } catch (const std::exception&) {
        thrown = true;
      }
      c.report.expect("a bad sample", thrown ? "" : "did not throw");
    });
    return;
  }
  c.report.run("plain", [&] {
    const Problem problem = problem_of(c);
    const Tensors first = problem.f(problem.examples[0]);
    for (const auto& example : problem.examples) {
      const Tensors outputs = problem.f(example);
      c.report.expect("number of outputs", outputs.size() == first.size() ? "" : "the examples differ in it");
      for (size_t i = 0; i < outputs.size() && !c.entry.refuses("vmap"); ++i) {
        const bool alike = outputs[i].sizes() == first[i].sizes() && outputs[i].dtype() == first[i].dtype();
        c.report.expect("shapes of the examples", alike ? "" : "the examples differ in the shape of an output");
      }
    }
    if (c.dtype == at::kFloat || !libtorch_differentiates(c)) return;
    // The two agree: then a transform that differs from one differs from both, and neither sits on a kink.
    for (const Oracles& o : oracles_of(c))
      c.report.expect_close("autograd against finite differences", o.derived, o.measured, o.tolerance);
  });
}

}  // namespace matrix
