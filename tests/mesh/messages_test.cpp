// What is sent in one message or in two, by how much came at this place before: the results are the same.
#include <limits>

#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using processes::mesh_of_all;
using tower::Mesh;

// Small and large ones follow each other differently in each round.
TEST(Messages, OfAllLengthsInAnyOrderHaveTheirSums) {
  for (const int count : {1, 2, 3})
    expect_all(count, [count](int rank) {
      const Mesh mesh = mesh_of_all();
      const std::vector<std::vector<int64_t>> rounds{
          {1, 10, 3000, 9000, 100'000}, {1, 10, 3000, 9000, 100'000}, {1, 3000, 10, 100'000, 9000, 0}, {9000, 1, 1}};
      for (const auto& lengths : rounds)
        for (const int64_t length : lengths) {
          const Tensor whole = waves({count, length});
          EXPECT_TRUE(same(tower::sum_across(mesh, "data", whole[rank]), whole.sum(0))) << length;
        }
    });
}

TEST(Messages, OfSeveralTypesGoTogether) {
  expect_all(2, [](int rank) {
    const Mesh mesh = mesh_of_all();
    for (const int64_t length : {3, 5000, 3, 5000}) {
      const Tensor x = waves({2, length});
      std::vector<Tensor> wholes{x,
                                 x.to(at::kFloat),
                                 at::complex(x, x.cos()),
                                 (100 * x).to(at::kLong),
                                 (100 * x).to(at::kInt),
                                 at::complex(x, x).conj(),
                                 x.expand({3, 2, length}).transpose(0, 1)};
      std::vector<Tensor> own;
      for (const Tensor& whole : wholes) own.push_back(whole[rank]);
      const std::vector<Tensor> sums = tower::sum_across(mesh, "data", own);
      for (size_t k = 0; k < sums.size(); ++k) {
        EXPECT_EQ(sums[k].scalar_type(), wholes[k].scalar_type()) << k;
        EXPECT_TRUE(same(sums[k], wholes[k].sum(0).to(wholes[k].scalar_type()))) << k << " of " << length;
      }
    }
  });
}

// As LibTorch's own extrema do.
TEST(Messages, ExtremaOfWhatIsNoNumberAreNone) {
  expect_all(2, [](int rank) {
    const Mesh mesh = mesh_of_all();
    constexpr double none = std::numeric_limits<double>::quiet_NaN();
    const Tensor whole = at::tensor({1.0, none, 3.0, none, 2.0, -1.0}, at::kDouble).view({2, 3});
    const auto extrema = [](const Tensor& x) { return std::pair(tower::pmax(x, "data"), tower::pmin(x, "data")); };
    const auto [most, least] =
        tower::vmap(extrema, {.out_dims = std::nullopt, .axis = "data", .across = mesh})(whole.narrow(0, rank, 1));
    EXPECT_TRUE(at::equal(most.isnan(), whole.amax(0).isnan()));
    EXPECT_TRUE(at::equal(most.nan_to_num(), whole.amax(0).nan_to_num()));
    EXPECT_TRUE(at::equal(least.nan_to_num(), whole.amin(0).nan_to_num()));
  });
}

// A result that is written to is not the message that another call will get.
TEST(Messages, ResultsHaveMemoryOfTheirOwn) {
  for (const int count : {1, 2})
    expect_all(count, [](int) {
      const Mesh mesh = mesh_of_all();
      Tensor x = waves({1, 3});
      const Tensor before = x.clone();
      const auto f = [](const Tensor& e) {
        Tensor total = tower::psum(e, "data");
        total.zero_();
        return e * 2;
      };
      EXPECT_TRUE(same(tower::vmap(f, {.axis = "data", .across = mesh})(x), 2 * before));
      Tensor sum = tower::sum_across(mesh, "data", x);
      sum.zero_();
      EXPECT_TRUE(same(x, before));
    });
}

}  // namespace
