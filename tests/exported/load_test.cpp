// What a file says of a model: signature, sizes, weights, what it writes. The oracle is Python, by way of
// make_models.py.
#include <torch/csrc/autograd/autograd.h>

#include <fstream>
#include <sstream>

#include "exported/models.h"
#include "support/prelude.h"
#include "tower/exported.h"
#include "tower/graph.h"
#include "tower/sparse.h"
#include "tower/tower.h"

namespace {

using exported_models::expected;
using exported_models::Exported;
using exported_models::file;

using Matrix = std::map<std::string, Tensor>;

struct Out {
  Tensor sum;
  std::tuple<int64_t, Tensor, std::optional<Tensor>> rest;
};
constexpr auto tower_fields(const Out&) { return std::tuple(&Out::sum, &Out::rest); }

using Trees = Out(Tensor, std::pair<Tensor, Tensor>, Matrix, double, std::string, std::optional<Tensor>);

TEST_F(Exported, TreesOfArgumentsAndResultsAreTreesOfCpp) {
  const auto model = tower::load_exported<Trees>(file("trees"));
  for (const int64_t n : {1, 2, 9}) {
    const Tensor x = at::randn({n, 3}), y = at::randn({n, 3}), a = at::randn({n, 3}), b = at::randn({n, 3});
    const Out out = model(x, {y, x}, {{"b", b}, {"a", a}}, 2.0, "plus", std::nullopt);
    EXPECT_TRUE(same(out.sum, x * 2.0 + y * x + a));
    EXPECT_EQ(std::get<0>(out.rest), n);
    EXPECT_TRUE(same(std::get<1>(out.rest), b));
    EXPECT_FALSE(std::get<2>(out.rest).has_value());
  }
}

TEST_F(Exported, TreesAreDifferentiatedAsTrees) {
  const auto model = tower::load_exported<Trees>(file("trees"));
  const auto loss = [&](const Tensor& x, const std::pair<Tensor, Tensor>& pair, const Matrix& options) {
    return model(x, pair, options, 2.0, "plus", std::nullopt).sum.sum();
  };
  const Tensor x = at::randn({2, 3}), y = at::randn({2, 3});
  const auto [gx, gpair, goptions] = tower::grad<0, 1, 2>(loss)(x, std::pair(y, x), Matrix{{"a", x}, {"b", y}});
  EXPECT_TRUE(same(gx, at::full_like(x, 2)));
  EXPECT_TRUE(same(gpair.first, x));
  EXPECT_TRUE(same(gpair.second, y));
  EXPECT_TRUE(same(goptions.at("a"), at::ones_like(x)));
  EXPECT_TRUE(same(goptions.at("b"), at::zeros_like(x)));
}

TEST_F(Exported, ATypeThatDoesNotFitIsRefusedWithBoth) {
  const auto text = message_of<tower::ArgumentError>([&] { tower::load_exported<Tensor(Tensor)>(file("trees")); });
  EXPECT_TRUE(contains(text, "x: Float [")) << text;
  EXPECT_TRUE(contains(text, "mode: \"plus\"")) << text;
  EXPECT_TRUE(contains(text, "at::Tensor (at::Tensor)")) << text;
}

TEST_F(Exported, NumbersAndStringsThatWereExportedAreCheckedAndNamed) {
  const auto model = tower::load_exported<Trees>(file("trees"));
  const Tensor x = at::randn({2, 3});
  const auto call = [&](double scale, const std::string& mode) {
    return message_of<tower::ArgumentError>([&] { model(x, {x, x}, {{"a", x}, {"b", x}}, scale, mode, std::nullopt); });
  };
  EXPECT_TRUE(contains(call(3.0, "plus"), "scale is 3.0, and the model was exported for 2.0")) << call(3.0, "plus");
  EXPECT_TRUE(contains(call(2.0, "minus"), "mode is \"minus\"")) << call(2.0, "minus");
}

TEST_F(Exported, SizesThatDoNotFitAreRefusedWithTheArgumentsName) {
  const auto model = td::load_exported(file("perceptron"));
  const auto call = [&](const Tensor& x) { return message_of<tower::ArgumentError>([&] { model({x}); }); };
  EXPECT_TRUE(
      contains(call(at::zeros({4, 5}, at::kDouble)), "x is Double [4, 5], and the model was exported for Double ["))
      << call(at::zeros({4, 5}, at::kDouble));
  EXPECT_TRUE(contains(call(at::zeros({3}, at::kDouble)), "x is Double [3]"));
  EXPECT_TRUE(contains(call(at::zeros({4, 3}, at::kFloat)), "x is Float [4, 3]"));
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] { model({}); }), "called with 0 tensors"));
}

