// What a derivative needs keeps its value when the function goes on and writes to the tensor, whichever level that
// tensor belongs to. Each function is written twice, in place and as a formula of new tensors, which is the oracle.
#include <algorithm>
#include <iterator>

#include "support/prelude.h"
#include "tower/function.h"

namespace {

enum class Kind { vmap, jvp, vjp, linearize };
constexpr Kind kKinds[] = {Kind::vmap, Kind::jvp, Kind::vjp, Kind::linearize};

// `f`, a function from several vectors to one of the same size, transformed with regard to argument `arg`.
Function transformed(Kind kind, size_t arg, Function f) {
  return [=](const Tensors& args) -> Tensors {
    const Function of_one = [&](const Tensors& in) {
      Tensors all = args;
      all[arg] = in[0];
      return f(all);
    };
    const Tensors at{args[arg]}, ones{at::ones_like(args[arg])};
    switch (kind) {
      case Kind::vmap:
        return {td::vmap(of_one, {0}, {0})({at::stack({at[0], at[0].cos()})})[0].sum(0)};
      case Kind::jvp:
        return td::jvp(of_one, at, ones).second;
      case Kind::vjp:
        return td::vjp(of_one, at).second(ones);
      default:
        return td::linearize(of_one, at).second(ones);
    }
  };
}

// Both programs, under every nesting of `depth` transforms, each with regard to another of the arguments.
void expect_same_everywhere(const Function& in_place, const Function& formula, const Tensors& args, size_t depth) {
  size_t nestings = 1;
  for (size_t d = 0; d < depth; ++d) nestings *= std::size(kKinds);
  std::vector<size_t> order(args.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  do {
    for (size_t n = 0; n < nestings; ++n) {
      Function written = in_place, expected = formula;
      std::string name;
      for (size_t d = 0, rest = n; d < depth; ++d, rest /= std::size(kKinds)) {
        const Kind kind = kKinds[rest % std::size(kKinds)];
        written = transformed(kind, order[d], written);
        expected = transformed(kind, order[d], expected);
        name += std::to_string(static_cast<int>(kind)) + " of argument " + std::to_string(order[d]) + ", ";
      }
      EXPECT_TRUE(same(written(args)[0], expected(args)[0])) << name;
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

Tensors euler(const Tensors& in) {
  Tensor z = in[2].clone();
  for (int step = 0; step < 3; ++step) {
    const Tensor rate = in[0] * z * z;
    z -= 0.1 * rate * in[1];
  }
  return {z};
}

Tensors euler_by_new_tensors(const Tensors& in) {
  Tensor z = in[2];
  for (int step = 0; step < 3; ++step) z = z - 0.1 * (in[0] * z * z) * in[1];
  return {z};
}

const Tensors kPoint{vec({0.3, -0.7}), vec({1.2, 0.4}), vec({0.9, -1.5})};

TEST(HeldValues, OfTheExplicitEulerLoopAreThoseOfTheFormulaUnderTwoTransforms) {
  expect_same_everywhere(euler, euler_by_new_tensors, kPoint, 2);
}

TEST(HeldValues, OfTheExplicitEulerLoopAreThoseOfTheFormulaUnderThreeTransforms) {
  expect_same_everywhere(euler, euler_by_new_tensors, kPoint, 3);
}

TEST(HeldValues, AreKeptThroughViewsOfWhatIsWritten) {
  const Function by_parts = [](const Tensors& in) -> Tensors {
    const Tensor z = in[2].clone(), first = z.select(0, 0);
    Tensor rate = in[0] * z;
    first.add_(rate.select(0, 1));
    rate = rate + in[0] * first * in[1];
    z.mul_(rate);
    return {z * in[0]};
  };
  const Function at_once = [](const Tensors& in) -> Tensors {
    const Tensor rate = in[0] * in[2];
    const Tensor first = in[2][0] + rate[1], z = at::stack({first, in[2][1]});
    return {z * (rate + in[0] * first * in[1]) * in[0]};
  };
  expect_same_everywhere(by_parts, at_once, kPoint, 2);
}

TEST(HeldValues, AreKeptInLists) {
  const Function in_place = [](const Tensors& in) -> Tensors {
    const Tensor z = in[2].clone();
    const Tensor products = at::einsum("i,i,i->i", {in[0], z, z});
    const Tensor powers = at::linalg_multi_dot({in[0].unsqueeze(0), at::outer(z, z), z.unsqueeze(1)}).reshape({});
    z.mul_(in[1]);
    return {products * z + powers};
  };
  const Function formula = [](const Tensors& in) -> Tensors {
    return {in[0] * in[2] * in[2] * in[2] * in[1] + at::dot(in[0], in[2]) * at::dot(in[2], in[2])};
  };
  expect_same_everywhere(in_place, formula, kPoint, 2);
}

struct Product : tower::Function<Product> {
  static Tensor forward(const Tensor& a, const Tensor& b) { return a * b; }
  static void setup_context(tower::Context& ctx, const std::tuple<Tensor, Tensor>& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs), std::get<1>(inputs)});
    ctx.save_for_forward({std::get<0>(inputs), std::get<1>(inputs)});
  }
  static std::tuple<Tensor, Tensor> backward(tower::Context& ctx, const Tensor& grad) {
    return {grad * ctx.saved_tensors()[1], grad * ctx.saved_tensors()[0]};
  }
  static Tensor jvp(tower::Context& ctx, const Tensor& a, const Tensor& b) {
    return a * ctx.saved_tensors()[1] + b * ctx.saved_tensors()[0];
  }
};

TEST(HeldValues, AreKeptByFunctionsWithRulesOfTheirOwn) {
  const Function in_place = [](const Tensors& in) -> Tensors {
    const Tensor z = in[2].clone();
    const Tensor rate = Product::apply(in[0], z);
    z.sub_(rate * in[1]);
    return {z * z};
  };
  const Function formula = [](const Tensors& in) -> Tensors { return {(in[2] - in[0] * in[2] * in[1]).square()}; };
  expect_same_everywhere(in_place, formula, kPoint, 2);
}

// A pullback that was made at an outer level's tensor outlives the write, too.
TEST(HeldValues, OfAPullbackStayWhenWhatItWasGivenIsWrittenToAfterwards) {
  const Function f = [](const Tensors& in) -> Tensors {
    const Tensor z = in[0] * 1;
    const auto pullback = td::vjp([&](const Tensors& mu) -> Tensors { return {mu[0] * z}; }, {at::ones_like(z)}).second;
    z.zero_();
    return pullback({at::ones_like(z)});
  };
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({x})[0], x));
  EXPECT_TRUE(same(td::jacrev(f, {0})({x})[0], at::eye(3, at::kDouble)));
  EXPECT_TRUE(same(td::jacfwd(f, {0})({x})[0], at::eye(3, at::kDouble)));
}

}  // namespace
