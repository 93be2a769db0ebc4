// What can fault (a division of integers by zero, a singular matrix, an index out of range) faults in a loop where the
// program would run it, and nowhere else: not while the loop is traced, not before its first step, and not for examples
// that have ended.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <limits>

#include "compile/kernels.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using td::Function;
using td::Tensors;

Tensor number(int64_t n) { return at::scalar_tensor(n, at::kLong); }
Tensor list(std::vector<int64_t> n) { return at::tensor(n, at::kLong); }

// As many steps as the last argument says, each of which may fault; an example.
struct Program {
  const char* name;
  std::function<Tensor(const Tensor& a, const Tensor& b, const Tensor& value)> step;
  Tensor start, a, faulty, sound;
};

const std::vector<Program>& programs() {
  const Tensor eye = at::eye(2) * 2, zero = at::zeros({2, 2}), x = at::arange(4.0);
  static const std::vector<Program> all{
      {"div", [](auto& a, auto& b, auto& v) { return v + at::div(a, b, "trunc"); }, number(1), number(7), number(0),
       number(2)},
      {"floor_divide", [](auto& a, auto& b, auto& v) { return v + at::floor_divide(a, b); }, list({1, 2}), list({7, 8}),
       list({3, 0}), list({2, 3})},
      {"remainder", [](auto& a, auto& b, auto& v) { return at::remainder(v, b) + a; }, number(1), number(7), number(0),
       number(2)},
      {"fmod of a product", [](auto& a, auto& b, auto& v) { return v + at::fmod(a * 3, b * 2); }, number(1), number(7),
       number(0), number(2)},
      {"index_select", [](auto& a, auto& b, auto& v) { return v + a.index_select(0, b); }, at::zeros({1}), x, list({9}),
       list({3})},
      {"gather", [](auto& a, auto& b, auto& v) { return v * 2 + a.gather(0, b); }, at::zeros({1}), x, list({-1}),
       list({3})},
      {"inv", [](auto& a, auto& b, auto& v) { return v + at::linalg_inv(b) * a; }, zero, eye, zero, eye},
      {"solve", [](auto& a, auto& b, auto& v) { return at::linalg_solve(b, v + a); }, zero, eye, zero, eye},
      {"cholesky", [](auto& a, auto& b, auto& v) { return v + at::linalg_cholesky(b) * a; }, zero, eye, zero - eye,
       eye},
  };
  return all;
}

Function loop_of(const Program& p, std::optional<int64_t> max_steps = std::nullopt) {
  return [&p, max_steps](const Tensors& in) {
    const Tensor a = in[0], b = in[1], n = in[2];
    tower::WhileOptions options;
    options.max_steps = max_steps;
    return td::while_loop([n](const Tensors& s) { return s[0] < n; },
                          [a, b, &p](const Tensors& s) {
                            return Tensors{s[0] + 1, p.step(a, b, s[1])};
                          },
                          {at::zeros_like(n), in[3]}, options);
  };
}

Function over_examples(const Function& f) {
  return [f](const Tensors& in) { return td::vmap(f, td::Dims(in.size(), 0), {0})(in); };
}

void expect_near(const Tensors& found, const Tensors& expected) {
  for (size_t k = 0; k < expected.size(); ++k)
    EXPECT_TRUE(at::allclose(found[k].to(at::kDouble), expected[k].to(at::kDouble), 1e-5, 1e-6, true)) << found[k];
}

TEST(LoopFaults, OfNoStepsThereAreNone) {
  for (const Program& p : programs()) {
    SCOPED_TRACE(p.name);
    const Function f = loop_of(p), compiled = td::compile(f);
    const Tensors none{p.a, p.faulty, number(0), p.start}, some{p.a, p.sound, number(3), p.start};
    for (int run = 0; run < 3; ++run) expect_near(compiled(none), f(none));
    for (int run = 0; run < 3; ++run) expect_near(compiled(some), f(some));
    expect_near(compiled(none), f(none));
  }
}

