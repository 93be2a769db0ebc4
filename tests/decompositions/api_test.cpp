// tower/decompose.h: registering, replacing, reading back and calling decompositions; what is refused.
#include <torch/library.h>
#include <tower/coverage.h>
#include <tower/decompose.h>
#include <tower/tower.h>

#include "support/prelude.h"

namespace {

// A kernel that reads memory, of which transforms can make nothing by themselves.
Tensor doubled_cube(const Tensor& x, double scale) {
  Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
  const Tensor in = x.contiguous();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double v = in.const_data_ptr<double>()[i];
    y.mutable_data_ptr<double>()[i] = scale * v * v * v;
  }
  return y;
}
std::tuple<Tensor, std::vector<Tensor>> pieces(const Tensor& x, at::IntArrayRef sizes, std::optional<double> scale) {
  const Tensor scaled = x * scale.value_or(1);
  return {scaled.sum(), at::split_with_sizes(scaled, sizes)};
}

TORCH_LIBRARY(tower_decompose_test, m) {
  m.def("cube(Tensor x, float scale=2.) -> Tensor");
  m.impl("cube", c10::DispatchKey::CPU, &doubled_cube);
  m.def("pieces(Tensor x, int[] sizes, float? scale=None) -> (Tensor, Tensor[])");
  m.impl("pieces", c10::DispatchKey::CPU, &pieces);
  m.def("write_(Tensor(a!) x) -> Tensor(a!)");
  m.def("turns(Tensor x) -> Tensor");
  m.impl("turns", c10::DispatchKey::CPU, [](const Tensor& x) { return x.clone(); });
}

Tensor cube(const Tensor& x, double scale = 2) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tower_decompose_test::cube", "")
                             .typed<Tensor(const Tensor&, double)>();
  return op.call(x, scale);
}
constexpr const char* kCube = "tower_decompose_test::cube";

std::string served(const std::string& op, const std::string& transform) {
  for (const auto& row : tower::coverage())
    if (row.op == op && row.transform == transform) return row.served;
  return "";
}

TEST(decompose, serves_every_transform_of_an_operator_that_has_nothing_else) {
  const auto registered = tower::decompose(kCube, [](const Tensor& x, double scale) { return x * x * x * scale; });
  for (const char* transform : {"vmap", "vjp", "jvp"}) EXPECT_EQ(served(kCube, transform), "decomposition");
  const Tensor x = vec({1, 2, -3});
  const auto f = [](const Tensor& v) { return cube(v).sum(); };
  EXPECT_TRUE(same(tower::grad(f)(x), 6 * x * x));
  EXPECT_TRUE(same(tower::hessian(f)(x), at::diag(12 * x)));
  const Tensor batch = at::stack({x, x + 1});
  EXPECT_TRUE(same(tower::vmap(tower::grad(f))(batch), 6 * batch * batch));
  const auto [y, dy] =
      tower::jvp([](const Tensor& v) { return cube(v, 3); }, std::tuple(x), std::tuple(at::ones_like(x)));
  EXPECT_TRUE(same(y, 3 * x * x * x));
  EXPECT_TRUE(same(dy, 9 * x * x));
}

TEST(decompose, does_not_change_what_the_operator_is_outside_of_transforms) {
  const auto registered = tower::decompose(kCube, [](const Tensor& x, double) { return at::zeros_like(x); });
  EXPECT_TRUE(same(cube(vec({2})), vec({16})));
}

TEST(decompose, the_latest_registration_is_in_force_and_leaves_what_was_there) {
  const auto value = [] { return tower::vmap([](const Tensor& v) { return cube(v); })(vec({1})); };
  auto first = tower::decompose(kCube, [](const Tensor& x, double) { return x + 1; });
  auto second = tower::decompose(kCube, [](const Tensor& x, double) { return x + 2; });
  auto third = tower::decompose(kCube, [](const Tensor& x, double) { return x + 3; });
  EXPECT_TRUE(same(value(), vec({4})));
  second.remove();
  EXPECT_TRUE(same(value(), vec({4})));
  third.remove();
  EXPECT_TRUE(same(value(), vec({2})));
  first = tower::RegisteredDecomposition();
  EXPECT_FALSE(tower::decomposition(kCube));
  EXPECT_EQ(served(kCube, "vmap"), "loop");
}

TEST(decompose, one_of_towers_own_is_replaced_and_comes_back) {
  const Tensor c = at::zeros({2, 2}, at::kDouble), a = vec({1, 2});
  const auto f = [&](const Tensor& v) { return at::addr(v, a, a); };
  {
    const auto registered =
        tower::decompose<at::_ops::addr>([](const Tensor& self, const Tensor&, const Tensor&, const at::Scalar&,
                                            const at::Scalar&) { return self - 7; });
    EXPECT_TRUE(same(tower::vmap(f)(c.unsqueeze(0)), at::full({1, 2, 2}, -7, at::kDouble)));
  }
  EXPECT_TRUE(same(tower::vmap(f)(c.unsqueeze(0)), at::outer(a, a).unsqueeze(0)));
}

TEST(decompose, may_be_replaced_while_it_runs) {
  tower::RegisteredDecomposition registered;
  const Tensor kept = at::scalar_tensor(5, at::kDouble);
  registered = tower::decompose(kCube, [&registered, kept](const Tensor& x, double) {
    registered.remove();
    return x + kept;
  });
  EXPECT_TRUE(same(tower::vmap([](const Tensor& v) { return cube(v); })(vec({1})), vec({6})));
}

