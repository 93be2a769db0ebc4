// The typed transforms: trees go in and come out, static values pass through, and the numbers are those derived by hand
// or by a loop.
#include <torch/ordered_dict.h>

#include <cmath>

#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using Map = std::map<std::string, Tensor>;

struct State {
  Tensor position;
  Tensor velocity;
  int steps = 0;
};
constexpr auto tower_fields(const State&) { return std::tuple(&State::position, &State::velocity); }

// vmap

TEST(TypedVmap, MapsEveryArgumentOverItsFirstDimensionByDefault) {
  const Tensor a = waves({3, 4}), b = waves({3, 4}).cos();
  const Tensor y = tower::vmap([](const Tensor& x, const Tensor& z) { return at::dot(x, z); })(a, b);
  std::vector<Tensor> loop;
  for (int64_t i = 0; i < 3; ++i) loop.push_back(at::dot(a[i], b[i]));
  EXPECT_TRUE(same(y, at::stack(loop)));
}

TEST(TypedVmap, InDimsAreGivenPerArgument) {
  const Tensor a = waves({4, 3}), w = waves({4, 4});
  const Tensor y =
      tower::vmap([](const Tensor& m, const Tensor& x) { return at::mv(m, x); }, {.in_dims = {std::nullopt, -1}})(w, a);
  EXPECT_TRUE(same(y, at::mm(w, a).t()));
}

TEST(TypedVmap, InDimsGoIntoTrees) {
  const Map params{{"bias", vec({1, 2, 3})}, {"weight", waves({2, 3})}};
  const auto f = [](const Map& p, const Tensor& x) { return p.at("weight") * x + p.at("bias"); };
  const Tensor y = tower::vmap(f, {.in_dims = {{std::nullopt, 0}, std::nullopt}})(params, vec({4, 5, 6}));
  EXPECT_TRUE(same(y, params.at("weight") * vec({4, 5, 6}) + params.at("bias")));
}

TEST(TypedVmap, OutDimsGoIntoTreesOfAnySize) {
  const Tensor a = waves({3, 2});
  const auto f = [](const Tensor& x, const Tensor& shared) {
    return std::pair(std::vector<Tensor>{x.sin(), shared.cos()}, x.sum());
  };
  const auto [list, sum] =
      tower::vmap(f, {.in_dims = {0, std::nullopt}, .out_dims = {{1, std::nullopt}, -1}})(a, vec({7}));
  EXPECT_TRUE(same(list[0], a.sin().t()));
  EXPECT_TRUE(same(list[1], vec({7}).cos()));
  EXPECT_TRUE(same(sum, a.sum(1)));
}

TEST(TypedVmap, AnOutputPromisedToBeUnmappedMustNotDifferBetweenExamples) {
  const auto f = [](const Tensor& x) { return std::vector<Tensor>{x, x}; };
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] {
                         tower::vmap(f, {.out_dims = {0, std::nullopt}})(waves({3, 2}));
                       }),
                       "output 1 differs between examples"));
}

TEST(TypedVmap, StructsAreMappedFieldByField) {
  const State s{waves({3, 2}), waves({3, 2}).cos(), 5};
  const auto step = [](State state, double dt) {
    state.position = state.position + dt * state.velocity;
    ++state.steps;
    return state;
  };
  const State next = tower::vmap(step)(s, 0.5);
  EXPECT_TRUE(same(next.position, s.position + 0.5 * s.velocity));
  EXPECT_TRUE(same(next.velocity, s.velocity));
  EXPECT_EQ(next.steps, 6);
  EXPECT_EQ(s.steps, 5);
}

TEST(TypedVmap, StaticArgumentsAreHandedOn) {
  const auto f = [](const Tensor& x, int power, const std::string& how, std::optional<Tensor> bias) {
    const Tensor y = how == "negative" ? -x.pow(power) : x.pow(power);
    return bias ? y + *bias : y;
  };
  const Tensor a = waves({3, 2});
  EXPECT_TRUE(same(tower::vmap(f)(a, 3, "negative", std::nullopt), -a.pow(3)));
  EXPECT_TRUE(same(tower::vmap(f)(a, 2, "positive", std::optional(a)), a.pow(2) + a));
}

