// Writes through views inside transforms reach the base and its other views, and nothing else.
#include "support/prelude.h"

namespace {

/// A write with factor `w` through some view of `base`, a [2, 3, 4] tensor.
struct Write {
  const char* view;
  void (*write)(const Tensor& base, const Tensor& w);
};

const Write kWrites[] = {
    {"view",
     [](const Tensor& y, const Tensor& w) {
       y.view({6, 4}).mul_(w);
     }},
    {"view_with_one_size_left_open", [](const Tensor& y, const Tensor& w) { y.view({-1}).mul_(w); }},
    {"reshape",
     [](const Tensor& y, const Tensor& w) {
       y.reshape({4, 6}).mul_(w);
     }},
    {"flatten", [](const Tensor& y, const Tensor& w) { y.flatten(1).mul_(w); }},
    {"select", [](const Tensor& y, const Tensor& w) { y.select(1, -1).mul_(w); }},
    {"select_twice", [](const Tensor& y, const Tensor& w) { y.select(0, 1).select(0, 2).mul_(w); }},
    {"slice", [](const Tensor& y, const Tensor& w) { y.slice(2, 1, 4, 2).mul_(w); }},
    {"slice_to_the_end", [](const Tensor& y, const Tensor& w) { y.slice(1, 1).mul_(w); }},
    {"narrow", [](const Tensor& y, const Tensor& w) { y.narrow(-1, 1, 2).mul_(w); }},
    {"transpose", [](const Tensor& y, const Tensor& w) { y.transpose(0, -1).select(0, 1).mul_(w); }},
    {"t", [](const Tensor& y, const Tensor& w) { y.select(0, 1).t().select(0, 2).mul_(w); }},
    {"permute",
     [](const Tensor& y, const Tensor& w) {
       y.permute({2, 0, 1}).select(0, 1).mul_(w);
     }},
    {"movedim", [](const Tensor& y, const Tensor& w) { y.movedim(0, 2).select(0, 1).mul_(w); }},
    {"unsqueeze", [](const Tensor& y, const Tensor& w) { y.unsqueeze(1).select(2, 1).mul_(w); }},
    {"squeeze", [](const Tensor& y, const Tensor& w) { y.slice(1, 0, 1).squeeze().mul_(w); }},
    {"squeeze_one_dimension", [](const Tensor& y, const Tensor& w) { y.slice(1, 2, 3).squeeze(1).mul_(w); }},
    {"squeeze_listed_dimensions",
     [](const Tensor& y, const Tensor& w) {
       y.slice(0, 0, 1).slice(1, 2, 3).squeeze(at::IntArrayRef{0, 1}).mul_(w);
     }},
    {"diagonal", [](const Tensor& y, const Tensor& w) { y.diagonal(1, 1, 2).mul_(w); }},
    {"unbind", [](const Tensor& y, const Tensor& w) { y.unbind(1)[1].mul_(w); }},
    {"split", [](const Tensor& y, const Tensor& w) { y.split(3, 2)[1].mul_(w); }},
    {"split_with_sizes",
     [](const Tensor& y, const Tensor& w) {
       y.split_with_sizes({1, 2, 1}, 2)[1].mul_(w);
     }},
    {"chunk", [](const Tensor& y, const Tensor& w) { y.chunk(2, 1)[0].mul_(w); }},
    {"unfold_without_overlap", [](const Tensor& y, const Tensor& w) { y.unfold(2, 2, 2).select(-1, 1).mul_(w); }},
    {"unfold_with_gaps", [](const Tensor& y, const Tensor& w) { y.unfold(1, 1, 2).mul_(w); }},
    {"alias", [](const Tensor& y, const Tensor& w) { y.alias().mul_(w); }},
    {"as_strided",
     [](const Tensor& y, const Tensor& w) {
       y.as_strided({2, 2}, {12, 2}, 1).mul_(w);
     }},
    {"copy_into_a_view", [](const Tensor& y, const Tensor& w) { y.select(2, 0).copy_(y.select(2, 1) * w); }},
    {"fill_a_view", [](const Tensor& y, const Tensor& w) { y.slice(1, 0, 2).fill_(w); }},
};

/// The base after the write, and a view that was taken before it.
Tensors written(const Write& write, const Tensor& x, const Tensor& w) {
  const Tensor base = x.clone();
  const Tensor seen = base.transpose(0, 1);
  write.write(base, w);
  return {base * base, seen + 1};
}

class ViewWrites : public testing::TestWithParam<Write> {
 protected:
  Function function() {
    return [](const Tensors& args) { return written(GetParam(), args[0], args[1]); };
  }
};

TEST_P(ViewWrites, UnderVmapAreThoseOfEveryExample) {
  for (int64_t batch : {1, 3})
    for (int64_t dim : {0, 2}) {
      const Tensor x = waves({batch, 2, 3, 4}, 0.2), w = waves({batch}, 0.7);
      for (bool map_x : {true, false}) {
        const auto mapped = map_x ? Dims{dim, 0} : Dims{std::nullopt, 0};
        const Tensors y = td::vmap(function(), mapped, {0})({map_x ? x.movedim(0, dim) : x[0], w});
        for (int64_t b = 0; b < batch; ++b) {
          const Tensors one = written(GetParam(), map_x ? x[b] : x[0], w[b]);
          for (size_t k = 0; k < one.size(); ++k) EXPECT_TRUE(same(y[k][b], one[k]));
        }
      }
    }
}

// LibTorch refuses to differentiate some of these writes (through unbind and split), so a difference quotient decides.
TEST_P(ViewWrites, HaveTheGradientsAndTangentsOfADifferenceQuotient) {
  const Tensor x = waves({2, 3, 4}, 0.2), w = waves({}, 0.7), dx = waves({2, 3, 4}, 1.4), dw = waves({}, 1.9);
  const Tensors weights{waves({2, 3, 4}, 0.4), waves({3, 2, 4}, 0.9)};
  const double h = 1e-4;
  const double quotient = (support::inner(weights, written(GetParam(), x + h * dx, w + h * dw)) -
                           support::inner(weights, written(GetParam(), x - h * dx, w - h * dw))) /
                          (2 * h);
  const auto [outputs, pullback] = td::vjp(function(), {x, w});
  const Tensors plain = written(GetParam(), x, w);
  for (size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(same(outputs[k], plain[k]));
  EXPECT_NEAR(support::inner(pullback(weights), {dx, dw}), quotient, 1e-6);
  const Tensors tangents = td::jvp(function(), {x, w}, {dx, dw}).second;
  EXPECT_NEAR(support::inner(weights, tangents), quotient, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Each, ViewWrites, testing::ValuesIn(kWrites),
                         [](const auto& info) { return std::string(info.param.view); });

// A view without a way back must not be written to in silence.
TEST(ViewWritesRefused, WhereOneElementOfTheBaseIsSeenTwice) {
  const Tensor x = waves({3, 1}, 0.2);
  const auto through_expand = [](const Tensors& args) -> Tensors {
    const Tensor base = args[0].clone();
    base.expand({1, 4}).mul_(2);
    return {base};
  };
  EXPECT_THROW(td::vmap(through_expand, {0}, {0})({x.unsqueeze(1)}), tower::MutationError);
  const auto through_unfold = [](const Tensors& args) -> Tensors {
    const Tensor base = args[0].clone();
    base.unfold(0, 2, 1).mul_(2);
    return {base};
  };
  EXPECT_THROW(td::vmap(through_unfold, {0}, {0})({waves({3, 4}, 0.2)}), tower::MutationError);
}

TEST(ViewWritesRefused, WhereAnAddressBelongsToNoElement) {
  const auto f = [](const Tensors& args) -> Tensors { return {args[0].as_strided({2}, {1}, 3)}; };
  EXPECT_THROW(td::vmap(f, {0}, {0})({waves({3, 4}, 0.2)}), tower::UnsupportedError);
}

}  // namespace
