// Calls that call an operator: custom ones, those that write to their arguments, those that are called for what they
// do, those of another dtype. custom.py exports the models, and has what they should give, by LibTorch's operators.
#include <torch/library.h>
#include <tower/compile.h>
#include <tower/custom_op.h>

#include <cmath>

#include "exported/models.h"
#include "exported/rewritten.h"
#include "support/prelude.h"
#include "tower/exported.h"
#include "tower/tower.h"

namespace {

using exported_models::entries_of;
using exported_models::expected;
using exported_models::Exported;
using exported_models::file;
using exported_models::find;
using exported_models::with_graph_changed;
using exported_models::written;
using exported_models::zip;

/// (k x).sin() x, through pointers.
Tensor bond_on_cpu(const Tensor& x, double k) {
  const Tensor in = x.contiguous();
  Tensor out = at::empty_like(in);
  for (int64_t i = 0; i < in.numel(); ++i) {
    const double value = in.const_data_ptr<double>()[i];
    out.mutable_data_ptr<double>()[i] = std::sin(k * value) * value;
  }
  return out;
}

/// The operators of custom.py, without `absent`.
void register_operators() {
  static const bool once = [] {
    static auto library = torch::Library(torch::Library::FRAGMENT, "exported_lab", std::nullopt, __FILE__, __LINE__);
    library.def("add_to(Tensor x, Tensor(a!) y, float scale=1.0) -> Tensor",
                [](const Tensor& x, Tensor y, double scale) {  // NOLINT: as the dispatcher gives it
                  y.add_(x, scale);
                  return x.sum();
                });
    library.def("set_all(Tensor x, Tensor(a!)[] ys) -> ()", [](const Tensor& x, const std::vector<Tensor>& ys) {
      for (Tensor y : ys) y.copy_(x);
    });
    tower::custom_op("exported_lab::bond(Tensor x, float k) -> Tensor")
        .kernel(at::kCPU, bond_on_cpu)
        .abstract([](const Tensor& x, double) { return at::empty_like(x); })
        .save_for_backward(
            [](const tower::Arguments& in, const tower::ValueList&) -> tower::Saved { return {in.tensor("x")}; })
        .backward([](const tower::BackwardContext& call, const tower::ValueList& saved,
                     const tower::ValueList& grads) -> tower::Gradients {
          const auto k = call.get<double>("k");
          const Tensor& x = saved[0];
          return {{"x", grads[0] * ((k * x).sin() + k * x * (k * x).cos())}};
        })
        .linear_backward()
        .keep();
    return true;
  }();
  (void)once;
}

/// A model in both forms: as the exporter made it, and decomposed, where calls that write are calls of copies.
class CustomCalls : public Exported, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    Exported::SetUp();
    if (IsSkipped()) return;
    register_operators();
  }
  static std::string name() {
    const std::string name = GetParam(), end = "_inference_ir";
    const size_t at = name.rfind(end);
    return at == name.npos ? name : name.substr(0, at);
  }
};

/// The model with buffers of its own for each example, which may be written to.
Tensor with_own_buffers(const td::ExportedModel& model, const Tensor& x) {
  tower::NamedTensors buffers = model.buffers();
  for (auto& [name, buffer] : buffers) buffer = at::zeros_like(buffer) + 0 * x.sum();
  return std::get<Tensor>(model.call(buffers, {x})[0]);
}

TEST_P(CustomCalls, HaveTheValuesAndGradientsOfPython) {
  const auto all = expected(name());
  const Tensor x = all.at("arg");
  EXPECT_TRUE(same(td::load_exported(file(GetParam()))({x})[0], all.at("out")));
  const auto model = td::load_exported(file(GetParam()));
  const auto of = [&](const Tensors& in) { return Tensors{with_own_buffers(model, in[0])}; };
  const auto [out, pullback] = td::vjp(of, {x});
  EXPECT_TRUE(same(out[0], all.at("out")));
  EXPECT_TRUE(same(pullback({all.at("cot")})[0], all.at("grad")));
}

TEST_P(CustomCalls, HaveThemForEachExampleAndCompiled) {
  const auto all = expected(name());
  const Tensor x = all.at("arg"), cotangent = all.at("cot");
  const auto model = td::load_exported(file(GetParam()));
  const auto loss = [&](const Tensor& x) { return (with_own_buffers(model, x) * cotangent).sum(); };
  const auto gradients = tower::vmap(tower::grad(loss));
  const Tensor each = at::stack({x, x.flip(0), x * 2}), found = gradients(each);
  EXPECT_TRUE(same(found[0], all.at("grad")));
  for (int64_t k = 0; k < 3; ++k) EXPECT_TRUE(same(found[k], tower::grad(loss)(each[k]))) << k;
  const auto compiled = tower::compile(gradients);
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(same(compiled(each), found));
}