TEST(LoopFaults, OfIntegersAndIndicesAreRaisedWhereAStepIsMade) {
  for (const Program& p : programs()) {
    if (p.name == std::string("inv") || p.name == std::string("solve") || p.name == std::string("cholesky")) continue;
    SCOPED_TRACE(p.name);
    const Function f = loop_of(p), compiled = td::compile(f);
    const Tensors faulty{p.a, p.faulty, number(2), p.start}, some{p.a, p.sound, number(3), p.start};
    for (int run = 0; run < 3; ++run) expect_near(compiled(some), f(some));
    EXPECT_THROW(f(faulty), c10::Error);
    EXPECT_THROW(compiled(faulty), c10::Error);
    EXPECT_THROW(td::compile(f)(faulty), c10::Error);
    expect_near(compiled(some), f(some));
  }
}

// More examples than a vector has lanes, and a number that is no multiple of these.
TEST(LoopFaults, OfExamplesThatHaveEndedThereAreNone) {
  for (const Program& p : programs())
    for (const int64_t examples : {2, 3, 21}) {
      SCOPED_TRACE(std::string(p.name) + " of " + std::to_string(examples));
      Tensors a, b, n, start, expected[2];
      for (int64_t i = 0; i < examples; ++i) {
        const bool runs = i % 3 == 1;
        a.push_back(p.a);
        b.push_back(runs ? p.sound : p.faulty);
        n.push_back(number(runs ? i % 4 : 0));
        start.push_back(p.start);
        const Tensors one = loop_of(p)({a.back(), b.back(), n.back(), p.start});
        for (size_t k = 0; k < 2; ++k) expected[k].push_back(one[k]);
      }
      const Tensors all{at::stack(a), at::stack(b), at::stack(n), at::stack(start)};
      const Tensors by_loop{at::stack(expected[0]), at::stack(expected[1])};
      const Function f = over_examples(loop_of(p)), compiled = td::compile(f);
      expect_near(f(all), by_loop);
      for (int run = 0; run < 3; ++run) expect_near(compiled(all), by_loop);
    }
}

TEST(LoopFaults, TheSmallestIntegerByMinusOneEndsNoProcess) {
  const auto smallest = at::scalar_tensor(std::numeric_limits<int64_t>::min(), at::kLong);
  const Function f = [](const Tensors& in) {
    const Tensor a = in[0], b = in[1], n = in[2];
    return td::while_loop([n](const Tensors& s) { return s[0] < n; },
                          [a, b](const Tensors& s) {
                            return Tensors{s[0] + 1, s[1] + at::remainder(a, b)};
                          },
                          {at::zeros_like(n), a});
  };
  const Function compiled = td::compile(f);
  for (int run = 0; run < 3; ++run)
    EXPECT_EQ(compiled({smallest, number(-1), number(0)})[1].item<int64_t>(), std::numeric_limits<int64_t>::min());
}

// They are the graph's, which no other numbers may stand in for.
TEST(LoopFaults, ConstantsThatAStepDividesKeepTheirValues) {
  const Function f = [](const Tensors& in) {
    return td::while_loop([](const Tensors& s) { return s[0] > 0; },
                          [](const Tensors& s) {
                            const Tensor thirds = at::arange(9).div(at::full({9}, 3, at::kLong), "floor");
                            return Tensors{s[0] - 1, s[1] + at::remainder(thirds, at::full({9}, 2, at::kLong))};
                          },
                          {in[0], at::zeros({9}, at::kLong)});
  };
  const Function compiled = td::compile(f);
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(at::equal(compiled({number(2)})[1], list({0, 0, 0, 2, 2, 2, 0, 0, 0})));
}

// The state of an example that has ended divides by zero, if it goes along.
TEST(LoopFaults, CountdownsEndBeforeTheirLastDivision) {
  const Function f = [](const Tensors& in) {
    const Tensor a = in[0];
    return td::while_loop([](const Tensors& s) { return s[0] > 0; },
                          [a](const Tensors& s) {
                            return Tensors{s[0] - 1, s[1] + at::div(a, s[0], "trunc")};
                          },
                          {in[1], at::zeros_like(a)});
  };
  const Tensor a = at::arange(100, 137), n = at::arange(37).remainder(9);
  const Function mapped = over_examples(f), compiled = td::compile(mapped);
  Tensor expected = at::zeros_like(a);
  for (int64_t i = 0; i < 37; ++i)
    for (int64_t k = 1; k <= i % 9; ++k) expected[i] += (100 + i) / k;
  EXPECT_TRUE(at::equal(mapped({a, n})[1], expected));
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(at::equal(compiled({a, n})[1], expected));
}