TEST(TypedVmap, ChunksGiveTheSame) {
  const Tensor a = waves({7, 3});
  const auto f = [](const Tensor& x) { return std::tuple(x.sin(), x.sum()); };
  for (int64_t chunk : {1, 2, 7, 100}) {
    const auto [y, sum] = tower::vmap(f, {.out_dims = {1, 0}, .chunk_size = chunk})(a);
    EXPECT_TRUE(same(y, a.sin().t())) << chunk;
    EXPECT_TRUE(same(sum, a.sum(1))) << chunk;
  }
}

TEST(TypedVmap, RandomnessIsDifferentOrTheSameAsAsked) {
  const Tensor a = at::zeros({4, 3}, at::kDouble);
  const auto f = [](const Tensor& x) { return at::rand_like(x); };
  const Tensor different = tower::vmap(f, {.randomness = tower::Randomness::different})(a);
  EXPECT_FALSE(different[0].equal(different[1]));
  const Tensor same_draw = tower::vmap(f, {.randomness = tower::Randomness::same})(a);
  EXPECT_TRUE(same_draw[0].equal(same_draw[3]));
  EXPECT_THROW(tower::vmap(f)(a), tower::RandomnessError);
}

TEST(TypedVmap, UndefinedTensorsStayUndefined) {
  const auto f = [](State s) {
    s.position = s.velocity.defined() ? s.position * s.velocity : s.position * 2;
    return s;
  };
  const State y = tower::vmap(f)(State{waves({3, 2}), Tensor(), 0});
  EXPECT_TRUE(same(y.position, waves({3, 2}) * 2));
  EXPECT_FALSE(y.velocity.defined());
}

TEST(TypedVmap, FunctionObjectsOfAllKindsCanBeMapped) {
  int calls = 0;
  const auto counting = tower::vmap([&calls, own = 0](const Tensor& x) mutable {
    calls += ++own;
    return x * 2;
  });
  counting(waves({3, 2}));
  EXPECT_TRUE(same(counting(waves({3, 2})), waves({3, 2}) * 2));
  EXPECT_EQ(calls, 3);
  const std::function<Tensor(const Tensor&)> doubling = [](const Tensor& x) { return x * 2; };
  const std::function<Tensor(const Tensor&)> erased = tower::vmap(tower::vmap(doubling));
  EXPECT_TRUE(same(erased(waves({6, 2}).view({2, 3, 2})), waves({6, 2}).view({2, 3, 2}) * 2));
  const auto member = tower::vmap(&Tensor::t);
  EXPECT_TRUE(same(member(waves({6, 2}).view({2, 3, 2})), waves({6, 2}).view({2, 3, 2}).transpose(1, 2)));
}

TEST(TypedVmap, AxesThatDoNotFitAreRefusedBeforeTheFunctionRuns) {
  bool ran = false;
  const auto f = [&](const Tensor& x, const Tensor& y) {
    ran = true;
    return x + y;
  };
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] {
                         tower::vmap(f, {.in_dims = {0, 0, 0}})(waves({2, 2}), waves({2, 2}));
                       }),
                       "in_dims has 3 entries, but the function was called with 2 arguments"));
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] {
                         tower::vmap(f, {.in_dims = {0, {0, 1}}})(waves({2, 2}), waves({2, 2}));
                       }),
                       "in_dims gives a list of 2 entries to argument 1, which is a tensor"));
  EXPECT_FALSE(ran);
  EXPECT_TRUE(same(tower::vmap(f)(waves({2, 2}), waves({2, 2})), waves({2, 2}) * 2));
}

TEST(TypedVmap, SizesThatDifferAreNamedByArgumentAndPlaceInItsTree) {
  const auto f = [](const Map& p, int, const Tensor& x) { return p.at("w") * x; };
  EXPECT_EQ(
      message_of<tower::ArgumentError>([&] {
        tower::vmap(f)(Map{{"b", waves({3, 2})}, {"w", waves({3, 2})}}, 1, waves({4, 2}));
      }),
      "vmap: the mapped dimensions differ in size: argument 0[\"b\"] has size 3 along dimension 0, argument 0[\"w\"] "
      "has size 3 along dimension 0, argument 2 has size 4 along dimension 0.");
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] {
                         tower::vmap([](const State& s) { return s; })(State{waves({2, 2}), number(1), 0});
                       }),
                       "argument 0[1] is a scalar tensor without dimensions"));
}

