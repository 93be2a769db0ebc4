// Every operator of LibTorch that writes to its arguments runs inside transforms, or is refused with a reason.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <map>
#include <set>

#include "frontend/twins.h"
#include "support/prelude.h"

namespace {

using tower::Operator;
using tower::frontend::Twin;
using tower::frontend::twin_of;

std::vector<const Operator*> writing_operators() {
  std::vector<const Operator*> result;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle && Operator::of(*handle).mutates()) result.push_back(&Operator::of(*handle));
  }
  return result;
}

bool is_out(const Operator& op) { return op.schema().arguments().back().is_out(); }

TEST(TheCensusOfWritingOperators, FindsAWayForEachOrAReasonWhyNot) {
  size_t in_place = 0, out = 0;
  for (const Operator* op : writing_operators()) {
    const Twin& twin = twin_of(*op);
    const bool served = !twin.refused && (twin.op || op->composite());
    if (served && twin.op) ++(is_out(*op) ? out : in_place);
    if (served) continue;
    ASSERT_TRUE(twin.refused) << op->name() << " has neither a functional form nor a reason";
    EXPECT_FALSE(support::contains(twin.refused, "no functional form that could stand for it"))
        << op->schema() << ": give it a functional form, or a reason in frontend/twins.cpp";
  }
  EXPECT_GE(in_place, 325U);
  EXPECT_GE(out, 1080U);
}

TEST(TheCensusOfWritingOperators, PairsEachWithAnOperatorOfTheSameArguments) {
  for (const Operator* op : writing_operators()) {
    const Twin& twin = twin_of(*op);
    if (!twin.op) continue;
    EXPECT_FALSE(twin.op->mutates()) << op->name();
    ASSERT_EQ(twin.arguments.size(), twin.op->num_args()) << op->name();
    std::set<int> given, written;
    for (size_t i = 0; i < twin.arguments.size(); ++i) {
      const int8_t from = twin.arguments[i];
      if (from < 0) continue;
      given.insert(from);
      EXPECT_EQ(op->schema().arguments()[static_cast<size_t>(from)].name(), twin.op->schema().arguments()[i].name());
    }
    ASSERT_EQ(twin.results.size(), twin.op->num_outs()) << op->name();
    for (int8_t to : twin.results)
      if (to >= 0) written.insert(to);
    for (size_t i = 0; i < op->num_args(); ++i) {
      const auto position = static_cast<int>(i);
      EXPECT_EQ(written.count(position), tower::frontend::writes_to(*op, i) ? 1U : 0U) << op->name();
      EXPECT_EQ(given.count(position), tower::frontend::is_out_argument(*op, i) ? 0U : 1U) << op->name();
    }
  }
}

// An argument of any type, so that the call gets as far as the front end.
c10::IValue some_argument(const c10::Argument& argument, const Tensor& x) {
  const c10::Type* type = argument.type().get();
  if (type->kind() == c10::TypeKind::OptionalType) return {};
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return x;
    case c10::TypeKind::FloatType:
      return 0.5;
    case c10::TypeKind::BoolType:
      return false;
    case c10::TypeKind::StringType:
      return "a";
    case c10::TypeKind::NumberType:
    case c10::TypeKind::IntType:
      return 1;
    case c10::TypeKind::ListType:
      if (type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType)
        return c10::List<Tensor>({x});
      return c10::List<int64_t>({1});
    case c10::TypeKind::StorageType:
      return c10::Storage();
    default:
      return {};
  }
}

TEST(TheCensusOfWritingOperators, RefusesWhatItCannotServeByNameAndWithTheReason) {
  size_t refused = 0;
  for (const Operator* op : writing_operators()) {
    const char* why = twin_of(*op).refused;
    if (!why) continue;
    ++refused;
    const auto f = of_one([&](const Tensor& x) {
      std::vector<c10::IValue> stack;
      for (const auto& argument : op->schema().arguments()) stack.push_back(some_argument(argument, x));
      op->handle()->callBoxed(stack);
      return x.sum();
    });
    const std::string text = support::refusal<tower::MutationError>([&] { td::grad(f, {0})({vec({1, 2, 3})}); });
    EXPECT_TRUE(support::says(text, {"grad (level 1): ", op->name().c_str(), why})) << op->schema();
  }
  EXPECT_GT(refused, 10U);
}