TEST_F(Exported, SizesAreBoundByTheirExpressionsAndRanges) {
  const auto model = td::load_exported(file("sizes"));
  const auto all = expected("sizes");
  for (const std::string n : {"4", "6", "20"}) {
    const Tensors out = model({all.at(n + ".a"), all.at(n + ".b")});
    ASSERT_EQ(out.size(), 2);
    EXPECT_TRUE(same(out[0], all.at(n + ".out"))) << n;
    EXPECT_TRUE(same(out[1], all.at(n + ".rest"))) << n;
  }
  const auto call = [&](int64_t a, int64_t b) {
    return message_of<tower::ArgumentError>([&] { model({at::zeros({a, 2}), at::zeros({b, 2})}); });
  };
  EXPECT_TRUE(contains(call(4, 9), "y is Float [9, 2]")) << call(4, 9);
  EXPECT_TRUE(contains(call(21, 42), "is 21, and the model was exported for 3 to 20")) << call(21, 42);
  EXPECT_TRUE(contains(call(2, 4), "is 2, and the model was exported for 3 to 20")) << call(2, 4);
}

TEST_F(Exported, BuffersAreWrittenAsPythonWritesThem) {
  for (const std::string name : {"training", "training_inference_ir"}) {
    const auto model = tower::load_exported<Tensor(Tensor)>(file(name));
    const auto all = expected(name);
    for (const std::string k : {"0", "1"}) {
      EXPECT_TRUE(same(model(all.at("arg")), all.at(k + ".out"))) << name << k;
      EXPECT_EQ(model.buffers().size(), 4);
      for (const auto& [key, buffer] : model.buffers()) EXPECT_TRUE(same(buffer, all.at(k + ".buffer." + key))) << key;
    }
    EXPECT_EQ(model.constants().size(), 1);
  }
}

TEST_F(Exported, FilesOfOlderLayoutsAreTheSameModels) {
  for (const std::string name : {"training", "shared"})
    for (const std::string version : {".2_7", ".2_8"}) {
      const auto model = tower::load_exported<Tensor(Tensor)>(file(name + version));
      const auto newer = tower::load_exported<Tensor(Tensor)>(file(name));
      const auto expect_equal = [&](const tower::NamedTensors& found, const tower::NamedTensors& expected) {
        ASSERT_EQ(found.size(), expected.size());
        for (const auto& [key, tensor] : found) {
          EXPECT_TRUE(at::equal(tensor, expected.at(key))) << key;
          EXPECT_EQ(tensor.strides(), expected.at(key).strides()) << key;
          EXPECT_FALSE(tensor.requires_grad());
        }
      };
      expect_equal(model.parameters(), newer.parameters());
      expect_equal(model.buffers(), newer.buffers());
      expect_equal(model.constants(), newer.constants());
      const auto all = expected(name);
      EXPECT_TRUE(same(model(all.at("arg")), all.at(name == "shared" ? "out" : "0.out"))) << name << version;
    }
  const auto shared = tower::load_exported<Tensor(Tensor)>(file("shared.2_7")).parameters();
  EXPECT_EQ(shared.at("a").storage().data(), shared.at("b").storage().data());
  tower::ExportedOptions options;
  options.model = "other";
  const auto text = message_of<tower::ArgumentError>([&] { td::load_exported(file("shared.2_7"), options); });
  EXPECT_TRUE(contains(text, "it has one model without a name, and not \"other\"")) << text;
}

