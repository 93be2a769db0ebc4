// A pattern found at one point holds at all others: values do not decide, neither where data goes nor how many steps a
// loop makes. Oracle: dense Jacobians and Hessians at other points.
#include "solvers/sparse_cases.h"
#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/sparse.h"
#include "tower/transforms.h"

namespace {

using sparse_cases::TensorFunction;
using tower::Sparsity;

struct Case {
  const char* name;
  TensorFunction f;
};

// Points whose order, signs and sizes differ.
std::vector<Tensor> points() {
  const Tensor x = vec({0.3, -0.4, 0.9, 0.1, -0.7, 0.5});
  return {x, x.flip(0), -x, 3 * x.roll(2, 0), 0.1 * x.abs(), std::get<0>(x.sort()), 20 * x};
}

void expect_within(const Tensor& mask, const Tensor& matrix, const char* name) {
  EXPECT_TRUE(at::logical_or(mask, matrix.reshape(mask.sizes()) == 0).all().item<bool>()) << name << "\n"
                                                                                          << mask << "\n"
                                                                                          << matrix;
}

void expect_supersets(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    try {
      for (const Tensor& at_one : points()) {
        const Tensor mask = tower::jacobian_sparsity(one.f, at_one).mask();
        for (const Tensor& x : points()) expect_within(mask, tower::jacfwd(one.f)(x), one.name);
      }
      const auto energy = [&](const Tensor& x) { return one.f(x).pow(3).sum(); };
      for (const Tensor& at_one : points()) {
        const Tensor mask = tower::hessian_sparsity(energy, at_one).mask();
        for (const Tensor& x : points()) expect_within(mask, tower::hessian(energy)(x), one.name);
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << one.name << ": " << error.what();
    }
  }
}

TEST(SparsityHoldsElsewhere, WhereIndicesAndMasksAreMadeOfValues) {
  expect_supersets({
      {"in the order of another", [](const Tensor& x) { return x.index_select(0, x.sin().argsort()); }},
      {"gathered", [](const Tensor& x) { return x.square().gather(0, x.argsort()); }},
      {"indexed", [](const Tensor& x) { return x.index({x.argsort().slice(0, 0, 3)}); }},
      {"sorted", [](const Tensor& x) { return std::get<0>(x.sort()) * x; }},
      {"masked", [](const Tensor& x) { return x.masked_fill(x < 0, 0) + x.roll(1, 0).masked_fill(x > 0.2, 0); }},
      {"scattered", [](const Tensor& x) { return at::zeros_like(x).scatter(0, x.argsort(), x); }},
      {"scattered sums", [](const Tensor& x) { return x.scatter_add(0, x.argsort().div(2, "floor"), x.square()); }},
      {"sums by index", [](const Tensor& x) { return at::zeros_like(x).index_add(0, x.argsort(), x); }},
      {"put by index", [](const Tensor& x) { return x.index_put({x.argsort().slice(0, 0, 2)}, x.slice(0, 4)); }},
      {"a number put by mask", [](const Tensor& x) { return x.index_put({x > 0}, at::ones({}, x.options())); }},
      {"the largest",
       [](const Tensor& x) {
         return std::get<0>(x.view({2, 3}).max(1));
       }},
      {"a sparse matrix of signs",
       [](const Tensor& x) { return at::mv((x.unsqueeze(0) > x.unsqueeze(1)).to(at::kDouble), x); }},
  });
}

TEST(SparsityHoldsElsewhere, AMaskOfXIsPointwise) {
  const auto f = [](const Tensor& x) { return x.masked_fill(x < 0, 0); };
  for (const Tensor& x : points()) EXPECT_TRUE(at::equal(tower::jacobian_sparsity(f, x).mask(), at::eye(6, at::kBool)));
  // One that does not depend on x is exact.
  const auto fixed = [](const Tensor& x) { return x.masked_fill(at::arange(6) < 2, 0); };
  EXPECT_EQ(tower::jacobian_sparsity(fixed, points()[0]).num_entries(), 4);
}

TEST(SparsityHoldsElsewhere, AProgramThatReadsValuesIsRefusedUnlessTheyAreToDecide) {
  const auto chosen = [](const Tensor& x) { return x[0].item<double>() > 0 ? x * x : x * x.flip(0); };
  const auto energy = [&](const Tensor& x) { return chosen(x).square().sum(); };
  const Tensor x = at::ones(4, at::kDouble);
  const auto message = [](const auto& find) -> std::string {
    try {
      find();
    } catch (const tower::UnsupportedError& e) {
      return e.what();
    }
    return "no error";
  };
  const auto words = {"_local_scalar_dense", "depends on x", "tower::cond", "values_decide"};
  EXPECT_TRUE(says(message([&] { tower::jacobian_sparsity(chosen, x); }), words));
  EXPECT_TRUE(says(message([&] {
                     tower::jacobian_sparsity(tower::vmap(chosen), at::ones({2, 4}, at::kDouble));
                   }),
                   {"item"}));
  EXPECT_TRUE(says(message([&] { tower::hessian_sparsity(energy, x); }), words));
  const tower::SparsityOptions by_values{.values_decide = true};
  EXPECT_TRUE(tower::jacobian_sparsity(chosen, x, by_values).mask().equal(at::eye(4, at::kBool)));
  EXPECT_TRUE(tower::hessian_sparsity(energy, x, by_values).mask().equal(at::eye(4, at::kBool)));
  // A constant may be read.
  const Tensor constant = at::ones({}, at::kDouble);
  const auto scaled = [&](const Tensor& x) { return (constant * 2).item<double>() * x; };
  EXPECT_EQ(tower::jacobian_sparsity(scaled, x).num_entries(), 4);
}

}  // namespace