// ---- what a twin found by more than its first overload does ---------------------------------------------------------

TEST(FunctionalForms, TakeTheirArgumentsByNameNotByPlace) {
  const auto f = of_one([](const Tensor& x) {  // polygamma(n, self) stands for polygamma_(self, n)
    return x.clone().polygamma_(1);
  });
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({vec({1, 2, 3})})[0], at::polygamma(1, vec({1, 2, 3}))));
}

TEST(FunctionalForms, OfFactoriesTakeTheirDtypeFromTheTensorThatTheyFill) {
  const auto f = of_one([](const Tensor& x) {
    Tensor ramp = at::empty({3}, at::kDouble), zeros = at::empty({3}, at::kDouble), eye = at::empty({0}, at::kDouble);
    at::arange_out(ramp, 3);
    at::zeros_out(zeros, {3});
    at::eye_out(eye, 3);
    ramp.mul_(x);
    zeros.add_(x);
    return ramp + zeros + eye.mv(x);
  });
  const Tensor rows = support::numbers({2, 3});
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({rows})[0], rows * vec({0, 1, 2}) + 2 * rows));
}

TEST(FunctionalForms, ServeListsOfTensorsElementByElement) {
  const auto f = of_one([](const Tensor& x) {
    const std::vector<Tensor> all{at::zeros({3}, at::kDouble), x * 2};
    at::_foreach_add_(all, at::stack({x, x * x}).unbind());
    at::_foreach_mul_(all, 3);
    return all[0] * all[1];
  });
  const auto by_hand = of_one([](const Tensor& x) { return 3 * x * 3 * (2 * x + x * x); });
  const Tensor rows = support::numbers({2, 3}) / 7;
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({rows})[0], by_hand({rows})[0]));
  EXPECT_TRUE(same(td::jacrev(f, {0})({rows[0]})[0], td::jacrev(by_hand, {0})({rows[0]})[0]));
  EXPECT_TRUE(same(td::jacfwd(f, {0})({rows[0]})[0], td::jacrev(by_hand, {0})({rows[0]})[0]));
}

TEST(FunctionalForms, WriteOutListsElementByElement) {
  const auto f = of_one([](const Tensor& x) {
    std::vector<Tensor> out{at::zeros({}, at::kDouble), at::zeros({}, at::kDouble), at::zeros({}, at::kDouble)};
    at::unbind_copy_out(out, x, 0);
    return out[0] * out[1] + out[2];
  });
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({support::numbers({2, 3})})[0], vec({5, 26})));
}

TEST(FunctionalForms, GiveWhatIsReturnedAnewAndWriteTheRest) {
  // Returns (output, save_mean, save_rstd), and writes to the running statistics.
  const auto f = of_one([](const Tensor& x) {
    Tensor mean = at::zeros({2}, at::kDouble), variance = at::ones({2}, at::kDouble);
    const auto results = at::_native_batch_norm_legit(x, {}, {}, mean, variance, true, 0.1, 1e-5);
    return std::get<0>(results).sum(0) + std::get<1>(results) + 10 * mean + 100 * variance;
  });
  const Tensor x = at::sin(support::numbers({3, 4, 2}));
  std::vector<Tensor> each;
  for (int64_t i = 0; i < 3; ++i) each.push_back(f({x[i]})[0]);
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({x})[0], at::stack(each)));
}

TEST(FunctionalForms, OfOperatorsLoadedLaterAreFoundToo) {
  static auto library = torch::Library(torch::Library::DEF, "frontend_census", std::nullopt, __FILE__, __LINE__);
  library.def("twice_(Tensor(a!) self) -> Tensor(a!)", [](Tensor& self) -> Tensor& { return self.mul_(2); });
  library.def("twice(Tensor self) -> Tensor", [](const Tensor& self) { return self * 2; });
  const auto f = of_one([](const Tensor& x) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("frontend_census::twice_", "");
    Tensor y = at::zeros({3}, at::kDouble).add_(x);
    op.typed<Tensor&(Tensor&)>().call(y);
    return y;
  });
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({support::numbers({2, 3})})[0], 2 * support::numbers({2, 3})));
}

}  // namespace
