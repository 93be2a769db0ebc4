// Compiled functions that write to captured tensors, to views of these, and to views of arguments. Oracle: the function
// itself on copies, which LibTorch runs; what memory holds afterwards counts as much as results.
// TOWER_PROGRAMS=4000 runs so many random programs.
#include <c10/core/GradMode.h>
#include <tower/compile.h>
#include <tower/loops.h>
#include <tower/transforms.h>

#include <random>

#include "support/prelude.h"
#include "support/seeds.h"

namespace {

// Two captured tensors of one storage, one of its own, and one of complex numbers.
struct Memory {
  Tensor shared = waves({24}), left = shared.slice(0, 0, 16).view({4, 4}), right = shared.slice(0, 8, 24).view({4, 4}),
         own = waves({4, 4}, 0.5), z = at::complex(waves({4, 4}, 0.2), waves({4, 4}, 0.9));

  Tensors all() const { return {shared, left, right, own, z}; }
};

struct Named {
  std::string name;
  std::function<Tensor(const Tensor&)> of;
};

// Of [4, 4], to views of any shape.
const std::vector<Named>& views() {
  static const std::vector<Named> all{
      {"itself", [](const Tensor& c) { return c; }},
      {"select", [](const Tensor& c) { return c.select(-1, 1); }},
      {"slice", [](const Tensor& c) { return c.slice(0, 1, 3); }},
      {"steps", [](const Tensor& c) { return c.slice(-1, 0, c.size(-1), 2); }},
      {"t", [](const Tensor& c) { return c.transpose(0, -1); }},
      {"flat", [](const Tensor& c) { return c.is_contiguous() ? c.view({-1}) : c.unsqueeze(0); }},
      {"diagonal", [](const Tensor& c) { return c.dim() > 1 ? c.diagonal() : c.slice(0, 0, 1); }},
      {"split", [](const Tensor& c) { return c.split(2, 0).back(); }},
      {"unbind", [](const Tensor& c) { return c.unbind(0)[0]; }},
      {"unfold", [](const Tensor& c) { return c.unfold(0, 1, 1).select(0, 0); }},
      {"expand", [](const Tensor& c) { return c.unsqueeze(0).expand_as(c.unsqueeze(0)); }},
      {"detach", [](const Tensor& c) { return c.detach(); }},
      {"alias", [](const Tensor& c) { return c.alias(); }},
      {"strided",
       [](const Tensor& c) {
         return c.as_strided({2, 2}, {1, 2}, c.storage_offset());
       }},
      {"squeezed", [](const Tensor& c) { return c.slice(0, 0, 1).squeeze(0); }},
      {"in place",
       [](const Tensor& c) {
         Tensor v = c.alias();
         return v.dim() == 2 ? v.t_() : v.unsqueeze_(0);
       }},
      {"conj", [](const Tensor& c) { return c.conj(); }},
      {"imag", [](const Tensor& c) { return c.is_complex() ? at::imag(c.conj()) : c; }},
  };
  return all;
}

struct Write {
  std::string name;
  std::function<void(Tensor v, const Tensor& x)> to;  // x: one number
};

const std::vector<Write>& writes() {
  static const std::vector<Write> all{
      {"add_", [](Tensor v, const Tensor& x) { v.add_(x); }},
      {"mul_", [](Tensor v, const Tensor&) { v.mul_(0.5); }},
      {"fill_", [](Tensor v, const Tensor&) { v.fill_(7); }},
      {"zero_", [](Tensor v, const Tensor&) { v.zero_(); }},
      {"copy_", [](Tensor v, const Tensor& x) { v.copy_(x.expand(v.sizes())); }},
      {"copy_ of a constant", [](Tensor v, const Tensor&) { v.copy_(at::full(v.sizes(), 0.25, v.options())); }},
      {"copy_ of itself", [](Tensor v, const Tensor& x) { v.copy_(v * x + v); }},
      {"masked_fill_", [](Tensor v, const Tensor& x) { v.masked_fill_(at::abs(v) > at::abs(x), 0.1); }},
      {"index_put_",
       [](Tensor v, const Tensor& x) { v.index_put_({at::tensor({0}, at::kLong)}, (x * 2).to(v.scalar_type())); }},
      {"index_fill_", [](Tensor v, const Tensor&) { v.index_fill_(0, at::tensor({0}, at::kLong), 0.3); }},
      {"out=",
       [](Tensor v, const Tensor& x) {
         const Tensor sum = v + x;
         at::add_out(v, sum, sum);
       }},
      {"out= of itself", [](Tensor v, const Tensor&) { at::mul_out(v, v, v); }},
      {"addcmul_", [](Tensor v, const Tensor& x) { v.addcmul_(v, x.expand(v.sizes()).to(v.scalar_type())); }},
      {"foreach",
       [](Tensor v, const Tensor&) {
         if (v.dim() > 0) at::_foreach_mul_({v, v.slice(0, 0, 1)}, 0.5);
       }},
  };
  return all;
}

// A random program of `length` steps: views of captured tensors (and of the argument and of earlier views), writes to
// them, and readings between, some before what they read is written and some after.
Function program(uint64_t seed, const Memory& memory, bool writes_argument, std::string& text) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  struct Line {
    size_t kind, from, what;
  };
  std::vector<Line> lines;
  size_t tensors = writes_argument ? 6 : 5;
  const size_t length = 3 + below(8);
  for (size_t n = 0; n < length; ++n) {
    const size_t kind = below(3), from = below(tensors);
    const size_t what = kind == 0 ? below(views().size()) : kind == 1 ? below(writes().size()) : 0;
    lines.push_back({kind, from, what});
    text += kind == 0 ? "%" + std::to_string(tensors) + " = " + views()[what].name + "(%" + std::to_string(from) + ")\n"
            : kind == 1 ? writes()[what].name + "(%" + std::to_string(from) + ")\n"
                        : "read(%" + std::to_string(from) + ")\n";
    tensors += kind == 0;
  }
  return [lines, writes_argument, captured = memory.all()](const Tensors& args) {
    Tensors there = captured;
    if (writes_argument) there.push_back(args[1]);
    const Tensor x = args[0];
    Tensors results;
    for (const Line& line : lines) {
      const Tensor& t = there[line.from];
      if (line.kind == 0) there.push_back(views()[line.what].of(t));
      else if (line.kind == 1) writes()[line.what].to(t, x);
      else results.push_back(at::abs(t * x).sum() + at::abs(t + 1).sum());
    }
    for (const Tensor& t : there) results.push_back(at::abs(t).sum() * x);
    return results;
  };
}

