// Compiled functions that have an exported model in them, in files. The oracle is Python, by way of make_models.py.
#include <tower/compile.h>

#include "compile/files.h"
#include "exported/models.h"
#include "support/prelude.h"
#include "tower/exported.h"
#include "tower/tower.h"

namespace {

using exported_models::expected;
using exported_models::Exported;
using exported_models::file;
using exported_models::numbered;

void expect_same_lists(const Tensors& found, const Tensors& of_python) {
  ASSERT_EQ(found.size(), of_python.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same(found[i], of_python[i])) << i;
}

class SavedModels : public Exported, public testing::WithParamInterface<const char*> {
 protected:
  /// Of all examples: arguments that are differentiated come first, then others.
  static Tensors stacked(const std::map<std::string, Tensor>& all, const std::string& what) {
    Tensors result;
    for (const auto& [i, first] : numbered(all, "0." + what + ".")) {
      Tensors examples;
      for (int k = 0; k < 3; ++k) examples.push_back(all.at(std::to_string(k) + "." + what + "." + std::to_string(i)));
      result.push_back(at::stack(examples));
    }
    return result;
  }
};

TEST_P(SavedModels, HaveTheGradientsOfPythonOnceTheyAreLoaded) {
  const auto all = expected(GetParam());
  const Tensors args = stacked(all, "arg"), cotangents = stacked(all, "cot"), gradients = stacked(all, "grad");
  const size_t count = args.size();
  std::vector<int64_t> floats;
  for (size_t i = 0; i < count; ++i)
    if (args[i].is_floating_point()) floats.push_back(static_cast<int64_t>(i));
  const support::Folder folder;
  {
    const auto model = td::load_exported(file(GetParam()));
    const Function loss = [=](const Tensors& given) {
      const auto split = given.begin() + static_cast<std::ptrdiff_t>(count);
      const Tensors outs = model(Tensors(given.begin(), split));
      Tensor sum = at::zeros({}, at::kDouble);
      for (size_t i = 0; i < outs.size(); ++i) sum = sum + (outs[i] * split[static_cast<std::ptrdiff_t>(i)]).sum();
      return Tensors{sum};
    };
    Tensors given = args;
    given.insert(given.end(), cotangents.begin(), cotangents.end());
    const Function compiled = td::compile(td::vmap(td::grad(loss, floats), td::Dims(given.size(), 0), {0}));
    for (int call = 0; call < 2; ++call) expect_same_lists(compiled(given), gradients);
    td::save(compiled, folder / "f");
  }
  Tensors given = args;
  given.insert(given.end(), cotangents.begin(), cotangents.end());
  const Function loaded = td::load(folder / "f");
  for (int call = 0; call < 2; ++call) expect_same_lists(loaded(given), gradients);
}

INSTANTIATE_TEST_SUITE_P(Exported, SavedModels,
                         testing::Values("perceptron", "conv_net_norm", "lstm", "encoder", "potential", "experts",
                                         "differential_equation", "cumulative", "deep_o_net", "mapped", "no_grad",
                                         "graph_network", "bags"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
