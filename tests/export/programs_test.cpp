// Random programs, mapped, compiled and exported: what their libraries and pointers give is what the compiled program
// gives. TOWER_EXPORTED_PROGRAMS=1000 runs so many.
#include <cstdlib>
#include <iostream>
#include <optional>

#include "compile/kernels.h"
#include "compile/specialisations.h"
#include "export/c_library.h"
#include "fuse/pointer_program.h"
#include "programs/program.h"
#include "support/prelude.h"

namespace {

using programs::Program;

// As many examples, of those that there are.
Tensors cycled(const Tensors& batch, int64_t n) {
  Tensors all;
  for (const Tensor& t : batch) all.push_back(t.index_select(0, at::arange(n, at::kLong) % t.size(0)));
  return all;
}

struct Counts {
  int exported = 0, refused = 0;
};

// Empty if there is none, or the program is refused.
std::string disagreement(const Program& program, Counts& counts) {
  const Function compiled = td::compile([&](const Tensors& x) {
    const Function on_copies = [&](const Tensors& in) {
      Tensors copies;
      for (const Tensor& t : in) copies.push_back(t.clone());
      return program(copies);
    };
    return td::vmap(on_copies, Dims(x.size(), 0), {0})(x);
  });
  const Tensors examples = programs::examples_for(program);
  std::optional<export_tests::CLibrary> library;
  try {
    for (const int64_t n : {12, 17}) compiled(cycled(examples, n));
    library.emplace(compiled);
  } catch (const tower::UnsupportedError& e) {
    ++counts.refused;
    if (!contains(e.what(), "export_c: ")) return e.what();
    if (std::getenv("TOWER_EXPORTED_PROGRAMS")) std::cout << e.what() << "\n";
    return "";
  }
  ++counts.exported;
  // Not every program is known to be the same for any number of examples.
  const auto of_pointers = tower::compiler::specialisations_of(compiled, "test").by_pointers("test");
  if (!of_pointers->tables().any_number) return export_tests::disagreement(*library, compiled, 1, cycled(examples, 17));
  for (const int64_t n : {1, 7, 64}) {
    const std::string text = export_tests::disagreement(*library, compiled, n, cycled(examples, n));
    if (!text.empty()) return "n = " + std::to_string(n) + ": " + text;
  }
  return "";
}

TEST(ExportedPrograms, GiveWhatTheyGiveInTheProcess) {
  TOWER_NEEDS_LLVM();
  if (!export_tests::has_compiler()) GTEST_SKIP() << "there is no C compiler";
  Counts counts;
  const auto disagrees = [&](const Program& program) { return disagreement(program, counts); };
  const auto seeds = support::seeds("TOWER_EXPORTED_PROGRAMS", 30);
  programs::expect_none(seeds, disagrees, programs::small_actions());
  std::cout << counts.exported << " exported, " << counts.refused << " refused\n";
  if (seeds.wanted) return;
  EXPECT_GT(counts.exported, counts.refused) << "few are more than kernels";
}

}  // namespace
