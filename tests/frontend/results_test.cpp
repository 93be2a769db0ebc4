// What comes out of a transform can be used as what comes out of the function itself: an argument that the function
// returns is the caller's tensor, a view of one is that view, and what the transform made can be written to.
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "support/prelude.h"

namespace {

using tower::MutationError;
using tower::dynamic::FunctionWithAux;

// Each transform's primal output of `f` at `x`; what is mapped is the first dimension.
struct Transform {
  const char* name;
  std::function<Tensor(const Function& f, const Tensor& x)> run;
};
const std::vector<Transform> kTransforms{
    {"vmap", [](const Function& f, const Tensor& x) { return td::vmap(f, {0}, {0})({x})[0]; }},
    {"jvp", [](const Function& f, const Tensor& x) { return td::jvp(f, {x}, {at::ones_like(x)}).first[0]; }},
    {"vjp", [](const Function& f, const Tensor& x) { return td::vjp(f, {x}).first[0]; }},
    {"linearize", [](const Function& f, const Tensor& x) { return td::linearize(f, {x}).first[0]; }},
    {"grad's aux",
     [](const Function& f, const Tensor& x) {
       const FunctionWithAux with_aux = [&](const Tensors& in) { return std::pair(Tensors{in[0].sum()}, f(in)); };
       return td::grad(with_aux, {0})({x}).second[0];
     }},
    {"jacfwd's aux",
     [](const Function& f, const Tensor& x) {
       const FunctionWithAux with_aux = [&](const Tensors& in) { return std::pair(Tensors{in[0].sum()}, f(in)); };
       return td::jacfwd(with_aux, {0})({x}).second[0];
     }},
};

// Calls `check` for each transform and each pair of them: with `f` inside, at a tensor of fitting rank.
template <class Check>
void under_all(const Check& check) {
  for (const Transform& one : kTransforms) {
    SCOPED_TRACE(one.name);
    check(one.run);
    for (const Transform& other : kTransforms) {
      SCOPED_TRACE(other.name);
      check([&](const Function& f, const Tensor& x) {
        return one.run(of_one([&](const Tensor& in) { return other.run(f, in); }), x);
      });
    }
  }
}

TEST(Results, ThatAreAnArgumentAreTheCallersTensor) {
  under_all([](const auto& run) {
    const Tensor x = numbers({2, 3, 4});
    EXPECT_TRUE(run(of_one([](const Tensor& in) { return in; }), x).is_same(x));
  });
}

TEST(Results, ThatAreAnArgumentAfterAWriteToItAreTheCallersTensor) {
  under_all([](const auto& run) {
    const Tensor x = numbers({2, 3, 4});
    const Tensor y = run(of_one([](const Tensor& in) { return in.mul_(2); }), x);
    EXPECT_TRUE(y.is_same(x));
    EXPECT_TRUE(same(x, 2 * numbers({2, 3, 4})));
  });
}

TEST(Results, ThatAreViewsOfAnArgumentAreViewsOfTheCallersTensor) {
  const auto views = {
      +[](const Tensor& in) { return in.select(-1, 1); },
      +[](const Tensor& in) { return in.select(-1, 1).unsqueeze(0); },
      +[](const Tensor& in) { return in.transpose(-1, -2).slice(-1, 0, 2); },
      +[](const Tensor& in) { return in.view({-1}).narrow(0, 1, 2); },
      +[](const Tensor& in) { return in.detach(); },
      +[](const Tensor& in) { return in.unbind(-1)[2]; },
  };
  int number = 0;
  for (const auto view : views)
    for (const bool writes : {false, true}) {
      SCOPED_TRACE("view " + std::to_string(number++ / 2) + (writes ? ", written to" : ""));
      under_all([&](const auto& run) {
        const auto f = of_one([&](const Tensor& in) {
          const Tensor before = view(in);
          if (writes) before.add_(1);
          if (writes) in.mul_(2);
          return before;
        });
        const Tensor x = numbers({2, 3, 4, 5});
        const Tensor y = run(f, x);
        EXPECT_TRUE(y.is_alias_of(x));
        EXPECT_EQ(y._version(), x._version());
        const Tensor seen = y.clone();
        x.mul_(3);
        EXPECT_TRUE(same(y, 3 * seen));
        y.zero_();
        EXPECT_EQ(at::count_nonzero(x).item<int64_t>(), x.numel() - y.numel());
      });
    }
}

// What is done to a result in an outer function reaches the tensor of that function.
TEST(Results, OfInnerTransformsCanBeWrittenToInPlaceOfTheArgument) {
  for (const bool inner_writes : {false, true})
    for (const Transform& inner : kTransforms)
      for (const Transform& outer : kTransforms) {
        SCOPED_TRACE(std::string(outer.name) + " of " + inner.name);
        const Tensor x = numbers({2, 3, 4});
        const auto f = of_one([&](const Tensor& in) {
          const Tensor part = inner.run(of_one([&](const Tensor& e) {
                                          if (inner_writes) e.add_(1);
                                          return e.select(-1, 0);
                                        }),
                                        in);
          part.zero_();
          return in * 2;
        });
        Tensor expected = numbers({2, 3, 4});
        if (inner_writes) expected.add_(1);
        expected.select(-1, 0).zero_();
        EXPECT_TRUE(same(outer.run(f, x), 2 * expected));
        EXPECT_TRUE(same(x, expected));
      }
}

TEST(Results, ThatAreAWrittenArgumentKeepTheirDerivatives) {
  const auto f = of_one([](const Tensor& in) {
    const Tensor first = in.select(0, 0);
    in.sin_();
    return first;
  });
  const Tensor at = vec({0.3, 0.8, -1}), x = at.clone();
  const auto [y, pullback] = td::vjp(f, {x});
  EXPECT_TRUE(same(x, at.sin()));
  EXPECT_TRUE(same(pullback({number(2)})[0], 2 * vec({1, 0, 0}) * at.cos()));
  const auto [z, tangent] = td::jvp(f, {at.clone()}, {vec({1, 2, 3})});
  EXPECT_TRUE(same(tangent[0], at.cos()[0]));
  EXPECT_TRUE(same(td::linearize(f, {at.clone()}).second({vec({1, 2, 3})})[0], at.cos()[0]));
  EXPECT_TRUE(same(td::jacrev(f, {0})({at.clone()})[0], vec({1, 0, 0}) * at.cos()));
}

TEST(Results, ThatAreAWrittenArgumentKeepLibTorchsHistory) {
  const Tensor leaf = vec({0.3, 0.8}).requires_grad_(), x = leaf * 1;
  const auto triples = of_one([](const Tensor& in) { return in.mul_(3); });
  const Tensor y = td::vmap(triples, {0}, {0})({x})[0];
  EXPECT_TRUE(y.is_same(x));
  EXPECT_TRUE(same(torch::autograd::grad({y.square().sum()}, {leaf})[0], 18 * leaf.detach()));
  // A leaf cannot have a history: there the result is another tensor.
  const Tensor w = vec({0.3, 0.8}).requires_grad_();
  const Tensor at = w.detach().clone();
  const Tensor z = td::vjp(triples, {w}).first[0];
  EXPECT_TRUE(same(w, 3 * at));
  EXPECT_TRUE(same(torch::autograd::grad({z.square().sum()}, {w})[0], 18 * at));
}

// What a tape keeps may be the memory of a result.
TEST(Results, ThatAreWrittenToAreNoticedByThePullback) {
  const Tensor x = vec({1, 2, 3});
  const auto [y, pullback] = td::vjp(
      [](const Tensors& in) -> Tensors {
        return {in[0].slice(0, 0, 2), in[0] * in[0]};
      },
      {x});
  y[0].zero_();
  EXPECT_TRUE(says(refusal<tower::DerivativeError>([&, &pull = pullback] {
                     pull({Tensor(), at::ones({3}, at::kDouble)});
                   }),
                   {"aten::mul", "modified by an in-place operation"}));
}

TEST(Results, ThatDoNotDependOnTheExampleCanBeWrittenTo) {
  const std::vector<Function> functions{
      of_one([](const Tensor& in) { return at::zeros_like(in); }),
      of_one([](const Tensor& in) { return in.new_zeros({2}); }),
      of_one([](const Tensor& in) { return at::full_like(in, 3).select(0, 1); }),
      of_one([](const Tensor&) { return at::ones({3}, at::kDouble) + 1; }),
      td::grad(of_one([](const Tensor& in) { return in.sum(); }), {0}),
      td::jacrev(of_one([](const Tensor& in) { return in + 1; }), {0}),
      td::jacfwd(of_one([](const Tensor& in) { return in.sum(); }), {0}),
  };
  for (const Function& f : functions)
    for (const int64_t out_dim : {0, -1}) {
      const Tensor y = td::vmap(f, {0}, {out_dim})({numbers({4, 3})})[0], expected = y + 1;
      EXPECT_TRUE(same(y.add_(1), expected));
    }
}

TEST(Results, ThatAreDerivativesCanBeWrittenTo) {
  const Tensor x = numbers({4, 3});
  const auto sum = of_one([](const Tensor& in) { return in.sum(); });
  const Tensor gradient = td::grad(sum, {0})({x})[0];
  EXPECT_TRUE(same(gradient.mul_(2), at::full({4, 3}, 2, at::kDouble)));
  const Tensor cotangent = td::vjp(sum, {x}).second({number(3)})[0];
  EXPECT_TRUE(same(cotangent.mul_(2), at::full({4, 3}, 6, at::kDouble)));
  const auto repeated = of_one([](const Tensor& in) { return in.sum().expand({2, 3}); });
  const Tensor tangent = td::jvp(repeated, {x}, {at::ones_like(x)}).second[0];
  EXPECT_TRUE(same(tangent.mul_(0.5), at::full({2, 3}, 6, at::kDouble)));
  const Tensor columns = td::jacrev(sum, {0})({x})[0];
  EXPECT_TRUE(same(columns.mul_(2), at::full({4, 3}, 2, at::kDouble)));
}

// Inside of a function they are that function's tensors, also where they do not depend on what it is given.
TEST(Results, ThatAreDerivativesTakeWritesOfMappedValues) {
  const Tensor w = vec({1, 2});
  const auto sum = of_one([](const Tensor& in) { return in.sum(); });
  const std::vector<std::function<Tensor()>> derivatives{
      [&] { return td::grad(sum, {0})({w})[0]; },
      [&] { return td::vjp(sum, {w}).second({number(1)})[0]; },
      [&] { return td::jacrev(sum, {0})({w})[0]; },
      [&] { return td::jacfwd(sum, {0})({w})[0]; },
      [&] { return td::jvp(of_one([](const Tensor& in) { return 1 * in; }), {w}, {at::ones_like(w)}).second[0]; },
  };
  for (const auto& derivative : derivatives)
    EXPECT_TRUE(
        same(td::vmap(of_one([&](const Tensor& in) { return derivative().add_(in); }), {0}, {0})({numbers({3, 2})})[0],
             numbers({3, 2}) + 1));
}

TEST(Results, ThatTheFunctionCapturedOrExpandedStayWhatTheyAre) {
  const Tensor captured = vec({1, 2});
  const Tensor shown = td::vmap(of_one([&](const Tensor&) { return captured; }), {0}, {0})({vec({1, 2, 3})})[0];
  EXPECT_TRUE(shown.is_alias_of(captured));
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(td::vmap(of_one([](const Tensor& in) { return in.expand({4}); }), {0}, {0})({x})[0].is_alias_of(x));
  const Tensor rows = x.expand({2, 3});
  EXPECT_TRUE(td::vmap(of_one([](const Tensor& in) { return in; }), {0}, {0})({rows})[0].is_same(rows));
}

// ---- arguments that are not differentiated by
// ------------------------------------------------------------------------

// x·w, and w·x goes into the second argument.
Tensors product(const Tensors& in) {
  const Tensor y = in[0] * in[1];
  in[1].mul_(in[0]);
  return {(y + in[1]).sum()};
}

TEST(WritesToOtherArguments, OfTrackedValuesReachTheCallersTensor) {
  const Tensor w = vec({1, 2, 3}), x = vec({4, 5, 6}), gradient = 2 * x;
  const std::vector<Function> transforms{td::grad(product, {0}), td::jacrev(product, {0}), td::jacfwd(product, {0})};
  for (const Function& of : transforms) {
    const Tensor written = x.clone();
    EXPECT_TRUE(same(of({w, written})[0], gradient));
    EXPECT_TRUE(same(written, x * w));
  }
  const Tensor ws = at::stack({w, w + 1}), xs = at::stack({x, x - 1}), written = xs.clone();
  EXPECT_TRUE(same(td::vmap(td::grad(product, {0}), {0, 0}, {0})({ws, written})[0], 2 * xs));
  EXPECT_TRUE(same(written, xs * ws));
  const Tensor again = x.clone();
  EXPECT_TRUE(same(td::hessian(product, {0})({w, again})[0], at::zeros({3, 3}, at::kDouble)));
  EXPECT_TRUE(same(again, x * w));
}

TEST(WritesToOtherArguments, OfPlainValuesReachTheCallersTensor) {
  const Function counts = [](const Tensors& in) -> Tensors {
    in[1].add_(1);
    return {(in[0] * in[1]).sum()};
  };
  const Tensor count = at::ones({}, at::kLong);
  EXPECT_TRUE(same(td::grad(counts, {0})({vec({1, 2}), count})[0], vec({2, 2})));
  EXPECT_EQ(count.item<int64_t>(), 2);
}

TEST(WritesToOtherArguments, AreRefusedWhereTheFunctionIsEvaluatedAgain) {
  const auto several = td::jacfwd(product, {0}, {.chunk_size = 2, .randomness = tower::Randomness::different});
  const Tensor w = vec({1, 2, 3}), x = vec({4, 5, 6});
  EXPECT_TRUE(says(refusal<MutationError>([&] { several({w, x}); }), {"jacfwd", "evaluated again", "Clone"}));
  const Tensor written = vec({4, 5, 6});
  const auto once = td::jacfwd(product, {0}, {.chunk_size = 2});
  EXPECT_TRUE(same(once({w, written})[0], 2 * vec({4, 5, 6})));
  EXPECT_TRUE(same(written, w * vec({4, 5, 6})));
}

TEST(WritesToOtherArguments, ThatAreSharedWithAnotherAreRefused) {
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(says(refusal<MutationError>([&] {
                     td::grad(product, {0})({x, x});
                   }),
                   {"grad (level 1)", "argument 1", "shares memory with argument 0"}));
  EXPECT_TRUE(same(x, vec({1, 2, 3})));
}

TEST(OtherArguments, ThatAreSparseAreHandedThrough) {
  const Tensor matrix = at::eye(2, at::kDouble).to_sparse();
  const Function f = [](const Tensors& in) -> Tensors {
    EXPECT_TRUE(in[1].is_sparse());
    return {in[0].sum()};
  };
  EXPECT_TRUE(same(td::grad(f, {0})({vec({1, 2}), matrix})[0], vec({1, 1})));
}

}  // namespace
