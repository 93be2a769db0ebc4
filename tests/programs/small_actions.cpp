// What random programs for kernels of compiled functions are made of, beside the ordinary actions: reading and adding
// where values point to, orders, rows, windows, matrices, loops. Compared are two ways to compute the same, so these
// need not be smooth.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/loops.h>

#include <algorithm>

#include "programs/program.h"

namespace programs {
namespace {

bool has_dims(const Tensor& t) { return t.dim() > 0; }
bool is_square(const Tensor& t) { return t.dim() == 2 && t.size(0) == t.size(1); }

void any_one(Draw& d) { d.any(); }
void any_with_dim(Draw& d) { d.dim_of(d.any(has_dims)); }
void any_square(Draw& d) { d.any(is_square); }
// A tensor, one of its dimensions, and another tensor whose values point to places along it.
void any_and_pointer(Draw& d) {
  d.dim_of(d.any(has_dims));
  d.any(has_dims);
}

// Places among `n`, where the values of `t` point to. The offset keeps ordinary values from lying where the places
// change.
Tensor places(const Tensor& t, int64_t n) {
  return (t * 7.3 + 0.1234567).floor().abs().clamp_max(1000).to(at::kLong).remainder(n);
}
// As many along the dimension as that is long, in all other dimensions too.
Tensor places_along(const Tensor& t, int64_t dim) { return places(t, t.size(dim)); }
// A list of them.
Tensor some_places(const Tensor& pointer, int64_t n) { return places(pointer.reshape({-1}).slice(0, 0, 3), n); }
// As a convolution or a pooling has it: one item of one channel.
Tensor as_row(const Tensor& t) { return t.reshape({1, 1, -1}); }
// Of well conditioned systems.
Tensor regular(const Tensor& t) {
  return t.tanh() + 3 * static_cast<double>(t.size(0)) * at::eye(t.size(0), t.options());
}

std::vector<Action> indices() {
  return {
      {Kind::makes, "$0.gather(#0, places of $0)", any_with_dim,
       [](const Call& c) { return c[0].gather(c.number(0), places_along(c[0], c.number(0))); }},
      {Kind::makes, "$0.index_select(#0, places by $1)", any_and_pointer,
       [](const Call& c) { return c[0].index_select(c.number(0), some_places(c[1], c[0].size(c.number(0)))); }},
      {Kind::makes, "$0.index({places by $1})",
       [](Draw& d) {
         d.any(has_dims);
         d.any(has_dims);
       },
       [](const Call& c) { return c[0].index({some_places(c[1], c[0].size(0))}); }},
      {Kind::makes, "$0.take(places by $1)",
       [](Draw& d) {
         d.any();
         d.any(has_dims);
       },
       [](const Call& c) { return c[0].take(some_places(c[1], c[0].numel())); }},
      {Kind::makes, "$0.scatter_add(#0, places of $0, $0.sin())", any_with_dim,
       [](const Call& c) { return c[0].scatter_add(c.number(0), places_along(c[0], c.number(0)), c[0].sin()); }},
      {Kind::makes, "$0.scatter(#0, places of $0, $0.cos())", any_with_dim,
       [](const Call& c) { return c[0].scatter(c.number(0), places_along(c[0], c.number(0)), c[0].cos()); }},
      {Kind::makes, "$0.scatter_reduce(#0, places of $0, $0.cos(), amax)", any_with_dim,
       [](const Call& c) {
         return c[0].scatter_reduce(c.number(0), places_along(c[0], c.number(0)), c[0].cos(), "amax");
       }},
      {Kind::makes, "$0.index_add(#0, places by $1, ones, 0.5)", any_and_pointer,
       [](const Call& c) {
         const Tensor index = some_places(c[1], c[0].size(c.number(0)));
         std::vector<int64_t> sizes = c[0].sizes().vec();
         sizes[static_cast<size_t>(c.number(0))] = index.size(0);
         return c[0].index_add(c.number(0), index, at::ones(sizes, c[0].options()), 0.5);
       }},
      {Kind::makes, "$0.index_fill(#0, places by $1, 0.5)", any_and_pointer,
       [](const Call& c) { return c[0].index_fill(c.number(0), some_places(c[1], c[0].size(c.number(0))), 0.5); }},
      {Kind::makes, "$0.index_put({places by $1}, 0.25, true)",
       [](Draw& d) {
         d.any(has_dims);
         d.any(has_dims);
       },
       [](const Call& c) {
         return c[0].index_put({some_places(c[1], c[0].size(0))}, at::full({}, 0.25, c[0].options()), true);
       }},
  };
}

std::vector<Action> orders() {
  return {
      {Kind::makes, "$0.sort(#0).values", any_with_dim,
       [](const Call& c) { return std::get<0>(c[0].sort(c.number(0))); }},
      {Kind::makes, "$0.argsort(#0, true) as numbers", any_with_dim,
       [](const Call& c) { return c[0].argsort(true, c.number(0)).to(c[0].scalar_type()) * 0.1; }},
      {Kind::makes, "$0.topk(1, #0).values", any_with_dim,
       [](const Call& c) { return std::get<0>(c[0].topk(1, c.number(0))); }},
      {Kind::makes, "$0.kthvalue(size, #0).values", any_with_dim,
       [](const Call& c) { return std::get<0>(c[0].kthvalue(c[0].size(c.number(0)), c.number(0))); }},
      {Kind::makes, "$0.median()", any_one, [](const Call& c) { return c[0].median(); }},
      {Kind::makes, "$0.cummax(#0).values", any_with_dim,
       [](const Call& c) { return std::get<0>(c[0].cummax(c.number(0))); }},
      {Kind::makes, "$0.argmax(#0) as numbers", any_with_dim,
       [](const Call& c) { return c[0].argmax(c.number(0)).to(c[0].scalar_type()) * 0.1; }},
      {Kind::makes, "searchsorted($0 in order, $1) as numbers",
       [](Draw& d) {
         d.any(has_dims);
         d.any();
       },
       [](const Call& c) {
         const Tensor row = std::get<0>(c[0].reshape({-1}).sort());
         return at::searchsorted(row, c[1].contiguous()).to(c[1].scalar_type()) * 0.1;
       }},
  };
}

std::vector<Action> rows() {
  return {
      {Kind::makes, "$0.logsumexp(#0)", any_with_dim, [](const Call& c) { return c[0].logsumexp(c.number(0)); }},
      {Kind::makes, "$0.var(#0, false)", any_with_dim, [](const Call& c) { return c[0].var(c.number(0), false); }},
      {Kind::makes, "$0.cumprod(#0)", any_with_dim, [](const Call& c) { return c[0].cumprod(c.number(0)); }},
      {Kind::makes, "$0.logcumsumexp(#0)", any_with_dim, [](const Call& c) { return c[0].logcumsumexp(c.number(0)); }},
      {Kind::makes, "$0.prod(#0)", any_with_dim, [](const Call& c) { return c[0].prod(c.number(0)); }},
      {Kind::makes, "$0.amax(#0, true)", any_with_dim, [](const Call& c) { return c[0].amax(c.number(0), true); }},
      {Kind::makes, "$0.log_softmax(#0)", any_with_dim, [](const Call& c) { return c[0].log_softmax(c.number(0)); }},
      {Kind::makes, "$0.roll(1, #0)", any_with_dim, [](const Call& c) { return c[0].roll(1, c.number(0)); }},
      {Kind::makes, "$0.diff(1, #0)",
       [](Draw& d) {
         const Tensor& t = d.any(has_dims);
         if (t.size(d.dim_of(t)) < 2) throw NoSuchOperands();
       },
       [](const Call& c) { return c[0].diff(1, c.number(0)); }},
      {Kind::makes, "digamma($0.abs() + 0.5)", any_one, [](const Call& c) { return at::digamma(c[0].abs() + 0.5); }},
      {Kind::makes, "i0($0).log()", any_one, [](const Call& c) { return at::i0(c[0]).log(); }},
      {Kind::makes, "erfinv($0.tanh() * 0.9)", any_one, [](const Call& c) { return at::erfinv(c[0].tanh() * 0.9); }},
  };
}

std::vector<Action> windows() {
  const auto row_of_two = [](Draw& d) { d.any([](const Tensor& t) { return t.numel() >= 2; }); };
  return {
      {Kind::makes, "$0 as a row, padded by reflection", row_of_two,
       [](const Call& c) {
         return at::reflection_pad1d(as_row(c[0]), {1, 1})[0];
       }},
      {Kind::makes, "$0 as a row, padded by replication", any_one,
       [](const Call& c) {
         return at::replication_pad1d(as_row(c[0]), {2, 0})[0];
       }},
      {Kind::makes, "$0 as a row, twice as long", any_one,
       [](const Call& c) { return at::upsample_nearest1d(as_row(c[0]), {2 * c[0].numel()})[0]; }},
      {Kind::makes, "$0 as a row, resampled", row_of_two,
       [](const Call& c) { return at::upsample_linear1d(as_row(c[0]), {c[0].numel() + 1}, true)[0]; }},
      {Kind::makes, "$0 as a row, means of two", row_of_two,
       [](const Call& c) { return at::avg_pool1d(as_row(c[0]), {2}, {1})[0]; }},
      {Kind::makes, "$0 as a row, maxima of two", row_of_two,
       [](const Call& c) { return at::max_pool1d(as_row(c[0]), {2}, {1})[0]; }},
      {Kind::makes, "$0 as a row, folded with {1, -2}", row_of_two,
       [](const Call& c) {
         const Tensor weight = at::stack({at::ones({}, c[0].options()), at::full({}, -2.0, c[0].options())});
         return at::conv1d(as_row(c[0]), weight.view({1, 1, 2}))[0].tanh();
       }},
  };
}

std::vector<Action> matrices() {
  return {
      {Kind::makes, "inverse of a regular matrix by $0", any_square,
       [](const Call& c) { return at::linalg_inv(regular(c[0])); }},
      {Kind::makes, "solve of a regular matrix by $0, with itself", any_square,
       [](const Call& c) { return at::linalg_solve(regular(c[0]), c[0]); }},
      {Kind::makes, "cholesky of a definite matrix by $0", any_square,
       [](const Call& c) {
         const Tensor a = c[0].tanh();
         return at::linalg_cholesky(a.matmul(a.t()) + at::eye(a.size(0), a.options()));
       }},
      {Kind::makes, "log |det| of a regular matrix by $0", any_square,
       [](const Call& c) { return std::get<1>(at::linalg_slogdet(regular(c[0]))); }},
      {Kind::makes, "R of a regular matrix by $0", any_square,
       [](const Call& c) { return std::get<1>(at::linalg_qr(regular(c[0]))).tanh(); }},
  };
}

std::vector<Action> loops() {
  return {
      {Kind::makes, "root of $0.abs() + 1 by a loop", any_one,
       [](const Call& c) {
         const Tensor a = c[0].abs().sum() + 1;
         return tower::while_loop([a](const Tensor& y) { return (y * y - a).abs() > 1e-13 * a; },
                                  [a](const Tensor& y) { return (y + a / y) / 2; }, a.clone());
       }},
      {Kind::makes, "nine steps from $0", any_one,
       [](const Call& c) {
         return tower::fori_loop(
             0, 9, [](int64_t, const Tensor& y) { return y + 0.1 * y.sin(); }, c[0].clone());
       }},
  };
}

}  // namespace

const std::vector<Action>& small_actions() {
  static const std::vector<Action> all = [] {
    std::vector<Action> result = actions();
    std::erase_if(result, [](const Action& action) { return action.kind == Kind::writes; });
    for (const auto& part : {indices(), orders(), rows(), windows(), matrices(), loops()})
      result.insert(result.end(), part.begin(), part.end());
    return result;
  }();
  return all;
}

}  // namespace programs
