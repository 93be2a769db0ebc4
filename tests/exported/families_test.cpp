// Families of models under the transforms. What they should give comes from Python: the module's own values, and
// PyTorch's autograd for gradients, forward derivatives and Hessian-vector products.
#include "exported/models.h"
#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/exported.h"
#include "tower/tower.h"

namespace {

using exported_models::expected;
using exported_models::numbered;

constexpr int kExamples = 3;

/// Names of make_models.py's families.
const char* const kFamilies[] = {
    "perceptron",    "conv_net",
    "conv_net_norm", "res_net",
    "u_net",         "lstm",
    "gru",           "encoder",
    "decoder",       "vision_transformer",
    "words",         "bags",
    "graph_network", "potential",
    "flow",          "differential_equation",
    "cumulative",    "experts",
    "deep_o_net",    "fourier_layer",
    "no_grad",       "mapped",
    "shuffle_net",   "swin_transformer",
};

class Families : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!exported_models::why_not().empty()) GTEST_SKIP() << exported_models::why_not();
    if (const std::string why = exported_models::why_not(GetParam()); !why.empty()) GTEST_SKIP() << why;
    model_.emplace(td::load_exported(exported_models::file(GetParam())));
    all_ = expected(GetParam());
    const auto args = part(0, "arg");
    for (const auto& [i, arg] : args)
      if (arg.is_floating_point()) floats_.push_back(static_cast<int64_t>(i));
  }

  /// "arg" and so on of an example.
  std::map<size_t, Tensor> part(int example, const std::string& what) const {
    return numbered(all_, std::to_string(example) + "." + what + ".");
  }
  Tensors list(int example, const std::string& what) const {
    Tensors tensors;
    for (const auto& [i, tensor] : part(example, what)) tensors.push_back(tensor);
    return tensors;
  }
  /// Of the arguments, undefined for those of integers.
  Tensors tangents(int example) const {
    Tensors tensors(list(example, "arg").size());
    for (const auto& [i, tensor] : part(example, "tan")) tensors[i] = tensor;
    return tensors;
  }
  /// The loss of arguments, behind which the cotangents come.
  Function loss() const {
    return [model = *model_](const Tensors& args) {
      const size_t outs = model({args.begin(), args.begin() + static_cast<std::ptrdiff_t>(inputs(model))}).size();
      const Tensors results = model({args.begin(), args.end() - static_cast<std::ptrdiff_t>(outs)});
      Tensor sum = (results[0] * args[args.size() - outs]).sum();
      for (size_t i = 1; i < outs; ++i) sum = sum + (results[i] * args[args.size() - outs + i]).sum();
      return Tensors{sum};
    };
  }
  static size_t inputs(const td::ExportedModel& model) { return model.arguments().children.size(); }
  Tensors with_cotangents(int example) const {
    Tensors args = list(example, "arg");
    for (const Tensor& cotangent : list(example, "cot")) args.push_back(cotangent);
    return args;
  }
  /// The tensors of all examples, stacked.
  template <class Get>
  static Tensors stacked(Get&& get) {
    std::vector<Tensors> each;
    for (int k = 0; k < kExamples; ++k) each.push_back(get(k));
    Tensors result;
    for (size_t i = 0; i < each[0].size(); ++i) {
      Tensors one;
      for (const Tensors& example : each) one.push_back(example[i]);
      result.push_back(at::stack(one));
    }
    return result;
  }
  Dims mapped(size_t count) const { return Dims(count, 0); }

  std::optional<td::ExportedModel> model_;
  std::map<std::string, Tensor> all_;
  std::vector<int64_t> floats_;
};

#define EXPECT_ALL_SAME(actual, expected)                                                  \
  do {                                                                                     \
    const Tensors a = actual, e = expected;                                                \
    ASSERT_EQ(a.size(), e.size());                                                         \
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same(a[i], e[i])) << "tensor " << i; \
  } while (false)

TEST_P(Families, HaveTheValuesOfPython) {
  for (int k = 0; k < kExamples; ++k) EXPECT_ALL_SAME((*model_)(list(k, "arg")), list(k, "out"));
}

TEST_P(Families, HaveTheGradientsOfPython) {
  for (int k = 0; k < kExamples; ++k) EXPECT_ALL_SAME(td::grad(loss(), floats_)(with_cotangents(k)), list(k, "grad"));
}