std::string values_differ(const Tensors& a, const Tensors& b) {
  for (size_t k = 0; k < a.size(); ++k)
    if (!at::allclose(a[k].resolve_conj(), b[k].resolve_conj(), 1e-9, 1e-9, /*equal_nan=*/true))
      return "tensor " + std::to_string(k);
  return a.size() == b.size() ? "" : "their number";
}

// Empty if the compiled program gives and leaves what the plain one does, in each of four calls, between which the
// captured tensors are written to outside. A plain error has to be one of the compiled program's.
std::string disagreement_of(uint64_t seed, bool writes_argument, bool graded, size_t& compared) {
  std::string text;
  const Memory one, two;
  const auto wrapped = [&](const Function& f) -> Function {
    if (!graded) return f;
    return [f](const Tensors& args) {
      const Function of_first = [&](const Tensors& x) {
        Tensors in = args;
        in[0] = x[0];
        return Tensors{f(in).back().sum()};
      };
      return td::jacrev(of_first, {0})({args[0]});
    };
  };
  const Function compiled = td::compile(wrapped(program(seed, one, writes_argument, text)));
  text.clear();
  const Function plain = wrapped(program(seed, two, writes_argument, text));
  for (int call = 0; call < 4; ++call) {
    const Tensor x = waves({1}, 0.3 * call) + 1.5;
    const Tensor a = waves({4, 4}, call), b = waves({4, 4}, call);
    Tensors expected, actual;
    try {
      expected = plain({x, b});
    } catch (const std::exception&) {
      return "";  // a view that does not fit, a write to what LibTorch refuses
    }
    try {
      actual = compiled({x, a});
    } catch (const tower::MutationError&) {
      return "";  // what cannot be carried is said
    } catch (const std::exception& error) {
      return text + "call " + std::to_string(call) + ": " + error.what();
    }
    ++compared;
    std::string differs = values_differ(actual, expected);
    if (!differs.empty()) return text + "call " + std::to_string(call) + ": of the results, " + differs;
    differs = values_differ(one.all(), two.all());
    if (!differs.empty()) return text + "call " + std::to_string(call) + ": of captured memory, " + differs;
    if (!at::allclose(a, b, 1e-9, 1e-9, true)) return text + "call " + std::to_string(call) + ": the argument";
    for (const Memory* memory : {&one, &two}) {
      memory->shared.mul_(-0.5);
      memory->own.add_(0.25);
      memory->z.mul_(c10::complex<double>(0, 1));
    }
  }
  return "";
}

void run_programs(bool writes_argument, bool graded) {
  size_t compared = 0;
  const support::Seeds seeds = support::seeds("TOWER_PROGRAMS", 200);
  for (const uint64_t seed : seeds) {
    const std::string text = disagreement_of(seed, writes_argument, graded, compared);
    ASSERT_EQ(text, "") << "program " << seed;
  }
  EXPECT_GT(compared, seeds.count);
}

