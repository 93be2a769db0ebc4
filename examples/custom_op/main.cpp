// Gives an operator of another library, loaded at run time, a derivative and a rule for batches, and uses it as if
// LibTorch had always had it: stiffnesses of many springs, each the second derivative of an energy.
//
//   spring path/to/libforces.so          exits with 1 where a result differs from the closed form
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <tower/custom_op.h>
#include <tower/tower.h>

#include <cmath>
#include <iostream>

namespace {

using at::Tensor;

// dE/dr = 2 k (1 - e) e with e = exp(-k (r - 1)): written with operators, so it has derivatives itself.
tower::CustomOp morse_rules() {
  return tower::custom_op("forces::morse")
      .save_for_backward(
          [](const tower::Arguments& in, const tower::ValueList&) -> tower::Saved { return {in.tensor("r")}; })
      .backward([](const tower::BackwardContext& call, const tower::ValueList& saved,
                   const tower::ValueList& grads) -> tower::Gradients {
        const double k = call.get<double>("stiffness");
        const Tensor e = (-k * (saved[0] - 1)).exp();
        return {{"r", grads[0] * 2 * k * (1 - e) * e}};
      })
      .linear_backward()
      // The kernel works element by element, so a batch is one call. Without this it would be called for each example.
      .vmap([](const tower::VmapInfo&, const tower::BatchDims& dims, const Tensor& r, double stiffness) {
        static const auto morse = tower::custom_op("forces::morse").typed<Tensor(const Tensor&, double)>();
        return std::pair(morse(r, stiffness), dims["r"]);
      });
}

bool check(const char* what, const Tensor& actual, const Tensor& expected) {
  const double error = (actual - expected).abs().max().item<double>();
  std::cout << what << ": differs from the closed form by " << error << "\n";
  return error < 1e-12;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: spring path/to/libforces.so\n";
    return 2;
  }
  // Before or after the library is loaded: the order does not matter.
  const tower::CustomOp rules = morse_rules();
  if (!dlopen(argv[1], RTLD_NOW)) {
    std::cerr << dlerror() << "\n";
    return 2;
  }
  const auto morse = rules.typed<Tensor(const Tensor&, double)>();

  const double k = 1.5;
  const auto energy = [&](const Tensor& r) { return morse(r, k); };
  const Tensor r = at::linspace(0.5, 3, 1000, at::kDouble), e = (-k * (r - 1)).exp();

  const Tensor force = tower::vmap(tower::grad(energy))(r);
  const Tensor stiffness = tower::vmap(tower::hessian(energy))(r);
  const Tensor leaf = r.clone().requires_grad_();
  energy(leaf).sum().backward();

  bool right = check("forces, vmap(grad(energy))", force, 2 * k * (1 - e) * e);
  right &= check("stiffnesses, vmap(hessian(energy))", stiffness, 2 * k * k * e * (2 * e - 1));
  right &= check("forces by LibTorch's backward()", leaf.grad(), 2 * k * (1 - e) * e);
  return right ? 0 : 1;
}
