// Views of every kind inside transforms: writes through one alias are seen through all others, and derivatives are
// right through all of it.
#include "support/prelude.h"
#include "tower/explain.h"

namespace {

using tower::MutationError;

/// Something done to `base`, a [2, 3, 4] tensor, with `w`, a tensor without dimensions. What it returns is looked at,
/// too.
struct Aliasing {
  const char* name;
  Tensor (*act)(const Tensor& base, const Tensor& w);
  bool libtorch = true;  // false: LibTorch's autograd refuses it, or (as_strided_) does not notice
};

const Aliasing kAliasing[] = {
    {"chains_of_views",
     [](const Tensor& b, const Tensor& w) {
       b.transpose(1, 2)[1].narrow(0, 1, 2).mul_(w);
       return b;
     }},
    {"views_of_views_read_after_the_write",
     [](const Tensor& b, const Tensor& w) {
       const Tensor row = b.select(0, 1), corner = row.slice(0, 0, 2).select(1, 3);
       row.mul_(w);
       const Tensor first = corner * 2;
       b.select(2, 3).add_(w);
       return first + corner;
     }},
    {"two_aliases_written_in_turn",
     [](const Tensor& b, const Tensor& w) {
       const Tensor flat = b.view({24}), turned = b.permute({2, 1, 0});
       flat.slice(0, 3, 20, 2).mul_(w);
       turned.select(0, 2).add_(flat[5]);
       flat.slice(0, 0, 4).copy_(turned.reshape({-1}).slice(0, 7, 11));
       return turned;
     }},
    {"an_overlapping_window",
     [](const Tensor& b, const Tensor& w) {
       const Tensor windows = b.unfold(2, 2, 1);
       windows.select(2, 1).mul_(w);
       return windows;
     },
     false},
    {"one_window_of_overlapping_as_strided",
     [](const Tensor& b, const Tensor& w) {
       return b.as_strided({3, 4}, {2, 1}, 3) * w;
     }},
    {"as_strided_written",
     [](const Tensor& b, const Tensor& w) {
       b.as_strided({2, 3}, {12, 2}, 1).mul_(w);
       return b;
     }},
    {"a_row_of_an_expanded_tensor",
     [](const Tensor& b, const Tensor& w) {
       const Tensor wide = b.slice(1, 0, 1).expand({2, 3, 4});
       wide.select(1, 2).mul_(w);
       return wide;
     }},
    {"an_expand_that_repeats_nothing",
     [](const Tensor& b, const Tensor& w) {
       b.expand({1, 2, -1, 4}).mul_(w);
       return b;
     }},
    {"split_chunk_and_unbind",
     [](const Tensor& b, const Tensor& w) {
       b.split(2, 2)[1].mul_(w);
       b.chunk(2, 2)[0].add_(w);
       const auto rows = b.unbind(1);
       rows[0].mul_(rows[2]);
       return rows[0] + rows[1];
     },
     false},
    {"tensor_split_and_friends",
     [](const Tensor& b, const Tensor& w) {
       b.tensor_split(2, 2)[1].mul_(w);
       b.hsplit(3)[1].add_(w);
       b.unsafe_chunk(2, 2)[0] * 2;
       return b;
     },
     false},
    {"diagonal",
     [](const Tensor& b, const Tensor& w) {
       b.diagonal(-1, 1, 2).mul_(w);
       b.select(0, 0).diagonal().fill_(2);
       return b;
     }},
    {"view_as_real",
     [](const Tensor& b, const Tensor& w) {
       const Tensor z = at::complex(b, b * w);
       at::view_as_real(z).select(-1, 1).mul_(w);
       at::real(z).add_(w);
       return at::view_as_real(z * z);
     }},
    {"view_as_complex",
     [](const Tensor& b, const Tensor& w) {
       const Tensor pairs = at::stack({b, b * w}, -1), z = at::view_as_complex(pairs);
       z.mul_(z * z);
       return pairs;
     },
     false},
    {"conjugate_views",
     [](const Tensor& b, const Tensor& w) {
       const Tensor z = at::complex(b, b * w);
       z.conj().select(0, 1).mul_(z.select(0, 0));
       return at::view_as_real(z);
     },
     false},
    {"squeeze_and_unsqueeze_in_place",
     [](const Tensor& b, const Tensor& w) {
       const Tensor part = b.slice(1, 1, 2);
       part.squeeze_(1);
       EXPECT_EQ(part.sizes(), (at::IntArrayRef{2, 4}));
       part.mul_(w);
       part.unsqueeze_(0).select(1, 1).add_(w);
       EXPECT_EQ(part.sizes(), (at::IntArrayRef{1, 2, 4}));
       return part * b.select(1, 1);
     }},
    {"transpose_in_place_with_older_views",
     [](const Tensor& b, const Tensor& w) {
       const Tensor own = b * w, before = own.select(0, 1);
       own.transpose_(0, 2);
       EXPECT_EQ(own.sizes(), (at::IntArrayRef{4, 3, 2}));
       own.select(0, 3).mul_(w);
       const Tensor seen = before * 1;
       before.select(1, 2).add_(w);
       return own.reshape({2, 3, 4}) + seen.sum();
     }},
    {"t_in_place_twice",
     [](const Tensor& b, const Tensor& w) {
       const Tensor own = b.select(0, 1) * w, before = own.select(0, 2);
       own.t_();
       own.select(0, 0).mul_(w);
       const Tensor between = own.select(1, 1);
       own.t_().select(0, 1).add_(1);
       return between + before + own.select(0, 0);
     }},
    {"swapaxes_in_place",
     [](const Tensor& b, const Tensor& w) {
       const Tensor own = b * w;
       own.swapaxes_(0, 1).select(0, 1).mul_(w);
       return own.select(0, 1) * 1;
     }},
    {"as_strided_in_place",
     [](const Tensor& b, const Tensor& w) {
       const Tensor own = b * w, all = own.view({24});
       own.as_strided_({2, 2}, {5, 2}, 3).mul_(w);
       return all + own.sum();
     },
     false},
    {"resize_to_fewer_elements",
     [](const Tensor& b, const Tensor& w) {
       const Tensor own = b * w, all = own.view({24});
       own.resize_({2, 5});
       own.mul_(w);
       return all + own.sum();
     },
     false},
    {"a_view_of_a_tensor_written_in_another_order",
     [](const Tensor& b, const Tensor& w) {
       const Tensor own = at::zeros({4, 6}, at::kDouble), old = own.view({24});
       own.copy_(b.view({6, 4}).t() * w);
       return old * own.view({-1}) + own.view({2, 12}).sum();
     }},
    {"a_view_after_a_number_was_written",
     [](const Tensor& b, const Tensor& w) {
       const Tensor own = at::zeros({4, 6}, at::kDouble);
       own.copy_(w);
       own.view({2, 2, 6}).select(0, 1).mul_(b.sum());
       return own.view({-1});
     }},
    {"channels_last_kept_by_a_write",
     [](const Tensor& b, const Tensor& w) {
       const Tensor own = b.unsqueeze(0).contiguous(at::MemoryFormat::ChannelsLast);
       own.mul_(b * w);
       return own.permute({0, 2, 3, 1}).view({-1});
     }},
    {"one_dimension_seen_twice_in_einsum_style",
     [](const Tensor& b, const Tensor& w) {
       const Tensor square = b.select(0, 0).slice(1, 0, 3), diagonal = at::diagonal(square);
       square.mul_(w);
       diagonal.add_(w);
       return square.mm(square) + diagonal;
     }},
    {"index_put_through_a_view",
     [](const Tensor& b, const Tensor& w) {
       const Tensor rows = b.view({6, 4}), at = at::tensor({4, 0, 4}, at::kLong);
       rows.index_put_({at}, rows.slice(0, 0, 3) * w, /*accumulate=*/true);
       rows.index_fill_(1, at::tensor({2}, at::kLong), 0.5);
       rows.masked_fill_(rows.detach() > 0.9, 0.25);
       return b;
     },
     false},
    {"movedim_and_ravel",
     [](const Tensor& b, const Tensor& w) {
       b.movedim(0, -1).select(1, 2).mul_(w);
       b.ravel().slice(0, 2, 9).add_(w);
       return b.flatten(1);
     }},
};

class Aliases : public testing::TestWithParam<Aliasing> {};

TEST_P(Aliases, MeanWhatTheyMeanPlainlyUnderEveryTransformAndPairs) {
  const Function f = [](const Tensors& in) {
    const Tensor base = in[0] * 1;
    const Tensor seen = base.select(1, 2), result = GetParam().act(base, in[1]);
    return Tensors{base * base, seen * 1, result * 1};
  };
  EXPECT_EQ(disagreement(f, {waves({3, 2, 3, 4}, 0.2), waves({3}, 0.7)}, {.libtorch = GetParam().libtorch}), "");
}

INSTANTIATE_TEST_SUITE_P(Each, Aliases, testing::ValuesIn(kAliasing),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- costs ---------------------------------------------------------------------------------------------------------

size_t calls_of(const std::string& op, const td::Function& f, const Tensor& x) {
  size_t count = 0;
  tower::Explainer explainer;
  f({x});
  for (const auto& call : explainer.calls())
    if (call.op == op && call.level == "vmap (level 1)") count += static_cast<size_t>(call.count);
  return count;
}

TEST(ViewsAreReadAgain, OnceAfterAWriteHoweverOftenTheyAreReadAfterIt) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor base = x * 1, view = base.select(0, 1);
    base.mul_(2);
    return view + view * view + view.sin();
  });
  EXPECT_EQ(calls_of("aten::select.int", td::vmap(f, {0}, {0}), numbers({2, 3})), 2U);
  const auto unread = of_one([](const Tensor& x) {
    const Tensor base = x * 1, view = base.select(0, 1);
    for (int i = 0; i < 5; ++i) base.mul_(2);
    return base;
  });
  EXPECT_EQ(calls_of("aten::select.int", td::vmap(unread, {0}, {0}), numbers({2, 3})), 1U);
}