// grad

TEST(TypedGrad, IsTheGradientOfTheFirstArgumentByDefault) {
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::grad([](const Tensor& v) { return (v * v * v).sum(); })(x), 3 * x * x));
}

TEST(TypedGrad, ArgumentsAreChosenInAnyOrder) {
  const auto f = [](const Tensor& a, double c, const Tensor& b) { return (a * a * b * c).sum(); };
  const Tensor a = vec({1, 2}), b = vec({3, 5});
  EXPECT_TRUE(same(tower::grad<2>(f)(a, 10, b), 10 * a * a));
  const auto [db, da] = tower::grad<2, 0>(f)(a, 10, b);
  EXPECT_TRUE(same(db, 10 * a * a));
  EXPECT_TRUE(same(da, 20 * a * b));
}

TEST(TypedGrad, HasTheTreeOfItsArgument) {
  using Tree = std::tuple<Map, std::optional<Tensor>, std::array<Tensor, 1>, int>;
  const auto f = [](const Tree& t) {
    const auto& [map, bias, rest, n] = t;
    return (map.at("a") * map.at("b")).sum() + (bias ? bias->sum() : number(0)) + n * rest[0].square().sum();
  };
  const Tree at{Map{{"a", vec({1, 2})}, {"b", vec({3, 4})}}, vec({5}), {vec({6, 7})}, 3};
  const auto [map, bias, rest, n] = tower::grad(f)(at);
  EXPECT_TRUE(same(map.at("a"), vec({3, 4})));
  EXPECT_TRUE(same(map.at("b"), vec({1, 2})));
  EXPECT_TRUE(same(*bias, vec({1})));
  EXPECT_TRUE(same(rest[0], vec({36, 42})));
  EXPECT_EQ(n, 3);
}

TEST(TypedGrad, OfAStructIsAStruct) {
  const auto energy = [](const State& s) { return 0.5 * s.velocity.square().sum() + s.position.cos().sum() * s.steps; };
  const State s{vec({0.1, 0.2}), vec({3, 4}), 2};
  const State g = tower::grad(energy)(s);
  EXPECT_TRUE(same(g.position, -2 * s.position.sin()));
  EXPECT_TRUE(same(g.velocity, s.velocity));
  EXPECT_EQ(g.steps, 2);
}

TEST(TypedGrad, OfAnOrderedDictKeepsItsOrder) {
  torch::OrderedDict<std::string, Tensor> params;
  params.insert("z", vec({1, 2}));
  params.insert("a", vec({3, 4}));
  using Params = torch::OrderedDict<std::string, Tensor>;
  const auto g = tower::grad([](const Params& p) { return (p["z"] * p["a"].square()).sum(); })(params);
  EXPECT_EQ(g.keys(), (std::vector<std::string>{"z", "a"}));
  EXPECT_TRUE(same(g["z"], vec({9, 16})));
  EXPECT_TRUE(same(g["a"], vec({6, 16})));
}

TEST(TypedGrad, AuxIsHandedOut) {
  const auto f = [](const Tensor& x) {
    return std::pair(x.square().sum(), std::tuple(x.sin(), std::string("note"), 4));
  };
  const Tensor x = vec({1, 2});
  const auto [g, aux] = tower::grad(f, tower::has_aux)(x);
  EXPECT_TRUE(same(g, 2 * x));
  EXPECT_TRUE(same(std::get<0>(aux), x.sin()));
  EXPECT_EQ(std::get<1>(aux), "note");
  const auto [value_and_aux, gradient] = tower::value_and_grad(f, tower::has_aux)(x);
  EXPECT_TRUE(same(value_and_aux.first, number(5)));
  EXPECT_TRUE(same(std::get<0>(value_and_aux.second), x.sin()));
  EXPECT_EQ(std::get<2>(value_and_aux.second), 4);
  EXPECT_TRUE(same(gradient, 2 * x));
}

TEST(TypedGrad, ComesWithTheValue) {
  const auto f = [](const Tensor& x, const Tensor& y) { return (x * y).sum(); };
  const auto [value, grads] = tower::value_and_grad<0, 1>(f)(vec({1, 2}), vec({3, 4}));
  EXPECT_TRUE(same(value, number(11)));
  EXPECT_TRUE(same(std::get<0>(grads), vec({3, 4})));
  EXPECT_TRUE(same(std::get<1>(grads), vec({1, 2})));
}