INSTANTIATE_TEST_SUITE_P(Exported, CustomCalls,
                         testing::Values("bonds", "bonds_inference_ir", "writes_custom", "writes_custom_inference_ir",
                                         "says", "says_inference_ir", "hinted", "hinted_inference_ir", "regions",
                                         "regions_inference_ir"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(Exported, ACallThatWritesGivesCopiesAndLeavesItsArguments) {
  register_operators();
  // The row that is written to is an argument of the graph here, which keeps what it had.
  const auto model = td::load_exported(file("writes_custom_inference_ir"));
  const auto all = expected("writes_custom");
  const Tensor x = all.at("arg"), before = x.clone();
  const auto call = [&] { return model({x})[0]; };
  const Tensor first = call(), total = model.buffers().at("total").clone(), second = call();
  EXPECT_TRUE(same(total, before[2]));
  EXPECT_TRUE(same(model.buffers().at("total"), 2 * before[2]));
  EXPECT_TRUE(same(second, first + before[2]));
  EXPECT_TRUE(at::equal(x, before));
}

TEST_F(Exported, WhatAModelPrintsIsPrintedInBothForms) {
  for (const std::string name : {"says", "says_inference_ir"}) {
    const auto model = td::load_exported(file(name));
    testing::internal::CaptureStdout();
    model({expected("says").at("arg")});
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "tower was here\n") << name;
  }
}

TEST_F(Exported, ADtypeOfACallIsThatOfItsResult) {
  using Model = std::tuple<Tensor, Tensor>(Tensor, Tensor, Tensor);
  const auto model = tower::load_exported<Model>(file("wide"));
  const auto all = expected("wide");
  const auto [product, scaled] = model(all.at("a"), all.at("b"), all.at("x"));
  EXPECT_EQ(product.scalar_type(), at::kInt);
  EXPECT_TRUE(at::equal(product, all.at("product")));
  EXPECT_TRUE(at::equal(scaled, all.at("scaled")));
  const auto loss = [&](const Tensor& x) { return std::get<1>(model(all.at("a"), all.at("b"), x)).sum(); };
  EXPECT_TRUE(same(tower::grad(loss)(all.at("x")), at::full_like(all.at("x"), 0.1)));
}

TEST_F(Exported, WhatCannotBeCalledIsNamedWithWhatToDo) {
  const auto load = [](const std::string& path) {
    return message_of<tower::UnsupportedError>([&] { td::load_exported(path); });
  };
  const auto says = [](const std::string& text, const char* part) { EXPECT_TRUE(contains(text, part)) << text; };
  says(load(file("absent")), "torch.ops.exported_lab.absent.default (load the library that registers it");
  says(load(file("prints")), "torch.ops.higher_order.print (it formats as Python does");
  const auto as = [&](const char* target) {
    return load(with_graph_changed("prints", {{"torch.ops.higher_order.print", target}}));
  };
  says(as("torch.ops.higher_order.call_torchbind"), "(methods of custom classes");
  says(as("torch.ops.higher_order.flex_attention"), "scaled_dot_product_attention is exported as operators");
  says(as("torch.ops.higher_order.triton_kernel_wrapper_functional"), "make a custom operator of it");
  says(as("torch.ops.higher_order.unheard_of"), "Tower has none of that");
  says(as("torch._functorch.predispatch._jvp_increment_nesting"), "a transform of torch.func that was left open");
}

TEST_F(Exported, ACallOfCopiesThatLiesIsRefused) {
  register_operators();
  const auto refused = [&](const std::string& from, const std::string& to) {
    const std::string path = with_graph_changed("writes_custom_inference_ir", {{from, to}});
    try {
      td::load_exported(path);
    } catch (const tower::Error& e) {
      return std::string(e.what());
    }
    return std::string("it was loaded");
  };
  const auto says = [](const std::string& text, const char* part) { EXPECT_TRUE(contains(text, part)) << text; };
  const std::string index = R"({"name": "_y_base_index", "arg": {"as_int": 0}, "kind": 2})";
  says(refused(index, R"({"name": "_y_base_index", "arg": {"as_int": 7}, "kind": 2})"), "that is not there");
  says(refused(index, R"({"name": "_y_base_index", "arg": {"as_int": -1}, "kind": 2})"), "that is not there");
  says(refused(index, R"({"name": "_y_base_index", "arg": {"as_float": 0.0}, "kind": 2})"), "that is no number");
  says(refused(index, R"({"name": "_z_base_index", "arg": {"as_int": 0}, "kind": 2})"), "lacks the argument");
  says(refused(R"("as_operator": "torch.ops.exported_lab.add_to.default")", R"("as_int": 3)"),
       "does not say which operator it calls");
  says(refused(R"("as_operator": "torch.ops.exported_lab.add_to.default")",
               R"("as_operator": "torch.ops.exported_lab.absent.default")"),
       "torch.ops.exported_lab.absent.default");
  says(refused(R"({"name": "_ys_length", "arg": {"as_int": 2}, "kind": 2})",
               R"({"name": "_ys_length", "arg": {"as_int": 9223372036854775807}, "kind": 2})"),
       "has a list of another length");
}

}  // namespace
