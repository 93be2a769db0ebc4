// Random programs, compiled: alone, transformed, and under transforms, against the same uncompiled. They write to their
// inputs, so each call has copies. TOWER_PROGRAMS=4000 and
// TOWER_SMALL_PROGRAMS=4000 run so many.
#include <tower/compile.h>
#include <tower/dynamic.h>

#include "programs/program.h"
#include "support/generated_once.h"
#include "support/prelude.h"

namespace programs {
namespace {

Tensors first_of(const Tensors& batch) {
  Tensors first;
  for (const Tensor& t : batch) first.push_back(t[0].clone());
  return first;
}

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const Tensor& t : tensors) copies.push_back(t.clone());
  return copies;
}

// A transform: what it makes of a function that writes to its inputs, as a function of the batch.
struct Way {
  const char* name;
  bool batch;
  std::function<Function(const Function&)> of;
};

Function on_copies(const Function& f) {
  return [f](const Tensors& in) { return f(copies_of(in)); };
}

std::vector<Way> ways() {
  const auto vjp = [](const Function& f) -> Function {
    return [f](const Tensors& x) {
      auto [outs, pullback] = td::vjp(on_copies(f), x);
      Tensors results = pullback(outs);
      results.insert(results.end(), outs.begin(), outs.end());
      return results;
    };
  };
  const auto jvp = [](const Function& f) -> Function {
    return [f](const Tensors& x) { return td::jvp(on_copies(f), x, x).second; };
  };
  const auto vmap = [](const Function& f) -> Function {
    return [f](const Tensors& x) { return td::vmap(f, Dims(x.size(), 0), {0})(x); };
  };
  return {{"it", false, [](const Function& f) { return f; }},
          {"vmap of it", true, vmap},
          {"vjp of it", false, vjp},
          {"jvp of it", false, jvp},
          {"vmap of vjp of it", true, [=](const Function& f) { return vmap(vjp(f)); }},
          {"jvp of vjp of it", false, [=](const Function& f) { return jvp(vjp(f)); }}};
}

// Empty if all calls agree; results and what was written to the inputs.
std::string disagreement(const Program& program) {
  const Function plain = [&](const Tensors& in) { return program(in); };
  const Function compiled = td::compile(plain, support::generated_once());
  for (const Way& way : ways()) {
    const Function expected_of = way.of(plain), outside = way.of(compiled),
                   inside = td::compile(way.of(plain), support::generated_once());
    // Each way to lie has a graph of its own, which the second call runs.
    for (const auto& [phase, in_columns] : {std::pair(0.0, false), {0.3, false}, {0.0, true}, {0.6, true}}) {
      const Tensors batch = examples_for(program, phase, in_columns), x = way.batch ? batch : first_of(batch);
      const auto run = [&](const Function& f) {
        const Tensors in = copies_of(x);
        Tensors all = f(in);
        all.insert(all.end(), in.begin(), in.end());
        return all;
      };
      Tensors expected;
      try {
        expected = run(expected_of);
      } catch (const c10::Error&) {
        if (!in_columns) throw;
        continue;  // a view of the program's asks for rows
      }
      for (const auto& [name, f] : {std::pair("inside", outside), std::pair("outside", inside)}) {
        std::string text;
        try {
          text = support::difference(run(f), expected, {1e-9, 1e-9});
        } catch (const c10::Error& error) {
          text = error.what_without_backtrace();
        }
        if (!text.empty())
          return std::string(way.name) + ", compiled " + name + (in_columns ? ", in columns: " : ", in rows: ") + text;
      }
    }
  }
  return "";
}

class CompiledPrograms : public testing::TestWithParam<uint64_t> {};

TEST_P(CompiledPrograms, ComputeWhatTheyComputeUncompiled) {
  expect_none(support::seeds("TOWER_PROGRAMS", 60).part(GetParam(), 10), disagreement);
}

// Of what kernels of small examples compute: indices, orders, rows, windows, matrices, loops.
TEST_P(CompiledPrograms, OfSmallExamplesComputeWhatTheyComputeUncompiled) {
  expect_none(support::seeds("TOWER_SMALL_PROGRAMS", 60).part(GetParam(), 10), disagreement, small_actions());
}

INSTANTIATE_TEST_SUITE_P(Tenths, CompiledPrograms, testing::Range<uint64_t>(0, 10));

}  // namespace
}  // namespace programs