TEST(TypedGrad, SkipsUndefinedTensors) {
  const State g =
      tower::grad([](const State& s) { return s.position.square().sum(); })(State{vec({1, 2}), Tensor(), 1});
  EXPECT_TRUE(same(g.position, vec({2, 4})));
  EXPECT_FALSE(g.velocity.defined());
}

TEST(TypedGrad, OfATensorThatIsNoScalarIsRefused) {
  EXPECT_THROW(tower::grad([](const Tensor& x) { return x * 2; })(vec({1, 2})), tower::DerivativeError);
}

TEST(TypedGrad, AnIntegerArgumentIsNamedWithItsPlace) {
  const Tensor indices = at::arange(2, at::kLong);
  const auto f = [](const Tensor& x, int, const Map& m) { return (x * m.at("i")).sum(); };
  const Map m{{"a", vec({1})}, {"i", indices}};
  EXPECT_TRUE(contains(message_of<tower::DerivativeError>([&] {
                         tower::grad<2>(f)(vec({1, 2}), 5, m);
                       }),
                       "grad: argument 2[\"i\"] is "));
  EXPECT_TRUE(contains(message_of<tower::DerivativeError>([&] {
                         tower::hessian<0, 2>(f)(vec({1, 2}), 5, m);
                       }),
                       "hessian: argument 2[\"i\"] is "));
  EXPECT_TRUE(contains(message_of<tower::DerivativeError>([&] {
                         tower::vjp(f, vec({1, 2}), 5, m);
                       }),
                       "vjp: argument 2[\"i\"] is "));
  EXPECT_TRUE(same(tower::grad(f)(vec({1, 2}), 5, m), indices.to(at::kDouble)));  // of another argument it is fine
}

// vjp, jvp, linearize

TEST(TypedVjp, ThePullbackTakesAndReturnsTrees) {
  const auto f = [](const Tensor& x, double c, const State& s) {
    return Map{{"xs", c * x * s.position}, {"v", s.velocity.sin()}};
  };
  const State s{vec({3, 4}), vec({0.5}), 1};
  const auto [y, pullback] = tower::vjp(f, vec({1, 2}), 10.0, s);
  EXPECT_TRUE(same(y.at("xs"), vec({30, 80})));
  const auto [dx, ds] = pullback({{"v", vec({1})}, {"xs", vec({1, 2})}});
  EXPECT_TRUE(same(dx, vec({30, 80})));
  EXPECT_TRUE(same(ds.position, vec({10, 40})));
  EXPECT_TRUE(same(ds.velocity, vec({0.5}).cos()));
  EXPECT_EQ(ds.steps, 1);
}

TEST(TypedVjp, AnUndefinedCotangentIsZero) {
  const auto [y, pullback] = tower::vjp([](const Tensor& x) { return std::tuple(x.square(), x.exp()); }, vec({1, 2}));
  EXPECT_TRUE(same(pullback({vec({1, 1}), Tensor()}), vec({2, 4})));
  EXPECT_TRUE(same(pullback({Tensor(), Tensor()}), vec({0, 0})));
}

TEST(TypedVjp, ThePullbackUnderVmapGivesTheRowsOfTheJacobian) {
  const auto [y, pullback] = tower::vjp([](const Tensor& x) { return x.sin(); }, vec({1, 2, 3}));
  EXPECT_TRUE(same(tower::vmap(pullback)(at::eye(3, at::kDouble)), at::diag(vec({1, 2, 3}).cos())));
}

TEST(TypedVjp, AuxIsHandedOut) {
  const auto f = [](const Tensor& x) { return std::pair(x.square(), 7); };
  const auto [y, pullback, aux] = tower::vjp(f, tower::has_aux, vec({3}));
  EXPECT_TRUE(same(y, vec({9})));
  EXPECT_TRUE(same(pullback(vec({1})), vec({6})));
  EXPECT_EQ(aux, 7);
}

