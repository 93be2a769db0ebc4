// What is taken around a vmap across processes is that of the whole batch: linearized functions and pullbacks that are
// called several times, products with Hessians, Jacobians in chunks and of Jacobians.
#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using processes::mesh_of_all;
using tower::Mesh;

constexpr int64_t kExamples = 5, kFirst = 3;

// Of a shared argument and of examples: one loss of all, or each example's own numbers.
Function loss_of(const Mesh& mesh) {
  const auto one = [](const Tensors& in) {
    return td::pmean({(in[0] * in[1]).sin().sum() + (in[0].exp() * in[1].square()).sum().tanh()}, "data");
  };
  return td::vmap(one, {std::nullopt, 0}, {std::nullopt}, {}, {"data", mesh});
}
Function numbers_of(const Mesh& mesh) {
  const auto one = [](const Tensors& in) {
    return Tensors{(in[0] * in[1]).sin() * td::psum({in[1].cos() * in[0]}, "data")[0]};
  };
  return td::vmap(one, {std::nullopt, 0}, {0}, {}, {"data", mesh});
}

struct Processes {
  Mesh mesh = mesh_of_all();
  Tensor w = waves({3}), all = waves({kExamples, 3}, 0.6);
  Tensor own(const Tensor& whole) const {
    return mesh.rank() == 0 ? whole.narrow(0, 0, kFirst) : whole.narrow(0, kFirst, kExamples - kFirst);
  }
  // The whole batch's arguments, and this process's.
  Tensors whole() const { return {w, all}; }
  Tensors part() const { return {w, own(all)}; }
  // Directions of these.
  Tensors whole_along(double phase) const { return {waves({3}, phase), waves({kExamples, 3}, phase + 1)}; }
  Tensors part_along(double phase) const { return {waves({3}, phase), own(waves({kExamples, 3}, phase + 1))}; }
};

TEST(AroundProcesses, LinearizedFunctionsAreThoseOfTheWholeBatch) {
  expect_all(2, [](int) {
    const Processes p;
    const auto spread = td::linearize(loss_of(p.mesh), p.part()).second;
    const auto whole = td::linearize(loss_of({}), p.whole()).second;
    const auto spread_numbers = td::linearize(numbers_of(p.mesh), p.part()).second;
    const auto numbers = td::linearize(numbers_of({}), p.whole()).second;
    for (const double phase : {0.3, 0.8}) {
      EXPECT_TRUE(same(spread(p.part_along(phase))[0], whole(p.whole_along(phase))[0]));
      EXPECT_TRUE(same(spread_numbers(p.part_along(phase))[0], p.own(numbers(p.whole_along(phase))[0])));
      // By one of the two alone.
      EXPECT_TRUE(same(spread({p.part_along(phase)[0], {}})[0], whole({p.whole_along(phase)[0], {}})[0]));
      EXPECT_TRUE(same(spread({{}, p.part_along(phase)[1]})[0], whole({{}, p.whole_along(phase)[1]})[0]));
    }
  });
}

TEST(AroundProcesses, PullbacksAreThoseOfTheWholeBatchEachTimeAndMapped) {
  expect_all(2, [](int) {
    const Processes p;
    const auto spread = td::vjp(numbers_of(p.mesh), p.part()).second;
    const auto whole = td::vjp(numbers_of({}), p.whole()).second;
    const auto expect_same = [&](const Tensors& actual, const Tensors& expected, int64_t dim) {
      EXPECT_TRUE(same(actual[0], expected[0]));
      EXPECT_TRUE(same(actual[1].movedim(dim, 0), p.own(expected[1].movedim(dim, 0))));
    };
    const Tensor a = waves({kExamples, 3}, 0.2), b = waves({kExamples, 3}, 0.9);
    expect_same(spread({p.own(a)}), whole({a}), 0);
    expect_same(spread({p.own(b)}), whole({b}), 0);
    expect_same(td::vmap(spread, {0}, {0})({at::stack({p.own(a), p.own(b)})}),
                td::vmap(whole, {0}, {0})({at::stack({a, b})}), 1);
  });
}

