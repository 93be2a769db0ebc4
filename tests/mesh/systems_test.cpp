// Linear systems whose function speaks to other examples are one system of the unknowns of all.
#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

constexpr int64_t kExamples = 5;

// (3 + d) v, less what the neighbours have: self-adjoint, and positive definite.
std::function<Tensor(const Tensor&)> chain(const Tensor& d) {
  return [d](const Tensor& v) {
    const Tensor left = tower::ppermute(v, "data", {{0, 1}, {1, 2}, {2, 3}, {3, 4}}),
                 right = tower::ppermute(v, "data", {{1, 0}, {2, 1}, {3, 2}, {4, 3}});
    return (3 + d) * v - left - right;
  };
}
Tensor matrix(const Tensor& d) {
  const Tensor off = at::diag(at::ones({kExamples - 1}, at::kDouble), 1);
  return at::diag(3 + d) - off - off.t();
}

using Solve = Tensor (*)(const std::function<Tensor(const Tensor&)>& f, const Tensor& b);
struct Method {
  const char* name;
  Solve solve;
};
const std::vector<Method>& methods() {
  static const std::vector<Method> all{
      {"cg", [](const auto& f, const Tensor& b) { return tower::cg(f, b, {.tolerance = 1e-13}).x; }},
      {"bicgstab", [](const auto& f, const Tensor& b) { return tower::bicgstab(f, b, {.tolerance = 1e-13}).x; }},
      {"gmres", [](const auto& f, const Tensor& b) { return tower::gmres(f, b, {.tolerance = 1e-13}).x; }},
      {"linear_solve by cg",
       [](const auto& f, const Tensor& b) {
         tower::LinearSolveOptions<Tensor> options{.method = tower::LinearMethod::cg, .symmetric = true};
         options.iteration.tolerance = 1e-13;
         return tower::linear_solve(f, b, options);
       }},
  };
  return all;
}

auto mapped(Solve solve, const tower::Mesh& across = {}) {
  return [=](const Tensor& d, const Tensor& b) {
    const auto of_one = [=](const Tensor& own, const Tensor& right) { return solve(chain(own), right); };
    return tower::vmap(of_one, {.axis = "data", .across = across})(d, b);
  };
}

Tensor data() { return waves({kExamples}).square(); }
Tensor right() { return waves({kExamples}, 0.7); }

std::string near(const Tensor& actual, const Tensor& expected) {
  return support::difference(actual, expected, {1e-9, 1e-11});
}

TEST(SystemsOfSeveralExamples, AreSolvedAsTheirMatrix) {
  for (const Method& m : methods()) {
    SCOPED_TRACE(m.name);
    const auto dense = [](const Tensor& d, const Tensor& b) { return at::linalg_solve(matrix(d), b); };
    const auto of_all = mapped(m.solve);
    const Tensor d = data(), b = right();
    EXPECT_EQ(near(of_all(d, b), dense(d, b)), "");
    const auto loss = [](auto f) { return [f](const Tensor& d, const Tensor& b) { return f(d, b).sin().sum(); }; };
    EXPECT_EQ(near(tower::grad(loss(of_all))(d, b), tower::grad(loss(dense))(d, b)), "");
    EXPECT_EQ(near(tower::grad<1>(loss(of_all))(d, b), tower::grad<1>(loss(dense))(d, b)), "");
    EXPECT_EQ(near(tower::jacfwd(of_all)(d, b), tower::jacfwd(dense)(d, b)), "");
    EXPECT_EQ(near(tower::hessian(loss(of_all))(d, b), tower::hessian(loss(dense))(d, b)), "");
  }
}

TEST(SystemsOfSeveralExamples, AreSolvedAcrossProcesses) {
  processes::expect_all(2, [](int rank) {
    const tower::Mesh mesh = processes::mesh_of_all();
    const auto own = [&](const Tensor& t) { return rank == 0 ? t.narrow(0, 0, 2) : t.narrow(0, 2, 3); };
    for (const Method& m : methods()) {
      SCOPED_TRACE(m.name);
      const auto loss = [&](const tower::Mesh& across) {
        return [=](const Tensor& d, const Tensor& b) {
          return tower::vmap(
              [](const Tensor& y) { return tower::psum(y.sin(), "data"); },
              {.out_dims = std::nullopt, .axis = "data", .across = across})(mapped(m.solve, across)(d, b));
        };
      };
      EXPECT_EQ(near(mapped(m.solve, mesh)(own(data()), own(right())), own(at::linalg_solve(matrix(data()), right()))),
                "");
      EXPECT_EQ(near(tower::grad(loss(mesh))(own(data()), own(right())), own(tower::grad(loss({}))(data(), right()))),
                "");
    }
  });
}

// What is said is data, not the unknown: each example has a system of its own, which ends by itself.
TEST(SystemsOfSeveralExamples, AreNotThoseThatSpeakOfTheirDataAlone) {
  const auto steps = [](const Tensor& s) {
    const auto f = [mean = tower::pmean(s, "data"), s](const Tensor& v) {
      return (1 + s * at::arange(4, at::kDouble)) * v + tower::psum(s * 0, "data") * v;
    };
    return tower::cg(f, at::ones({4}, at::kDouble)).steps;
  };
  EXPECT_TRUE(at::equal(tower::vmap(steps, {.axis = "data"})(vec({0, 1})), at::tensor({1, 4})));
}

TEST(SystemsOfSeveralExamples, AreNoDenseMatrixOfOne) {
  const auto f = [](const Tensor& d, const Tensor& b) { return tower::linear_solve(chain(d), b); };
  const std::string text = message_of<tower::ArgumentError>([&] { tower::vmap(f, {.axis = "data"})(data(), right()); });
  EXPECT_TRUE(contains(text, "linear_solve: the function speaks of its argument to other examples")) << text;
  EXPECT_TRUE(contains(text, "gmres")) << text;
}

}  // namespace