TEST(TypedVjp, ACotangentWithOtherElementsIsRefused) {
  const auto [y, pullback] = tower::vjp([](const Tensor& x) { return std::vector<Tensor>{x, x}; }, vec({1}));
  EXPECT_EQ(
      message_of<tower::ArgumentError>([&, &pullback = pullback] { pullback({vec({1})}); }),
      "vjp: cotangent 0 is a tree of 1 tensors, but what it belongs to has 2: give a tree with the same elements (an "
      "undefined tensor stands for zero)");
}

TEST(TypedJvp, TakesTuplesOrTheOnlyArgument) {
  const Tensor x = vec({1, 2}), v = vec({3, 5});
  const auto [y, dy] = tower::jvp([](const Tensor& a) { return a.square(); }, x, v);
  EXPECT_TRUE(same(y, vec({1, 4})));
  EXPECT_TRUE(same(dy, 2 * x * v));
  const auto f = [](const Tensor& a, double c, const Map& m) { return std::pair(a * m.at("b") * c, a.sum()); };
  const Map m{{"b", vec({7, 8})}}, dm{{"b", vec({0.5, 0.25})}};
  const auto [pair, dpair] = tower::jvp(f, std::tuple(x, 2.0, m), std::tuple(v, dm));
  EXPECT_TRUE(same(pair.first, vec({14, 32})));
  EXPECT_TRUE(same(dpair.first, 2 * (v * m.at("b") + x * dm.at("b"))));
  EXPECT_TRUE(same(dpair.second, number(8)));
}

TEST(TypedJvp, AnUndefinedTangentIsZero) {
  const auto f = [](const Tensor& a, const Tensor& b) { return a * b; };
  const auto [y, dy] = tower::jvp(f, std::tuple(vec({1, 2}), vec({3, 4})), std::tuple(Tensor(), vec({1, 1})));
  EXPECT_TRUE(same(dy, vec({1, 2})));
}

TEST(TypedJvp, AuxIsHandedOut) {
  const auto f = [](const Tensor& x) { return std::pair(x.square(), std::vector<Tensor>{x}); };
  const auto [y, dy, aux] = tower::jvp(f, vec({3}), vec({1}), tower::has_aux);
  EXPECT_TRUE(same(dy, vec({6})));
  EXPECT_TRUE(same(aux[0], vec({3})));
}

TEST(TypedLinearize, ThePushforwardIsTheDerivativeAndEvaluatesTheFunctionOnce) {
  int calls = 0;
  const auto f = [&calls](const Tensor& a, int power, const State& s) {
    ++calls;
    return std::vector<Tensor>{a.pow(power) * s.position};
  };
  const State s{vec({3, 4}), vec({1}), 2};
  const auto [y, push] = tower::linearize(f, vec({1, 2}), 2, s);
  EXPECT_TRUE(same(y[0], vec({3, 16})));
  const State ds{vec({10, 20}), Tensor(), 0};
  EXPECT_TRUE(same(push(vec({1, 0}), ds)[0], vec({2 * 1 * 3 + 10, 4 * 20})));
  EXPECT_TRUE(same(push(vec({0, 1}), ds)[0], vec({10, 2 * 2 * 4 + 4 * 20})));
  EXPECT_EQ(calls, 1);
}

// Jacobians

TEST(TypedJacobian, OfATensorFunctionIsATensor) {
  const Tensor w = waves({2, 3});
  const auto f = [&](const Tensor& x) { return at::mv(w, x).sin(); };
  const Tensor x = vec({0.1, 0.2, 0.3});
  const Tensor expected = at::diag(at::mv(w, x).cos()).mm(w);
  EXPECT_TRUE(same(tower::jacrev(f)(x), expected));
  EXPECT_TRUE(same(tower::jacfwd(f)(x), expected));
  EXPECT_TRUE(same(tower::jacrev(f, {.chunk_size = 1})(x), expected));
  EXPECT_TRUE(same(tower::jacfwd(f, {.chunk_size = 2})(x), expected));
}

TEST(TypedJacobian, OfSeveralArgumentsIsATuple) {
  const auto f = [](const Tensor& a, const Tensor& b) { return a * b; };
  const Tensor a = vec({1, 2}), b = vec({3, 4});
  const auto check = [&](const std::tuple<Tensor, Tensor>& jacobian) {
    EXPECT_TRUE(same(std::get<0>(jacobian), at::diag(a)));  // of b, which is named first
    EXPECT_TRUE(same(std::get<1>(jacobian), at::diag(b)));
  };
  check(tower::jacrev<1, 0>(f)(a, b));
  check(tower::jacfwd<1, 0>(f)(a, b));
  EXPECT_TRUE(same(tower::jacfwd<1>(f)(a, b), at::diag(a)));
}

