#include "solvers/sparse_cases.h"

#include "support/device.h"
#include "support/prelude.h"
#include "tower/cond.h"
#include "tower/function.h"
#include "tower/loops.h"
#include "tower/transforms.h"

namespace sparse_cases {

namespace {

template <class T>
Tensor tensor(std::initializer_list<T> values) {
  return at::tensor(values).to(support::device());
}
Tensor padded(const Tensor& x) { return at::constant_pad_nd(x, {1, 1}); }
const Tensor some_matrix = tensor({1.0, 2.0, -1.0, 0.5, 3.0, 4.0}).view({2, 3});
// Two diagonals, zeros elsewhere.
Tensor banded() {
  return tensor({1.0, 2.0, 0.0, 0.0, 0.0, 3.0, 1.0, 0.0, 0.0, 0.0, 2.0, 4.0, 0.0, 0.0, 0.0, 5.0}).view({4, 4});
}
Tensor kernel(std::vector<int64_t> sizes) { return waves(sizes, 0.7).to(support::device()) + 2; }
struct Doubled : tower::Function<Doubled> {
  static constexpr bool linear_backward = true;
  static Tensor forward(const Tensor& x) { return 2 * x; }
  static Tensor backward(tower::Context&, const Tensor& g) { return 2 * g; }
};
Tensor doubled(const Tensor& x) { return Doubled::apply(x); }

}  // namespace

Tensor laplacian(const Tensor& x) {
  const int64_t n = x.size(0);
  return padded(x).narrow(0, 0, n) - 2 * x + padded(x).narrow(0, 2, n);
}
Tensor five_points(const Tensor& x) {
  const Tensor wide = at::constant_pad_nd(x, {1, 1, 1, 1});
  const int64_t n = x.size(0), m = x.size(1);
  const auto shifted = [&](int64_t i, int64_t j) { return wide.narrow(0, i, n).narrow(1, j, m); };
  return shifted(0, 1) + shifted(2, 1) + shifted(1, 0) + shifted(1, 2) - 4 * x + x.pow(3) * shifted(1, 2).cos();
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"pointwise", {5}, [](const Tensor& x) { return x.sin() * x.exp() + 2; }},
      {"nothing", {4}, [](const Tensor& x) { return at::ones({3}, x.options()); }},
      {"a constant beside x",
       {4},
       [](const Tensor& x) {
         return at::cat({x.detach() * 0, x}) + 1;
       },
       false},
      {"a stencil", {7}, [](const Tensor& x) { return laplacian(x) * x; }},
      {"a stencil by slices",
       {7},
       [](const Tensor& x) { return x.slice(0, 2) - x.slice(0, 0, -2) + x.slice(0, 1, -1).square(); }},
      {"a stencil written in place",
       {7},
       [](const Tensor& x) {
         Tensor y = x.clone();
         y.slice(0, 1).sub_(x.slice(0, 0, -1));
         y.slice(0, 0, -1).add_(x.slice(0, 1).square());
         return y;
       }},
      {"five points of a grid", {4, 5}, five_points},
      {"a periodic stencil", {6}, [](const Tensor& x) { return x.roll(1, 0) * x - x.roll(-1, 0); }},
      {"rows sums", {3, 4}, [](const Tensor& x) { return x.square().sum(1); }},
      {"column means", {3, 4}, [](const Tensor& x) { return x.exp().mean(std::vector<int64_t>{0}, true); }},
      {"a norm", {5}, [](const Tensor& x) { return x.norm(); }},
      {"largest of rows", {3, 4}, [](const Tensor& x) { return x.amax(std::vector<int64_t>{1}); }, false},
      {"logsumexp", {3, 4}, [](const Tensor& x) { return x.logsumexp(1); }},
      {"softmax of rows", {2, 3}, [](const Tensor& x) { return x.softmax(1); }},
      {"running sums", {5}, [](const Tensor& x) { return x.cumsum(0); }, false},
      {"blocks", {2, 3}, [](const Tensor& x) { return at::mm(x, some_matrix.t()).tanh(); }},
      {"blocks from the left", {2, 3}, [](const Tensor& x) { return at::mm(some_matrix.t(), x); }},
      {"x by its transposed", {2, 3}, [](const Tensor& x) { return at::mm(x, x.t()); }, false},
      {"a dense matrix", {3}, [](const Tensor& x) { return at::mv(some_matrix, x); }},
      {"matmul", {2, 2, 3}, [](const Tensor& x) { return at::matmul(x, some_matrix.t()); }},
      {"a linear layer", {2, 3}, [](const Tensor& x) { return at::linear(x, some_matrix, x.sum(1)); }, false},
      {"a sparse matrix",
       {3},
       [](const Tensor& x) {
         const Tensor a = tensor({1.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 4.0}).view({3, 3});
         return at::mv(a.to_sparse_csr(), x.square());
       }},
      {"an inner product", {4}, [](const Tensor& x) { return at::dot(x, x.flip(0)); }},
      {"an arrow",
       {5},
       [](const Tensor& x) {
         return at::cat({x.sum().unsqueeze(0), x.slice(0, 1) * x[0]});
       }},
      {"a permutation",
       {6},
       [](const Tensor& x) {
         return x.index_select(0, tensor({5, 3, 1, 0, 2, 4})).square();
       }},
      {"gather",
       {2, 3},
       [](const Tensor& x) {
         return x.gather(1, tensor({2, 0, 1, 1}).view({2, 2})).sin();
       }},
      {"advanced indices",
       {3, 4},
       [](const Tensor& x) {
         return x.index({tensor({2, 0}), tensor({1, 3})}).exp();
       }},
      {"edges of a graph",
       {5},
       [](const Tensor& x) {
         const Tensor from = tensor({0, 1, 1, 4}), to = tensor({1, 2, 3, 0});
         const Tensor flow = (x.index_select(0, from) - x.index_select(0, to)).tanh();
         return at::zeros_like(x).index_add(0, from, flow).index_add(0, to, -flow);
       }},
      {"scatter_add",
       {4},
       [](const Tensor& x) {
         return at::zeros({3}, x.options()).scatter_add(0, tensor({0, 2, 0, 1}), x.square());
       }},
      {"index_put with accumulation",
       {4},
       [](const Tensor& x) {
         return x.index_put({tensor({1, 1})}, x.slice(0, 2), /*accumulate=*/true).sin();
       }},
      {"where", {6}, [](const Tensor& x) { return at::where(x > 0, x.square(), x.flip(0)); }, false},
      {"cond",
       {4},
       [](const Tensor& x) {
         return tower::cond(
             x.sum() > 100, [](const Tensor& v) { return v.sum() * v; }, [](const Tensor& v) { return v * v; }, x);
       },
       false},
      {"a loop",
       {6},
       [](const Tensor& x) {
         return tower::fori_loop(
             0, 2, [](int64_t, const Tensor& s) { return s + 0.1 * laplacian(s).sin(); }, x);
       }},
      {"stacked and unbound",
       {2, 3},
       [](const Tensor& x) {
         const auto rows = x.unbind(0);
         return at::stack({rows[1], rows[0] * rows[1]}, 1);
       }},
      {"triangles", {3, 3}, [](const Tensor& x) { return x.tril() + x.triu(1).t(); }},
      {"a block matrix",
       {4},
       [](const Tensor& x) {
         return at::block_diag({x.view({2, 2}), x.narrow(0, 0, 2).diag()}).sum(0);
       }},
      {"types and views",
       {4},
       [](const Tensor& x) {
         return x.to(at::kFloat).view({2, 2}).t().contiguous().to(at::kDouble).flatten() * 2;
       }},
      {"integers have no derivative", {4}, [](const Tensor& x) { return x * x.round().sign() + x.argmax(); }, false},
      {"an inverse", {2, 2}, [](const Tensor& x) { return at::linalg_inv(x + 3 * at::eye(2, x.options())); }},
      {"variance", {2, 3}, [](const Tensor& x) { return x.var(1); }},
      {"maximum of two", {5}, [](const Tensor& x) { return at::max(x, x.roll(1, 0)); }, false},
      {"a gradient inside",
       {6},
       [](const Tensor& x) {
         return tower::grad([](const Tensor& v) { return (v.slice(0, 1) * v.slice(0, 0, -1).square()).sum(); })(x);
       }},
      {"a vmap inside",
       {3, 2},
       [](const Tensor& x) { return tower::vmap([](const Tensor& row) { return row[0] * row.exp(); })(x); }},
      {"a jvp inside",
       {5},
       [](const Tensor& x) {
         return tower::jvp([](const Tensor& v) { return laplacian(v).sin(); }, x, x.cos()).second;
       }},
      {"a number",
       {},
       [](const Tensor& x) {
         return at::stack({x, x * x, x * 0 + 1});
       },
       false},
      {"a matrix with zeros",
       {4},
       [](const Tensor& x) { return at::mv(banded(), x.square()) + at::mv(banded().t(), x); }},
      {"from both sides of a matrix",
       {4, 4},
       [](const Tensor& x) { return at::mm(at::mm(banded(), x), banded().t()); }},
      {"a matrix made of signs of x",
       {3},
       [](const Tensor& x) { return at::mv((x.unsqueeze(0) > x.unsqueeze(1)).to(at::kDouble), x); },
       false},
      {"addmm with zeros", {4, 2}, [](const Tensor& x) { return at::addmm(x, banded(), x.sin()); }},
      {"convolution in one dimension",
       {2, 2, 9},
       [](const Tensor& x) {
         return at::conv1d(x, kernel({3, 2, 3}), tensor({1.0, 2.0, 3.0})).tanh();
       }},
      {"convolution with stride, padding and dilation",
       {1, 2, 7, 6},
       [](const Tensor& x) {
         return at::conv2d(x, kernel({2, 2, 3, 2}), {}, {2, 1}, {1, 2}, {1, 2});
       }},
      {"convolution in groups",
       {1, 4, 5},
       [](const Tensor& x) {
         return at::conv1d(x, kernel({6, 2, 2}), {}, 1, 1, 1, 2);
       }},
      {"convolution by five points of nine",
       {1, 1, 5, 4},
       [](const Tensor& x) {
         const Tensor k = tensor({0.0, 1.0, 0.0, 1.0, -4.0, 1.0, 0.0, 1.0, 0.0}).view({1, 1, 3, 3});
         return at::conv2d(x, k, {}, 1, 1) + x.pow(3);
       }},
      {"transposed convolution",
       {1, 2, 4},
       [](const Tensor& x) {
         return at::conv_transpose1d(x, kernel({2, 4, 3}), {}, 2, 1, 1, 2, 1);
       }},
      {"transposed convolution with zeros and dilation",
       {1, 1, 4},
       [](const Tensor& x) {
         return at::conv_transpose1d(x, tensor({1.0, 0.0, 2.0}).view({1, 1, 3}), {}, 2, 0, 0, 1, 2);
       }},
      {"a kernel of x",
       {3},
       [](const Tensor& x) {
         return at::conv1d(kernel({1, 1, 6}), x.view({1, 1, 3}));
       }},
      {"a mean over windows",
       {1, 1, 4, 6},
       [](const Tensor& x) {
         return at::avg_pool2d(x.exp(), {2, 3});
       }},
      {"the largest of windows", {1, 1, 4, 6}, [](const Tensor& x) { return at::max_pool2d(x, 3, 2, 1); }, false},
      {"outer products", {3}, [](const Tensor& x) { return at::outer(x, x.narrow(0, 0, 2)); }},
      {"einsum of rows",
       {3, 2},
       [](const Tensor& x) {
         return at::einsum("ij,kj->ik", {x, some_matrix.narrow(1, 0, 2)});
       }},
      {"an arrow with a long column and a long row",
       {6},
       [](const Tensor& x) {
         return at::cat({x.square().sum().unsqueeze(0), x.slice(0, 1).exp() + x[0]});
       }},
      {"windows by unfold", {7}, [](const Tensor& x) { return x.unfold(0, 3, 2).square().sum(1); }},
      {"both branches of a choice by x",
       {4},
       [](const Tensor& x) {
         return tower::cond(
             x.sum() > 100, [](const Tensor& v) { return v.roll(1, 0) * v; }, [](const Tensor& v) { return v * v; }, x);
       },
       false},
      {"a scan",
       {3, 2},
       [](const Tensor& x) {
         const auto step = [](const Tensor& carry, const Tensor& row) { return std::pair(carry, carry * row.sin()); };
         return tower::scan(step, x[0], x).second;
       }},
      {"a custom function",
       {4},
       [](const Tensor& x) {
         return at::cat({doubled(x.narrow(0, 0, 2)), x});
       },
       false},
      {"two fields that react",
       {2, 3, 4},
       [](const Tensor& x) {
         const Tensor a = x[0], b = x[1], rate = a * b.square();
         return at::stack({five_points(a) - rate, five_points(b) + rate});
       }},
      {"upwind differences",
       {6},
       [](const Tensor& x) { return at::where(x > 0, x * (x - x.roll(1, 0)), x * (x.roll(-1, 0) - x)); },
       false},
  };
  return all;
}

}  // namespace sparse_cases
