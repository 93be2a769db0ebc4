// What a C library asks of where it runs: of memory and threads nothing, of names those that it was given; and what it
// has where the process has LibTorch: larger systems of equations, and products by a BLAS that is named.
#include <gtest/gtest.h>
#include <tower/tower.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "compile/kernels.h"
#include "export/c_library.h"
#include "export/c_program.h"
#include "support/prelude.h"
#include "support/seeds.h"

namespace {

using export_tests::CLibrary;
using export_tests::mapped_over_all;
using export_tests::output_of;
using support::Folder;

Tensor matrices(int64_t n, int64_t rows) { return waves({n, rows, rows}) + rows * at::eye(rows, at::kDouble); }

// Compiled, and called with these.
Function called(const Function& f, const std::vector<Tensors>& args) {
  const Function compiled = td::compile(f);
  for (const Tensors& x : args) compiled(x);
  return compiled;
}

// The library gives what LibTorch gives operator by operator.
void expect_close(const CLibrary& library, const Function& f, int64_t n, const Tensors& args, double near = 1e-11) {
  const Tensors plain = f(args);
  Tensors results;
  ASSERT_EQ(library.call(n, args, plain, results), 0);
  for (size_t k = 0; k < plain.size(); ++k)
    EXPECT_TRUE(at::allclose(results[k], plain[k], near, near)) << "result " << k << " of " << n;
}

TEST(ExportedOutside, CallsNothingButCopiesOfMemory) {
  TOWER_NEEDS_C();
  const Function compiled = called(mapped_over_all([](const Tensors& x) {
                                     return Tensors{at::linalg_solve(x[0], x[1]).exp(), x[0].mm(x[0]), x[1].cumsum(0)};
                                   }),
                                   {{matrices(12, 3), waves({12, 3})}, {matrices(17, 3), waves({17, 3})}});
  const Folder folder;
  td::export_c(compiled, "f", {.folder = folder.path()});
  output_of("cd " + folder.path() +
            " && cc -std=c99 -O2 -fno-stack-protector -c f.c && ld -r -o all.o f.o f_kernels.o");
  EXPECT_EQ(output_of("nm -u " + folder.path() + "/all.o | sed '/ mem\\(cpy\\|set\\|move\\)$/d'"), "");
}

TEST(ExportedOutside, HasNamesThatItsOwnTextUsesOtherwise) {
  TOWER_NEEDS_C();
  const Function f = [](const Tensors& x) { return Tensors{x[0] * 2 + 1}; };
  const Function compiled = called(f, {{waves({3})}});
  const bool has_fortran = std::system("gfortran --version > /dev/null 2>&1") == 0;
  // Arguments and variables of its functions; what begins as names of theirs do; long ones.
  for (const std::string& name : {std::string("n"), std::string("X"), std::string("work"), std::string("lanes"),
                                  std::string("run"), std::string("C"), std::string(60, 'a')}) {
    SCOPED_TRACE(name);
    const CLibrary library(compiled, {}, name);
    expect_close(library, f, 1, {waves({3})});
    const std::string in = "cd " + library.folder().path() + " && ";
    output_of(in + "echo '#include \"" + name + ".h\"' > cpp.cpp && c++ -std=c++98 -Wall -Wextra -Werror -c cpp.cpp");
    if (has_fortran && name.size() < 50) output_of(in + "gfortran -std=f2008 -Wall -Werror -c " + name + ".f90");
  }
}

TEST(ExportedOutside, SaysTheNamesOfArgumentsAndResults) {
  TOWER_NEEDS_LLVM();
  const Function compiled =
      called([](const Tensors& x) { return Tensors{x[0] * x[1] + 1}; }, {{waves({3}), waves({})}});
  const Folder folder;
  td::export_c(compiled, "f",
               {.folder = folder.path(), .argument_names = {"load", "scale"}, .result_names = {"stress"}});
  std::ifstream file(folder / "f.h");
  const std::string header((std::istreambuf_iterator<char>(file)), {});
  EXPECT_TRUE(says(header, {"x[0] load  double [3]", "x[1] scale  double []", "y[0] stress  double [3]"}));
  const auto refused = [&](const std::vector<std::string>& names) {
    return refusal<tower::ArgumentError>(
        [&] { td::export_c(compiled, "f", {.folder = folder.path(), .argument_names = names}); });
  };
  EXPECT_TRUE(says(refused({"load"}), {"1 names for 2 arguments"}));
  EXPECT_TRUE(says(refused({"load", "*/ int x; /*"}), {"*/ int x; /*", "cannot be a name"}));
}

TEST(ExportedOutside, SolvesWithMatricesOfManyElements) {
  TOWER_NEEDS_C();
  const Function one = [](const Tensors& x) {
    const auto residual = [&](const Tensor& a) { return at::linalg_solve(a, x[1]).square().sum(); };
    return Tensors{at::linalg_solve(x[0], x[1]), at::linalg_solve(x[0].t(), x[2]), tower::grad(residual)(x[0])};
  };
  for (const int64_t rows : {13, support::whole() ? 60 : 30}) {
    SCOPED_TRACE(rows);
    const Tensors args = {matrices(1, rows)[0], waves({rows}), waves({rows, 2})};
    const CLibrary library(called(one, {args}));
    expect_close(library, one, 1, args);
    Tensors results;
    EXPECT_EQ(library.call(1, {at::zeros({rows, rows}, at::kDouble), args[1], args[2]}, one(args), results), 4);
  }
  const Function factored = [](const Tensors& x) {
    const Tensor l = at::linalg_cholesky(x[0].mm(x[0].t()) + at::eye(16, at::kDouble));
    return Tensors{l, at::linalg_solve_triangular(l, x[1], false), at::linalg_inv(x[0])};
  };
  const Tensors args = {matrices(1, 16)[0], waves({16, 3})};
  expect_close(CLibrary(called(factored, {args})), factored, 1, args);

  const Function many = mapped_over_all([](const Tensors& x) { return Tensors{at::linalg_solve(x[0], x[1]) * 2}; });
  const auto of = [](int64_t n) { return Tensors{matrices(n, 30), waves({n, 30})}; };
  const CLibrary library(called(many, {of(12), of(17)}));
  for (const int64_t n : {1, 7, 20}) expect_close(library, many, n, of(n));
}

// A BLAS of the test's own, which says how often it was asked.
constexpr const char* kBlas =
    "#include \"blas.h\"\n"
    R"(
int asked = 0;
#define GEMM(name, type)                                                                                            \
  void name(int order, int of_a, int of_b, int m, int n, int k, type alpha, const type* a, int lda, const type* b,  \
            int ldb, type beta, type* c, int ldc)                                                                   \
  {                                                                                                                 \
    int i, j, l;                                                                                                    \
    if (order != CblasRowMajor) return;                                                                             \
    ++asked;                                                                                                        \
    for (i = 0; i < m; ++i)                                                                                         \
      for (j = 0; j < n; ++j) {                                                                                     \
        type sum = 0;                                                                                               \
        for (l = 0; l < k; ++l)                                                                                     \
          sum += (of_a == CblasTrans ? a[l * lda + i] : a[i * lda + l]) *                                           \
                 (of_b == CblasTrans ? b[j * ldb + l] : b[l * ldb + j]);                                            \
        c[i * ldc + j] = alpha * sum + (beta == 0 ? 0 : beta * c[i * ldc + j]);                                     \
      }                                                                                                             \
  }
GEMM(cblas_dgemm, double)
GEMM(cblas_sgemm, float)
)";
constexpr const char* kBlasHeader = R"(
enum { CblasRowMajor = 101, CblasNoTrans = 111, CblasTrans = 112 };
void cblas_dgemm(int, int, int, int, int, int, double, const double*, int, const double*, int, double, double*, int);
void cblas_sgemm(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
)";

