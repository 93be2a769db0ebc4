// Every operator of the database that kernels compute, by pointers: the bits that the kernels give on tensors. And the
// same in one C program without LibTorch. With TOWER_RUNNER="valgrind -q --error-exitcode=9" it is run by that, and is
// for x86-64-v3, which valgrind knows. (Its fused multiplication gives zeros another sign in two determinants.)
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <set>

#include "compile/kernels.h"
#include "export/c_library.h"
#include "export/c_program.h"
#include "fuse/pointer_program.h"
#include "graph/plan.h"
#include "op_db/op_db.h"
#include "support/prelude.h"
#include "support/seeds.h"

namespace {

namespace compiler = tower::compiler;

// A few of each: LLVM takes its time. Where tests are not whole, one of every third operator.
size_t most_samples(size_t turn) { return support::whole() ? 2 : turn % 3 == 1; }

TEST(PointerPrograms, OfTheDatabasesOperatorsGiveWhatKernelsGiveOnTensors) {
  TOWER_NEEDS_LLVM();
  const char* folder = std::getenv("TOWER_OP_DB");
  const char* const runner = std::getenv("TOWER_RUNNER");
  export_tests::CProgram in_c({.target = runner && export_tests::kOnX86 ? "x86-64-v3" : ""});
  std::set<std::string> checked, refused;
  size_t turn = 0;
  for (const op_db::Entry& entry : op_db::load(folder ? folder : TOWER_OP_DB_DIR)) {
    if (!entry.op || entry.unspecified || !entry.real) continue;
    const size_t most = most_samples(turn++);
    size_t samples = 0;
    for (const std::string& text : entry.sample_texts) {
      if (++samples > most && !folder) break;
      const op_db::Sample sample = op_db::parse_sample(entry, text, at::kDouble);
      if (sample.bad) continue;
      SCOPED_TRACE(entry.name + " " + text);
      const Function f = [&](const Tensors& leaves) { return op_db::call(*entry.op, sample, leaves); };
      Tensors args;
      compiler::Graph graph;
      try {
        std::vector<Tensors> examples;
        for (const uint64_t seed : {0, 1, 2}) examples.push_back(op_db::make_leaves(entry, sample, at::kDouble, seed));
        for (size_t k = 0; k < examples[0].size(); ++k)
          args.push_back(at::stack({examples[0][k], examples[1][k], examples[2][k]}));
        if (args.empty()) continue;
        graph = kernels::graph_of(td::vmap(f, Dims(args.size(), 0), {0}), args);
      } catch (const std::exception&) {
        continue;  // not for float64, or not for several examples
      }
      const auto kernels = std::make_shared<compiler::Kernels>();
      std::shared_ptr<const compiler::PointerProgram> program;
      try {
        program = std::make_shared<const compiler::PointerProgram>(graph, kernels, "test",
                                                                   compiler::PointerProgram::Options());
      } catch (const tower::UnsupportedError& e) {
        refused.insert(entry.name);
        // What kernels compute, all that is there is taken, but for views that are no places in their operand's memory.
        if (compiler::fuse(graph, *kernels, compiler::Worth::all).report().left.empty() &&
            !contains(e.what(), "no kernels compute in") && !contains(e.what(), "which copies what it would view") &&
            !contains(e.what(), "a view that depends on"))
          ADD_FAILURE() << e.what();
        continue;
      }
      const Tensors expected = compiler::Plan(compiler::fuse(graph, *kernels, compiler::Worth::all).graph).run(args),
                    found = export_tests::run_by_pointers(*program, args);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t k = 0; k < expected.size(); ++k)
        EXPECT_EQ(::kernels::bit_difference(found[k].reshape({-1}), expected[k].reshape({-1}), {}), "") << k;
      checked.insert(entry.name);
      if (const auto& others = in_c.kernels(kernels); others != kernels)
        program = std::make_shared<const compiler::PointerProgram>(graph, others, "test",
                                                                   compiler::PointerProgram::Options());
      in_c.add(program, args, found, entry.name + " " + text);
    }
  }
  for (const std::string& name : checked) refused.erase(name);
  std::cout << checked.size() << " operators, " << refused.size() << " are refused\n";
  if (export_tests::has_compiler()) {
    EXPECT_EQ(in_c.disagreements(runner ? runner + std::string(" ") : ""), "");
    std::cout << in_c.count() << " programs in one of C" << (runner ? ", by " + std::string(runner) : "") << "\n";
  }
  if (folder) return;
  EXPECT_GT(checked.size(), support::whole() ? 600u : 200u);
}

}  // namespace