TEST(decompose, takes_lists_and_optional_arguments_and_gives_several_results) {
  const auto registered = tower::decompose("tower_decompose_test::pieces",
                                           [](const Tensor& x, at::IntArrayRef sizes,
                                              std::optional<double> scale) -> std::tuple<Tensor, std::vector<Tensor>> {
                                             const Tensor scaled = scale ? x * *scale : x;
                                             return {scaled.sum(), at::split_with_sizes(scaled, sizes)};
                                           });
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tower_decompose_test::pieces", "");
  const auto f = [&](const Tensor& x) {
    std::vector<c10::IValue> stack{x, std::vector<int64_t>{1, 2}, 3.0};
    op.callBoxed(stack);
    return (stack[0].toTensor() + stack[1].toTensorVector()[1].prod()).sum();
  };
  EXPECT_TRUE(same(tower::grad(f)(vec({1, 2, 4})), vec({3, 3 + 36, 3 + 18})));
}

TEST(decompose, is_read_back_and_called_typed_and_boxed) {
  const auto registered = tower::decompose(kCube, [](const Tensor& x, double scale) { return x * x * x * scale; });
  const tower::Decomposition d = tower::decomposition(kCube);
  ASSERT_TRUE(d);
  EXPECT_EQ(d.schema().name(), kCube);
  EXPECT_TRUE(same(d.typed<Tensor(const Tensor&, double)>()(vec({2}), 1), vec({8})));
  std::vector<c10::IValue> stack{vec({2}), 1.0};
  d.call_boxed(stack);
  EXPECT_TRUE(same(stack.at(0).toTensor(), vec({8})));

  const Tensor a = at::arange(4, at::kDouble).view({2, 2}), u = vec({1, 2});
  const auto addr = tower::decomposition<at::_ops::addr>();
  ASSERT_TRUE(addr);
  EXPECT_TRUE(same(addr(a, u, u, 2, 3), at::addr(a, u, u, 2, 3)));
  // Inside a transform it is like any other function.
  const auto g = [&](const Tensor& x) { return addr(x, u, u, 2, 3).sum(); };
  EXPECT_TRUE(same(tower::grad(g)(a), at::full({2, 2}, 2, at::kDouble)));
  EXPECT_FALSE(tower::decomposition<at::_ops::sin>());
}

TEST(decompose, lists_what_is_registered) {
  const auto has = [] {
    const auto all = tower::decomposed_operators();
    return std::count(all.begin(), all.end(), kCube) == 1;
  };
  EXPECT_FALSE(has());
  const auto registered = tower::decompose(kCube, [](const Tensor& x, double) { return x; });
  EXPECT_TRUE(has());
}

TEST(decompose, a_rule_of_its_own_goes_first) {
  const auto registered = tower::decompose<at::_ops::sin>([](const Tensor& x) { return x * 0; });
  EXPECT_TRUE(same(tower::grad([](const Tensor& x) { return x.sin().sum(); })(vec({0})), vec({1})));
}

// ---- refusals ----

template <class Function>
std::string refused(const char* op, Function f) {
  return refusal<tower::ArgumentError>([&] { const auto registered = tower::decompose(op, f); });
}

TEST(decompose, a_signature_that_does_not_fit_is_refused_with_the_schema) {
  EXPECT_TRUE(says(refused(kCube, [](const Tensor& x) { return x; }),
                   {"decompose", "tower_decompose_test::cube(Tensor x, float scale=2.", "number of arguments"}));
  EXPECT_TRUE(says(refused(kCube, [](const Tensor& x, int64_t) { return x; }),
                   {"tower_decompose_test::cube", "Type mismatch in argument 2", "int"}));
  EXPECT_TRUE(says(refused(kCube, [](const Tensor& x, double) { return std::tuple(x, x); }),
                   {"tower_decompose_test::cube", "number of returns"}));
  const auto wrong_call =
      refusal<tower::ArgumentError>([] { tower::decomposition("aten::addr").typed<Tensor(const Tensor&)>(); });
  EXPECT_TRUE(says(wrong_call, {"aten::addr", "number of arguments"}));
}

TEST(decompose, an_operator_that_is_not_there_is_named_with_the_overloads_that_are) {
  const auto f = [](const Tensor& x) { return x; };
  EXPECT_TRUE(says(refused("aten::sin.Nothing", f), {"aten::sin.Nothing", "but there is aten::sin"}));
  EXPECT_TRUE(says(refused("nobody::knows", f), {"nobody::knows", "the library that defines the operator must be"}));
}

TEST(decompose, an_operator_that_writes_is_refused) {
  EXPECT_TRUE(says(refused("tower_decompose_test::write_", [](Tensor& x) -> Tensor& { return x; }),
                   {"tower_decompose_test::write_", "writes to its arguments", "functional operator"}));
}

TEST(decompose, one_that_calls_its_own_operator_is_an_error_and_not_a_crash) {
  static const auto turns =
      c10::Dispatcher::singleton().findSchemaOrThrow("tower_decompose_test::turns", "").typed<Tensor(const Tensor&)>();
  const auto registered =
      tower::decompose("tower_decompose_test::turns", [](const Tensor& x) { return turns.call(x); });
  EXPECT_TRUE(says(refusal<tower::UnsupportedError>(
                       [] { return tower::grad([](const Tensor& x) { return turns.call(x).sum(); })(vec({1})); }),
                   {"tower_decompose_test::turns", "does not end", "must not call the operator"}));
}

TEST(decompose, none_to_call_is_said) {
  const tower::Decomposition none = tower::decomposition("aten::sin");
  std::vector<c10::IValue> stack{vec({1})};
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { none.call_boxed(stack); }), {"there is none to call"}));
  std::vector<c10::IValue> short_stack{vec({1})};
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { tower::decomposition("aten::addr").call_boxed(short_stack); }),
                   {"aten::addr", "with 1 arguments", "those with defaults, too"}));
}

}  // namespace
