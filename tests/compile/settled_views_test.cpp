// Views between kernels, which are not made: kernels read where they lie. Oracles: the operators, one by one, and for
// memory what LibTorch's allocator is asked for.
#include <tower/compile.h>
#include <tower/transforms.h>

#include "compile/kernels.h"
#include "graph/plan.h"
#include "graph/viewed.h"
#include "support/allocated.h"
#include "support/prelude.h"

namespace {

using tower::compiler::Graph;
using tower::compiler::Lies;
using tower::compiler::Plan;

constexpr double kClose = 1e-12;

struct View {
  const char* name;
  Tensor (*of)(const Tensor&);  // of 40 × 48 numbers
};
const View kViews[] = {
    {"rows", [](const Tensor& x) { return x.slice(0, 3, 37); }},
    {"every third column", [](const Tensor& x) { return x.slice(1, 1, 48, 3); }},
    {"a row", [](const Tensor& x) { return x.select(0, 7); }},
    {"a column", [](const Tensor& x) { return x.select(1, 47); }},
    {"a view of a view", [](const Tensor& x) { return x.slice(0, 2, 39).t().slice(0, 5, 45); }},
    {"the diagonal", [](const Tensor& x) { return x.diagonal(2); }},
    {"in another shape",
     [](const Tensor& x) {
       return x.view({20, 2, 48}).transpose(0, 1);
     }},
    {"windows", [](const Tensor& x) { return x.select(0, 4).unfold(0, 8, 2); }},
    {"expanded",
     [](const Tensor& x) {
       return x.slice(0, 5, 6).expand({9, 48});
     }},
    {"nothing", [](const Tensor& x) { return x.slice(0, 5, 5); }},
    {"by addresses",
     [](const Tensor& x) {
       return x.as_strided({5, 6}, {7, 2}, 11);
     }},
};

// One kernel or product makes what is viewed, and another one reads the view.
Function around(const View& view) {
  return [view](const Tensors& in) {
    const Tensor made = (in[0].mm(in[1]) * 0.5).tanh() + 0.1, seen = view.of(made);
    return Tensors{(seen.sin() + 1) * seen, (made * 2).exp().sum(0) + 1};
  };
}
Tensors operands(int64_t rows = 40) { return {waves({rows, 24}), waves({24, 48}, 1)}; }

TEST(SettledViews, OfWhatAKernelMadeAreReadWhereTheyLie) {
  TOWER_NEEDS_LLVM();
  for (const View& view : kViews) {
    SCOPED_TRACE(view.name);
    kernels::calls_left(around(view), operands(), kClose);
  }
}

TEST(SettledViews, OfAnArgumentAreRightHoweverItLies) {
  TOWER_NEEDS_LLVM();
  for (const View& view : kViews) {
    SCOPED_TRACE(view.name);
    const Function f = [view](const Tensors& in) {
      const Tensor seen = view.of(in[0]);
      return Tensors{(seen.sin() + 1) * seen, (in[0] * 2).exp() + 1};
    };
    const Tensor x = waves({40, 48}), wider = waves({50, 60}, 1);
    const Plan plan(kernels::fused(f, {x}).graph);
    const auto expect_right = [&](const Tensor& other) {
      const Tensors expected = f({other}), actual = plan.run({other});
      for (size_t k = 0; k < expected.size(); ++k) EXPECT_TRUE(actual[k].allclose(expected[k], kClose, kClose)) << k;
    };
    expect_right(x);
    expect_right(wider.view({-1}).slice(0, 7, 7 + 40 * 48).view({40, 48}));
    if (view.name == std::string("by addresses")) continue;  // it is of what lies as it did
    if (view.name == std::string("in another shape")) continue;
    expect_right(wider.slice(0, 4, 44).slice(1, 3, 51));
    expect_right(waves({48, 40}).t());
    expect_right(waves({48}).expand({40, 48}));
    expect_right(x);
  }
}

TEST(SettledViews, RefuseArgumentsOfOtherSizes) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor seen = in[0].slice(0, 3, 37);
    return Tensors{(seen.sin() + 1) * seen, (in[0] * 2).exp() + 1};
  };
  const Plan plan(kernels::fused(f, {waves({40, 48})}).graph);
  EXPECT_THROW(plan.run({waves({40, 47})}), tower::UnsupportedError);
  EXPECT_THROW(plan.run({waves({40, 48}).to(at::kFloat)}), tower::UnsupportedError);
}

TEST(SettledViews, LeaveWhatTheyViewInTheBlock) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    Tensor y = in[0];
    for (int step = 0; step < 3; ++step) y = (y * 2).sin() * at::cat({in[1], (y + in[0]).tanh().slice(0, 0, -1)});
    return Tensors{y};
  };
  const Tensors args{waves({200}).to(at::kFloat), waves({1}, 1).to(at::kFloat)};
  const Plan plan(kernels::fused(f, args).graph);
  ASSERT_GT(plan.graph().calls.size(), 3u);
  Tensors results;
  // Some values of 200 float32 numbers are little enough for the stack.
  EXPECT_EQ(support::allocated_by([&] { results = plan.run(args); }), 800) << "the result alone";
  EXPECT_TRUE(results[0].allclose(f(args)[0], 1e-5, 1e-5));
}

TEST(SettledViews, FollowTheNumberOfExamples) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensor& x) {
    Tensor y = x;
    for (int step = 0; step < 3; ++step) y = at::cat({y.slice(0, 1), y.slice(0, 0, 1)}) * y.cumsum(0).sin();
    return y.square().sum();
  };
  const auto mapped = tower::vmap(f);
  const auto compiled = tower::compile(mapped);
  for (const int64_t examples : {5, 64, 65, 1, 0, 7})
    for (int call = 0; call < 2; ++call) {
      const Tensor x = waves({examples, 200}, call);
      EXPECT_TRUE(compiled(x).allclose(mapped(x), kClose, kClose)) << examples;
    }
}

TEST(Lies, IsWhereLibTorchsViewIs) {
  for (const View& view : kViews) {
    const Function f = [view](const Tensors& in) { return Tensors{view.of(in[0])}; };
    const Tensor x = waves({40, 48});
    const Graph graph = kernels::graph_of(f, {x});
    std::optional<std::vector<Lies>> lies{{Lies{{40, 48}, {48, 1}, at::kDouble, 0}}};
    for (const auto& call : graph.calls) {
      lies = tower::compiler::lie_in_operand(graph, call, lies->at(0));
      ASSERT_TRUE(lies) << view.name;
    }
    const Tensor seen = view.of(x);
    EXPECT_EQ(at::IntArrayRef(lies->at(0).sizes), seen.sizes()) << view.name;
    EXPECT_EQ(at::IntArrayRef(lies->at(0).strides), seen.strides()) << view.name;
    EXPECT_EQ(lies->at(0).offset, seen.storage_offset()) << view.name;
  }
}

}  // namespace
