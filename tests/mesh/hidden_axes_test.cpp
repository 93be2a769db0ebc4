// Functions of checkpoints, branches and loops that speak of an axis that none of their operands differs along.
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

// What is mapped over "inner" speaks of "outer": `as` makes the operator of the function.
template <class As>
auto mapped(As as) {
  return [as](const Tensor& x, const Tensor& y) {
    const auto of_outer = [&](const Tensor& outer) {
      const auto of_inner = [&](const Tensor& inner) {
        const auto f = [](const Tensor& t) { return tower::psum(t.sin(), "outer") * t; };
        return as(f, inner) * outer;
      };
      return tower::vmap(of_inner, {.axis = "inner"})(y);
    };
    return tower::vmap(of_outer, {.axis = "outer"})(x);
  };
}

template <class As>
void expect_plain(As as) {
  const Tensor x = waves({4}), y = waves({3}, 0.5);
  const auto plain = mapped([](auto f, const Tensor& t) { return f(t); });
  const auto other = mapped(as);
  EXPECT_TRUE(same(other(x, y), plain(x, y)));
  const auto sum_of = [](auto f) { return [f](const Tensor& a, const Tensor& b) { return f(a, b).square().sum(); }; };
  EXPECT_TRUE(same(tower::grad<1>(sum_of(other))(x, y), tower::grad<1>(sum_of(plain))(x, y)));
  EXPECT_TRUE(same(tower::hessian<1>(sum_of(other))(x, y), tower::hessian<1>(sum_of(plain))(x, y)));
}

TEST(HiddenAxes, AreFoundByCheckpoints) {
  expect_plain([](auto f, const Tensor& t) { return tower::checkpoint(f)(t); });
}

TEST(HiddenAxes, AreFoundByBranches) {
  expect_plain([](auto f, const Tensor& t) {
    return tower::cond(
        t < 2, f, [](const Tensor& s) { return -s; }, t);
  });
}

TEST(HiddenAxes, AreFoundByLoops) {
  expect_plain([](auto f, const Tensor& t) {
    return tower::fori_loop(0, 1, [f](int64_t, const Tensor& s) { return f(s); }, t, {.checkpoints = 1});
  });
  expect_plain([](auto f, const Tensor& t) {
    using State = std::pair<Tensor, Tensor>;
    return tower::while_loop([](const State& s) { return s.first < 0.5; },
                             [f](const State& s) { return State(s.first + 1, f(s.second)); }, State(t * 0, t))
        .second;
  });
}

}  // namespace
