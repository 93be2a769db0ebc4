// A model that Python exported, over a batch of which each process has a part. The oracle is LibTorch's autograd.
#include "tower/exported.h"

#include <torch/csrc/autograd/autograd.h>

#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using processes::mesh_of_all;

TEST(ExportedInProcesses, HaveTheGradientsOfTheWholeBatchByTheirWeights) {
  expect_all(2, [](int) {
    const tower::Mesh mesh = mesh_of_all();
    const auto model = td::load_exported(TOWER_EXPORTED_WATER);
    const std::string name = "net.2.weight";
    const Tensor weight = model.parameters().at(name), places = 2 * waves({5, 3, 3});
    const Function loss = td::vmap(
        [&](const Tensors& in) {
          return td::pmean({std::get<Tensor>(model.call({{name, in[0]}}, {in[1]})[0])}, "data");
        },
        {std::nullopt, 0}, {std::nullopt}, {}, {"data", mesh});
    const Tensor own = mesh.rank() == 0 ? places.narrow(0, 0, 3) : places.narrow(0, 3, 2);

    const Tensor leaf = weight.clone().requires_grad_();
    Tensor mean = at::zeros({}, at::kDouble);
    for (const Tensor& molecule : places.unbind())
      mean = mean + std::get<Tensor>(model.call({{name, leaf}}, {molecule})[0]) / 5;
    EXPECT_TRUE(same(loss({weight, own})[0], mean.detach()));
    EXPECT_TRUE(same(td::grad(loss, {0})({weight, own})[0], torch::autograd::grad({mean}, {leaf})[0]));
  });
}

}  // namespace
