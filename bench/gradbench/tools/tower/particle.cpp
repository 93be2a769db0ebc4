// A charged particle between two charges, of which one can be moved by w: that w for which the particle comes to the
// origin. Acceleration is a gradient inside of the integrator, which is inside of the function that gradient descent
// makes small: each in forward (f) or reverse (r) mode, the outer one first.
#include "evaluation.h"
#include "gradient_descent.h"

using at::Tensor;

namespace {

struct Motion {
  Tensor position, velocity;
};
constexpr auto tower_fields(const Motion&) { return std::tuple(&Motion::position, &Motion::velocity); }

// Where the particle crosses the axis, squared.
template <class Inner>
Tensor miss(const Tensor& w) {
  constexpr double kStep = 0.1;
  const Tensor ten = at::full({}, 10.0, w.options());
  const Tensor charges = at::stack({ten, 10 - w, ten, at::zeros({}, w.options())}).view({2, 2});
  const auto potential = [charges](const Tensor& x) { return (charges - x).square().sum(1).rsqrt().sum(); };
  const auto moved = [](const Motion& m) { return m.position + kStep * m.velocity; };
  const Motion last =
      tower::while_loop([=](const Motion& m) { return moved(m)[1] > 0; },
                        [=](const Motion& m) {
                          const Tensor force = -Inner::value_and_gradient(potential, m.position).second;
                          return Motion{.position = moved(m), .velocity = m.velocity + kStep * force};
                        },
                        Motion{.position = at::tensor({0.0, 8.0}), .velocity = at::tensor({0.75, 0.0})});
  const Tensor below = moved(last);
  return (below[0] - below[1] / last.velocity[1] * last.velocity[0]).square();
}

template <class Outer, class Inner>
gradbench::Evaluation best(const gradbench::json& input) {
  const auto function = [](const Tensor& w) { return gradbench::argmin<Outer>(miss<Inner>, w); };
  return gradbench::evaluation(tower::compile(function), gradbench::as_json, gradbench::tensor(input["w"]));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  return program(argc, argv,
                 {{"rr", best<Reverse, Reverse>},
                  {"rf", best<Reverse, Forward>},
                  {"fr", best<Forward, Reverse>},
                  {"ff", best<Forward, Forward>}});
}