TEST_F(Exported, ABatchedValueIsNotWrittenToABuffer) {
  for (const std::string name : {"training", "training_inference_ir"}) {
    const auto model = tower::load_exported<Tensor(Tensor)>(file(name));
    EXPECT_THROW(tower::vmap([&](const Tensor& x) { return model(x); })(at::randn({2, 4, 3})), tower::MutationError)
        << name;
  }
}

TEST_F(Exported, BuffersThatAreGivenAreWrittenInThePlaceOfTheModels) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("training"));
  const auto all = expected("training");
  tower::NamedTensors own, before = model.buffers();
  for (const auto& [name, buffer] : model.buffers()) {
    own[name] = buffer.clone();
    before[name] = buffer.clone();
  }
  EXPECT_TRUE(same(model.call(own, all.at("arg")), all.at("0.out")));
  for (const auto& [name, buffer] : own) EXPECT_TRUE(same(buffer, all.at("0.buffer." + name))) << name;
  for (const auto& [name, buffer] : model.buffers()) EXPECT_TRUE(same(buffer, before.at(name))) << name;
}

TEST_F(Exported, AnInputThatTheModelWritesIsWritten) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("writes"));
  const Tensor x = at::randn({4, 3}), before = x.clone();
  EXPECT_TRUE(same(model(x), before * 2 + 1));
  EXPECT_TRUE(same(x, before * 2));
}

TEST_F(Exported, WeightsHaveTheirStridesAndShareTheirMemory) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("shared"));
  const auto all = expected("shared");
  const Tensor a = model.parameters().at("a"), b = model.parameters().at("b");
  EXPECT_TRUE(same(a, all.at("a")));
  EXPECT_TRUE(same(b, all.at("b")));
  EXPECT_EQ(b.stride(0), 1);
  EXPECT_EQ(b.stride(1), 3);
  EXPECT_EQ(a.storage().data(), b.storage().data());
  EXPECT_TRUE(same(model(all.at("arg")), all.at("out")));
}

TEST_F(Exported, WeightsThatDoNotFitAreRefused) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("shared"));
  const auto call = [&](const std::string& name, const Tensor& w) {
    return message_of<tower::ArgumentError>([&] { model.call({{name, w}}, at::zeros({4, 3})); });
  };
  EXPECT_TRUE(contains(call("c", at::zeros({2, 3})), "no weight \"c\""));
  EXPECT_TRUE(contains(call("a", at::zeros({3, 3})), "\"a\" has the sizes [2, 3], and is given [3, 3]"));
}

TEST_F(Exported, CastsAreThoseOfTheModel) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("casts"));
  const Tensor x = at::randn({4, 3}, at::kDouble);
  const Tensor expected = x.to(at::kFloat).sum() + (x > 0).to(at::kDouble).sum();
  EXPECT_TRUE(same(model(x), expected));
  EXPECT_TRUE(same(tower::grad([&](const Tensor& t) { return model(t); })(x), at::ones_like(x)));
}

TEST_F(Exported, SizesByValuesWorkOutsideOfTransformsAndAreRefusedInside) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("counts"));
  EXPECT_TRUE(same(model(at::tensor({1.0F, 0.0F, 2.0F})), at::full({2}, 3.0F)));
  EXPECT_TRUE(same(model(at::tensor({1.0F, 1.0F, 2.0F})), at::full({3}, 4.0F)));
  // As the same code would be, whose counts differ between examples.
  const Tensor examples = at::tensor({1.0F, 0.0F, 2.0F, 1.0F, 1.0F, 2.0F}).view({2, 3});
  const auto code = [](const Tensor& x) { return at::zeros({x.nonzero().size(0)}) + x.sum(); };
  const auto refused = message_of<tower::Error>([&] { tower::vmap(code)(examples); });
  EXPECT_FALSE(contains(refused, "nothing of that type")) << refused;
  EXPECT_EQ(message_of<tower::Error>([&] { tower::vmap([&](const Tensor& x) { return model(x); })(examples); }),
            refused);
}