TEST(CompileCapturedViews, RandomProgramsLeaveInMemoryWhatThePlainOnesLeave) { run_programs(false, false); }
TEST(CompileCapturedViews, RandomProgramsThatWriteToViewsOfArgumentsToo) { run_programs(true, false); }
TEST(CompileCapturedViews, RandomProgramsUnderGrad) { run_programs(false, true); }

TEST(CompileCapturedViews, AreWrittenOnceByAMappedFunction) {
  const Tensor calls = at::zeros({2, 3}, at::kDouble), plain_calls = calls.clone();
  const auto counting = [](const Tensor& c) {
    return [c](const Tensor& x) {
      c.select(0, 1).add_(1);
      return x * c[1];
    };
  };
  const Tensor xs = waves({4, 3});
  const auto compiled = tower::compile(tower::vmap(counting(calls)));
  const auto inside = tower::compile(counting(calls));
  for (int call = 0; call < 3; ++call) {
    EXPECT_TRUE(same(compiled(xs), tower::vmap(counting(plain_calls))(xs)));
    EXPECT_TRUE(same(tower::vmap(inside)(xs), tower::vmap(counting(plain_calls))(xs)));
    EXPECT_TRUE(same(calls, plain_calls)) << call;
  }
}

TEST(CompileCapturedViews, TakeNoValueThatATransformInsideTracks) {
  const Tensor c = at::zeros({2, 3}, at::kDouble);
  const auto mapped = tower::compile(tower::vmap([&](const Tensor& x) {
    c[0].copy_(x);
    return x;
  }));
  EXPECT_TRUE(says(refusal<tower::MutationError>([&] { mapped(waves({2, 3})); }), {"vmap", "copy_", "made outside"}));
  const auto graded = tower::compile(tower::grad([&](const Tensor& x) {
    c[0].add_(x);
    return x.sum();
  }));
  EXPECT_TRUE(says(refusal<tower::MutationError>([&] { graded(waves({3})); }), {"grad", "add_", "made outside"}));
  EXPECT_TRUE(same(c, at::zeros({2, 3}, at::kDouble)));
}

TEST(CompileCapturedViews, OfLeavesThatRequireGradAreWrittenWithoutRecording) {
  const Tensor w = waves({3, 2}).requires_grad_();
  const auto f = tower::compile([&](const Tensor& x) {
    {
      const at::NoGradGuard guard;
      w[1].add_(x);
    }
    return (w * x).sum();
  });
  Tensor expected = w.detach().clone();
  for (int call = 0; call < 3; ++call) {
    const Tensor x = waves({2}, call);
    const Tensor y = f(x);
    expected[1].add_(x);
    EXPECT_TRUE(same(w.detach(), expected));
    EXPECT_TRUE(same(y.detach(), (expected * x).sum()));
    w.mutable_grad() = Tensor();
    y.backward();
    EXPECT_TRUE(same(w.grad(), x.expand({3, 2})));
  }
  const auto recorded = tower::compile([&](const Tensor& x) {
    w[1].add_(x);
    return x.sum();
  });
  EXPECT_THROW(recorded(waves({2})), c10::Error);  // as in plain
}

TEST(CompileCapturedViews, InAStepOfALoopAreRefused) {
  const Tensor c = at::zeros({3}, at::kDouble);
  const auto f = tower::compile([&](const Tensor& x) {
    return tower::while_loop([](const Tensor& y) { return y.sum() < 3; },
                             [&](const Tensor& y) {
                               c[0].add_(1);
                               return y + 1;
                             },
                             x);
  });
  EXPECT_TRUE(
      says(refusal<tower::UnsupportedError>([&] { f(at::zeros({}, at::kDouble)); }), {"while_loop", "captured"}));
}

TEST(CompileCapturedViews, ComeBackAsViews) {
  const Tensor c = waves({3, 2});
  const auto f = tower::compile([&](const Tensor& x) {
    c[0].mul_(x);
    return std::pair(c[0], c.t());
  });
  for (int call = 0; call < 3; ++call) {
    const auto [row, turned] = f(waves({2}) + 2);
    EXPECT_EQ(row.data_ptr(), c.data_ptr());
    EXPECT_TRUE(turned.is_alias_of(c));
  }
}

// The form of a captured tensor changes with each call.
TEST(CompileCapturedViews, OfWhatIsTransposedInPlace) {
  Tensor c = waves({3, 3}), plain = c.clone();
  const auto step = [](Tensor t, const Tensor& x) {
    t.t_();
    t[0].add_(x);
    const Tensor y = t * 2;
    t.t_();
    return y + t;
  };
  const auto f = tower::compile([&](const Tensor& x) { return step(c, x); });
  for (int call = 0; call < 3; ++call) {
    EXPECT_TRUE(same(f(waves({3}, call)), step(plain, waves({3}, call))));
    EXPECT_TRUE(same(c, plain));
  }
}

}  // namespace
