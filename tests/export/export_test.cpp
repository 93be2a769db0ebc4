// Compiled functions as C libraries: what a library gives, built by the system's C compiler, is what the compiled
// function gives in the process, bit by bit, for any number of examples; what cannot leave the process is refused.
#include <gtest/gtest.h>
#include <tower/loops.h>
#include <tower/tower.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "compile/kernels.h"
#include "export/c_library.h"
#include "support/prelude.h"

namespace {

using export_tests::CLibrary;
using export_tests::expect_exported;
using export_tests::expect_same;
using export_tests::mapped_over_all;
using export_tests::output_of;
using support::Folder;
using tower::ExportOptions;

// Well-conditioned matrices of n examples.
Tensor matrices(int64_t n, int64_t rows) { return waves({n, rows, rows}) + 4 * at::eye(rows, at::kDouble); }

TEST(ExportedC, HasArithmeticReductionsAndProductsOfAnExample) {
  TOWER_NEEDS_C();
  expect_exported(
      [](const Tensors& x) {
        const Tensor scaled = x[1].mv(x[0]) / (x[0].square().sum() + 1).sqrt();
        return Tensors{scaled.abs().amax(), scaled + x[0].cumsum(0), at::linalg_cross(x[0], scaled), x[1].mm(x[1].t())};
      },
      [](int64_t n) {
        return Tensors{waves({n, 3}), matrices(n, 3)};
      });
}

TEST(ExportedC, HasSolvesFactorizationsAndLoopsThatEndByThemselves) {
  TOWER_NEEDS_C();
  expect_exported(
      [](const Tensors& x) {
        const Tensor root = tower::while_loop([&](const Tensor& y) { return (y * y - x[1]).abs() > 1e-12 * x[1]; },
                                              [&](const Tensor& y) { return (y + x[1] / y) / 2; }, x[1] + 1);
        const Tensor grown = tower::fori_loop(
            0, 20, [&](int64_t, const Tensor& y) { return y + 0.01 * (x[0].mv(y) - y * y.abs()); }, x[2]);
        return Tensors{at::linalg_solve(x[0], x[2]), at::linalg_cholesky(x[0].mm(x[0].t()) + at::eye(4, at::kDouble)),
                       root, grown};
      },
      [](int64_t n) {
        return Tensors{matrices(n, 4), waves({n}).abs() + 0.5, waves({n, 4}, 0.7)};
      });
}

TEST(ExportedC, HasAllTypesAndSpecialNumbers) {
  TOWER_NEEDS_C();
  const Function f = [](const Tensors& x) {
    const Tensor sum = x[0] + x[1];
    return Tensors{sum * x[0],
                   x[0] < x[1],
                   x[2] * 3 + x[3].to(at::kLong),
                   at::maximum(x[2], x[3]),
                   at::where(x[4], x[0], x[1] / x[0]),
                   x[1].to(at::kFloat) * 0.1f,
                   x[0].trunc().sign()};
  };
  expect_exported(f, [](int64_t n) {
    const auto cycled = [&](const Tensor& t) {
      return t.index({at::arange(n * 2, at::kLong) % t.numel()}).reshape({n, 2});
    };
    const auto [a, b] = kernels::special_pairs(at::kDouble);
    const auto [i, j] = kernels::special_pairs(at::kLong);
    return Tensors{cycled(a), cycled(b), cycled(i), cycled(j).to(at::kInt), cycled(a) > 0};
  });
}

TEST(ExportedC, HasHalfTypes) {
  TOWER_NEEDS_C();
  expect_exported(
      [](const Tensors& x) {
        return Tensors{x[0] * x[0] + 1, x[1].abs().sum(), x[1] - 0.5};
      },
      [](int64_t n) {
        return Tensors{waves({n, 3}).to(at::kHalf), waves({n, 3}).to(at::kBFloat16)};
      });
}

// More than one kernel can be, with values that live for different times.
Tensors long_chain(const Tensors& x) {
  Tensor a = x[0], b = x[0] * 0.5;
  for (int k = 0; k < 1500; ++k) {
    a = a * 0.999 + b.flip(0) * 0.01;
    if (k % 300 == 0) b = b + a;
  }
  return {a, b, a.sum()};
}

TEST(ExportedC, HasSeveralKernelsWithWhatTheyLeaveEachOtherInTheWorkspace) {
  TOWER_NEEDS_C();
  const auto of = [](int64_t n) { return Tensors{waves({n, 3})}; };
  const Function compiled = td::compile([](const Tensors& x) {
    const Tensors y = mapped_over_all(long_chain)(x);
    // Over all elements of all examples: kernels of another kind.
    return Tensors{y[0] * 2 + y[1], (y[1] - 1).abs(), y[2]};
  });
  for (const int64_t n : {12, 17}) compiled(of(n));
  const CLibrary library(compiled);
  EXPECT_GT(library.work_bytes(100000), library.work_bytes(0) + 100000) << "nothing is in the workspace";
  for (const int64_t n : {0, 1, 7, 64, 65, 1000}) expect_same(library, compiled, n, of(n));
}

TEST(ExportedC, ReadsAndWritesTensorsAsTheyLay) {
  TOWER_NEEDS_C();
  const Function compiled = td::compile([](const Tensors& x) {
    return td::vmap([](const Tensors& in) { return Tensors{in[0] * 2 + in[1], in[0].sum()}; }, {1, 1}, {1, 0})(x);
  });
  // The examples in columns: next to each other in memory; and every other element.
  const auto of = [](int64_t n) { return Tensors{waves({3, n}), waves({n, 3}, 1).t()}; };
  for (const int64_t n : {12, 17}) compiled(of(n));
  const CLibrary library(compiled);
  for (const int64_t n : {1, 8, 1000}) {
    const Tensors x = of(n);
    expect_same(library, compiled, n, x);
  }
}

TEST(ExportedC, HasCapturedTensorsAsConstantsOrAsArguments) {
  TOWER_NEEDS_C();
  const Tensor weight = waves({3, 3}), table = waves({400}, 2);
  const auto of = [](int64_t n) {
    return Tensors{waves({n, 3}), (at::arange(n * 2, at::kLong) * 7 % 400).reshape({n, 2})};
  };
  const Function compiled = td::compile(mapped_over_all([=](const Tensors& x) {
    return Tensors{weight.mv(x[0]), table.index({x[1]}) + 1};
  }));
  for (const int64_t n : {12, 17}) compiled(of(n));
  const CLibrary constants(compiled), arguments(compiled, {.captured = ExportOptions::Captured::arguments});
  for (const int64_t n : {1, 7, 1000}) expect_same(constants, compiled, n, of(n));

  const Tensors before = compiled(of(7));
  Tensors results;
  for (const Tensor& t : {weight, table}) t.mul_(2);
  EXPECT_EQ(constants.call(7, of(7), before, results), 0);
  EXPECT_TRUE(at::equal(results[0], before[0])) << "constants are as they were";
  EXPECT_TRUE(at::equal(results[1], before[1]));
  // In the order in which the header lists them.
  std::ifstream file(arguments.folder() / "exported.h");
  const std::string header((std::istreambuf_iterator<char>(file)), {});
  const bool weight_first = header.find("[3, 3], row by row: captured") < header.find("[400], row by row: captured");
  for (const int64_t n : {1, 7, 1000})
    expect_same(arguments, compiled, n, of(n), weight_first ? Tensors{weight, table} : Tensors{table, weight});
}

TEST(ExportedC, GivesArgumentsCapturedTensorsAndTheSameResultTwice) {
  TOWER_NEEDS_C();
  const Tensor captured = waves({2, 2});
  const Function compiled = td::compile([=](const Tensors& x) {
    const Tensor y = mapped_over_all([](const Tensors& in) { return Tensors{in[0] * in[0] + 1}; })(x)[0];
    return Tensors{y, x[0], captured, y};
  });
  const auto of = [](int64_t n) { return Tensors{waves({n, 3})}; };
  for (const int64_t n : {12, 17}) compiled(of(n));
  const CLibrary library(compiled);
  for (const int64_t n : {0, 1, 7, 64}) expect_same(library, compiled, n, of(n));
}

TEST(ExportedC, IsForOneExampleWhereThereIsNoVmapOrOneNumberOfExamples) {
  TOWER_NEEDS_C();
  const Function one = td::compile([](const Tensors& x) {
    return Tensors{at::linalg_solve(x[0], x[1]), x[1].norm(), x[1].flip(0) - 2};
  });
  const Tensors args{matrices(1, 3)[0], waves({3})};
  one(args);
  const CLibrary library(one);
  expect_same(library, one, 1, args);
  Tensors results;
  for (const int64_t n : {-1, 0, 2}) EXPECT_EQ(library.call(n, args, one(args), results), -1);

  const Function some = td::compile(mapped_over_all([](const Tensors& x) { return Tensors{x[0] * 2 + 1}; }));
  some({waves({12, 3})});
  const CLibrary of_some(some);
  expect_same(of_some, some, 1, {waves({12, 3})});
  EXPECT_EQ(of_some.call(12, {waves({12, 3})}, some({waves({12, 3})}), results), -1);
}

TEST(ExportedC, ReturnsWhatWentWrongInAnExample) {
  TOWER_NEEDS_C();
  const auto returned = [](const Function& f, const Tensors& right, const Tensors& wrong) {
    const Function compiled = td::compile(mapped_over_all(f));
    const auto repeated = [](const Tensors& x, int64_t n) {
      Tensors all;
      for (const Tensor& t : x) all.push_back(t.unsqueeze(0).repeat_interleave(n, 0));
      return all;
    };
    for (const int64_t n : {12, 17}) compiled(repeated(right, n));
    const CLibrary library(compiled);
    const Tensors args = repeated(right, 19), like = compiled(args);
    Tensors results;
    EXPECT_EQ(library.call(19, args, like, results), 0);
    for (size_t k = 0; k < wrong.size(); ++k) args[k][18].copy_(wrong[k]);
    const int code = library.call(19, args, like, results);
    EXPECT_ANY_THROW(compiled(args));
    EXPECT_EQ(library.call(-1, args, like, results), -1);
    return code;
  };
  EXPECT_EQ(returned([](const Tensors& x) { return Tensors{at::floor_divide(x[0], x[1]) + 1}; },
                     {at::tensor(7), at::tensor(2)}, {at::tensor(7), at::tensor(0)}),
            1);
  EXPECT_EQ(returned(
                [](const Tensors& x) {
                  return td::while_loop([](const Tensors& y) { return y[0] > 1; },
                                        [](const Tensors& y) { return Tensors{y[0] * 0.5}; }, x, {.max_steps = 5});
                },
                {number(8)}, {number(1e9)}),
            2);
  EXPECT_EQ(returned([](const Tensors& x) { return Tensors{at::linalg_inv(x[0]) * 2}; }, {at::eye(3, at::kDouble)},
                     {at::zeros({3, 3}, at::kDouble)}),
            4);
  EXPECT_EQ(returned([](const Tensors& x) { return Tensors{x[0].index({x[1]}) + 1}; }, {waves({3}), at::tensor({1, 2})},
                     {waves({3}), at::tensor({1, 3})}),
            8);
}

TEST(ExportedC, MayBeCalledByManyThreads) {
  TOWER_NEEDS_C();
  const Function compiled = td::compile(mapped_over_all([](const Tensors& x) {
    return Tensors{at::linalg_solve(x[0], x[1]), x[1].cumsum(0)};
  }));
  const auto of = [](int64_t n, double phase = 0) { return Tensors{matrices(n, 3), waves({n, 3}, phase)}; };
  for (const int64_t n : {12, 17}) compiled(of(n));
  const CLibrary library(compiled);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) expect_same(library, compiled, 50 + t, of(50 + t, t + round));
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(ExportedC, HasFunctionsSuchAsExpInItself) {
  TOWER_NEEDS_C();
  const auto of = [](at::ScalarType dtype) {
    return [=](int64_t n) {
      return Tensors{(waves({n, 3}) * 5).to(dtype), (waves({n, 3}, 0.4).abs() + 0.1).to(dtype)};
    };
  };
  const Function f = [](const Tensors& x) {
    const Tensor near = x[1] / 2;
    return Tensors{(x[0].exp() + 1).log() * x[0].sin(),
                   (x[0] * 1e9).cos() + x[0].tan(),
                   x[1].pow(x[0]) + x[1].log1p() + x[0].expm1(),
                   at::hypot(x[0], x[1]) + at::atan2(x[0], x[1]),
                   near.asin() + near.acos() + near.atanh() + x[0].atan(),
                   x[0].sinh() + x[0].cosh() + x[0].tanh(),
                   x[0].asinh() + (x[1] + 1).acosh() + x[0].erf(),
                   x[1].log2() + x[1].log10() + x[0].exp2(),
                   x[0].erfc() + x[0].lgamma() + at::fmod(x[0], x[1])};
  };
  for (const auto dtype : {at::kDouble, at::kFloat}) expect_exported(f, of(dtype));

  // Nothing is left to be linked.
  const Function compiled = td::compile(mapped_over_all(f));
  for (const int64_t n : {12, 17}) compiled(of(at::kFloat)(n));
  const Folder folder;
  td::export_c(compiled, "f", {.folder = folder.path()});
  EXPECT_EQ(output_of("nm -u " + folder.path() + "/f_kernels.o"), "");
}

// ---- C programs ----

constexpr const char* kProgram = R"(
#include "first.h"
#include "second.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
  enum { n = 37 };
  static double a[n * 9], b[n * 3], solution[n * 3], norms[n], doubled[n * 3];
  const double* x[] = { a, b };
  double* y[] = { solution, norms };
  const double* x2[] = { solution };
  double* y2[] = { doubled };
  void* work = malloc((size_t)first_work_bytes(n) + (size_t)second_work_bytes(n));
  int failed;
  if (fread(a, sizeof(double), n * 9, stdin) != n * 9 || fread(b, sizeof(double), n * 3, stdin) != n * 3) return 1;
  failed = first(n, x, y, work);
  if (!failed) failed = second(n, x2, y2, work);
  fwrite(solution, sizeof(double), n * 3, stdout);
  fwrite(norms, sizeof(double), n, stdout);
  fwrite(doubled, sizeof(double), n * 3, stdout);
  free(work);
  return failed;
}
)";