// The inner loop's division needs nothing that the inner loop carries.
TEST(LoopFaults, OfALoopInALoopAreItsOwn) {
  const Function f = [](const Tensors& in) {
    const Tensor a = in[0], b = in[1];
    return td::while_loop([](const Tensors& s) { return s[0] < 3; },
                          [a, b](const Tensors& s) {
                            const Tensors inner =
                                td::while_loop([b](const Tensors& t) { return t[0] < b; },
                                               [a, b](const Tensors& t) {
                                                 return Tensors{t[0] + 1, t[1] + at::div(a, b, "trunc")};
                                               },
                                               {at::zeros_like(b), s[1]});
                            return Tensors{s[0] + 1, inner[1] + 1};
                          },
                          {at::zeros_like(a), a});
  };
  const Tensor a = list({7, 8, 9}), b = list({0, 2, 3});
  const Tensor expected = list({10, 8 + 3 * (2 * 4 + 1), 9 + 3 * (3 * 3 + 1)});
  const Function compiled = td::compile(over_examples(f));
  EXPECT_TRUE(at::equal(over_examples(f)({a, b})[1], expected));
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(at::equal(compiled({a, b})[1], expected));
}

// A step is traced from numbers that it may never meet.
TEST(LoopFaults, OfALoopInAStepThatNobodyMakesAreNone) {
  const auto f = [](const Tensor& x, const Tensor& n) {
    return tower::while_loop([n](const std::pair<Tensor, Tensor>& s) { return s.second < n; },
                             [](const std::pair<Tensor, Tensor>& s) {
                               const Tensor halved =
                                   tower::while_loop([](const Tensor& v) { return v > 1; },
                                                     [](const Tensor& v) { return v / 2; }, s.first, {.max_steps = 3});
                               return std::pair(halved, s.second + 1);
                             },
                             std::pair(x, at::zeros_like(n)))
        .first;
  };
  const auto compiled = tower::compile(tower::vmap(f));
  const Tensor x = at::tensor({100.0, 3.0}), none = at::tensor({0, 0}), one = at::tensor({0, 1});
  for (int call = 0; call < 3; ++call) {
    EXPECT_TRUE(at::equal(compiled(x, none), x));
    EXPECT_TRUE(at::equal(compiled(x, one), at::tensor({100.0, 0.75})));
    EXPECT_THROW(compiled(x, at::tensor({1, 1})), tower::MaxStepsError);
  }
}

// Factorizations of several matrices in a step, by LibTorch of all at once.
TEST(LoopFaults, FactorizationsThatAStepMapsItselfGiveWhatTheyGive) {
  const std::vector<std::function<Tensor(const Tensor&)>> ops{
      [](const Tensor& a) { return at::linalg_inv(a); },
      [](const Tensor& a) { return std::get<0>(at::linalg_inv_ex(a, /*check_errors=*/true)); },
      [](const Tensor& a) { return at::linalg_det(a).unsqueeze(-1).unsqueeze(-1) * a; },
  };
  const Tensor apart = at::tensor({0.0, 1.0}, at::kDouble).view({2, 1, 1, 1}) * at::eye(2, at::kDouble);
  const Tensor start = at::tensor({3.0, 1.0, 1.0, 4.0}, at::kDouble).view({2, 2});
  for (const auto& op : ops) {
    const auto loop = [&](const auto& factored, const Tensor& x) {
      return tower::while_loop([](const Tensor& s) { return s.sum() < 100; },
                               [&](const Tensor& s) {
                                 return s + factored(s + apart).sum({0, 1}).abs();
                               },
                               x);
    };
    const auto mapped = [&](const Tensor& x) { return loop(tower::vmap(tower::vmap(op)), x); };
    const auto compiled = tower::compile(mapped);
    const Tensor expected = loop(op, start);
    for (int call = 0; call < 3; ++call) {
      EXPECT_TRUE(at::allclose(compiled(start), expected));
      if (&op != &ops.back()) EXPECT_THROW(compiled(start * 0), c10::Error);  // but for determinants
      EXPECT_TRUE(at::equal(compiled(start * 100), start * 100));
    }
  }
}

}  // namespace
