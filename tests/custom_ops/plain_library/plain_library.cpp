// A library of operators that was written without Tower, in the three usual ways.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A kernel that reads memory, without any derivative.
Tensor cube(const Tensor& x) {
  const Tensor in = x.contiguous().to(at::kDouble);
  Tensor out = at::empty_like(in);
  for (int64_t i = 0; i < in.numel(); ++i) {
    const double v = in.const_data_ptr<double>()[i];
    out.mutable_data_ptr<double>()[i] = v * v * v;
  }
  return out.to(x.scalar_type());
}

// One kernel for everything, made of LibTorch's operators.
Tensor square(const Tensor& x) { return x * x; }

// Its own formula for LibTorch's autograd, 7 x: not the derivative of x².
struct Own : torch::autograd::Function<Own> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return x * x;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {7 * ctx->get_saved_variables()[0] * grads[0]};
  }
};
Tensor own(const Tensor& x) { return Own::apply(x); }
Tensor own_forward(const Tensor& x) { return x * x; }

}  // namespace

TORCH_LIBRARY(plain, m) {
  m.def("cube(Tensor x) -> Tensor");
  m.def("square(Tensor x) -> Tensor", &square);
  m.def("own(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(plain, CPU, m) {
  m.impl("cube", &cube);
  m.impl("own", &own_forward);
}
TORCH_LIBRARY_IMPL(plain, Autograd, m) { m.impl("own", &own); }