TEST(ExportedOutside, HasLargeProductsMadeByABlasThatIsNamed) {
  TOWER_NEEDS_C();
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const double near = dtype == at::kDouble ? 1e-12 : 1e-4;
    const Tensor weight = waves({50, 40}).to(dtype);
    const Function f = [=](const Tensors& x) {
      return Tensors{weight.mm(x[0]),
                     x[0].t().mm(weight.t()),
                     at::addmm(x[1], weight, x[0]),
                     td::vmap([&](const Tensors& y) { return Tensors{y[0].mm(x[0])}; }, {0}, {0})({x[2]})[0],
                     weight.narrow(0, 0, 3).mm(x[0]),
                     at::linalg_solve(x[3], x[4])};
    };
    const Tensors args = {waves({40, 60}, 1).to(dtype), waves({50, 60}, 2).to(dtype), waves({2, 30, 40}, 3).to(dtype),
                          matrices(1, 130)[0].to(dtype), waves({130}).to(dtype)};
    const CLibrary library(called(f, {args}));  // the kernel's
    expect_close(library, f, 1, args, near);
    std::ofstream(library.folder() / "blas.h") << kBlasHeader;
    std::ofstream(library.folder() / "blas.c") << kBlas;
    const std::string in = "cd " + library.folder().path() + " && ";
    output_of(
        in +
        "cc -std=c99 -Wall -Wextra -Werror -O2 -fPIC -shared -I. \"-DTOWER_CBLAS=\\\"blas.h\\\"\" -o with_blas.so "
        "exported.c exported_kernels.o blas.c -lm");
    const CLibrary with_blas(library.folder() / "with_blas.so", "exported");
    expect_close(with_blas, f, 1, args, near);
    // A batch is one product, and that of three rows is small. Of the system, blocks have 256 bytes of rows.
    EXPECT_EQ(with_blas.number("asked"), 4 + (dtype == at::kDouble ? 3 : 1));
  }
}

