// Compiled functions that write to what they captured or were given, called where nobody may write: in branches, steps,
// checkpoints, functions of solvers. They are refused where the functions themselves are, and do what these do
// elsewhere.
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using tower::MutationError;
using One = std::function<Tensor(const Tensor&)>;

struct Writer {
  const char* name;
  One (*of)(const Tensor& captured);
};
const Writer kWriters[] = {
    {"captured",
     [](const Tensor& c) -> One {
       return [c](const Tensor& x) {
         c.add_(1);
         return x * 0.5;
       };
     }},
    {"view of captured",
     [](const Tensor& c) -> One {
       return [c](const Tensor& x) {
         c.select(0, 1).mul_(2);
         return x * 0.5 + 0 * c.select(0, 0);
       };
     }},
    {"captured, of the argument",
     [](const Tensor& c) -> One {
       return [c](const Tensor& x) {
         c.copy_(x.detach());
         return x * 0.5 + c;
       };
     }},
    {"argument",
     [](const Tensor&) -> One {
       return [](const Tensor& x) {
         x.mul_(0.5);
         return x * 0.5;
       };
     }},
    {"view of argument",
     [](const Tensor&) -> One {
       return [](const Tensor& x) {
         x.select(0, 0).zero_();
         return x * 0.5;
       };
     }},
};

// A place where `g` is called, of a vector.
struct Where {
  const char* name;
  std::function<Tensor(const One& g, const Tensor& x)> run;
};
const std::vector<Where>& places() {
  static const std::vector<Where> all{
      {"true branch",
       [](const One& g, const Tensor& x) {
         return tower::cond(
             x.sum() > 0, g, [](const Tensor& v) { return v * 2; }, x * 1);
       }},
      {"false branch",
       [](const One& g, const Tensor& x) {
         return tower::cond(
             x.sum() > 0, [](const Tensor& v) { return v * 2; }, g, x * 1);
       }},
      {"step of while_loop",
       [](const One& g, const Tensor& x) {
         return tower::while_loop([](const Tensor& v) { return v.abs().sum() > 1; },
                                  [g](const Tensor& v) { return g(v) * 0.5; }, x * 1);
       }},
      {"step of while_loop with checkpoints",
       [](const One& g, const Tensor& x) {
         return tower::while_loop([](const Tensor& v) { return v.abs().sum() > 1; },
                                  [g](const Tensor& v) { return g(v) * 0.5; }, x * 1,
                                  {.checkpoints = tower::Checkpoints::automatic()});
       }},
      {"step of fori_loop with checkpoints",
       [](const One& g, const Tensor& x) {
         return tower::fori_loop(0, 3, [g](int64_t, const Tensor& v) { return g(v) * 0.5; }, x * 1,
                                 {.checkpoints = tower::Checkpoints::automatic()});
       }},
      {"step of fori_loop",
       [](const One& g, const Tensor& x) {
         return tower::fori_loop(
             0, 3, [g](int64_t, const Tensor& v) { return g(v) * 0.5; }, x * 1);
       }},
      {"checkpoint", [](const One& g, const Tensor& x) { return tower::checkpoint(g)(x * 1); }},
      {"linear_solve",
       [](const One& g, const Tensor& x) {
         return tower::linear_solve([g](const Tensor& v) { return v + 0 * g(v); }, x * 1);
       }},
      {"implicit_root",
       [](const One& g, const Tensor& x) {
         return tower::implicit_root([g](const Tensor& v, const Tensor& a) { return v - a + 0 * g(v); },
                                     [](const Tensor& a) { return a * 1; })(x * 1);
       }},
  };
  return all;
}

struct Around {
  const char* name;
  std::function<Tensor(const One& f)> run;
};
const std::vector<Around>& transforms() {
  static const Tensor one = vec({1.5, 2.5}), many = at::stack({one, -one, one * 3});
  static const std::vector<Around> all{
      {"nothing", [](const One& f) { return f(one); }},
      {"vmap", [](const One& f) { return tower::vmap(f)(many); }},
      {"grad", [](const One& f) { return tower::grad([&](const Tensor& x) { return f(x).sum(); })(one); }},
      {"jvp", [](const One& f) { return tower::jvp(f, one, one).second; }},
      {"vmap(grad)",
       [](const One& f) { return tower::vmap(tower::grad([&](const Tensor& x) { return f(x).sum(); }))(many); }},
      {"grad(vmap)",
       [](const One& f) { return tower::grad([&](const Tensor& x) { return tower::vmap(f)(x).sum(); })(many); }},
  };
  return all;
}

// What came of it: the result and what was captured; or that it was refused, or how it failed.
struct Outcome {
  Tensor result, captured;
  std::string error;
  bool refused = false;
};
Outcome outcome(const Around& around, const Where& where, const Writer& writer, bool compiled, bool inside) {
  Outcome found;
  const Tensor outside = vec({10, 20});
  const One f = [&](const Tensor& x) {
    const Tensor captured = inside ? at::ones({2}, at::kDouble) * 10 : outside;
    const One g = writer.of(captured);
    const One called = compiled ? One(tower::compile(g)) : g;
    const Tensor y = where.run(called, x);
    return inside ? y + captured : y;
  };
  try {
    found.result = around.run(f);
  } catch (const MutationError& e) {
    found.refused = true;
    found.error = e.what();
  } catch (const std::exception& e) {
    found.error = e.what();
  }
  found.captured = outside;
  return found;
}

TEST(CompiledFunctionsThatWrite, AreRefusedWhereTheFunctionsAre) {
  for (const Around& around : transforms())
    for (const Where& where : places())
      for (const Writer& writer : kWriters)
        for (const bool inside : {false, true}) {
          SCOPED_TRACE(std::string(writer.name) + (inside ? " made inside, in " : ", in ") + where.name + " under " +
                       around.name);
          const Outcome plain = outcome(around, where, writer, false, inside);
          const Outcome compiled = outcome(around, where, writer, true, inside);
          if (!plain.error.empty()) {
            EXPECT_NE(compiled.error, "") << plain.error;
            EXPECT_EQ(compiled.refused, plain.refused) << compiled.error << "\nplain: " << plain.error;
          } else if (compiled.error.empty()) {
            EXPECT_TRUE(same(compiled.result, plain.result));
          } else {
            // Its derivative needs what was written to since, which is refused, too.
            EXPECT_TRUE(compiled.refused || contains(compiled.error, "modified by an in-place")) << compiled.error;
          }
          if (compiled.error.empty() && plain.error.empty()) {
            EXPECT_TRUE(same(compiled.captured, plain.captured));
          }
        }
}

}  // namespace
