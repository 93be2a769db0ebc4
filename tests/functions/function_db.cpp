#include "functions/function_db.h"

#include "functions/subjects.h"

namespace function_db {
namespace {

Tensors list(const std::tuple<Tensor, Tensor>& pair) { return {std::get<0>(pair), std::get<1>(pair)}; }
Tensors list(const std::pair<Tensor, Tensor>& pair) { return {pair.first, pair.second}; }
Tensors list(const std::array<Tensor, 2>& pair) { return {pair[0], pair[1]}; }

std::vector<Entry> make() {
  const std::map<std::string, std::string> no_jvp{{kAnyJvp, "no jvp rule, and the backward is not declared linear"}};
  std::vector<Entry> db;
  db.push_back({"cube",
                [](const Tensors& x) { return Tensors{Cube::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{x[0] * x[0] * x[0]}; },
                {"T{2,3}"}});
  db.push_back({"cube_saving_its_derivative",
                [](const Tensors& x) { return Tensors{std::get<0>(CubeSavingItsDerivative::apply(x[0]))}; },
                [](const Tensors& x) { return Tensors{x[0] * x[0] * x[0]}; },
                {"T{3}"}});
  db.push_back({"exp_saving_its_output",
                [](const Tensors& x) { return Tensors{ExpSavingItsOutput::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{x[0].exp()}; },
                {"T{3}"}});
  db.push_back({"logistic_in_libtorchs_shape",
                [](const Tensors& x) { return Tensors{LogisticInLibTorchsShape::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{x[0].sigmoid()}; },
                {"T{3}"}});
  db.push_back({"linear_in_libtorchs_shape",
                [](const Tensors& x) { return Tensors{LinearInLibTorchsShape::apply(x[0], x[1], 2.0, x[2])}; },
                [](const Tensors& x) { return Tensors{2 * at::matmul(x[0], x[1].t()) + x[2]}; },
                {"T{2,3}", "T{2,3}", "T{2}"}});
  db.push_back({"linear_without_bias",
                [](const Tensors& x) { return Tensors{LinearInLibTorchsShape::apply(x[0], x[1], 2.0, Tensor())}; },
                [](const Tensors& x) { return Tensors{2 * at::matmul(x[0], x[1].t())}; },
                {"T{2,3}", "T{2,3}"}});
  db.push_back({"saves_tensors_by_name",
                [](const Tensors& x) { return Tensors{SavesTensorsByName::apply(x[0], x[1])}; },
                [](const Tensors& x) { return Tensors{x[0] * x[1] * x[1]}; },
                {"T{3}", "T{3}"}});
  db.push_back({"mul_that_asks_what_is_needed",
                [](const Tensors& x) { return Tensors{MulThatAsksWhatIsNeeded::apply(x[0], x[1])}; },
                [](const Tensors& x) { return Tensors{x[0] * x[1]}; },
                {"T{3}", "T{3}"}});
  db.push_back({"matmul",
                [](const Tensors& x) { return Tensors{Matmul::apply(x[0], x[1])}; },
                [](const Tensors& x) { return Tensors{at::matmul(x[0], x[1])}; },
                {"T{2,3}", "T{3,2}"}});
  db.push_back({"sort",
                [](const Tensors& x) { return list(Sort::apply(x[0], int64_t{-1})); },
                [](const Tensors& x) { return list(at::sort(x[0], -1)); },
                {"T{2,3}:distinct"},
                true,
                {0}});
  db.push_back({"where",
                [](const Tensors& x) { return Tensors{Where::apply(x[0], x[1], x[2])}; },
                [](const Tensors& x) { return Tensors{at::where(x[0], x[1], x[2])}; },
                {"B{3}", "T{3}", "T{3}"}});
  db.push_back({"struct_of_outputs",
                [](const Tensors& x) {
                  const Polar p = ToPolar::apply(std::pair(x[0], x[1]));
                  return p.unit == "radians" ? Tensors{p.radius, p.angle} : Tensors{};
                },
                [](const Tensors& x) {
                  return Tensors{at::sqrt(x[0].square() + x[1].square()), at::atan2(x[1], x[0])};
                },
                {"T{3}:pos", "T{3}:pos"}});
  db.push_back({"list_to_list",
                [](const Tensors& x) { return ListToList::apply(x); },
                [](const Tensors& x) {
                  return Tensors{x[0].sin(), x[1].sin()};
                },
                {"T{3}", "T{2,2}"}});
  db.push_back({"optional_argument",
                [](const Tensors& x) { return Tensors{OptionalArgument::apply(x[0], std::optional<Tensor>(x[1]))}; },
                [](const Tensors& x) { return Tensors{x[0] * x[1]}; },
                {"T{3}", "T{3}"}});
  db.push_back({"absent_optional_argument",
                [](const Tensors& x) { return Tensors{OptionalArgument::apply(x[0], kNothing)}; },
                [](const Tensors& x) { return Tensors{x[0] * 1}; },
                {"T{3}"}});
  db.push_back({"static_arguments",
                [](const Tensors& x) { return Tensors{StaticArguments::apply(x[0], 2.0, "product", x[1])}; },
                [](const Tensors& x) { return Tensors{2 * x[0] * x[1]}; },
                {"T{3}", "T{3}"}});
  db.push_back({"sum_of_squares",
                [](const Tensors& x) { return Tensors{Sum::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{x[0].square().sum()}; },
                {"T{2,3}"}});
  db.push_back({"complex_square",
                [](const Tensors& x) { return Tensors{ComplexSquare::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{x[0] * x[0]}; },
                {"C{3}"}});
  db.push_back({"clamp_straight_through",
                [](const Tensors& x) { return Tensors{ClampStraightThrough::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{x[0] + (at::clamp(x[0], -0.5, 0.5) - x[0]).detach()}; },
                {"T{4}"},
                false});
  db.push_back({"scale_gradient",
                [](const Tensors& x) { return Tensors{ScaleGradient::apply(x[0], 3.0)}; },
                [](const Tensors& x) { return Tensors{3 * x[0] - (2 * x[0]).detach()}; },
                {"T{3}"},
                false});
  db.push_back({"clip_gradient",
                [](const Tensors& x) { return Tensors{ClipGradient::apply(x[0] * x[0])}; },
                {},
                {"T{3}"},
                false,
                {},
                no_jvp});
  db.push_back({"non_differentiable_output",
                [](const Tensors& x) { return list(NonDifferentiableOutput::apply(x[0])); },
                [](const Tensors& x) {
                  return Tensors{x[0] * x[0], (3 * x[0]).detach()};
                },
                {"T{3}"},
                false});
  db.push_back({"without_materializing",
                [](const Tensors& x) { return Tensors{WithoutMaterializing::apply(x[0], x[1])[0]}; },
                [](const Tensors& x) { return Tensors{x[0].sin() + 0 * x[1].sum()}; },
                {"T{3}", "T{2}"}});
  db.push_back({"without_materializing_both",
                [](const Tensors& x) { return list(WithoutMaterializing::apply(x[0], x[1])); },
                [](const Tensors& x) {
                  return Tensors{x[0].sin(), x[1].cos()};
                },
                {"T{3}", "T{2}"}});
  db.push_back({"once_differentiable",
                [](const Tensors& x) { return Tensors{OnceDifferentiable::apply(x[0], x[1])}; },
                [](const Tensors& x) { return Tensors{x[0].sin() * x[1]}; },
                {"T{3}", "T{3}"},
                true,
                {},
                {{kAnyJvp, "no jvp rule"}, {kAnySecond, "the backward must not be differentiated"}}});
  db.push_back({"forward_mode_only",
                [](const Tensors& x) { return Tensors{ForwardModeOnly::apply(x[0], x[1])}; },
                [](const Tensors& x) { return Tensors{at::sin(x[0] * x[1])}; },
                {"T{3}", "T{3}"}});
  db.push_back({"without_rules",
                [](const Tensors& x) { return Tensors{WithoutRules::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{x[0].sin() * x[0]}; },
                {"T{3}"}});
  db.push_back({"writes_to_its_argument",
                [](const Tensors& x) {
                  const Tensor y = x[0] * x[0], alias = y;
                  ScaleInPlace::apply(y, 3.0);
                  return Tensors{alias};
                },
                [](const Tensors& x) { return Tensors{3 * x[0] * x[0]}; },
                {"T{3}"}});
  db.push_back({"writes_to_its_own_memory",
                [](const Tensors& x) { return Tensors{WritesToItsOwnMemory::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{x[0] * x[0]}; },
                {"T{3}"}});
  db.push_back({"reads_memory",
                [](const Tensors& x) { return Tensors{ReadsMemory::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{x[0] * x[0] * x[0]}; },
                {"T{3}"},
                true,
                {},
                {},
                true});
  db.push_back({"nested",
                [](const Tensors& x) { return Tensors{Nested::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{(3 * x[0]).exp()}; },
                {"T{3}:unit"}});
  db.push_back({"grad_inside",
                [](const Tensors& x) { return Tensors{GradInside::apply(x[0])}; },
                [](const Tensors& x) { return Tensors{x[0].cos() * x[0] + x[0].sin()}; },
                {"T{3}"}});
  db.push_back({"function_as_an_argument",
                [](const Tensors& x) { return Tensors{Twice::apply(x[0], [](const Tensor& y) { return y * y; })}; },
                [](const Tensors& x) { return Tensors{x[0].pow(4)}; },
                {"T{3}"}});
  db.push_back({"with_vmap_rule",
                [](const Tensors& x) { return Tensors{WithVmapRule::apply(x[0], x[1])}; },
                [](const Tensors& x) { return Tensors{(x[0] * x[1]).sum(0)}; },
                {"T{3}", "T{3}"}});
  db.push_back({"vmap_rule_over_trees",
                [](const Tensors& x) { return list(VmapRuleOverTrees::apply(x, 2.0)); },
                [](const Tensors& x) {
                  return Tensors{2 * x[0], x[1].sin()};
                },
                {"T{3}", "T{2}"}});

  const auto vjp_only = tower::custom_vjp(
      log1pexp, [](const Tensor& x) { return std::pair(log1pexp(x), x); },
      [](const Tensor& x, const Tensor& grad) { return grad * x.sigmoid(); });
  const Entry log1pexp_entry{"", {}, [](const Tensors& x) { return Tensors{at::softplus(x[0])}; }, {"T{3}"}};
  auto add = [&](const std::string& name, auto f) -> Entry& {
    Entry entry = log1pexp_entry;
    entry.name = name;
    entry.f = [f](const Tensors& x) { return Tensors{f(x[0])}; };
    return db.emplace_back(entry);
  };
  add("custom_vjp", vjp_only).refuses = no_jvp;
  add("custom_vjp_linear", vjp_only.linear_backward());
  const auto tangent = [](const Tensor& x, const Tensor& t) { return t * x.sigmoid(); };
  add("custom_jvp", tower::custom_jvp(log1pexp, tangent));
  const auto batch = [](VmapInfo, const InDims& in_dims, const Tensor& x) {
    return std::pair(at::softplus(x), in_dims[0]);
  };
  add("custom_vmap", tower::custom_vmap(log1pexp, batch));
  add("custom_vjp_jvp", vjp_only.jvp(tangent));
  add("custom_vjp_jvp_vmap", vjp_only.jvp(tangent).vmap(batch));
  add("custom_jvp_vmap", tower::custom(log1pexp).jvp(tangent).vmap(batch));
  db.push_back(
      {"custom_of_several_arguments",
       [f = tower::custom([](const Tensor& x, double by, const Tensor& y) { return std::pair(x * y * by, x + y); })
                .vjp([](const Tensor& x, double by,
                        const Tensor& y) { return std::pair(std::pair(x * y * by, x + y), std::tuple(x, y, by)); },
                     [](const auto& residuals, const Tensor& product, const Tensor& sum) {
                       const auto& [x, y, by] = residuals;
                       return std::tuple(product * y * by + sum, std::nullopt, product * x * by + sum);
                     })
                .jvp([](const auto& primals, const auto& tangents) {
                  const auto& [x, by, y] = primals;
                  const auto& [dx, none, dy] = tangents;
                  static_assert(std::is_same_v<std::decay_t<decltype(none)>, std::nullopt_t>);
                  return std::pair((dx * y + x * dy) * by, dx + dy);
                })](const Tensors& x) { return list(f(x[0], 2.0, x[1])); },
       [](const Tensors& x) {
         return Tensors{x[0] * x[1] * 2, x[0] + x[1]};
       },
       {"T{3}", "T{3}"}});
  return db;
}

}  // namespace

const std::vector<Entry>& all() {
  static const std::vector<Entry> db = make();
  return db;
}

}  // namespace function_db
