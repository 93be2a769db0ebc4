// Grids of whole numbers: LibTorch makes them, rounded towards zero.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <tower/tower.h>

namespace {

using at::Tensor;

TEST(AffineGrids, OfIntegersAreThoseOfEachExample) {
  const Tensor maps = at::randint(-3, 4, {3, 1, 2, 3}, at::kLong);
  const auto grid = [](const Tensor& map) { return at::affine_grid_generator(map, {1, 1, 3, 2}, false); };
  const Tensor mapped = tower::vmap(grid)(maps);
  for (int64_t i = 0; i < maps.size(0); ++i) EXPECT_TRUE(at::equal(mapped[i], grid(maps[i]))) << mapped[i];
}

}  // namespace
