// What raises for the values that it finds raises in the compiled function as it does in the function, although nobody
// reads its results, or no more than their shapes or a part of them.
#include <ATen/Functions.h>

#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/loops.h"

namespace {

// Raises for some operands: `good` ones do not, `bad` ones do.
struct Raising {
  const char* name;
  Function call;
  Tensors good, bad;
};

Tensor regular() { return at::eye(3, at::kDouble) * 2 + 0.1; }
Tensor singular() { return at::ones({3, 3}, at::kDouble); }
Tensor integers(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

const std::vector<Raising>& raising() {
  static const auto div = [](const Tensors& in) { return Tensors{at::div(in[0], in[1], "trunc")}; };
  static const auto loop = [](const td::Function& step, const Tensors& start, std::optional<int64_t> most = {}) {
    Tensors state{at::zeros({}, at::kLong)};
    state.insert(state.end(), start.begin(), start.end());
    return td::while_loop([](const Tensors& s) { return s[0] < 3; },
                          [step](const Tensors& s) {
                            Tensors next = step(Tensors(s.begin() + 1, s.end()));
                            next.insert(next.begin(), s[0] + 1);
                            return next;
                          },
                          state, {.max_steps = most})
        .back();
  };
  static const std::vector<Raising> all{
      {"solve",
       [](const Tensors& in) { return Tensors{at::linalg_solve(in[0], in[1])}; },
       {regular(), vec({1, 2, 3})},
       {singular(), vec({1, 2, 3})}},
      {"cholesky", [](const Tensors& in) { return Tensors{at::linalg_cholesky(in[0])}; }, {regular()}, {-regular()}},
      {"inv", [](const Tensors& in) { return Tensors{at::linalg_inv(in[0])}; }, {regular()}, {singular()}},
      {"division", div, {integers({6, 7, 8}), integers({1, 2, 3})}, {integers({6, 7, 8}), integers({1, 2, 0})}},
      {"remainder",
       [](const Tensors& in) { return Tensors{at::remainder(in[0], in[1])}; },
       {integers({6, 7, 8}), integers({1, 2, 3})},
       {integers({6, 7, 8}), integers({1, 2, 0})}},
      {"division in a loop",
       [](const Tensors& in) {
         return Tensors{loop(
             [](const Tensors& s) {
               return Tensors{s[1] - 1, at::div(s[0], s[1], "trunc")};
             },
             {in[0], in[1]})};
       },
       {integers({6, 7, 8}), integers({4, 5, 6})},
       {integers({6, 7, 8}), integers({4, 5, 1})}},
      {"division in a step that nobody reads",
       [](const Tensors& in) {
         return Tensors{loop(
             [](const Tensors& s) {
               at::div(s[0], s[1], "trunc");
               return Tensors{s[0], s[1] - 1};
             },
             {in[0], in[1]})};
       },
       {integers({6, 7, 8}), integers({4, 5, 6})},
       {integers({6, 7, 8}), integers({4, 5, 1})}},
      {"solve in a loop",
       [](const Tensors& in) {
         const Tensor a = in[0];
         return Tensors{loop([a](const Tensors& s) { return Tensors{at::linalg_solve(a, s[0])}; }, {in[1]})};
       },
       {regular(), vec({1, 2, 3})},
       {singular(), vec({1, 2, 3})}},
      {"a loop that must end",
       [](const Tensors& in) {
         return td::while_loop([](const Tensors& s) { return s[0].sum() > 1; },
                               [](const Tensors& s) { return Tensors{s[0] / 2}; }, {in[0]}, {.max_steps = 3});
       },
       {vec({1, 2, 3})},
       {vec({100, 2, 3})}},
      {"a loop in a step that nobody reads",
       [](const Tensors& in) {
         return Tensors{loop(
             [](const Tensors& s) {
               loop([](const Tensors& t) { return Tensors{t[1] - 1, at::div(t[0], t[1], "trunc")}; }, {s[0], s[1]});
               return s;
             },
             {in[0], in[1]})};
       },
       {integers({6, 7, 8}), integers({4, 5, 6})},
       {integers({6, 7, 8}), integers({4, 5, 1})}},
  };
  return all;
}

// What a program does with the results; the rest of it is of `x`.
struct Use {
  const char* name;
  std::function<Tensor(const Tensor& result, const Tensor& x)> of;
};
const std::vector<Use>& uses() {
  static const std::vector<Use> all{
      {"nobody", [](const Tensor&, const Tensor& x) { return x.sin() * x; }},
      {"its shape", [](const Tensor& r, const Tensor& x) { return at::zeros_like(r, at::kDouble) + x.sum().sin(); }},
      {"ones like it",
       [](const Tensor& r, const Tensor& x) { return (at::ones_like(r, at::kDouble) * x.sum()).exp(); }},
      {"its first element",
       [](const Tensor& r, const Tensor& x) { return r.reshape({-1})[0].to(at::kDouble) * 2 + x; }},
      {"in a sum by rows",
       [](const Tensor& r, const Tensor& x) {
         return at::zeros_like(r, at::kDouble).sum() + (x.sin() * x).softmax(0);
       }},
      {"itself", [](const Tensor& r, const Tensor& x) { return r.to(at::kDouble).sum() * x; }},
  };
  return all;
}

Function program(const Raising& raising, const Use& use) {
  return
      [&](const Tensors& in) { return Tensors{use.of(raising.call(Tensors(in.begin(), in.end() - 1))[0], in.back())}; };
}
Function over_examples(const Function& f, size_t arguments) {
  return [f, arguments](const Tensors& in) { return td::vmap(f, Dims(arguments, 0), {0})(in); };
}
// By the last argument.
Function differentiated(const Function& f, size_t arguments, bool forward) {
  if (forward) return td::jacfwd(f, {static_cast<int64_t>(arguments) - 1});
  return td::grad(support::summed(f), {static_cast<int64_t>(arguments) - 1});
}

Tensors with_x(Tensors operands, const Tensor& x) {
  operands.push_back(x);
  return operands;
}
// Many examples, of which the one before the last may be bad.
Tensors stacked(const Raising& r, bool bad) {
  constexpr int64_t kMany = 11;
  Tensors all;
  for (size_t k = 0; k < r.good.size(); ++k) {
    Tensors examples(kMany, r.good[k]);
    if (bad) examples[kMany - 2] = r.bad[k];
    all.push_back(at::stack(examples));
  }
  return with_x(all, waves({kMany, 3}));
}

void expect_raised(const Function& f, const Tensors& good, const Tensors& bad) {
  EXPECT_ANY_THROW(f(bad));
  const Tensors expected = f(good);
  const Function compiled = td::compile(f);
  for (int run = 0; run < 2; ++run) {
    const Tensors found = compiled(good);
    for (size_t k = 0; k < expected.size(); ++k) EXPECT_TRUE(at::allclose(found[k], expected[k]));
    EXPECT_ANY_THROW(compiled(bad)) << "run " << run;
  }
}

TEST(Unread, WhatRaisesIsRaised) {
  for (const Raising& r : raising())
    for (const Use& use : uses()) {
      SCOPED_TRACE(std::string(r.name) + ", of which is read: " + use.name);
      const Function f = program(r, use);
      expect_raised(f, with_x(r.good, waves({3})), with_x(r.bad, waves({3})));
    }
}

TEST(Unread, WhatRaisesForOneExampleIsRaised) {
  for (const Raising& r : raising())
    for (const Use& use : uses()) {
      SCOPED_TRACE(std::string(r.name) + ", of which is read: " + use.name);
      const Function f = over_examples(program(r, use), r.good.size() + 1);
      expect_raised(f, stacked(r, false), stacked(r, true));
    }
}

TEST(Unread, WhatRaisesIsRaisedInDerivatives) {
  for (const Raising& r : raising())
    for (const bool forward : {false, true})
      for (const Use& use : {uses()[0], uses()[1]}) {
        SCOPED_TRACE(std::string(r.name) + ", of which is read: " + use.name + (forward ? ", forward" : ", reverse"));
        const size_t arguments = r.good.size() + 1;
        const Function f = differentiated(program(r, use), arguments, forward);
        expect_raised(over_examples(f, arguments), stacked(r, false), stacked(r, true));
      }
}

// The kernels' other parts: a large tensor of integers, divided where nobody looks.
TEST(Unread, DivisionsOfLargeTensorsAreMade) {
  const Tensor a = at::arange(1, 5001), b = at::ones({5000}, at::kLong);
  Tensor zero = b.clone();
  zero[4321].fill_(0);
  for (const Use& use : uses()) {
    SCOPED_TRACE(use.name);
    const Function f = [&](const Tensors& in) {
      return Tensors{use.of(at::floor_divide(in[0] + 1, in[1] * 1) * 2, in[2])};
    };
    const Tensor x = waves({5000});
    expect_raised(f, {a, b, x}, {a, zero, x});
  }
}

// A condition that was true guards what raises.
TEST(Unread, WhatStandsBehindAConditionIsNotRaisedWhereItDoesNotHold) {
  const Function f = [](const Tensors& in) -> Tensors {
    if ((in[1] == 0).any().item<bool>()) return {in[0] * 2};
    const Tensor unread = at::div(in[0], in[1], "trunc");
    return {(in[0] > 0).all().item<bool>() ? in[0] * 3 : in[0] * 4};
  };
  const Function compiled = td::compile(f);
  const Tensor a = integers({6, 7}), b = integers({1, 2}), zero = integers({1, 0});
  for (int run = 0; run < 2; ++run)
    for (const Tensor& by : {b, zero}) EXPECT_TRUE(at::equal(compiled({a, by})[0], f({a, by})[0]));
}

}  // namespace
