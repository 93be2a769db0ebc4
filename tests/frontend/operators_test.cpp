// In-place and out= operators under every transform and pairs of them: into a tensor that the transform tracks, into a
// fresh one, and through a view. (The operator matrix holds the variants of every operator against the functional one.)
#include <torch/csrc/autograd/autograd.h>

#include "support/oracles.h"
#include "support/prelude.h"

namespace {

Tensor places(std::initializer_list<int64_t> values) { return at::tensor(std::vector<int64_t>(values), at::kLong); }

// ---- in place ------------------------------------------------------------------------------------------------------

/// Writes to `y`, a [3, 3] tensor of values between 0.2 and 1.8, what depends on `x`, a [3, 3] tensor without zeros.
struct InPlace {
  const char* name;
  void (*write)(Tensor y, const Tensor& x);
  bool libtorch = true;  // false: its autograd passes the gradient on as if nothing had been written
};

const InPlace kInPlace[] = {
    {"add_", [](Tensor y, const Tensor& x) { y.add_(x, 2); }},
    {"sub_", [](Tensor y, const Tensor& x) { y.sub_(x); }},
    {"mul_", [](Tensor y, const Tensor& x) { y.mul_(x); }},
    {"div_", [](Tensor y, const Tensor& x) { y.div_(x.exp()); }},
    {"pow_", [](Tensor y, const Tensor& x) { y.pow_(x); }},
    {"copy_", [](Tensor y, const Tensor& x) { y.copy_(x[1]); }},
    {"fill_", [](Tensor y, const Tensor& x) { y.fill_(x.sum()); }},
    {"fill_number", [](Tensor y, const Tensor&) { y.fill_(0.5); }},
    {"zero_", [](Tensor y, const Tensor&) { y.zero_(); }},
    {"masked_fill_", [](Tensor y, const Tensor& x) { y.masked_fill_(x.detach() > 0.1, x[0][0]); }},
    {"masked_fill_number", [](Tensor y, const Tensor& x) { y.masked_fill_(x.detach() > 0.1, 0.5); }},
    {"masked_scatter_", [](Tensor y, const Tensor& x) { y.masked_scatter_(at::eye(3, at::kBool), x); }},
    {"tril_", [](Tensor y, const Tensor& x) { y.mul_(x).tril_(); }},
    {"triu_", [](Tensor y, const Tensor& x) { y.mul_(x).triu_(1); }},
    {"index_put_",
     [](Tensor y, const Tensor& x) {
       y.index_put_({places({2, 0})}, x.slice(0, 1));
     }},
    {"index_put_accumulate",
     [](Tensor y, const Tensor& x) {
       y.index_put_({places({1, 1}), places({2, 2})}, x[0].slice(0, 1), /*accumulate=*/true);
     }},
    {"_index_put_impl_",
     [](Tensor y, const Tensor& x) {
       at::_index_put_impl_(y, {std::optional<Tensor>(), std::optional<Tensor>(places({1}))}, x.slice(1, 0, 1));
     }},
    {"index_add_",
     [](Tensor y, const Tensor& x) {
       y.index_add_(1, places({0, 0}), x.slice(1, 1), 0.5);
     }},
    {"index_copy_", [](Tensor y, const Tensor& x) { y.index_copy_(0, places({2}), x.slice(0, 0, 1)); }},
    {"index_fill_",
     [](Tensor y, const Tensor& x) {
       y.index_fill_(0, places({2, 1}), x[0][1]);
     }},
    {"scatter_",
     [](Tensor y, const Tensor& x) {
       y.scatter_(1, places({2, 0, 1}).view({3, 1}), x.slice(1, 0, 1));
     }},
    {"scatter_number",
     [](Tensor y, const Tensor&) {
       y.scatter_(0, places({2, 0, 1}).view({1, 3}), 0.5);
     }},
    {"scatter_add_",
     [](Tensor y, const Tensor& x) {
       y.scatter_add_(0, places({2, 0, 2}).view({1, 3}), x.slice(0, 0, 1));
     }},
    {"scatter_reduce_",
     [](Tensor y, const Tensor& x) {
       y.scatter_reduce_(0, places({2, 0, 2}).view({1, 3}), x.slice(0, 0, 1), "prod");
     }},
    {"put_",
     [](Tensor y, const Tensor& x) {
       y.put_(places({8, 0}), x[2].slice(0, 1));
     }},
    {"clamp_", [](Tensor y, const Tensor&) { y.clamp_(0.41, 1.23); }},
    {"clamp_tensors", [](Tensor y, const Tensor& x) { y.clamp_(x, x.exp()); }},
    {"clamp_min_", [](Tensor y, const Tensor&) { y.clamp_min_(0.77); }},
    {"eq_", [](Tensor y, const Tensor& x) { y.eq_(x); }},
    {"lt_", [](Tensor y, const Tensor& x) { y.lt_(x.abs()); }},
    {"ge_number", [](Tensor y, const Tensor&) { y.ge_(0.61); }},
    {"logical_and_", [](Tensor y, const Tensor& x) { y.logical_and_(x); }, false},
    {"addmm_", [](Tensor y, const Tensor& x) { y.addmm_(x, x, 0.5, 2); }},
    {"addmv_",
     [](Tensor y, const Tensor& x) {
       Tensor row = y[1];
       row.addmv_(x, x[0]);
     }},
    {"addr_", [](Tensor y, const Tensor& x) { y.addr_(x[0], x[1]); }},
    {"addbmm_",
     [](Tensor y, const Tensor& x) {
       y.addbmm_(at::stack({x, x * 2}), at::stack({x, x}));
     }},
    {"addcmul_", [](Tensor y, const Tensor& x) { y.addcmul_(x, x[0], 0.5); }},
    {"addcdiv_", [](Tensor y, const Tensor& x) { y.addcdiv_(x, x.exp()); }},
    {"lerp_", [](Tensor y, const Tensor& x) { y.lerp_(x, x.abs()); }},
    {"relu_", [](Tensor y, const Tensor& x) { at::relu_(y.mul_(x)); }},
    {"leaky_relu_", [](Tensor y, const Tensor& x) { at::leaky_relu_(y.mul_(x), 0.1); }},
    {"elu_", [](Tensor y, const Tensor& x) { at::elu_(y.mul_(x)); }},
    {"silu_", [](Tensor y, const Tensor& x) { at::silu_(y.mul_(x)); }},
    {"hardtanh_", [](Tensor y, const Tensor&) { at::hardtanh_(y, 0.41, 0.93); }},
    {"threshold_", [](Tensor y, const Tensor&) { at::threshold_(y, 0.71, 0.2); }},
    {"sigmoid_", [](Tensor y, const Tensor&) { y.sigmoid_(); }},
    {"sqrt_", [](Tensor y, const Tensor&) { y.sqrt_(); }},
    {"log_", [](Tensor y, const Tensor&) { y.log_(); }},
    {"abs_and_neg_", [](Tensor y, const Tensor& x) { y.mul_(x).abs_().neg_(); }},
    {"cumsum_", [](Tensor y, const Tensor&) { y.cumsum_(1); }},
    {"cumprod_", [](Tensor y, const Tensor&) { y.cumprod_(0); }},
    {"fill_diagonal_", [](Tensor y, const Tensor&) { y.fill_diagonal_(0.5); }},
    {"renorm_", [](Tensor y, const Tensor&) { y.renorm_(2, 0, 1); }},
    {"nan_to_num_", [](Tensor y, const Tensor&) { y.nan_to_num_(); }},
    {"polygamma_", [](Tensor y, const Tensor&) { y.polygamma_(1); }},
    {"xlogy_", [](Tensor y, const Tensor& x) { y.xlogy_(x.exp()); }},
    {"atan2_", [](Tensor y, const Tensor& x) { y.atan2_(x); }},
    {"floor_and_sign_", [](Tensor y, const Tensor&) { y.mul_(3).floor_().sign_(); }},
};

class InPlaceOperators : public testing::TestWithParam<InPlace> {};

TEST_P(InPlaceOperators, WriteTheSameIntoTrackedTensorsFreshOnesAndViewsUnderEveryTransform) {
  const Function f = of_one([](const Tensor& x) {
    const Tensor tracked = at::sin(x * 3) * 0.8 + 1, fresh = waves({3, 3}, 1.7) * 0.8 + 1;
    const Tensor base = at::sin(numbers({3, 4}) + x.sum()) * 0.8 + 1, view = base.slice(1, 1).t();
    GetParam().write(tracked, x);
    GetParam().write(fresh, x);
    GetParam().write(view, x);
    return at::cat({tracked * tracked, fresh * x, base * base}, 1);
  });
  EXPECT_EQ(disagreement(f, {waves({3, 3, 3}, 0.4)}, {.libtorch = GetParam().libtorch}), "");
}

INSTANTIATE_TEST_SUITE_P(Each, InPlaceOperators, testing::ValuesIn(kInPlace),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- out= ----------------------------------------------------------------------------------------------------------

/// Writes to `y` and `z`, [3, 3] tensors, what depends on `x`.
struct Out {
  const char* name;
  void (*write)(Tensor y, Tensor z, const Tensor& x);
};

const Out kOut[] = {
    {"add", [](Tensor y, Tensor z, const Tensor& x) { at::add_out(y, x, z, 2); }},
    {"mul_with_itself", [](Tensor y, Tensor, const Tensor& x) { at::mul_out(y, y, x); }},
    {"sin_and_exp", [](Tensor y, Tensor z, const Tensor& x) { at::exp_out(z, at::sin_out(y, x)); }},
    {"mm", [](Tensor y, Tensor, const Tensor& x) { at::mm_out(y, x, x.t()); }},
    {"matmul", [](Tensor y, Tensor, const Tensor& x) { at::matmul_out(y, x, x.t()); }},
    {"addmm", [](Tensor y, Tensor z, const Tensor& x) { at::addmm_out(y, z, x, x); }},
    {"cat",
     [](Tensor y, Tensor, const Tensor& x) {
       at::cat_out(y, {x.slice(0, 1), x.slice(0, 0, 1)}, 0);
     }},
    {"stack",
     [](Tensor y, Tensor, const Tensor& x) {
       at::stack_out(y, {x[0], x[2], x[1]}, 1);
     }},
    {"sum_into_a_row",
     [](Tensor y, Tensor, const Tensor& x) {
       Tensor row = y[1];
       at::sum_out(row, x, {0});
     }},
    {"cumsum", [](Tensor y, Tensor, const Tensor& x) { at::cumsum_out(y, x, 0); }},
    {"softmax", [](Tensor y, Tensor, const Tensor& x) { at::softmax_out(y, x, 1); }},
    {"where", [](Tensor y, Tensor z, const Tensor& x) { at::where_out(y, x.detach() > 0.1, x, z); }},
    {"index_select",
     [](Tensor y, Tensor, const Tensor& x) {
       at::index_select_out(y, x, 0, places({2, 0, 2}));
     }},
    {"gather",
     [](Tensor y, Tensor, const Tensor& x) {
       at::gather_out(y, x, 1, places({2, 0, 2}).view({3, 1}).expand({3, 3}));
     }},
    {"clamp", [](Tensor y, Tensor, const Tensor& x) { at::clamp_out(y, x, -0.37, 0.58); }},
    {"sort_with_two_results",
     [](Tensor y, Tensor z, const Tensor& x) {
       Tensor order = at::empty({3, 3}, at::kLong);
       at::sort_out(y, order, x, 1);
       z.copy_(order);
     }},
    {"aminmax_with_two_results",
     [](Tensor y, Tensor z, const Tensor& x) {
       Tensor low = y[0], high = z.select(1, 2);
       at::aminmax_out(low, high, x, 1);
     }},
    {"comparison_into_booleans",
     [](Tensor y, Tensor, const Tensor& x) {
       Tensor more = at::empty({3, 3}, at::kBool);
       at::gt_out(more, x, 0.1);
       y.mul_(more);
     }},
    {"into_a_transposed_view",
     [](Tensor y, Tensor, const Tensor& x) {
       Tensor turned = y.t();
       at::mul_out(turned, x, x);
     }},
};

class OutOperators : public testing::TestWithParam<Out> {};

TEST_P(OutOperators, WriteTheSameIntoTrackedTensorsAndFreshOnesUnderEveryTransform) {
  const Function f = of_one([](const Tensor& x) {
    const Tensor tracked = at::sin(x * 3), other = at::cos(x * 3);
    const Tensor fresh = at::ones({3, 3}, at::kDouble), fresh_other = at::full({3, 3}, 2.0, at::kDouble);
    GetParam().write(tracked, other, x);
    GetParam().write(fresh, fresh_other, x);
    return at::cat({tracked * tracked, other * x, fresh, fresh_other}, 1);
  });
  // LibTorch's autograd has no out=.
  EXPECT_EQ(disagreement(f, {waves({3, 3, 3}, 0.4)}, {.libtorch = false}), "");
}

INSTANTIATE_TEST_SUITE_P(Each, OutOperators, testing::ValuesIn(kOut),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(OutArguments, OfAnotherShapeOrAnotherKindOfNumberAreRefused) {
  const auto shape = of_one([](const Tensor& x) {
    Tensor out = at::empty({5}, at::kDouble);
    return at::mul_out(out, x, x);
  });
  EXPECT_TRUE(says(refusal<tower::MutationError>([&] {
                     td::vmap(shape, {0}, {0})({numbers({2, 3})});
                   }),
                   {"vmap (level 1): aten::mul.out", "Double [3]", "Double [5]"}));
  const auto kind = of_one([](const Tensor& x) {
    Tensor out = at::empty({3}, at::kLong);
    return at::mul_out(out, x, x);
  });
  EXPECT_TRUE(says(refusal<tower::MutationError>([&] {
                     td::grad(kind, {0})({vec({1, 2, 3})});
                   }),
                   {"grad (level 1): aten::mul.out", "can't be cast"}));
}

// ---- writes and what the tape kept ---------------------------------------------------------------------------------

TEST(WritesAfterATransform, ToATensorOfAnOuterLevelThatThePullbackNeedsAreNoticed) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor own = x * 1, part = own.narrow(0, 0, 1);
    const auto [y, pullback] = td::vjp(of_one([](const Tensor& t) { return t * t; }), {own});
    part.mul_(2);
    return pullback({y})[0];
  });
  EXPECT_TRUE(says(refusal<tower::DerivativeError>([&] {
                     td::vmap(f, {0}, {0})({numbers({2, 3})});
                   }),
                   {"vjp: ", "aten::mul", "modified by an in-place operation", "Clone it"}));
}

