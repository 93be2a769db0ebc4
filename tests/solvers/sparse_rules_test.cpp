// Patterns of custom operators and functions: by the rule that was given, of the implementation where that is what
// derivatives are of, or dense and named. Oracle: the same function written with operators.
#include "support/prelude.h"
#include "tower/checkpoint.h"
#include "tower/cond.h"
#include "tower/custom_op.h"
#include "tower/function.h"
#include "tower/sparse.h"
#include "tower/transforms.h"

namespace {

using tower::Sparsity;

Tensor three_points(const Tensor& x) { return x.roll(1, 0).sin() + 2 * x + x.roll(-1, 0); }

// By memory: no level sees what it does.
Tensor three_points_in_memory(const Tensor& x) {
  const Tensor in = x.contiguous();
  Tensor out = at::empty_like(in);
  const auto* from = in.const_data_ptr<double>();
  auto* to = out.mutable_data_ptr<double>();
  const int64_t n = in.numel();
  for (int64_t k = 0; k < n; ++k) to[k] = std::sin(from[(k + n - 1) % n]) + 2 * from[k] + from[(k + 1) % n];
  return out;
}

Tensor pulled_back(const Tensor& x, const Tensor& grad) {
  return 2 * grad + (grad.roll(-1, 0) * x.cos()) + grad.roll(1, 0);
}

struct Points : tower::Function<Points> {
  static Tensor forward(const Tensor& x) { return three_points_in_memory(x); }
  static void setup_context(tower::Context& ctx, const std::tuple<Tensor>& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(tower::Context& ctx, const Tensor& grad) { return pulled_back(ctx.saved_tensors()[0], grad); }
  static constexpr bool linear_backward = true;
};
struct SparsePoints : Points {
  static Tensor apply(const Tensor& x) { return tower::Function<SparsePoints>::apply(x); }
  static Tensor sparsity(const Tensor& x) { return x + x.roll(1, 0) + x.roll(-1, 0); }
};

tower::CustomOp points_op(const char* name) {
  return tower::custom_op(std::string("sparse_rules::") + name + "(Tensor x) -> Tensor")
      .kernel(at::kCPU, three_points_in_memory)
      .save_for_backward(
          [](const tower::Arguments& in, const tower::ValueList&) { return tower::Saved{in.tensor("x")}; })
      .backward([](const tower::CallContext&, const tower::ValueList& saved,
                   const tower::ValueList& grads) -> tower::Gradients {
        return {{"x", pulled_back(saved[0], grads[0])}};
      })
      .linear_backward();
}

using TensorFunction = std::function<Tensor(const Tensor&)>;

const Tensor& some() {
  static const Tensor x = waves({7});
  return x;
}

void expect_as_written_out(const TensorFunction& f) {
  const auto energy_of = [](const TensorFunction& g) { return [g](const Tensor& x) { return g(x).square().sum(); }; };
  const Sparsity pattern = tower::jacobian_sparsity(f, some());
  EXPECT_TRUE(pattern.taken_for_dense().empty());
  EXPECT_TRUE(at::equal(pattern.mask(), tower::jacobian_sparsity(three_points, some()).mask()));
  EXPECT_TRUE(same(tower::sparse_jacobian(f, pattern)(some()).to_dense(), tower::jacfwd(three_points)(some())));
  const Sparsity second = tower::hessian_sparsity(energy_of(f), some());
  EXPECT_TRUE(at::equal(second.mask(), tower::hessian_sparsity(energy_of(three_points), some()).mask()));
  EXPECT_TRUE(same(tower::sparse_hessian(energy_of(f), second)(some()).to_dense(),
                   tower::hessian(energy_of(three_points))(some())));
}

TEST(SparsityRules, OfFunctionsThatAreClasses) {
  expect_as_written_out([](const Tensor& x) { return SparsePoints::apply(x); });
}

TEST(SparsityRules, OfFunctionsThatAreValues) {
  const auto f = tower::custom(three_points_in_memory)
                     .vjp([](const Tensor& x) { return std::pair(three_points(x), x); },
                          [](const Tensor& x, const Tensor& grad) { return pulled_back(x, grad); })
                     .linear_backward()
                     .sparsity([](const Tensor& x) { return x + x.roll(1, 0) + x.roll(-1, 0); });
  expect_as_written_out([f](const Tensor& x) { return f(x); });
}

TEST(SparsityRules, OfOperators) {
  const auto op = points_op("three_points").sparsity([](const Tensor& x) { return x + x.roll(1, 0) + x.roll(-1, 0); });
  const auto f = op.typed<Tensor(const Tensor&)>();
  expect_as_written_out([f](const Tensor& x) { return f(x); });
}

TEST(SparsityRules, HoldForEachExample) {
  const Tensor x = waves({2, 5});
  const auto mask_of = [&](const TensorFunction& f) {
    return tower::jacobian_sparsity([f](const Tensor& v) { return tower::vmap(f)(v); }, x).mask();
  };
  const auto op = points_op("of_each").sparsity([](const Tensor& v) { return v + v.roll(1, 0) + v.roll(-1, 0); });
  const auto f = op.typed<Tensor(const Tensor&)>();
  EXPECT_TRUE(at::equal(mask_of([](const Tensor& v) { return SparsePoints::apply(v); }), mask_of(three_points)));
  EXPECT_TRUE(at::equal(mask_of([f](const Tensor& v) { return f(v); }), mask_of(three_points)));
}

TEST(SparsityRules, WithoutOneAllDependsOnAllAndIsNamed) {
  const Sparsity of_class = tower::jacobian_sparsity([](const Tensor& x) { return Points::apply(x); }, some());
  EXPECT_EQ(of_class.num_entries(), 49);
  ASSERT_EQ(of_class.taken_for_dense().size(), 1);
  EXPECT_TRUE(contains(of_class.taken_for_dense()[0], "Points"));
  const auto op = points_op("without");
  const auto f = op.typed<Tensor(const Tensor&)>();
  const Sparsity of_op = tower::jacobian_sparsity([f](const Tensor& x) { return f(x); }, some());
  EXPECT_EQ(of_op.num_entries(), 49);
  EXPECT_EQ(of_op.taken_for_dense(), std::vector<std::string>{"sparse_rules::without"});
}

TEST(SparsityRules, GoWithTheirRegistration) {
  const auto op = points_op("taken_back");
  const auto f = op.typed<Tensor(const Tensor&)>();
  const auto entries = [&] {
    return tower::jacobian_sparsity([f](const Tensor& x) { return f(x); }, some()).num_entries();
  };
  {
    const auto rule = tower::custom_op("sparse_rules::taken_back").sparsity([](const Tensor& x) { return x.clone(); });
    EXPECT_EQ(entries(), 7);
  }
  EXPECT_EQ(entries(), 49);
  EXPECT_TRUE(
      contains(message_of<tower::ArgumentError>([] {
                 tower::custom_op("sparse_rules::taken_back").sparsity([](const Tensor& x, double) { return x; });
               }),
               "the sparsity rule does not fit"));
}

TEST(SparsityRules, HaveTheShapesOfTheOutputs) {
  const auto f = tower::custom(three_points_in_memory)
                     .vjp([](const Tensor& x) { return std::pair(three_points_in_memory(x), x); },
                          [](const Tensor& x, const Tensor& grad) { return pulled_back(x, grad); })
                     .named("points")
                     .sparsity([](const Tensor& x) { return x.sum(); });
  const std::string message = message_of<tower::ArgumentError>(
      [&] { tower::jacobian_sparsity([f](const Tensor& x) { return f(x); }, some()); });
  EXPECT_TRUE(contains(message, "output 0 of points is ")) << message;
  EXPECT_TRUE(contains(message, "what stands for it in patterns")) << message;
}

TEST(SparsityRules, WhatIsDifferentiatedThroughItsImplementationIsFollowedThere) {
  const auto mask_of = [](const TensorFunction& f) {
    const Sparsity pattern = tower::jacobian_sparsity(f, some());
    EXPECT_TRUE(pattern.taken_for_dense().empty());
    return pattern.mask();
  };
  const Tensor expected = tower::jacobian_sparsity(three_points, some()).mask();
  EXPECT_TRUE(at::equal(mask_of([](const Tensor& x) { return tower::custom(three_points)(x); }), expected));
  const auto energy = [](const Tensor& x) { return tower::checkpoint(three_points)(x).square().sum(); };
  const Sparsity second = tower::hessian_sparsity(energy, some());
  EXPECT_TRUE(second.taken_for_dense().empty());
  EXPECT_TRUE(at::equal(
      second.mask(),
      tower::hessian_sparsity([](const Tensor& x) { return three_points(x).square().sum(); }, some()).mask()));
  // A choice that differs between examples, but not by x.
  const auto chosen = [](const Tensor& x) {
    const auto one = [x](const Tensor& which) {
      return tower::cond(
          which > 0, [](const Tensor& v) { return v.roll(1, 0); }, [](const Tensor& v) { return 2 * v; }, x);
    };
    return tower::vmap(one)(vec({1, -1})).sum(0);
  };
  EXPECT_TRUE(at::equal(mask_of(chosen), at::eye(7, at::kBool) | at::eye(7, at::kBool).roll(1, 0)));
}

}  // namespace