TEST(TypedJacobian, OfATreeIsTheOutputsTreeOfTheArgumentsTree) {
  const auto f = [](const State& s) {
    return std::tuple(Map{{"sum", s.position.sum()}, {"product", s.position * s.velocity}}, 5,
                      std::optional<Tensor>(s.velocity.exp()));
  };
  const State s{vec({1, 2}), vec({3, 4}), 9};
  const auto check = [&](const std::tuple<std::map<std::string, State>, int, std::optional<State>>& jacobian) {
    const auto& [map, five, optional] = jacobian;
    EXPECT_TRUE(same(map.at("sum").position, vec({1, 1})));
    EXPECT_TRUE(same(map.at("sum").velocity, vec({0, 0})));
    EXPECT_TRUE(same(map.at("product").position, at::diag(s.velocity)));
    EXPECT_TRUE(same(map.at("product").velocity, at::diag(s.position)));
    EXPECT_TRUE(same(optional->position, at::zeros({2, 2}, at::kDouble)));
    EXPECT_TRUE(same(optional->velocity, at::diag(s.velocity.exp())));
    EXPECT_EQ(five, 5);
    EXPECT_EQ(optional->steps, 9);
  };
  check(tower::jacrev(f)(s));
  check(tower::jacfwd(f)(s));
}

TEST(TypedJacobian, OfAStructWithRespectToATensorIsAStruct) {
  const auto f = [](const Tensor& x) { return State{x.square(), x.sum(), 3}; };
  const State jacobian = tower::jacrev(f)(vec({1, 2}));
  EXPECT_TRUE(same(jacobian.position, at::diag(vec({2, 4}))));
  EXPECT_TRUE(same(jacobian.velocity, vec({1, 1})));
  EXPECT_EQ(jacobian.steps, 3);
}

TEST(TypedJacobian, AuxIsHandedOut) {
  const auto f = [](const Tensor& x) { return std::pair(x.square(), std::pair(x.sum(), 3)); };
  for (bool reverse : {true, false}) {
    const auto [jacobian, aux] =
        reverse ? tower::jacrev(f, tower::has_aux)(vec({1, 2})) : tower::jacfwd(f, tower::has_aux)(vec({1, 2}));
    EXPECT_TRUE(same(jacobian, at::diag(vec({2, 4}))));
    EXPECT_TRUE(same(aux.first, number(3)));
    EXPECT_EQ(aux.second, 3);
  }
}

TEST(TypedHessian, OfATensorFunctionIsATensor) {
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::hessian([](const Tensor& v) { return v.pow(3).sum(); })(x), at::diag(6 * x)));
  const auto [h, aux] = tower::hessian([](const Tensor& v) { return std::pair(v.pow(3), 1); }, tower::has_aux)(x);
  EXPECT_EQ(h.sizes(), (at::IntArrayRef{3, 3, 3}));
  EXPECT_TRUE(same(h.sum(0), at::diag(6 * x)));
  EXPECT_EQ(aux, 1);
}

TEST(TypedHessian, OfSeveralArgumentsHasABlockForEachPair) {
  const auto f = [](const Tensor& a, const Tensor& b) { return (a * a * b).sum(); };
  const Tensor a = vec({1, 2}), b = vec({3, 4});
  const auto [first, second] = tower::hessian<0, 1>(f)(a, b);
  EXPECT_TRUE(same(std::get<0>(first), at::diag(2 * b)));
  EXPECT_TRUE(same(std::get<1>(first), at::diag(2 * a)));
  EXPECT_TRUE(same(std::get<0>(second), at::diag(2 * a)));
  EXPECT_TRUE(same(std::get<1>(second), at::zeros({2, 2}, at::kDouble)));
}