// Gaussian negative log likelihood as LibTorch's front ends write it: variances are clamped under no_grad, in place.
Tensor gaussian_nll(const Tensor& x, const Tensor& target, const Tensor& variance) {
  const Tensor own = variance.clone();
  {
    c10::NoGradGuard no_grad;
    own.clamp_(0.3);
  }
  return (own.log() + (x - target).square() / own).mean() / 2;
}

TEST(GaussianNll, HasLibTorchsDerivativesOfFirstAndSecondOrderAlsoWhereTheVarianceIsClamped) {
  const Function f = [](const Tensors& in) { return Tensors{gaussian_nll(in[0], in[1], in[2])}; };
  const Tensors batch{waves({3, 4}, 0.2), waves({3, 4}, 0.9), waves({3, 4}, 1.4).abs()};
  const Tensors directions{waves({4}, 0.1), waves({4}, 0.5), waves({4}, 2.5)};
  Tensors gradients, second;
  for (int64_t i = 0; i < 3; ++i) {
    Tensors x, g;
    for (const Tensor& t : batch) x.push_back(t[i].clone().requires_grad_(true));
    g = torch::autograd::grad({f(x)[0]}, x, {}, /*retain_graph=*/true, /*create_graph=*/true);
    const Tensors gg = torch::autograd::grad(g, x, directions);
    for (const Tensor& t : g) gradients.push_back(t.detach());
    for (const Tensor& t : gg) second.push_back(t.detach());
  }
  const auto of_example = [&](const Tensors& all, size_t k) { return at::stack({all[k], all[3 + k], all[6 + k]}); };
  const Function gradient = [&](const Tensors& in) { return td::vjp(f, in).second({number(1)}); };
  const Function total = [&](const Tensors& in) { return Tensors{td::vmap(f, {0, 0, 0}, {0})(in)[0].sum()}; };
  const auto check = [&](const Tensors& actual, const Tensors& expected) {
    for (size_t k = 0; k < 3; ++k) EXPECT_TRUE(same(actual[k], of_example(expected, k))) << "argument " << k;
  };
  check(td::vmap(gradient, {0, 0, 0}, {0})(batch), gradients);
  check(td::vjp(total, batch).second({number(1)}), gradients);
  const Function twice = [&](const Tensors& in) { return td::vjp(gradient, in).second(directions); };
  check(td::vmap(twice, {0, 0, 0}, {0})(batch), second);
  const Function mapped_twice = [&](const Tensors& in) {
    return td::vjp(td::vmap(gradient, {0, 0, 0}, {0}), in)
        .second({directions[0].expand({3, 4}), directions[1].expand({3, 4}), directions[2].expand({3, 4})});
  };
  check(mapped_twice(batch), second);
  check(td::vjp([&](const Tensors& in) { return td::vjp(total, in).second({number(1)}); }, batch)
            .second({directions[0].expand({3, 4}), directions[1].expand({3, 4}), directions[2].expand({3, 4})}),
        second);
}

}  // namespace
