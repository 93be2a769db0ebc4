// What random programs are made of. Every function here is smooth, so that difference quotients can decide, and keeps
// values small.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "programs/program.h"
#include "support/device.h"

namespace programs {
namespace {

using Predicate = Draw::Predicate;

Predicate of_rank(int64_t rank) {
  return [rank](const Tensor& t) { return t.dim() == rank; };
}
bool has_dims(const Tensor& t) { return t.dim() > 0; }
Predicate like(const Tensor& other) {
  return [sizes = other.sizes().vec()](const Tensor& t) { return t.sizes() == at::IntArrayRef(sizes); };
}
Predicate broadcasts_with(const Tensor& other) {
  return [sizes = other.sizes().vec()](const Tensor& t) {
    for (int64_t k = 1; k <= std::min<int64_t>(t.dim(), static_cast<int64_t>(sizes.size())); ++k) {
      const int64_t a = t.size(-k), b = sizes[sizes.size() - static_cast<size_t>(k)];
      if (a != b && a != 1 && b != 1) return false;
    }
    return true;
  };
}
Predicate broadcasts_into(const Tensor& target) {
  return [sizes = target.sizes().vec()](const Tensor& t) { return at::is_expandable_to(t.sizes(), sizes); };
}

at::TensorOptions doubles() { return at::dtype(at::kDouble).device(support::device()); }
Tensor number(double v) { return at::full({}, v, doubles()); }
Tensor indices(std::vector<int64_t> values) { return at::tensor(values, at::dtype(at::kLong)).to(support::device()); }
// True at every other place, as a shape of its own broadcasts to.
Tensor every_other(const Tensor& like) {
  return at::arange(like.size(-1), at::dtype(at::kLong).device(support::device())).remainder(2).eq(0);
}

void any_one(Draw& d) { d.any(); }
void any_with_dim(Draw& d) { d.dim_of(d.any(has_dims)); }
void two_that_broadcast(Draw& d) {
  const Tensor& a = d.any();
  d.any(broadcasts_with(a));
}
void any_target(Draw& d) { d.target(); }
void target_and_source(Draw& d) {
  const Tensor& target = d.target();
  d.apart(broadcasts_into(target));
}
void target_with_dim(Draw& d) { d.dim_of(d.target(has_dims)); }
void one_shape(Draw& d) {
  d.number(1, 3);
  d.number(1, 3);
}

std::vector<Action> functional() {
  return {
      {Kind::makes, "$0.sin()", any_one, [](const Call& c) { return c[0].sin(); }},
      {Kind::makes, "$0.tanh() * 2", any_one, [](const Call& c) { return c[0].tanh() * 2; }},
      {Kind::makes, "sigmoid($0)", any_one, [](const Call& c) { return at::sigmoid(c[0]); }},
      {Kind::makes, "$0.square().neg().exp()", any_one, [](const Call& c) { return c[0].square().neg().exp(); }},
      {Kind::makes, "$0.clone()", any_one, [](const Call& c) { return c[0].clone(); }},
      {Kind::makes, "$0 + $1", two_that_broadcast, [](const Call& c) { return c[0] + c[1]; }},
      {Kind::makes, "$0 * $1", two_that_broadcast, [](const Call& c) { return c[0] * c[1]; }},
      {Kind::makes, "$0 / ($1.cosh() + 1)", two_that_broadcast, [](const Call& c) { return c[0] / (c[1].cosh() + 1); }},
      {Kind::makes, "where(every_other($0), $0, $1)",
       [](Draw& d) {
         const Tensor& a = d.any(has_dims);
         d.any(broadcasts_into(a));
       },
       [](const Call& c) { return at::where(every_other(c[0]), c[0], c[1]); }},
      {Kind::makes, "$0.mm($1)",
       [](Draw& d) {
         const Tensor& a = d.any(of_rank(2));
         d.any([rows = a.size(1)](const Tensor& t) { return t.dim() == 2 && t.size(0) == rows; });
       },
       [](const Call& c) { return c[0].mm(c[1]).tanh(); }},
      {Kind::makes, "$0.sum(#0)", any_with_dim, [](const Call& c) { return c[0].sum(c.number(0)); }},
      {Kind::makes, "$0.mean(#0, true)", any_with_dim, [](const Call& c) { return c[0].mean(c.number(0), true); }},
      {Kind::makes, "$0.softmax(#0)", any_with_dim, [](const Call& c) { return c[0].softmax(c.number(0)); }},
      {Kind::makes, "$0.cumsum(#0)", any_with_dim, [](const Call& c) { return c[0].cumsum(c.number(0)); }},
      {Kind::makes, "$0.flip(#0)", any_with_dim, [](const Call& c) { return c[0].flip(c.number(0)); }},
      {Kind::makes, "$0.reshape({-1}).clone()", any_one, [](const Call& c) { return c[0].reshape({-1}).clone(); }},
      {Kind::makes, "$0.index_select(#0, {0, size - 1})", any_with_dim,
       [](const Call& c) {
         return c[0].index_select(c.number(0), indices({0, c[0].size(c.number(0)) - 1}));
       }},
      {Kind::makes, "cat({$0, $1}, 0)",
       [](Draw& d) {
         const Tensor& a = d.any(has_dims);
         d.any(like(a));
       },
       [](const Call& c) {
         return at::cat({c[0], c[1]}, 0);
       }},
      {Kind::makes, "stack({$0, $1}, -1)",
       [](Draw& d) {
         const Tensor& a = d.any();
         d.any(like(a));
       },
       [](const Call& c) {
         return at::stack({c[0], c[1]}, -1);
       }},
  };
}

std::vector<Action> factories() {
  return {
      {Kind::makes, "zeros({#0, #1})", one_shape,
       [](const Call& c) {
         return at::zeros({c.number(0), c.number(1)}, doubles());
       }},
      {Kind::makes, "full({#0, #1}, 0.5)", one_shape,
       [](const Call& c) {
         return at::full({c.number(0), c.number(1)}, 0.5, doubles());
       }},
      {Kind::makes, "arange(#0) / 2", [](Draw& d) { d.number(1, 4); },
       [](const Call& c) { return at::arange(c.number(0), doubles()) / 2; }},
      {Kind::makes, "eye(#0)", [](Draw& d) { d.number(1, 3); },
       [](const Call& c) { return at::eye(c.number(0), doubles()); }},
      {Kind::makes, "zeros_like($0)", any_one, [](const Call& c) { return at::zeros_like(c[0]); }},
      {Kind::makes, "$0.new_full({#0, #1}, 0.25)",
       [](Draw& d) {
         d.any();
         one_shape(d);
       },
       [](const Call& c) {
         return c[0].new_full({c.number(0), c.number(1)}, 0.25);
       }},
      {Kind::makes, "empty_like($0).fill_(1)", any_one, [](const Call& c) { return at::empty_like(c[0]).fill_(1); }},
  };
}

std::vector<Action> views() {
  return {
      {Kind::views, "$0.select(#0, #1)",
       [](Draw& d) {
         const Tensor& t = d.any(has_dims);
         d.number(0, t.size(d.dim_of(t)) - 1);
       },
       [](const Call& c) { return c[0].select(c.number(0), c.number(1)); }},
      {Kind::views, "$0.narrow(#0, #1, size - #1)",
       [](Draw& d) {
         const Tensor& t = d.any(has_dims);
         d.number(0, t.size(d.dim_of(t)) - 1);
       },
       [](const Call& c) { return c[0].narrow(c.number(0), c.number(1), c[0].size(c.number(0)) - c.number(1)); }},
      {Kind::views, "$0.slice(#0, 0, size, 2)", any_with_dim,
       [](const Call& c) { return c[0].slice(c.number(0), 0, c[0].size(c.number(0)), 2); }},
      {Kind::views, "$0.transpose(#0, -1)", any_with_dim,
       [](const Call& c) { return c[0].transpose(c.number(0), -1); }},
      {Kind::views, "$0.movedim(#0, 0)", any_with_dim, [](const Call& c) { return c[0].movedim(c.number(0), 0); }},
      {Kind::views, "$0.unsqueeze(#0)",
       [](Draw& d) {
         const int64_t rank = d.any([](const Tensor& t) { return t.dim() < 3; }).dim();
         d.number(0, rank);
       },
       [](const Call& c) { return c[0].unsqueeze(c.number(0)); }},
      {Kind::views, "$0.squeeze()", any_one, [](const Call& c) { return c[0].squeeze(); }},
      {Kind::views, "$0.view({-1})", [](Draw& d) { d.any([](const Tensor& t) { return t.is_contiguous(); }); },
       [](const Call& c) { return c[0].view({-1}); }},
      {Kind::views, "$0.diagonal(#0)",
       [](Draw& d) {
         d.any(of_rank(2));
         d.number(-1, 0);
       },
       [](const Call& c) { return c[0].diagonal(c.number(0)); }},
      {Kind::views, "$0.unbind(#0).back()", any_with_dim,
       [](const Call& c) { return c[0].unbind(c.number(0)).back(); }},
      {Kind::views, "$0.split(1, #0)[0]", any_with_dim, [](const Call& c) { return c[0].split(1, c.number(0))[0]; }},
      {Kind::views, "$0.chunk(2, #0).back()", any_with_dim,
       [](const Call& c) { return c[0].chunk(2, c.number(0)).back(); }},
      {Kind::views, "$0.unfold(#0, 1, 2)", any_with_dim, [](const Call& c) { return c[0].unfold(c.number(0), 1, 2); }},
      {Kind::views, "$0.as_strided({2}, {1}, 0)",
       [](Draw& d) {
         d.any([](const Tensor& t) { return t.is_contiguous() && t.storage_offset() == 0 && t.numel() >= 2; });
       },
       [](const Call& c) { return c[0].as_strided({2}, {1}, 0); }},
      {Kind::shows, "$0.unfold(#0, 2, 1)",
       [](Draw& d) {
         const Tensor& t = d.any(has_dims);
         if (t.size(d.dim_of(t)) < 2) throw NoSuchOperands();
       },
       [](const Call& c) { return c[0].unfold(c.number(0), 2, 1); }},
      {Kind::shows, "$0.unsqueeze(0).expand({2, ...})",
       [](Draw& d) { d.any([](const Tensor& t) { return t.dim() < 3; }); },
       [](const Call& c) {
         std::vector<int64_t> sizes = c[0].sizes().vec();
         sizes.insert(sizes.begin(), 2);
         return c[0].unsqueeze(0).expand(sizes);
       }},
  };
}

std::vector<Action> writes() {
  return {
      {Kind::writes, "$0.add_($1)", target_and_source, [](const Call& c) { return c[0].add_(c[1]); }},
      {Kind::writes, "$0.sub_($1, 0.5)", target_and_source, [](const Call& c) { return c[0].sub_(c[1], 0.5); }},
      {Kind::writes, "$0.mul_($1)", target_and_source, [](const Call& c) { return c[0].mul_(c[1]); }},
      {Kind::writes, "$0.copy_($1)", target_and_source, [](const Call& c) { return c[0].copy_(c[1]); }},
      {Kind::writes, "$0.lerp_($1, 0.25)",
       [](Draw& d) {
         const Tensor& target = d.target();
         d.apart(like(target));
       },
       [](const Call& c) { return c[0].lerp_(c[1], 0.25); }},
      {Kind::writes, "$0.addcmul_($1, $2)",
       [](Draw& d) {
         const Tensor& target = d.target();
         d.apart(broadcasts_into(target));
         d.apart(broadcasts_into(target));
       },
       [](const Call& c) { return c[0].addcmul_(c[1], c[2]); }},
      {Kind::writes, "$0.fill_($1)",
       [](Draw& d) {
         d.target();
         d.apart(of_rank(0));
       },
       [](const Call& c) { return c[0].fill_(c[1]); }},
      {Kind::writes, "mul_out($0, $1, $2)",
       [](Draw& d) {
         const Tensor& target = d.target();
         d.apart(like(target));
         d.apart(broadcasts_into(target));
       },
       [](const Call& c) {
         // LibTorch's autograd has no out=.
         if (c[0].requires_grad() || c[1].requires_grad() || c[2].requires_grad()) return c[0].copy_(c[1] * c[2]);
         Tensor out = c[0];
         return at::mul_out(out, c[1], c[2]);
       }},
      {Kind::writes, "$0.sin_()", any_target, [](const Call& c) { return c[0].sin_(); }},
      {Kind::writes, "$0.tanh_()", any_target, [](const Call& c) { return c[0].tanh_(); }},
      {Kind::writes, "$0.mul_(0.5)", any_target, [](const Call& c) { return c[0].mul_(0.5); }},
      {Kind::writes, "$0.add_(0.25)", any_target, [](const Call& c) { return c[0].add_(0.25); }},
      {Kind::writes, "$0.zero_()", any_target, [](const Call& c) { return c[0].zero_(); }},
      {Kind::writes, "$0.fill_(0.75)", any_target, [](const Call& c) { return c[0].fill_(0.75); }},
      {Kind::writes, "$0.cumsum_(#0)", target_with_dim, [](const Call& c) { return c[0].cumsum_(c.number(0)); }},
      {Kind::writes, "$0.masked_fill_(every_other($0), 0.5)", [](Draw& d) { d.target(has_dims); },
       [](const Call& c) { return c[0].masked_fill_(every_other(c[0]), 0.5); }},
      {Kind::writes, "$0.index_put_({{0, 0}}, 0.1, true)", [](Draw& d) { d.target(has_dims); },
       [](const Call& c) {
         return c[0].index_put_({indices({0, 0})}, number(0.1), true);
       }},
      {Kind::writes, "$0.index_fill_(#0, {0}, $1)",
       [](Draw& d) {
         d.dim_of(d.target(has_dims));
         d.apart(of_rank(0));
       },
       [](const Call& c) { return c[0].index_fill_(c.number(0), indices({0}), c[1]); }},
      {Kind::writes, "$0.index_add_(#0, {size - 1}, $1.narrow(#0, 0, 1))",
       [](Draw& d) {
         const Tensor& target = d.target(has_dims);
         d.dim_of(target);
         d.apart(like(target));
       },
       [](const Call& c) {
         return c[0].index_add_(c.number(0), indices({c[0].size(c.number(0)) - 1}), c[1].narrow(c.number(0), 0, 1));
       }},
      {Kind::writes, "$0.tril_()", [](Draw& d) { d.target(of_rank(2)); }, [](const Call& c) { return c[0].tril_(); }},
      {Kind::writes, "$0[0] = $1",
       [](Draw& d) {
         const Tensor& target = d.target(has_dims);
         d.apart(broadcasts_into(target[0]));
       },
       [](const Call& c) {
         c[0][0] = c[1];
         return c[0];
       }},
      // These change the shape of a register in place.
      {Kind::writes, "$0.t_()", [](Draw& d) { d.target([](const Tensor& t) { return t.dim() <= 2; }); },
       [](const Call& c) { return c[0].t_(); }},
      {Kind::writes, "$0.unsqueeze_(0)", [](Draw& d) { d.target([](const Tensor& t) { return t.dim() < 3; }); },
       [](const Call& c) { return c[0].unsqueeze_(0); }},
      {Kind::writes, "$0.squeeze_()", any_target, [](const Call& c) { return c[0].squeeze_(); }},
  };
}

}  // namespace

const std::vector<Action>& actions() {
  static const std::vector<Action> all = [] {
    std::vector<Action> result;
    for (const auto& part : {functional(), factories(), views(), writes()})
      result.insert(result.end(), part.begin(), part.end());
    return result;
  }();
  return all;
}

}  // namespace programs
