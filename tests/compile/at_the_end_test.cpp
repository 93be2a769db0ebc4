// Compiled functions called when the process ends, by destructors of static objects: what was compiled runs, and what
// was not runs operator by operator where LLVM has gone before. Each in a process of its own, whose exit status tells.
#include <tower/compile.h>
#include <tower/transforms.h>

#include "compile/files.h"
#include "compile/kernels.h"
#include "support/prelude.h"

namespace {

Tensor chain(const Tensor& x) { return ((x * x + 0.3).log().sin() * x + x.exp()).square(); }
Tensor total(const Tensor& x) { return chain(x).sum(); }

// No destructor of theirs: they are there until the end.
const auto& compiled = *new auto(tower::compile(chain));
const auto& compiled_gradient = *new auto(tower::compile(tower::vmap(tower::grad(total))));

bool all_is_right(at::ScalarType dtype) {
  const Tensor x = waves({6, 7}).to(dtype);
  for (int run = 0; run < 3; ++run)
    if (!same(compiled(x), chain(x)) || !same(compiled_gradient(x), tower::vmap(tower::grad(total))(x)) ||
        !same(tower::jvp(total, x, x).second, (tower::grad(total)(x) * x).sum()))
      return false;
  return true;
}

struct CallsAtTheEnd {
  at::ScalarType dtype;
  ~CallsAtTheEnd() {
    if (!all_is_right(dtype)) std::_Exit(3);
  }
};

struct Case {
  const char* name;
  bool before;            // it was called before the object was made
  bool after;             // and after that
  at::ScalarType at_end;  // the calls before are of float64
};
const Case kCases[] = {{"for_the_first_time", false, false, at::kDouble},
                       {"again", true, false, at::kDouble},
                       {"again_by_an_object_that_was_there_first", false, true, at::kDouble},
                       {"with_another_kind", true, false, at::kFloat},
                       {"with_another_kind_by_an_object_that_was_there_first", false, true, at::kFloat},
                       {"with_another_kind_by_an_object_made_between", true, true, at::kFloat}};

class CompiledFunctionsAtTheEnd : public testing::TestWithParam<Case> {};

TEST_P(CompiledFunctionsAtTheEnd, AreCalledByDestructorsOfStaticObjects) {
  const std::string name = std::string("Each/CompiledFunctionsAtTheEnd.InAProcessOfItsOwn/") + GetParam().name;
  EXPECT_EQ(support::run_in_new_process(name, "nothing"), 0);
}

TEST_P(CompiledFunctionsAtTheEnd, InAProcessOfItsOwn) {
  if (support::left_by_another_process().empty()) GTEST_SKIP() << "another test runs it";
  EXPECT_TRUE(!GetParam().before || all_is_right(at::kDouble));
  static const CallsAtTheEnd first{GetParam().at_end}, second{at::kDouble};
  EXPECT_TRUE(!GetParam().after || all_is_right(at::kDouble));
}

INSTANTIATE_TEST_SUITE_P(Each, CompiledFunctionsAtTheEnd, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
