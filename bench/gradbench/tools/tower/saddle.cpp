// A saddle point, min over x of max over y, by gradient descent in x on what gradient ascent in y finds: derivatives of
// an optimiser that takes derivatives, each in forward (f) or reverse (r) mode, the outer one first.
#include "evaluation.h"
#include "gradient_descent.h"

using at::Tensor;

namespace {

Tensor objective(const Tensor& x, const Tensor& y) { return x.square().sum() - y.square().sum(); }

template <class Outer, class Inner>
Tensor saddle_point(const Tensor& start) {
  const auto best_y = [start](const Tensor& x) {
    return gradbench::argmax<Inner>([x](const Tensor& y) { return objective(x, y); }, start);
  };
  const Tensor x = gradbench::argmin<Outer>([=](const Tensor& at) { return objective(at, best_y(at)); }, start);
  return at::cat({x, best_y(x)});
}

template <class Outer, class Inner>
gradbench::Evaluation of(const gradbench::json& input) {
  return gradbench::evaluation(tower::compile(saddle_point<Outer, Inner>), gradbench::as_json,
                               gradbench::tensor(input["start"]));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  return program(argc, argv,
                 {{"rr", of<Reverse, Reverse>},
                  {"rf", of<Reverse, Forward>},
                  {"fr", of<Forward, Reverse>},
                  {"ff", of<Forward, Forward>}});
}
