// Which tensors a write inside a transform may reach: those made inside of the function, its arguments, buffers of
// modules, and captured tensors only with values that nothing tracks.
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "support/prelude.h"
#include "tower/nn.h"
#include "tower/transforms.h"

namespace {

using tower::MutationError;

// ---- batched into unbatched ----------------------------------------------------------------------------------------

TEST(FreshTensors, TakeBatchedDualAndTapedValuesByEveryKindOfWrite) {
  const Function f = of_one([](const Tensor& x) {
    const Tensor added = at::zeros({3}, at::kDouble), copied = at::empty({3}, at::kDouble);
    const Tensor put = at::ones({4}, at::kDouble), row = at::zeros({2, 3}, at::kDouble);
    added.add_(x).add_(1, 2);
    copied.copy_(x);
    put.index_put_({at::tensor({1, 3}, at::kLong)}, x.slice(0, 0, 2));
    row[0] = x;
    row[1].copy_(x[2]);
    const Tensor filled = at::full({3}, 7.0, at::kDouble);
    filled[1].fill_(x[0]);
    filled.masked_fill_(at::arange(3).eq(2), x[1]);
    const Tensor scattered = at::zeros({3}, at::kDouble);
    scattered.scatter_(0, at::tensor({2, 0}, at::kLong), x.slice(0, 1));
    scattered.scatter_add_(0, at::tensor({1, 1}, at::kLong), x.slice(0, 1));
    return (added * copied + filled + scattered).sum() * put + row.sum();
  });
  EXPECT_EQ(disagreement(f, {waves({3, 3}, 0.4)}), "");
}

TEST(FreshTensors, TakeThemWhateverFactoryMadeThem) {
  const Function f = of_one([](const Tensor& x) {
    const Tensor like[] = {at::zeros({3}, at::kDouble),
                           at::arange(3, at::kDouble),
                           at::tensor({1.0, 2.0, 3.0}, at::kDouble),
                           at::full({3}, 2.0, at::kDouble),
                           at::eye(3, at::kDouble)[1],
                           at::linspace(0, 1, 3, at::kDouble),
                           at::zeros_like(x),
                           at::ones_like(x),
                           at::full_like(x, 3),
                           at::empty_like(x).zero_(),
                           x.new_zeros({3}),
                           x.new_ones({3}),
                           x.new_full({3}, 4),
                           x.new_empty({3}).fill_(1),
                           at::empty_strided({3}, {1}, at::kDouble).zero_(),
                           at::scalar_tensor(5, at::kDouble).expand({3}).clone()};
    Tensor sum = at::zeros({3}, at::kDouble);
    for (const Tensor& t : like) {
      t.mul_(x);
      t.narrow(0, 1, 1).add_(x[2]);
      sum += t;
    }
    return sum;
  });
  EXPECT_EQ(disagreement(f, {waves({3, 3}, 0.4)}), "");
}

TEST(FreshTensors, OfAnInnerFunctionTakeItsValuesAlsoWhereTheyComeFromAnOuterOne) {
  // `here` is made of what the outer level tracks, inside of the inner function: that is where it may be written to.
  const Function f = of_one([](const Tensor& x) {
    return td::vmap(of_one([&](const Tensor& e) {
                      const Tensor here = x * 2, part = here.slice(0, 1);
                      part.add_(e);
                      here.mul_(e);
                      return here + part.sum();
                    }),
                    {0}, {0})({x.sin()})[0];
  });
  EXPECT_EQ(disagreement(f, {waves({2, 3}, 0.4)}), "");
  const Function g = of_one([](const Tensor& x) {
    return td::grad(of_one([&](const Tensor& e) {
                      const Tensor here = x * 2;
                      here[1].mul_(e[0]);
                      here.add_(e * e);
                      return here.prod();
                    }),
                    {0})({x.cos()})[0];
  });
  EXPECT_EQ(disagreement(g, {waves({2, 3}, 0.4)}), "");
}

TEST(FreshTensors, OfAnInnerFunctionAreMadeByRandomAndCompositeOperatorsToo) {
  const Function f = of_one([](const Tensor& x) {
    return td::vmap(of_one([&](const Tensor& e) {
                      const Tensor here = at::stack({x, x}).reshape({-1}), other = x.clone().contiguous();
                      here.slice(0, 0, 3).add_(e);
                      other.copy_(e * x);
                      return here.slice(0, 1, 4) * other;
                    }),
                    {0}, {0})({x})[0];
  });
  EXPECT_EQ(disagreement(f, {waves({2, 3}, 0.4)}), "");
}

// ---- captured tensors ----------------------------------------------------------------------------------------------

TEST(CapturedTensors, AreRefusedBeforeAnythingIsChanged) {
  struct Attempt {
    const char* op;
    void (*write)(const Tensor& captured, const Tensor& x);
  };
  const Attempt attempts[] = {
      {"aten::add_.Tensor", [](const Tensor& c, const Tensor& x) { c.add_(x); }},
      {"aten::copy_", [](const Tensor& c, const Tensor& x) { c[0] = x[1]; }},
      {"aten::index_put_", [](const Tensor& c, const Tensor& x) { c.index_put_({at::tensor({1}, at::kLong)}, x[0]); }},
      {"aten::copy_", [](const Tensor& c, const Tensor& x) { c.narrow(0, 0, 2).copy_(x.narrow(0, 0, 2)); }},
      {"aten::fill_.Tensor", [](const Tensor& c, const Tensor& x) { c.fill_(x.sum()); }},
      {"aten::addmv_",
       [](const Tensor& c, const Tensor& x) {
         c.addmv_(at::ones({3, 3}, at::kDouble), x);
       }},
      {"aten::sin.out",
       [](const Tensor& c, const Tensor& x) {
         Tensor out = c;
         at::sin_out(out, x);
       }},
      {"aten::aminmax.out",
       [](const Tensor& c, const Tensor& x) {
         Tensor fresh = at::zeros({}, at::kDouble), out = c[0];
         at::aminmax_out(fresh, out, x);
       }},
  };
  for (const auto& attempt : attempts) {
    const Tensor captured = vec({7, 8, 9});
    const auto f = of_one([&](const Tensor& x) {
      attempt.write(captured, x);
      return x.sum();
    });
    const auto in_vmap = [&] { td::vmap(f, {0}, {0})({numbers({2, 3})}); };
    const auto in_grad = [&] { td::grad(f, {0})({vec({1, 2, 3})}); };
    const auto in_both = [&] { td::vmap(td::grad(f, {0}), {0}, {0})({numbers({2, 3})}); };
    EXPECT_TRUE(says(refusal<MutationError>(in_vmap), {"vmap (level 1): ", attempt.op, "Double [", "made outside",
                                                       "Make the tensor inside", "mapped argument"}));
    EXPECT_TRUE(says(refusal<MutationError>(in_grad), {"grad (level 1): ", attempt.op, "made outside"}));
    EXPECT_TRUE(says(refusal<MutationError>(in_both), {"(level ", attempt.op, "made outside"}));
    EXPECT_TRUE(same(captured, vec({7, 8, 9}))) << attempt.op;
  }
}

TEST(CapturedTensors, OfAnOuterLevelAreRefusedWhereTheyCannotHoldTheValueAlsoThroughViewsMadeInside) {
  const auto outer = of_one([](const Tensor& x) {
    const Tensor here = x * 1;
    const auto inner = of_one([&](const Tensor& e) {
      const Tensor view = here.narrow(0, 0, 1);
      view.add_(e);
      return e;
    });
    EXPECT_TRUE(says(support::message_of<MutationError>([&] {
                       td::vmap(inner, {0}, {0})({vec({1, 2})});
                     }),
                     {"vmap (level 2): aten::add_", "made outside"}));
    return here;
  });
  EXPECT_TRUE(
      same(td::grad(of_one([&](const Tensor& x) { return outer({x})[0].sum(); }), {0})({vec({1, 2})})[0], vec({1, 1})));
}

TEST(CapturedTensors, TakeWhatNothingTracksAndGiveItBack) {
  const Tensor captured = vec({7, 8, 9}), counter = number(0);
  const auto f = of_one([&](const Tensor& x) {
    counter.add_(1);
    captured[1] = counter * 2;
    Tensor out = captured.narrow(0, 2, 1);
    at::add_out(out, at::ones({1}, at::kDouble), at::ones({1}, at::kDouble));
    return (x * captured).sum();
  });
  EXPECT_TRUE(same(td::vmap(td::grad(f, {0}), {0}, {0})({numbers({2, 3})})[0], vec({7, 2, 2}).expand({2, 3})));
  EXPECT_TRUE(same(captured, vec({7, 2, 2})));
}

// ---- arguments -----------------------------------------------------------------------------------------------------

TEST(Arguments, MutatedInsideAreChangedForTheCallerAtTheCallersLevel) {
  const auto doubles = of_one([](const Tensor& x) {
    const Tensor before = x * x;
    x.narrow(0, 0, 2).mul_(2);
    return (before + x).sum();
  });
  // An outer function whose tensor is the argument of an inner transform.
  const Function f = of_one([&](const Tensor& x) {
    const Tensor mine = x * 3;
    const Tensor g = td::grad(doubles, {0})({mine})[0];
    return g * mine;
  });
  EXPECT_EQ(disagreement(f, {waves({3, 3}, 0.4)}, {.libtorch = false}), "");
  EXPECT_TRUE(same(f({vec({1, 2, 3})})[0], vec({6 + 2, 12 + 2, 18 + 1}) * vec({6, 12, 9})));
}

TEST(Arguments, MutatedInsideLeaveTheGradientWithRespectToTheOriginalAndItsValue) {
  const Function f = [](const Tensors& in) {
    const Tensor kept = in[0] * in[0];
    in[0].mul_(in[1]).add_(1);
    in[1].copy_(in[0].sin());
    return Tensors{kept * in[0], in[1] * in[0]};
  };
  // LibTorch's autograd refuses it: what it kept was written to.
  EXPECT_EQ(disagreement(f, {waves({3, 3}, 0.4), waves({3, 3}, 0.9)}, {.libtorch = false}), "");
}

TEST(Arguments, ThatAreNotMappedTakeUnbatchedValuesAndRefuseBatchedOnes) {
  const Tensor shared = vec({1, 2, 3});
  const auto constant = [](const Tensors& in) {
    in[1].add_(1);
    return Tensors{in[0] * in[1]};
  };
  const Tensor rows = numbers({2, 3});
  EXPECT_TRUE(same(td::vmap(constant, {0, std::nullopt}, {0})({rows, shared})[0], rows * vec({2, 3, 4})));
  EXPECT_TRUE(same(shared, vec({2, 3, 4})));
  const auto batched = [](const Tensors& in) {
    in[1].add_(in[0]);
    return Tensors{in[1]};
  };
  EXPECT_TRUE(says(refusal<MutationError>([&] {
                     td::vmap(batched, {0, std::nullopt}, {0})({rows, shared});
                   }),
                   {"vmap (level 1): aten::add_", "Double [3]", "mapped argument"}));
  EXPECT_TRUE(same(shared, vec({2, 3, 4})));
}

TEST(Arguments, ThatWereWrittenToAreNotReadThroughCapturedTensorsThatDoNotKnowItYet) {
  const Tensor rows = numbers({2, 3}), first = rows[0], other = numbers({2, 3});
  const std::function<Tensor(const Tensor&)> reads[] = {
      [&](const Tensor& x) { return x * first; }, [&](const Tensor&) { return rows.sum(); },
      [&](const Tensor& x) { return rows.view({6}).narrow(0, 0, 3) + x; },
      [&](const Tensor& x) {
        rows.add_(1);  // the write of the argument would undo it
        return x;
      },
      [&](const Tensor& x) {
        return td::vmap(of_one([](const Tensor& e) { return e * 2; }), {0}, {0})({rows})[0].sum() + x;
      }};
  for (const auto& read : reads) {
    const auto f = of_one([&](const Tensor& x) {
      read(x);  // nothing was written yet
      x.mul_(1);
      return read(x).sum() + other.sum();
    });
    const Tensor before = rows.clone();
    const auto mapped = [&] { td::vmap(f, {0}, {0})({rows}); };
    const auto differentiated = [&] { td::grad(f, {0})({rows}); };
    const auto pushed = [&] { td::jvp(f, {rows}, {rows}); };
    const auto nested = [&] {
      td::grad(of_one([&](const Tensor& x) { return td::vmap(f, {0}, {0})({x})[0].sum(); }), {0})({rows});
    };
    for (const std::function<void()>& run : {std::function<void()>(mapped), std::function<void()>(differentiated),
                                             std::function<void()>(pushed), std::function<void()>(nested)})
      EXPECT_TRUE(
          says(refusal<MutationError>(run), {"captured tensor", "shares memory with argument 0", "Use the argument"}));
  }
  // Afterwards they know.
  const Tensor x = numbers({2, 3});
  td::vmap(of_one([](const Tensor& e) { return e.mul_(2); }), {0}, {0})({x});
  EXPECT_TRUE(same(x * 1, numbers({2, 3}) * 2));
}

TEST(Arguments, MappedInTheMiddleAreWrittenBackThere) {
  const Tensor x = numbers({2, 3, 4}), expected = x.clone();
  expected.select(2, 1).mul_(2);
  td::vmap(of_one([](const Tensor& e) {
             e.select(1, 1).mul_(2);
             return e.sum();
           }),
           {1}, {0})({x});
  EXPECT_TRUE(same(x, expected));
}

TEST(Arguments, OfChunksAreWrittenBackChunkByChunk) {
  const Tensor x = numbers({5, 3}), expected = x * 2;
  td::vmap(of_one([](const Tensor& e) { return e.mul_(2); }), {0}, {0}, {.chunk_size = 2})({x});
  EXPECT_TRUE(same(x, expected));
}

// ---- buffers of modules --------------------------------------------------------------------------------------------

struct Net : torch::nn::Module {
  Net() {
    linear = register_module("linear", torch::nn::Linear(3, 2));
    norm = register_module("norm", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(2)));
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x) { return norm(linear(x)).sin().sum(); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(BatchNorm, InTrainingUpdatesItsRunningStatisticsInsideOfGrad) {
  Net net, reference;
  for (auto& p : net.named_parameters()) {
    c10::NoGradGuard no_grad;
    reference.named_parameters()[p.key()].copy_(p.value());
  }
  const Tensor x = waves({4, 3}, 0.3);
  const auto loss = [&](const tower::NamedTensors& params) { return tower::functional_call(net, params, {}, x); };
  const auto gradients = tower::grad(loss)(tower::parameters_of(net));
  reference.forward(x).backward();
  for (const auto& p : reference.named_parameters()) EXPECT_TRUE(same(gradients.at(p.key()), p.value().grad()));
  for (const auto& b : reference.named_buffers()) EXPECT_TRUE(same(net.named_buffers()[b.key()], b.value())) << b.key();
}

TEST(BatchNorm, InTrainingWithOneSetOfBuffersIsRefusedUnderVmapWithWhatToDo) {
  Net net;
  const Tensor before = net.norm->running_mean.clone(), var = net.norm->running_var.clone();
  const auto f = [&](const Tensor& x) { return net.forward(x); };
  const std::string text = refusal<MutationError>([&] { tower::vmap(f)(waves({2, 4, 3}, 0.3)); });
  EXPECT_TRUE(says(text, {"vmap (level 1): aten::native_batch_norm", "Double [2]", "running statistics", "Map them",
                          "batch statistics", "evaluation"}));
  EXPECT_TRUE(same(net.norm->running_mean, before));
  EXPECT_TRUE(same(net.norm->running_var, var));
}

TEST(BatchNorm, InTrainingWithMappedBuffersUpdatesThoseOfEachExample) {
  Net net;
  const auto params = tower::parameters_of(net);
  const Tensor x = waves({2, 4, 3}, 0.3);
  tower::NamedTensors buffers;
  for (const auto& [name, value] : tower::buffers_of(net)) buffers[name] = at::stack({value, value + 1});
  const auto f = [&](const tower::NamedTensors& own, const Tensor& e) {
    return tower::functional_call(net, params, own, e);
  };
  const Tensor y = tower::vmap(f)(buffers, x);
  for (int64_t i = 0; i < 2; ++i) {
    Net one;
    c10::NoGradGuard no_grad;
    for (auto& p : one.named_parameters()) p.value().copy_(params.at(p.key()));
    for (auto& b : one.named_buffers()) b.value().copy_(tower::buffers_of(net).at(b.key()) + i);
    EXPECT_TRUE(same(y[i], one.forward(x[i])));
    for (auto& b : one.named_buffers()) EXPECT_TRUE(same(buffers.at(b.key())[i], b.value())) << b.key();
  }
}

TEST(BatchNorm, WithBatchStatisticsAloneIsMapped) {
  torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(3).track_running_stats(false));
  norm->to(at::kDouble);
  const Tensor x = waves({2, 4, 3}, 0.3);
  const Tensor y = tower::vmap([&](const Tensor& e) { return norm(e); })(x);
  for (int64_t i = 0; i < 2; ++i) EXPECT_TRUE(same(y[i].detach(), norm(x[i]).detach()));
}

}  // namespace