TEST(TypedHessian, OfAMapIsAMapOfMaps) {
  const auto f = [](const Map& m) { return (m.at("x").square().sum() * m.at("y")); };
  const auto h = tower::hessian(f)(Map{{"x", vec({1, 2})}, {"y", number(3)}});
  EXPECT_TRUE(same(h.at("x").at("x"), at::diag(vec({6, 6}))));
  EXPECT_TRUE(same(h.at("x").at("y"), vec({2, 4})));
  EXPECT_TRUE(same(h.at("y").at("x"), vec({2, 4})));
  EXPECT_TRUE(same(h.at("y").at("y"), number(0)));
}

TEST(TypedHvp, IsTheHessianTimesTheTangent) {
  const auto f = [](const Tensor& a, double c, const Tensor& b) { return c * (a * a * b).sum(); };
  const Tensor a = vec({1, 2}), b = vec({3, 4}), u = vec({0.5, -1}), v = vec({2, 1});
  const auto [grads, products] = tower::hvp(f, std::tuple(a, 10.0, b), std::tuple(u, v));
  EXPECT_TRUE(same(std::get<0>(grads), 20 * a * b));
  EXPECT_TRUE(same(std::get<1>(grads), 10 * a * a));
  EXPECT_TRUE(same(std::get<0>(products), 20 * (b * u + a * v)));
  EXPECT_TRUE(same(std::get<1>(products), 20 * a * u));
  const auto [g, hv] = tower::hvp([](const Tensor& x) { return x.pow(3).sum(); }, a, u);
  EXPECT_TRUE(same(g, 3 * a * a));
  EXPECT_TRUE(same(hv, 6 * a * u));
}

// Nesting

TEST(TypedNesting, PerExampleGradientsAreThoseOfALoop) {
  const auto loss = [](const Map& p, const Tensor& x, const Tensor& y) {
    return (at::mv(p.at("w"), x).tanh() + p.at("b") - y).square().sum();
  };
  const Map params{{"w", waves({2, 3})}, {"b", vec({0.1, -0.2})}};
  const Tensor xs = waves({4, 3}), ys = waves({4, 2}).cos();
  const Map all = tower::vmap(tower::grad(loss), {.in_dims = {std::nullopt, 0, 0}})(params, xs, ys);
  for (int64_t i = 0; i < 4; ++i) {
    const Map one = tower::grad(loss)(params, xs[i], ys[i]);
    for (const char* name : {"w", "b"}) EXPECT_TRUE(same(all.at(name)[i], one.at(name))) << name << i;
  }
}

TEST(TypedNesting, BatchedHessiansAndGradientsOfMapsAgreeWithTheFormula) {
  const Tensor xs = waves({3, 2});
  const auto cubes = [](const Tensor& x) { return x.pow(3).sum(); };
  const Tensor hessians = tower::vmap(tower::hessian(cubes))(xs);
  const Tensor by_hand = tower::vmap(tower::jacfwd(tower::grad(cubes)))(xs);
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(same(hessians[i], at::diag(6 * xs[i])));
  EXPECT_TRUE(same(by_hand, hessians));
  const auto sum_of_maps = [&](const Tensor& all) { return tower::vmap(cubes)(all).sum(); };
  EXPECT_TRUE(same(tower::grad(sum_of_maps)(xs), 3 * xs * xs));
}

TEST(TypedNesting, TheDerivativesOfOneVariableAtTwoLevelsAreNotConfused) {
  // d/dx [x · d/dy (x + y)] = 1, and not 2.
  const auto f = [](const Tensor& x) { return x * tower::grad([&](const Tensor& y) { return x + y; })(number(1)); };
  EXPECT_TRUE(same(tower::grad(f)(number(3)), number(1)));
  const auto g = [](const Tensor& x) {
    return x * tower::jvp([&](const Tensor& y) { return x + y; }, number(1), number(1)).second;
  };
  EXPECT_TRUE(same(tower::jvp(g, number(3), number(1)).second, number(1)));
}

TEST(TypedNesting, AnExceptionOfTheUsersFunctionLeavesEverythingAsItWas) {
  const auto f = [](const Tensor& x) -> Tensor {
    tower::vmap([](const Tensor&) -> Tensor { throw std::logic_error("mine"); })(x);
    return x;
  };
  EXPECT_THROW(tower::jacrev(tower::vmap(f))(waves({3, 2})), std::logic_error);
  EXPECT_TRUE(same(tower::grad([](const Tensor& x) { return x.square().sum(); })(vec({1})), vec({2})));
}

}  // namespace