TEST(AroundProcesses, ProductsWithHessiansAreThoseOfTheWholeBatch) {
  expect_all(2, [](int) {
    const Processes p;
    const auto [gradients, products] = td::hvp(loss_of(p.mesh), p.part(), p.part_along(0.4));
    const auto [all_gradients, all_products] = td::hvp(loss_of({}), p.whole(), p.whole_along(0.4));
    EXPECT_TRUE(same(gradients[0], all_gradients[0]));
    EXPECT_TRUE(same(products[0], all_products[0]));
    EXPECT_TRUE(same(gradients[1], p.own(all_gradients[1])));
    EXPECT_TRUE(same(products[1], p.own(all_products[1])));
  });
}

TEST(AroundProcesses, JacobiansInChunksAndOfJacobiansAreThoseOfTheWholeBatch) {
  expect_all(2, [](int) {
    const Processes p;
    const auto expect_same = [&](const auto& transform) {
      EXPECT_TRUE(same(transform(loss_of(p.mesh))(p.part())[0], transform(loss_of({}))(p.whole())[0]));
    };
    for (const int64_t chunk : {1, 2, 5}) {
      const tower::JacobianOptions options{.chunk_size = chunk};
      expect_same([&](const Function& f) { return td::jacrev(f, {0}, options); });
      expect_same([&](const Function& f) { return td::jacfwd(f, {0}, options); });
      expect_same([&](const Function& f) { return td::hessian(f, {0}, options); });
      expect_same([&](const Function& f) { return td::jacrev(td::jacrev(f, {0}), {0}, options); });
    }
    expect_same([](const Function& f) { return td::jacrev(td::jacfwd(f, {0}), {0}); });
    expect_same([](const Function& f) { return td::jacrev(td::jacrev(td::jacrev(f, {0}), {0}), {0}); });
    expect_same([](const Function& f) { return td::jacfwd(td::hessian(f, {0}), {0}); });
    // Of a shared result by a part, and of a part by what is shared.
    EXPECT_TRUE(same(td::jacrev(loss_of(p.mesh), {1})(p.part())[0], p.own(td::jacrev(loss_of({}), {1})(p.whole())[0])));
    EXPECT_TRUE(
        same(td::jacfwd(numbers_of(p.mesh), {0})(p.part())[0], p.own(td::jacfwd(numbers_of({}), {0})(p.whole())[0])));
  });
}

// A gradient by a part is a part: the processes would take its rows at the same time.
TEST(AroundProcesses, RowsOfAGradientByAPartAreRefusedInAllProcesses) {
  expect_all(2, [](int) {
    const Processes first;  // whose store the others share
    const auto expect_refused = [](const auto& transform) {
      const Processes p;
      const std::string text = message_of<tower::UnsupportedError>([&] { transform(loss_of(p.mesh))(p.part()); });
      EXPECT_TRUE(contains(text, "by an argument of which each process has a part")) << text;
    };
    expect_refused([](const Function& f) { return td::jacrev(td::jacrev(f, {1}), {1}); });
    expect_refused([](const Function& f) { return td::jacrev(td::grad(f, {1}), {0}); });
    // jacfwd by what is shared is right.
    const Processes p;
    const auto mixed = [](const Function& f) { return td::jacfwd(td::grad(f, {1}), {0}); };
    EXPECT_TRUE(same(mixed(loss_of(p.mesh))(p.part())[0], p.own(mixed(loss_of({}))(p.whole())[0])));
  });
}

// Out there a value that all have is each process's own copy, unless it is taken as what all have.
TEST(AroundProcesses, SumsHaveTheDerivativeByACopyOrByWhatAllHave) {
  expect_all(2, [](int) {
    const Processes p;
    const Tensor own = p.own(p.all);
    const auto loss = [](const Tensor& w, const Tensor& xs) { return (w * xs).sin().sum(); };
    const auto of_copy = [&](const Tensor& w) { return tower::sum_across(p.mesh, "data", loss(w, own)); };
    const auto of_all = [&](const Tensor& w) {
      const Tensor copies = w.unsqueeze(0).expand({p.mesh.size(), w.size(0)});
      return tower::sum_across(p.mesh, "data", loss(tower::part_of(p.mesh, "data", copies)[0], own));
    };
    EXPECT_TRUE(same(tower::grad(of_copy)(p.w), tower::grad(loss)(p.w, own)));
    EXPECT_TRUE(same(tower::grad(of_all)(p.w), tower::grad(loss)(p.w, p.all)));
  });
}

}  // namespace