TEST_F(Exported, AnIntegerThatVariesIsAnArgument) {
  const auto model = tower::load_exported<Tensor(Tensor, int64_t)>(file("times"));
  const Tensor x = at::randn({4, 3});
  for (const int64_t n : {2, 3, 50}) EXPECT_TRUE(same(model(x, n), x * n + 4)) << n;
  const auto text = message_of<tower::ArgumentError>([&] { td::load_exported(file("times"))({x}); });
  EXPECT_TRUE(contains(text, "the argument n is an integer that varies")) << text;
}

TEST_F(Exported, AModelIsLoadedInsideOfATransformAsOutside) {
  const Tensor x = expected("perceptron").at("0.arg.0");
  const auto inside = [](const Tensor& t) {
    const auto model = td::load_exported(file("perceptron"));
    for (const auto& [name, weight] : model.parameters()) EXPECT_FALSE(tower::inspect(weight)) << name;
    return model({t})[0].sum();
  };
  const auto outside = [model = td::load_exported(file("perceptron"))](const Tensor& t) { return model({t})[0].sum(); };
  EXPECT_TRUE(same(tower::grad(inside)(x), tower::grad(outside)(x)));
}

TEST_F(Exported, ItsJacobianIsAsSparseAsTheModel) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("perceptron"));
  const Tensor x = expected("perceptron").at("0.arg.0");
  const auto pattern = tower::jacobian_sparsity(model, x);
  EXPECT_EQ(pattern.num_entries(), 4 * 2 * 3);  // no row sees another
  const auto jacobian = tower::sparse_jacobian(model, pattern);
  // LibTorch's autograd, a row at a time.
  const Tensor leaf = x.clone().requires_grad_(), out = model(leaf).flatten();
  Tensors rows;
  for (const Tensor& element : out.unbind())
    rows.push_back(torch::autograd::grad({element}, {leaf}, {}, /*retain_graph=*/true)[0].flatten());
  EXPECT_TRUE(same(jacobian(x).to_dense(), at::stack(rows)));
}

TEST_F(Exported, ItsGraphIsThatOfItsCalls) {
  const auto model = tower::load_exported<Tensor(Tensor)>(file("perceptron"));
  std::ostringstream text;
  text << tower::graph(model)(expected("perceptron").at("0.arg.0"));
  EXPECT_TRUE(contains(text.str(), "addmm")) << text.str();
  EXPECT_TRUE(contains(text.str(), "silu")) << text.str();
}

TEST_F(Exported, ASignatureIsPrinted) {
  EXPECT_EQ(td::load_exported(file("casts")).signature(), "(x: Double [4, 3]) -> Double []");
}

TEST_F(Exported, AReportHasSizesWeightsAndOperators) {
  const std::string sizes = td::load_exported(file("sizes")).report();
  EXPECT_TRUE(contains(sizes, ": from 3 to 20\n")) << sizes;
  EXPECT_TRUE(contains(sizes, "  _operator.mul\n")) << sizes;
  const std::string experts = td::load_exported(file("experts")).report();
  EXPECT_TRUE(contains(experts, "8 parameters (")) << experts;
  EXPECT_TRUE(contains(experts, "     4  aten::linear ")) << experts;
  const size_t line = experts.find("aten::sin ");
  EXPECT_TRUE(contains(experts.substr(line, experts.find('\n', line) - line), " kernels")) << experts;
  EXPECT_TRUE(contains(experts, "     1  torch.ops.higher_order.cond\n")) << experts;
}

TEST(ExportedFiles, ThatAreNoneAreRefusedByName) {
  const auto load = [](const std::string& path) {
    return message_of<tower::ArgumentError>([&] { td::load_exported(path); });
  };
  EXPECT_TRUE(contains(load("/nonexistent.pt2"), "/nonexistent.pt2 cannot be loaded: it cannot be read"));
  const std::string path = testing::TempDir() + "tower_no_archive.pt2";
  std::ofstream(path) << "this is not a zip file, but it is long enough to be one";
  EXPECT_TRUE(contains(load(path), "it is no archive of torch.export.save")) << load(path);
}

}  // namespace
