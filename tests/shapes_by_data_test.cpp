// Operators whose output has a shape that depends on the data, where all examples give one shape; and indexing by a
// mapped number.
#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>

#include "support/compositions.h"
#include "support/functions.h"
#include "support/intact.h"
#include "tower/errors.h"

namespace {

using at::Tensor;
using support::number, support::numbers, support::of_one, support::refusal, support::same, support::says, support::vec;
using tower::UnsupportedError;
namespace td = tower::dynamic;

Tensor mapped(const std::function<Tensor(const Tensor&)>& f, const Tensor& batch) {
  return td::vmap(of_one(f), {0}, {0})({batch})[0];
}

Tensor looped(const std::function<Tensor(const Tensor&)>& f, const Tensor& batch) {
  std::vector<Tensor> results;
  for (const Tensor& example : batch.unbind(0)) results.push_back(f(example));
  return at::stack(results);
}

TEST(ShapesByData, AreThoseOfOneExampleWhereAllAreAlike) {
  const Tensor sparse = at::tensor({0, 2, 3, 4, 0, 6, 7, 8, 0}, at::kLong).view({3, 3});
  const Tensor weights = vec({1, 2, 3});
  const std::function<Tensor(const Tensor&)> functions[] = {
      [](const Tensor& x) { return x.nonzero(); },
      [](const Tensor& x) { return at::argwhere(x); },
      [](const Tensor& x) {
        return at::argwhere(x.clamp_max(1).view({3, 1}));
      },
      [](const Tensor& x) { return at::bincount(x, {}, 9); },
      [](const Tensor& x) { return at::bincount(x.clamp_max(3)); },
      [&](const Tensor& x) { return at::bincount(x, weights, 10); },
      [&](const Tensor& x) { return at::bincount(x.to(at::kByte), weights * x, 9); },
      [](const Tensor& x) { return at::_is_all_true(x.gt(1)); },
      [](const Tensor& x) { return at::_is_any_true(x.gt(6)); },
  };
  for (const auto& f : functions) EXPECT_TRUE(same(mapped(f, sparse), looped(f, sparse)));
  const auto counts = [](const Tensor& x) { return at::bincount(x, {}, 9); };
  const Tensor batch = at::stack({sparse, sparse.t()});
  EXPECT_TRUE(same(
      mapped([&](const Tensor& x) { return mapped([](const Tensor& v) { return v.nonzero(); }, x); }, batch),
      at::stack({sparse.nonzero().select(1, 1).view({3, 2, 1}), sparse.t().nonzero().select(1, 1).view({3, 2, 1})})));
  EXPECT_EQ(mapped(counts, at::empty({0, 3}, at::kLong)).sizes(), (at::IntArrayRef{0, 9}));
}

TEST(ShapesByData, ThatDifferAreRefused) {
  const Tensor x = at::tensor({0, 2, 3, 4}, at::kLong).view({2, 2});
  const auto refused = [&](const std::function<Tensor(const Tensor&)>& f) {
    return refusal<UnsupportedError>([&] { mapped(f, x); });
  };
  EXPECT_TRUE(says(refused([](const Tensor& v) { return v.nonzero(); }), {"aten::nonzero", "where()"}));
  EXPECT_TRUE(says(refused([](const Tensor& v) { return at::argwhere(v); }), {"aten::nonzero", "where()"}));
  EXPECT_TRUE(says(refused([](const Tensor& v) { return at::bincount(v); }), {"aten::bincount", "minlength"}));
}

// LibTorch's C++ indexing reads the number itself; the error names what does not.
TEST(IndexingByAMappedNumber, SaysWhatToUse) {
  const Tensor table = numbers({4, 2}), places = at::tensor({2, 0, 3}, at::kLong);
  for (const std::function<Tensor(const Tensor&)>& f :
       {std::function<Tensor(const Tensor&)>([&](const Tensor& i) { return table[i]; }),
        std::function<Tensor(const Tensor&)>([&](const Tensor& i) { return table.index({i}); }),
        std::function<Tensor(const Tensor&)>([&](const Tensor& i) { return table.index({i.gt(1)}); }),
        std::function<Tensor(const Tensor&)>([&](const Tensor& i) { return (table * 1).index_put_({i}, 1.0); })})
    EXPECT_TRUE(says(refusal<UnsupportedError>([&] { mapped(f, places); }), {"narrow(dim, i, 1)", "i.unsqueeze(0)"}));
  const Tensor expected = table.index_select(0, places);
  EXPECT_TRUE(same(mapped([&](const Tensor& i) { return table.narrow(0, i, 1).squeeze(0); }, places), expected));
  EXPECT_TRUE(same(mapped([&](const Tensor& i) { return table.index_select(0, i.unsqueeze(0)).squeeze(0); }, places),
                   expected));
  EXPECT_TRUE(
      same(mapped([&](const Tensor& i) { return table.index({i.unsqueeze(0)}).squeeze(0); }, places), expected));
}

}  // namespace