TEST_P(Families, HaveTheGradientsOfPythonByTheirParameters) {
  const tower::NamedTensors weights = model_->parameters();
  const auto sum = [&](const tower::NamedTensors& w, const Tensors& args, const Tensors& cotangents) {
    const std::vector<tower::ExportedLeaf> leaves(args.begin(), args.end());
    const auto results = model_->call(w, leaves);
    Tensor sum = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < results.size(); ++i) sum = sum + (std::get<Tensor>(results[i]) * cotangents[i]).sum();
    return sum;
  };
  const auto gradients = tower::grad(sum)(weights, list(0, "arg"), list(0, "cot"));
  size_t compared = 0;
  for (const auto& [name, gradient] : gradients) {
    ASSERT_EQ(all_.count("0.param." + name), 1) << name;
    EXPECT_TRUE(same(gradient, all_.at("0.param." + name))) << name;
    ++compared;
  }
  EXPECT_EQ(compared, weights.size());
}

TEST_P(Families, HaveTheForwardDerivativesOfPython) {
  for (int k = 0; k < kExamples; ++k) {
    const auto [values, derivatives] = td::jvp(std::cref(*model_), list(k, "arg"), tangents(k));
    EXPECT_ALL_SAME(values, list(k, "out"));
    EXPECT_ALL_SAME(derivatives, list(k, "jvp"));
  }
}

TEST_P(Families, HaveTheHessianVectorProductsOfPython) {
  for (int k = 0; k < kExamples; ++k) {
    Tensors directions = tangents(k);
    directions.resize(with_cotangents(k).size());
    EXPECT_ALL_SAME(td::jvp(td::grad(loss(), floats_), with_cotangents(k), directions).second, list(k, "hvp"));
  }
}

TEST_P(Families, HaveTheGradientsOfPythonForEachExample) {
  const Tensors args = stacked([&](int k) { return with_cotangents(k); });
  const Function per_example = td::vmap(td::grad(loss(), floats_), mapped(args.size()), {0});
  EXPECT_ALL_SAME(per_example(args), stacked([&](int k) { return list(k, "grad"); }));
}

TEST_P(Families, HaveTheGradientsOfPythonForEachExampleWhenTheyAreCompiled) {
  const Tensors args = stacked([&](int k) { return with_cotangents(k); });
  const Function compiled = td::compile(td::vmap(td::grad(loss(), floats_), mapped(args.size()), {0}));
  for (int call = 0; call < 2; ++call) EXPECT_ALL_SAME(compiled(args), stacked([&](int k) { return list(k, "grad"); }));
}

TEST_P(Families, TakeBatchesOfAllSizesWhereTheyWereExportedForThat) {
  size_t sizes = 0;
  for (const int n : {0, 1, 7, 64}) {
    const auto batch = all_.find(std::to_string(n) + ".batch");
    if (batch == all_.end()) continue;
    ++sizes;
    EXPECT_ALL_SAME((*model_)({batch->second}), Tensors{all_.at(std::to_string(n) + ".batch_out")});
  }
  EXPECT_TRUE(sizes == 0 || sizes == 4);
}

INSTANTIATE_TEST_SUITE_P(Exported, Families, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

/// What else the exporter makes of a family: decomposed to fewer operators, and as its strict tracer sees it.
class FamiliesInOtherForms : public Families {
 protected:
  void load(const std::string& form) {
    model_.emplace(td::load_exported(exported_models::file(GetParam() + ("." + form))));
  }
  void check() {
    EXPECT_ALL_SAME((*model_)(list(0, "arg")), list(0, "out"));
    const Tensors args = stacked([&](int k) { return with_cotangents(k); });
    const Function per_example = td::vmap(td::grad(loss(), floats_), mapped(args.size()), {0});
    EXPECT_ALL_SAME(per_example(args), stacked([&](int k) { return list(k, "grad"); }));
    Tensors directions = tangents(0);
    directions.resize(with_cotangents(0).size());
    EXPECT_ALL_SAME(td::jvp(td::grad(loss(), floats_), with_cotangents(0), directions).second, list(0, "hvp"));
  }
};

TEST_P(FamiliesInOtherForms, HaveTheValuesAndDerivativesOfPythonDecomposed) {
  // What is decomposed in Python has gradients through there, too: no_grad is left out of it.
  if (std::string(GetParam()) == "no_grad") GTEST_SKIP() << "run_decompositions() leaves no_grad out";
  load("inference");
  check();
}

TEST_P(FamiliesInOtherForms, HaveTheValuesAndDerivativesOfPythonStrict) {
  load("strict");
  check();
}

INSTANTIATE_TEST_SUITE_P(Exported, FamiliesInOtherForms, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
