// vjp, jvp and linearize against finite differences, LibTorch's autograd, and each other.
#include <ATen/ops/zeros_like.h>

#include "matrix/matrix.h"
#include "support/oracles.h"

namespace matrix {
namespace {

struct Point {
  td::Function f;
  Tensors x;
  Tensors outputs;
  Tensors cotangents;
  Tensors tangents;
};

Point point_of(const Problem& problem, size_t example) {
  Point point;
  point.f = partial_function(problem, problem.examples[example]);
  point.x = selected(problem.examples[example], problem.differentiable);
  point.outputs = point.f(point.x);
  point.cotangents = support::random_like(point.outputs, 3 + example);
  point.tangents = support::random_like(point.x, 5 + example);
  return point;
}

Tensors zeros_like(const Tensors& model) {
  Tensors zeros;
  for (const auto& tensor : model) zeros.push_back(at::zeros_like(tensor));
  return zeros;
}

Tensors as_doubles(Tensors tensors) {
  for (auto& tensor : tensors) tensor = tensor.to(tensor.is_complex() ? at::kComplexDouble : at::kDouble);
  return tensors;
}

// Shapes and dtypes are those of `model`.
std::string misfit(const Tensors& actual, const Tensors& model) {
  if (actual.size() != model.size()) return support::difference(actual, model, {0, 0});
  for (size_t i = 0; i < model.size(); ++i) {
    if (!actual[i].defined() || actual[i].sizes() != model[i].sizes() || actual[i].dtype() != model[i].dtype()) {
      return support::difference({actual[i]}, {model[i]}, {0, 0});
    }
  }
  return "";
}

void check_pullback_parts(const Point& point, const Tensors& gradients, const Case& c) {
  const auto tolerance = support::same_arithmetic(c.dtype);
  // One input at a time: the others are constants, and contribute nothing.
  for (size_t i = 0; i < point.x.size() && point.x.size() > 1; ++i) {
    const auto alone = [&](const Tensors& value) {
      Tensors x = point.x;
      x[i] = value[0];
      return point.f(x);
    };
    const Tensors gradient = td::vjp(alone, {point.x[i]}).second(point.cotangents);
    c.report.expect("vjp of input " + std::to_string(i) + " alone",
                    support::difference(gradient, {gradients[i]}, tolerance));
  }
  // One output at a time: undefined cotangents are zeros, and the parts add up.
  if (point.outputs.size() < 2) return;
  const auto pullback = td::vjp(point.f, point.x).second;
  Tensors sum = zeros_like(point.x);
  for (size_t i = 0; i < point.outputs.size(); ++i) {
    Tensors cotangents(point.outputs.size());
    cotangents[i] = point.cotangents[i];
    sum = support::plus(sum, pullback(cotangents));
  }
  c.report.expect("vjp of one output at a time", support::difference(sum, gradients, tolerance));
}

void check_pullback(const Point& point, bool finite_differences, const Case& c) {
  const auto [outputs, pullback] = td::vjp(point.f, point.x);
  c.report.expect("vjp: outputs", support::difference(outputs, point.outputs, support::same_arithmetic(c.dtype)));
  const Tensors gradients = pullback(point.cotangents);
  c.report.expect("vjp: shapes and dtypes", misfit(gradients, point.x));
  if (!finite_differences) return;
  const double scale = 1 + support::magnitude(gradients);
  for (uint64_t seed : {101, 102}) {
    const Tensors direction = support::random_like(point.x, seed);
    const double measured =
        support::inner(point.cotangents, support::directional_derivative(point.f, point.x, direction));
    c.report.expect_close("vjp against finite differences", support::inner(gradients, direction), measured,
                          c.entry.tolerance * scale);
  }
}

void check_pushforward(const Point& point, bool finite_differences, const Case& c) {
  const auto [outputs, tangents] = td::jvp(point.f, point.x, point.tangents);
  c.report.expect("jvp: outputs", support::difference(outputs, point.outputs, support::same_arithmetic(c.dtype)));
  c.report.expect("jvp: shapes and dtypes", misfit(tangents, point.outputs));
  if (!finite_differences) return;
  const Tensors measured = support::directional_derivative(point.f, point.x, point.tangents);
  c.report.expect("jvp against finite differences",
                  support::difference(tangents, measured, {c.entry.tolerance, c.entry.tolerance}));
}

// The derivative in single precision against the one in double.
void check_single(const Case& c, const std::function<Tensors(const Point&)>& derivative) {
  const op_db::Sample sample = op_db::parse_sample(c.entry, c.sample.text, at::kDouble);
  const Problem reference = differentiable_problem_of({c.entry, sample, at::kDouble, c.report});
  const Tensors actual = derivative(point_of(differentiable_problem_of(c), 0));
  const Tensors expected = derivative(point_of(reference, 0));
  c.report.expect("float32 against float64",
                  support::difference(as_doubles(actual), as_doubles(expected), {2e-3, 2e-3}));
}

}  // namespace

void check_vjp(const Case& c) {
  const Problem problem = differentiable_problem_of(c);
  if (!has_derivatives(problem)) return;
  if (c.dtype == at::kFloat) {
    c.report.run("vjp", [&] {
      check_pullback(point_of(problem, 0), false, c);
      check_single(c, [](const Point& p) { return td::vjp(p.f, p.x).second(p.cotangents); });
    });
    return;
  }
  const bool autograd = libtorch_differentiates(c);
  for (size_t example = 0; example < problem.examples.size(); ++example) {
    c.report.run("vjp", [&] {
      const Point point = point_of(problem, example);
      check_pullback(point, is_double(problem) && !c.entry.has("no_fd"), c);
      const Tensors gradients = td::vjp(point.f, point.x).second(point.cotangents);
      if (autograd) {
        c.report.expect(
            "vjp against LibTorch's autograd",
            support::difference(gradients, support::autograd_vjp(point.f, point.x, point.cotangents), {1e-9, 1e-9}));
      }
      if (example == 0) check_pullback_parts(point, gradients, c);
    });
  }
}

void check_jvp(const Case& c) {
  const Problem problem = differentiable_problem_of(c);
  if (!has_derivatives(problem)) return;
  if (c.dtype == at::kFloat) {
    c.report.run("jvp", [&] {
      check_pushforward(point_of(problem, 0), false, c);
      check_single(c, [](const Point& p) { return td::jvp(p.f, p.x, p.tangents).second; });
    });
    return;
  }
  const auto tolerance = support::same_arithmetic(c.dtype);
  for (size_t example = 0; example < problem.examples.size(); ++example) {
    const Point point = point_of(problem, example);
    c.report.run("jvp", [&] {
      check_pushforward(point, is_double(problem) && !c.entry.has("no_fd"), c);
      const Tensors tangents = td::jvp(point.f, point.x, point.tangents).second;
      if (example != 0 || point.x.size() < 2) return;
      Tensors sum = zeros_like(point.outputs);
      for (size_t i = 0; i < point.x.size(); ++i) {
        Tensors alone(point.x.size());
        alone[i] = point.tangents[i];
        sum = support::plus(sum, td::jvp(point.f, point.x, alone).second);
      }
      c.report.expect("jvp of one input at a time", support::difference(sum, tangents, tolerance));
    });
    c.report.run("linearize", [&] {
      const auto [outputs, pushforward] = td::linearize(point.f, point.x);
      c.report.expect("linearize: outputs", support::difference(outputs, point.outputs, tolerance));
      c.report.expect("linearize against jvp",
                      support::difference(pushforward(point.tangents), td::jvp(point.f, point.x, point.tangents).second,
                                          {1e-9, 1e-9}));
    });
    if (c.entry.refuses("vjp")) continue;
    c.report.run("jvp", [&] {
      const double forward = support::inner(point.cotangents, td::jvp(point.f, point.x, point.tangents).second);
      const Tensors gradients = td::vjp(point.f, point.x).second(point.cotangents);
      c.report.expect_close("jvp is the adjoint of vjp", forward, support::inner(gradients, point.tangents),
                            (is_double(problem) ? 1e-9 : 1e-5) * (1 + support::magnitude(gradients)));
    });
  }
}

void check_transform_vjp(const Problem& problem, const Case& c) {
  check_pullback(point_of(problem, 0), !c.entry.has("no_fd"), c);
}

void check_transform_jvp(const Problem& problem, const Case& c) {
  check_pushforward(point_of(problem, 0), !c.entry.has("no_fd"), c);
}

}  // namespace matrix
