// C libraries for machines that are named: those that run here give the process's bits, or agree to rounding; the
// others are objects of their machine, in its instructions, and are run where there is something that runs them.
#include <gtest/gtest.h>
#include <tower/tower.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "compile/kernels.h"
#include "export/c_library.h"
#include "kernels/cpu.h"
#include "support/prelude.h"

namespace {

using export_tests::CLibrary;
using export_tests::expect_exported;
using export_tests::mapped_over_all;
using export_tests::output_of;
using support::Folder;

// Arithmetic, functions, a solve, a choice, integers and single precision.
Tensors some_of_all(const Tensors& x) {
  const Tensor scaled = x[0].mv(x[1]) / (x[1].square().sum() + 1);
  return Tensors{at::linalg_solve(x[0], x[1]),
                 (scaled.sin() * x[1].exp() + x[1].abs().log1p()).tanh() + (x[1] * 1e9).cos(),
                 at::where(scaled > x[1], scaled.floor(), x[1].round()), scaled.to(at::kFloat).lgamma() * 0.1f,
                 (x[1] * 10).to(at::kLong) % 3};
}
Tensors of(int64_t n) { return {waves({n, 3, 3}) + 4 * at::eye(3, at::kDouble), waves({n, 3}, 0.7)}; }

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(ExportedTargets, OfThisMachineGiveTheBitsOfTheProcess) {
  TOWER_NEEDS_C();
  const auto& cpu = tower::compiler::Cpu::get();
  std::vector<std::string> targets = {export_tests::kOnX86 ? "x86-64" : "aarch64"};
  if (cpu.vector_bytes() >= 32) targets.push_back("x86-64-v3");
  if (cpu.vector_bytes() >= 64) targets.push_back("x86-64-v4");
  for (const std::string& target : targets) {
    SCOPED_TRACE(target);
    expect_exported(some_of_all, of, {.target = target});
  }
}

// Where a product and a sum may be rounded once, a machine without that instruction rounds them twice.
TEST(ExportedTargets, WithoutFusedMultiplicationAgreeToRoundingWhereItIsAllowed) {
  TOWER_NEEDS_C();
  if (!export_tests::kOnX86) GTEST_SKIP() << "this machine's CPUs all have it";
  const Function compiled = td::compile(mapped_over_all([](const Tensors& x) { return Tensors{x[0] * x[1] + x[2]}; }),
                                        {.math = tower::Math::fast});
  const auto three = [](int64_t n) { return Tensors{waves({n, 3}), waves({n, 3}, 1), waves({n, 3}, 2)}; };
  for (const int64_t n : {12, 17}) compiled(three(n));
  const CLibrary library(compiled, {.target = "x86-64"});
  const Tensors x = three(100), expected = compiled(x);
  Tensors found;
  ASSERT_EQ(library.call(100, x, expected, found), 0);
  EXPECT_TRUE(at::allclose(found[0], expected[0], 1e-15, 1e-15));
  EXPECT_TRUE(at::allclose(found[0], x[0] * x[1] + x[2], 0, 0));
}

TEST(ExportedTargets, AreObjectsOfTheirMachineInItsInstructions) {
  TOWER_NEEDS_LLVM();
  const Function compiled = td::compile(mapped_over_all(some_of_all));
  for (const int64_t n : {12, 17}) compiled(of(n));
  const Folder folder;
  struct Expected {
    const char *target, *has, *has_not;
    char machine;  // ELF's number
  };
  for (const auto& [target, has, has_not, machine] : {Expected{"x86-64", "%xmm0", "%ymm", 62},
                                                      {"x86-64-v2", "roundpd", "%ymm", 62},
                                                      {"x86-64-v3", "vfmadd", "%zmm", 62},
                                                      {"x86-64-v4", "%zmm", "fmla", 62},
                                                      {"aarch64", "fmla\tv", "%xmm", static_cast<char>(183)}}) {
    td::export_c(compiled, "f", {.folder = folder.path(), .target = target, .also = {"ll", "s"}});
    const std::string assembler = bytes_of(folder / "f_kernel0.s"), text = bytes_of(folder / "f_kernel0.ll"),
                      object = bytes_of(folder / "f_kernels.o");
    EXPECT_NE(assembler.find(has), std::string::npos) << target;
    EXPECT_EQ(assembler.find(has_not), std::string::npos) << target;
    EXPECT_NE(text.find("define void @tower_kernel"), std::string::npos) << target;
    ASSERT_GT(object.size(), 20u);
    EXPECT_EQ(object[18], machine) << target;
    EXPECT_NE(bytes_of(folder / "f.h").find(std::string("for ") + target + "."), std::string::npos);
  }
}

// Of an object that the machine's assembler makes of a kernel. Constants that are equal are left apart, as a linker may
// have them once.
TEST(ExportedTargets, AreLinkedToTheBytesThatTheMachinesOwnLinkerGives) {
  TOWER_NEEDS_LLVM();
  using tower::compiler::Machine;
  const Function compiled = td::compile(mapped_over_all(some_of_all));
  for (const int64_t n : {12, 17}) compiled(of(n));
  const Folder folder;
  const std::string in = "cd " + folder.path() + " && ";
  std::ofstream(folder / "script") << "SECTIONS { .all 0 : { *(.text .text.* .rodata .rodata.*) } =0 "
                                      "/DISCARD/ : { *(.eh_frame .comment .note.*) } }\n";
  struct Tools {
    const char *target, *prefix;
    Machine machine;
  };
  std::string left_out;
  for (const auto& [target, prefix, machine] : {Tools{"x86-64-v3", "x86_64-linux-gnu-", Machine::x86_64},
                                                Tools{"aarch64", "aarch64-linux-gnu-", Machine::aarch64}}) {
    const std::string begin = in + prefix;
    if (std::system((begin + "ld --version > /dev/null 2>&1").c_str()) != 0) {
      left_out += std::string(" ") + prefix + "ld";
      continue;
    }
    td::export_c(compiled, "f", {.folder = folder.path(), .target = target, .also = {"s"}});
    output_of(in + "sed -i 's/\"aM\",@progbits,[0-9]*/\"a\",@progbits/' f_kernel0.s");
    output_of(begin + "as -o f.o f_kernel0.s");
    output_of(begin + "ld --no-relax -e tower_kernel -T script -o f f.o");
    output_of(begin + "objcopy -O binary f f.bytes");
    const auto linked = tower::compiler::link(bytes_of(folder / "f.o"), "tower_kernel", machine);
    EXPECT_TRUE(linked.imports.empty());
    EXPECT_GT(linked.bytes.size(), 1000u);
    EXPECT_TRUE(linked.bytes == bytes_of(folder / "f.bytes")) << target;
  }
  if (!left_out.empty()) GTEST_SKIP() << "Debian's binutils for that machine has what is missing:" << left_out;
}

TEST(ExportedTargets, ThatNobodyKnowsAreRefusedWithThoseThatAreKnown) {
  TOWER_NEEDS_LLVM();
  const Function compiled = td::compile(of_one([](const Tensor& x) { return x * 2 + 1; }));
  compiled({waves({100})});
  const Folder folder;
  EXPECT_TRUE(says(refusal<tower::ArgumentError>(
                       [&] { td::export_c(compiled, "f", {.folder = folder.path(), .target = "x86-64-v5"}); }),
                   {"export_c", "'x86-64-v5'", "x86-64, x86-64-v2, x86-64-v3, x86-64-v4, aarch64"}));
  EXPECT_TRUE(says(
      refusal<tower::ArgumentError>([&] { td::export_c(compiled, "f", {.folder = folder.path(), .also = {"bc"}}); }),
      {"export_c", "'bc'", "\"ll\"", "\"s\""}));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Reads its arguments, calls the function and writes its results.
constexpr const char* kProgram =
    "#include \"f.h\"\n#include <stdio.h>\n#include <stdlib.h>\n"
    R"(
enum { n = 37 };

int main(void)
{
  static double a[n * 9], b[n * 3], y0[n * 3], y1[n * 3], y2[n * 3];
  static float y3[n * 3];
  static int64_t y4[n * 3];
  const void* x[] = { a, b };
  void* y[] = { y0, y1, y2, y3, y4 };
  int failed;
  if (fread(a, 8, n * 9, stdin) != n * 9 || fread(b, 8, n * 3, stdin) != n * 3) return 1;
  failed = f(n, x, y, malloc((size_t)f_work_bytes(n)));
  fwrite(y0, 8, n * 3, stdout);
  fwrite(y1, 8, n * 3, stdout);
  fwrite(y2, 8, n * 3, stdout);
  fwrite(y3, 4, n * 3, stdout);
  fwrite(y4, 8, n * 3, stdout);
  return failed;
}
)";

TEST(ExportedTargets, OfAnotherMachineRunThereWithTheBitsOfTheProcess) {
  TOWER_NEEDS_LLVM();
  const std::string compiler = "aarch64-linux-gnu-gcc", machine = "qemu-aarch64-static";
  for (const std::string& program : {compiler, machine})
    if (std::system((program + " --version > /dev/null 2>&1").c_str()) != 0)
      GTEST_SKIP() << "there is no " << program << " (Debian: gcc-aarch64-linux-gnu, qemu-user-static)";
  const Function compiled = td::compile(mapped_over_all(some_of_all));
  for (const int64_t n : {12, 17}) compiled(of(n));
  const Folder folder;
  td::export_c(compiled, "f", {.folder = folder.path(), .target = "aarch64"});
  std::ofstream(folder / "main.c") << kProgram;
  const Tensors x = of(37);
  std::ofstream input(folder / "input", std::ios::binary);
  for (const Tensor& t : x)
    input.write(static_cast<const char*>(t.const_data_ptr()), static_cast<std::streamsize>(t.nbytes()));
  input.close();
  const std::string in = "cd " + folder.path() + " && ";
  output_of(in + compiler + " -std=c99 -O2 -Wall -Werror -static -o program main.c f.c f_kernels.o -lm");
  output_of(in + machine + " ./program < input > output");
  const std::string bytes = bytes_of(folder / "output");
  size_t at = 0;
  for (const Tensor& t : compiled(x)) {
    ASSERT_LE(at + t.nbytes(), bytes.size());
    EXPECT_EQ(std::memcmp(bytes.data() + at, t.const_data_ptr(), t.nbytes()), 0) << at;
    at += t.nbytes();
  }
  EXPECT_EQ(at, bytes.size());
}

}  // namespace