TEST(ExportedC, TwoLibrariesAreInOneCProgramThatKnowsNothingOfLibTorch) {
  TOWER_NEEDS_C();
  const Folder folder;
  const auto exported = [&](const Function& f, const std::string& name, const std::function<Tensors(int64_t)>& of) {
    const Function compiled = td::compile(mapped_over_all(f));
    for (const int64_t n : {12, 17}) compiled(of(n));
    td::export_c(compiled, name, {.folder = folder.path()});
    return compiled;
  };
  const auto system = [](int64_t n) { return Tensors{matrices(n, 3), waves({n, 3})}; };
  const Function first = exported(
      [](const Tensors& x) {
        return Tensors{at::linalg_solve(x[0], x[1]), x[1].norm()};
      },
      "first", system);
  const Function second = exported([](const Tensors& x) { return Tensors{x[0] * 2 + 1}; }, "second",
                                   [](int64_t n) {
                                     return Tensors{waves({n, 3})};
                                   });
  std::ofstream(folder / "main.c") << kProgram;
  const Tensors args = system(37);
  std::ofstream input(folder / "input", std::ios::binary);
  for (const Tensor& t : args)
    input.write(static_cast<const char*>(t.const_data_ptr()), static_cast<std::streamsize>(t.nbytes()));
  input.close();
  const std::string in = "cd " + folder.path() + " && ";
  output_of(in +
            "cc -std=c99 -pedantic -Wall -Wextra -Werror -o program main.c first.c first_kernels.o second.c "
            "second_kernels.o -lm");
  const std::string libraries = output_of(in + "ldd ./program");
  for (const char* strange : {"torch", "libc10", "tower", "LLVM", "stdc++", "sleef"})
    EXPECT_EQ(libraries.find(strange), std::string::npos) << libraries;
  // The header is C++'s as well.
  output_of(in + "echo '#include \"first.h\"' > cpp.cpp && c++ -std=c++98 -Wall -Wextra -Werror -c cpp.cpp");

  output_of(in + "./program < input > output");
  std::ifstream file(folder / "output", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const Tensors of_first = first(args), of_second = second({of_first[0]});
  size_t at = 0;
  for (const Tensor& t : {of_first[0], of_first[1], of_second[0]}) {
    ASSERT_LE(at + t.nbytes(), bytes.size());
    EXPECT_EQ(std::memcmp(bytes.data() + at, t.const_data_ptr(), t.nbytes()), 0);
    at += t.nbytes();
  }
  EXPECT_EQ(at, bytes.size());
}

// docs/c_libraries.md shows these programs, and what they have: a step of Newton's method.
void export_newton(const Folder& folder) {
  const auto step = tower::compile(tower::vmap([](const Tensor& x, const Tensor& load, const Tensor& matrix) {
    const Tensor residual = matrix.mv(x) + x * x * x - load;
    return std::pair(x - at::linalg_solve(matrix + at::diag(3 * x * x), residual), residual.norm());
  }));
  for (const int64_t n : {10, 20})
    step(waves({n, 3}).to(at::kFloat), waves({n, 3}).to(at::kFloat), matrices(n, 3).to(at::kFloat));
  tower::export_c(step, "newton", {.folder = folder.path()});
}

TEST(ExportedC, TheProgramsOfThePageRunInCAndPython) {
  TOWER_NEEDS_C();
  const Folder folder;
  export_newton(folder);
  const std::string in = "cd " + folder.path() + " && ", page = TOWER_EXPORT_PAGE;
  output_of(in + "cc -std=c99 -O2 -I. " + page + "/main.c newton.c newton_kernels.o -lm -o main");
  EXPECT_EQ(output_of(in + "./main"), "converged\n");
  output_of(in + "cc -O2 -shared -fPIC newton.c newton_kernels.o -o libnewton.so -lm");
  EXPECT_EQ(output_of(in + "python3 " + page + "/main.py"), "converged\n");
}

TEST(ExportedC, TheProgramOfThePageRunsInFortran) {
  TOWER_NEEDS_C();
  if (std::system("gfortran --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "there is no gfortran";
  const Folder folder;
  export_newton(folder);
  const std::string in = "cd " + folder.path() + " && ", page = TOWER_EXPORT_PAGE;
  output_of(in + "cc -O2 -c newton.c && gfortran -std=f2008 -Wall -Werror newton.f90 " + page +
            "/main.f90 newton.o newton_kernels.o -o main");
  EXPECT_EQ(output_of(in + "./main"), "converged\n");
}

// A project of the user's.
TEST(ExportedC, CMakeMakesALibraryOfIt) {
  TOWER_NEEDS_C();
  if (std::system("cmake --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "there is no CMake";
  const Folder folder;
  const Function compiled = td::compile(mapped_over_all([](const Tensors& x) { return Tensors{x[0] * 2 + 1}; }));
  for (const int64_t n : {12, 17}) compiled({waves({n})});
  td::export_c(compiled, "doubled", {.folder = folder / "library"});
  std::ofstream(folder / "main.c") << R"(
#include "doubled.h"
#include <stdio.h>
int main(void)
{
  const double one = 1, *x[] = { &one };
  double three = 0, *y[] = { &three };
  static char work[100000];
  if (doubled_work_bytes(1) > (int64_t)sizeof work || doubled(1, x, y, work)) return 1;
  printf("%g\n", three);
  return 0;
}
)";
  std::ofstream(folder / "CMakeLists.txt") << R"(
cmake_minimum_required(VERSION 3.20)
project(user C)
include(library/doubled.cmake)
add_executable(main main.c)
target_link_libraries(main doubled)
)";
  const std::string in = "cd " + folder.path() + " && ";
  output_of(in + "cmake -S . -B build && cmake --build build");
  EXPECT_EQ(output_of(in + "build/main"), "3\n");
}

// ---- what is refused ----

Function called(const Function& f, const Tensors& args) {
  const Function compiled = td::compile(f);
  compiled(args);
  return compiled;
}

TEST(ExportedC, IsRefusedByNameWhereSomethingIsNoKernel) {
  TOWER_NEEDS_LLVM();
  const Folder folder;
  const auto expect_refused = [&](const Function& f, const Tensors& args, std::initializer_list<const char*> parts) {
    const Function compiled = called(f, args);
    EXPECT_TRUE(
        says(refusal<tower::UnsupportedError>([&] { td::export_c(compiled, "f", {.folder = folder.path()}); }), parts));
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  };
  expect_refused(of_one([](const Tensor& x) { return at::igamma(x.abs() + 1, x.abs()) * 2; }), {waves({100})},
                 {"export_c", "aten::igamma", "no rule for kernels"});
  expect_refused(of_one([](const Tensor& x) { return x * at::rand_like(x); }), {waves({100})},
                 {"export_c", "random numbers"});
  // A view whose place depends on a value.
  expect_refused(mapped_over_all([](const Tensors& x) {
                   return Tensors{x[0].narrow(0, x[1], 3), x[0] * 2 + 1};
                 }),
                 {waves({5, 10}), at::full({5}, 2, at::kLong)}, {"export_c", "aten::narrow"});
  expect_refused(of_one([](const Tensor& x) { return x.add_(1); }), {waves({100})}, {"export_c", "write"});
  expect_refused(of_one([](const Tensor& x) { return x.as_strided({4}, {2}, 7).sin() * 2; }),
                 {waves({100}).slice(0, 5)}, {"export_c", "as_strided", "addresses"});
  expect_refused(of_one([](const Tensor& x) { return (x > 0).any().item<bool>() ? x * 2 + 1 : x; }), {waves({100})},
                 {"export_c", "read a value"});
}

TEST(ExportedC, RefusesNamesAndFoldersThatCannotBe) {
  TOWER_NEEDS_LLVM();
  const Folder folder;
  const Function compiled = called(of_one([](const Tensor& x) { return x * 2 + 1; }), {waves({100})});
  const auto refusal_of = [&](const Function& f, const std::string& name, const std::string& path) {
    return refusal<tower::ArgumentError>([&] { td::export_c(f, name, {.folder = path}); });
  };
  for (const std::string name :
       {"", "while", "class", "main", "_step", "a-b", "7up", "a b", "é", "exp", "malloc", "a/b",
        // What headers and the text of libraries have.
        "int64_t", "int16_t", "size_t", "INT64_C", "NULL", "unix", "LaneCode", "kStepOfLanes", "run_program", "std"})
    EXPECT_TRUE(says(refusal_of(compiled, name, folder.path()), {"export_c", ("'" + name + "'").c_str()}));
  std::ofstream(folder / "file") << "no folder";
  EXPECT_TRUE(says(refusal_of(compiled, "f", folder / "file"), {"export_c", "file/f.h", "cannot be written"}));
  EXPECT_TRUE(says(refusal_of(compiled, "f", "/proc/nowhere"), {"export_c", "/proc/nowhere/f.h", "cannot be written"}));
  td::export_c(compiled, "f", {.folder = folder / "made/here"});
  EXPECT_TRUE(std::filesystem::exists(folder / "made/here/f.h"));

  EXPECT_TRUE(
      says(refusal_of([](const Tensors& x) { return x; }, "f", folder.path()), {"export_c", "compile or load"}));
  const Function never = td::compile([](const Tensors& x) { return x; });
  EXPECT_TRUE(says(refusal_of(never, "f", folder.path()), {"export_c", "no graph yet"}));
}

}  // namespace