// By valgrind, if it is there: for x86-64-v3, which it knows.
TEST(ExportedOutside, ReadsAndWritesNoMemoryButItsOwn) {
  TOWER_NEEDS_C();
  if (!export_tests::kOnX86 || std::system("valgrind --version > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "there is no valgrind";
  export_tests::CProgram in_c({.target = "x86-64-v3"});
  const auto add = [&](const Function& f, const Tensors& args) {
    const auto graph = kernels::graph_of(f, args);
    const auto of_process = std::make_shared<tower::compiler::Kernels>();
    const auto program = [&](const std::shared_ptr<tower::compiler::Kernels>& kernels) {
      return std::make_shared<const tower::compiler::PointerProgram>(graph, kernels, "test",
                                                                     tower::compiler::PointerProgram::Options());
    };
    in_c.add(program(in_c.kernels(of_process)), args, export_tests::run_by_pointers(*program(of_process), args),
             std::to_string(in_c.count()));
  };
  for (const int64_t n : {1, 3, 5, 8}) {
    add(mapped_over_all([](const Tensors& x) {
          return Tensors{x[0].mv(x[1]).exp() + 1, x[0] < 0, x[1].cumsum(0).to(at::kFloat)};
        }),
        {matrices(n, 3), waves({n, 3})});
    add(mapped_over_all([](const Tensors& x) { return Tensors{x[0].mm(x[0]) - 1}; }), {waves({n, 9, 9})});
  }
  add([](const Tensors& x) { return Tensors{at::linalg_solve(x[0], x[1])}; }, {matrices(1, 20)[0], waves({20})});
  add(
      [](const Tensors& x) {
        const auto size = at::linalg_slogdet(x[0]);
        const auto [p, l, u] = at::linalg_lu(x[2].narrow(0, 3, 40));
        return Tensors{at::linalg_solve(x[0].t(), x[1]),
                       at::linalg_cholesky(x[0].mm(x[0].t())),
                       at::linalg_inv(x[0]),
                       std::get<0>(size),
                       std::get<1>(size),
                       p,
                       l,
                       u};
      },
      // Of numbers that do not cancel: the fused multiplication of valgrind gives zeros another sign.
      {matrices(1, 70)[0], waves({70}), at::arange(4900, at::kDouble).square().mul(0.7).sin().view({70, 70})});
  add([](const Tensors& x) { return Tensors{x[0].exp() * 2 - x[1]}; }, {waves({203}), waves({203}, 1)});
  EXPECT_EQ(in_c.disagreements("valgrind -q --error-exitcode=9 "), "");
}

}  // namespace