TEST(ViewsAreReadAgain, NeverWhereTheyAreWrittenThemselves) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor base = x * 1, view = base.select(0, 1);
    for (int i = 0; i < 5; ++i) view.mul_(2);
    return view * 1;
  });
  EXPECT_EQ(calls_of("aten::select.int", td::vmap(f, {0}, {0}), numbers({2, 3})), 1U);
}

TEST(ChannelsLast, IsKeptByAWrite) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor own = x.contiguous(at::MemoryFormat::ChannelsLast);
    own.mul_(x.sum()).add_(x.contiguous());
    own.select(0, 0).copy_(x.select(0, 0));
    EXPECT_TRUE(own.is_contiguous(at::MemoryFormat::ChannelsLast));
    return own.sum();
  });
  td::grad(f, {0})({numbers({2, 3, 4, 5})});
  td::jvp(f, {numbers({2, 3, 4, 5})}, {numbers({2, 3, 4, 5})});
}

// ---- history -------------------------------------------------------------------------------------------------------

TEST(ViewsReadUnderNoGrad, KeepTheHistoryThatTheyHave) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor base = x * 1, view = base.select(0, 1);
    base.mul_(x);
    {
      c10::NoGradGuard no_grad;
      view.sum();  // read again here
    }
    return view * 3;
  });
  EXPECT_TRUE(same(td::grad(f, {0})({vec({1, 2, 3})})[0], vec({0, 12, 0})));
}

// ---- refusals ------------------------------------------------------------------------------------------------------

TEST(WritesToRepeatedElements, AreRefusedAsLibTorchRefusesThem) {
  const auto expanded = of_one([](const Tensor& x) {
    const Tensor base = x * 1;
    base.unsqueeze(0).expand({4, 3}).mul_(2);
    return base;
  });
  EXPECT_THROW(expanded({numbers({3})}), std::exception);
  EXPECT_TRUE(
      says(refusal<MutationError>([&] {
             td::vmap(expanded, {0}, {0})({numbers({2, 3})});
           }),
           {"vmap (level 1): aten::mul_", "aten::expand", "more than one element is the same memory", "clone()"}));
  const auto windows = of_one([](const Tensor& x) {
    const Tensor base = x * 1;
    base.unfold(0, 2, 1).mul_(2);
    return base.sum();
  });
  EXPECT_TRUE(says(refusal<MutationError>([&] { td::grad(windows, {0})({numbers({3})}); }),
                   {"grad (level 1): aten::mul_", "aten::unfold", "more than one element is the same memory"}));
  const auto strided = of_one([](const Tensor& x) {
    const Tensor base = x * 1;
    base.as_strided({2, 2}, {1, 1}).mul_(2);
    return base.sum();
  });
  EXPECT_TRUE(says(refusal<MutationError>([&] { td::jvp(strided, {numbers({3})}, {numbers({3})}); }),
                   {"jvp (level 1): aten::mul_", "aten::as_strided", "more than once"}));
}

TEST(WritesToRepeatedElements, ChangeNothingWhenTheyAreRefused) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor base = x * 1, view = base.select(0, 1);
    EXPECT_THROW(base.unsqueeze(0).expand({4, 3}).mul_(2), MutationError);
    return base + view;
  });
  const Tensor x = numbers({2, 3});
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({x})[0], x + x.slice(1, 1, 2)));
}

TEST(ShapesChangedInPlace, OfArgumentsAreRefusedBecauseTheCallersTensorCannotFollow) {
  const auto f = of_one([](const Tensor& x) { return x.unsqueeze_(0).sum(); });
  Tensor x = numbers({2, 3});
  EXPECT_TRUE(says(refusal<MutationError>([&] { td::vmap(f, {0}, {0})({x}); }),
                   {"vmap (level 1)", "argument 0, Double [2, 3]", "aten::unsqueeze", "Use the functional operator"}));
  EXPECT_TRUE(says(refusal<MutationError>([&] { td::grad(f, {0})({x}); }), {"grad (level 1)", "argument 0"}));
  EXPECT_TRUE(says(refusal<MutationError>([&] { td::jvp(f, {x}, {x}); }), {"jvp (level 1)", "argument 0"}));
  EXPECT_EQ(x.sizes(), (at::IntArrayRef{2, 3}));
}

}  // namespace
