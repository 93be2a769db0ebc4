// Compiled functions as CasADi's external functions, called as CasADi calls them. (python/tests/test_export_c.py has
// them called by CasADi itself.) Oracle: derivatives in closed form.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <tower/tower.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "compile/kernels.h"
#include "export/c_library.h"
#include "support/prelude.h"

namespace {

using export_tests::output_of;
using support::Folder;
using tower::CAbi;
using tower::ExportOptions;

using Numbers = std::vector<double>;
using MaybeNumbers = std::vector<std::optional<Numbers>>;
using casadi_int = long long int;

constexpr double kUntouched = 12345;

// A function of the library, by its name.
class External {
 public:
  External(void* library, const std::string& name) : library_(library), name_(name) {
    find(function_, "");
    find(work_, "_work");
    find(n_in_, "_n_in");
    find(n_out_, "_n_out");
    find(sparsity_in_, "_sparsity_in");
    find(sparsity_out_, "_sparsity_out");
    find(name_in_, "_name_in");
    find(name_out_, "_name_out");
    find(diff_in_, "_diff_in");
  }

  size_t inputs() const { return static_cast<size_t>(n_in_()); }
  size_t outputs() const { return static_cast<size_t>(n_out_()); }
  std::string input(int k) const { return name_in_(k); }
  std::string output(int k) const { return name_out_(k); }
  bool is_differentiated(int k) const { return diff_in_(k) != 0; }
  int returned() const { return returned_; }

  // Where a result has numbers: rows, columns.
  std::vector<std::pair<int64_t, int64_t>> entries(size_t k) const {
    return entries_of(sparsity_out_(static_cast<casadi_int>(k)));
  }

  // Results as matrices; those that are not wanted are undefined. Arguments that are none are null.
  Tensors operator()(const MaybeNumbers& arguments, const std::vector<bool>& wanted = {}) {
    casadi_int sz_arg = 0, sz_res = 0, sz_iw = 0, sz_w = 0;
    EXPECT_EQ(work_(&sz_arg, &sz_res, &sz_iw, &sz_w), 0);
    std::vector<const double*> arg(static_cast<size_t>(sz_arg));
    std::vector<double*> res(static_cast<size_t>(sz_res));
    std::vector<casadi_int> iw(static_cast<size_t>(sz_iw) + 1);
    // Guarded, and with what must not be taken for anything.
    Numbers w(static_cast<size_t>(sz_w) + 16, kUntouched);
    EXPECT_EQ(arguments.size(), inputs());
    for (size_t k = 0; k < arguments.size(); ++k) {
      if (!arguments[k]) continue;
      arg[k] = arguments[k]->data();
      EXPECT_EQ(arguments[k]->size(), entries_of(sparsity_in_(static_cast<casadi_int>(k))).size()) << name_ << k;
    }
    std::vector<Numbers> memory;
    for (size_t k = 0; k < outputs(); ++k) memory.emplace_back(entries(k).size() + 1, kUntouched);
    for (size_t k = 0; k < outputs(); ++k) res[k] = wanted.empty() || wanted[k] ? memory[k].data() : nullptr;
    returned_ = function_(arg.data(), res.data(), iw.data(), w.data() + 8, 0);
    for (size_t k = 0; k < 8; ++k) {
      EXPECT_EQ(w[k], kUntouched) << "before w";
      EXPECT_EQ(w[w.size() - 1 - k], kUntouched) << "behind w";
    }
    Tensors results(outputs());
    for (size_t k = 0; k < outputs(); ++k) {
      EXPECT_EQ(memory[k].back(), kUntouched) << "behind result " << k;
      if (!wanted.empty() && !wanted[k]) continue;
      const casadi_int* pattern = sparsity_out_(static_cast<casadi_int>(k));
      results[k] = at::zeros({pattern[0], pattern[1]}, at::kDouble);
      const auto places = entries(k);
      for (size_t e = 0; e < places.size(); ++e) results[k][places[e].first][places[e].second] = memory[k][e];
    }
    return results;
  }

 private:
  static std::vector<std::pair<int64_t, int64_t>> entries_of(const casadi_int* pattern) {
    std::vector<std::pair<int64_t, int64_t>> all;
    const casadi_int rows = pattern[0], columns = pattern[1], *starts = pattern + 2, *row = starts + columns + 1;
    for (casadi_int c = 0; c < columns; ++c)
      if (starts[0] == 1)
        for (casadi_int r = 0; r < rows; ++r) all.emplace_back(r, c);
      else
        for (casadi_int e = starts[c]; e < starts[c + 1]; ++e) all.emplace_back(row[e], c);
    return all;
  }

  template <class F>
  void find(F& f, const char* end) {
    f = reinterpret_cast<F>(dlsym(library_, (name_ + end).c_str()));
    if (!f) throw std::runtime_error("there is no " + name_ + end);
  }

  void* library_;
  std::string name_;
  int returned_ = 0;
  int (*function_)(const double**, double**, casadi_int*, double*, int);
  int (*work_)(casadi_int*, casadi_int*, casadi_int*, casadi_int*);
  casadi_int (*n_in_)();
  casadi_int (*n_out_)();
  const casadi_int* (*sparsity_in_)(casadi_int);
  const casadi_int* (*sparsity_out_)(casadi_int);
  const char* (*name_in_)(casadi_int);
  const char* (*name_out_)(casadi_int);
  int (*diff_in_)(casadi_int);
};

class CasadiLibrary {
 public:
  explicit CasadiLibrary(const Function& compiled, ExportOptions options = {}) {
    options.folder = folder_.path();
    options.abi = CAbi::casadi;
    td::export_c(compiled, "f", options);
    const std::string base = folder_ / "f";
    output_of("cc -std=c99 -pedantic -Wall -Wextra -Werror -O2 -fPIC -shared -Wl,-z,text -o " + base + ".so " + base +
              ".c " + base + "_kernels.o -lm");
    library_ = dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) throw std::runtime_error(dlerror());
  }
  ~CasadiLibrary() {
    if (library_) dlclose(library_);
  }
  CasadiLibrary(const CasadiLibrary&) = delete;
  CasadiLibrary& operator=(const CasadiLibrary&) = delete;

  External operator[](const std::string& name) const { return {library_, name}; }
  bool has(const std::string& name) const { return dlsym(library_, name.c_str()) != nullptr; }

 private:
  Folder folder_;
  void* library_ = nullptr;
};

// By columns.
Numbers numbers_of(const Tensor& t) {
  const Tensor columns = t.dim() == 2 ? t.t().contiguous() : t.contiguous();
  const double* begin = static_cast<const double*>(columns.const_data_ptr());
  return {begin, begin + columns.numel()};
}

Function called(const std::function<Tensors(const Tensors&)>& f, const Tensors& args) {
  Function compiled = td::compile(f);
  compiled(args);
  return compiled;
}

void expect_close(const Tensor& found, const Tensor& expected, const char* what) {
  EXPECT_TRUE(found.sizes() == expected.sizes() && at::allclose(found, expected, 1e-12, 1e-13)) << what << "\n"
                                                                                                << found << "\n"
                                                                                                << expected;
}

// x in R³, A in R²ˣ³, s:  y = A x + s² and Z = xᵢ Aⱼᵢ, a matrix 3 × 2.
Tensors products(const Tensors& in) {
  const auto &x = in[0], &a = in[1], &s = in[2];
  return {a.mv(x) + s * s, x.unsqueeze(1) * a.t()};
}
Tensors some_products() { return {waves({3}), waves({2, 3}, 1), at::scalar_tensor(0.7, at::kDouble)}; }

TEST(ExportedCasadi, HasValuesByColumns) {
  TOWER_NEEDS_C();
  const Tensors in = some_products();
  const Function compiled = called(products, in);
  const Tensors expected = compiled(in);
  const CasadiLibrary library(compiled, {.derivatives = 0});
  External f = library["f"];
  EXPECT_FALSE(library.has("jac_f"));
  EXPECT_EQ(f.input(1), "i1");
  EXPECT_EQ(f.output(1), "o1");
  const Tensors found = f({numbers_of(in[0]), numbers_of(in[1]), Numbers{0.7}});
  EXPECT_EQ(f.returned(), 0);
  EXPECT_TRUE(at::equal(found[0].select(1, 0), expected[0]));
  EXPECT_TRUE(at::equal(found[1], expected[1]));
}

TEST(ExportedCasadi, TakesNullForZeroAndLeavesOutWhatIsNotWanted) {
  TOWER_NEEDS_C();
  const Tensors in = some_products();
  const Function compiled = called(products, in);
  const Tensors expected = compiled({in[0], at::zeros_like(in[1]), in[2]});
  const CasadiLibrary library(compiled, {.derivatives = 0});
  External f = library["f"];
  const Tensors found = f({numbers_of(in[0]), std::nullopt, Numbers{0.7}});
  EXPECT_TRUE(at::equal(found[0].select(1, 0), expected[0]));
  EXPECT_TRUE(at::equal(found[1], expected[1]));
  const Tensors first = f({numbers_of(in[0]), std::nullopt, Numbers{0.7}}, {true, false});
  EXPECT_TRUE(at::equal(first[0], found[0]));
  f({std::nullopt, std::nullopt, std::nullopt}, {false, false});
  EXPECT_EQ(f.returned(), 0);
}

TEST(ExportedCasadi, HasBlocksOfTheJacobian) {
  TOWER_NEEDS_C();
  const Tensors in = some_products();
  const CasadiLibrary library(called(products, in), {.derivatives = 1});
  External jacobian = library["jac_f"];
  EXPECT_FALSE(library.has("jac_adj1_f"));
  ASSERT_EQ(jacobian.inputs(), 5u);
  ASSERT_EQ(jacobian.outputs(), 6u);
  EXPECT_EQ(jacobian.input(3), "out_o0");
  EXPECT_EQ(jacobian.output(4), "jac_o1_i1");
  const MaybeNumbers given{numbers_of(in[0]), numbers_of(in[1]), Numbers{0.7}, std::nullopt, std::nullopt};
  const Tensors found = jacobian(given);
  // Elements of matrices are counted by columns.
  Tensor y_by_a = at::zeros({2, 6}, at::kDouble), z_by_x = at::zeros({6, 3}, at::kDouble),
         z_by_a = at::zeros({6, 6}, at::kDouble);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 2; ++j) {
      y_by_a[j][j + 2 * i] = in[0][i];
      z_by_x[i + 3 * j][i] = in[1][j][i];
      z_by_a[i + 3 * j][j + 2 * i] = in[0][i];
    }
  expect_close(found[0], in[1], "y by x");
  expect_close(found[1], y_by_a, "y by A");
  expect_close(found[2], at::full({2, 1}, 1.4, at::kDouble), "y by s");
  expect_close(found[3], z_by_x, "Z by x");
  expect_close(found[4], z_by_a, "Z by A");
  EXPECT_TRUE(jacobian.entries(5).empty());
  // Only what can be other than zero.
  EXPECT_EQ(jacobian.entries(1).size(), 6u);
  EXPECT_EQ(jacobian.entries(3).size(), 6u);
  EXPECT_EQ(jacobian.entries(4).size(), 6u);
  // One block alone.
  const Tensors one = jacobian(given, {false, false, false, false, true, false});
  expect_close(one[4], z_by_a, "Z by A, alone");
}

TEST(ExportedCasadi, HasDerivativesAlongDirections) {
  TOWER_NEEDS_C();
  const Tensors in = some_products(), dx{waves({3}, 2), waves({2, 3}, 3), at::scalar_tensor(-0.3, at::kDouble)},
                dy{waves({2}, 4), waves({3, 2}, 5)};
  const CasadiLibrary library(called(products, in), {.derivatives = 1});
  External forward = library["fwd1_f"], reverse = library["adj1_f"];
  const Numbers x = numbers_of(in[0]), a = numbers_of(in[1]), s{0.7};
  const Tensors along =
      forward({x, a, s, std::nullopt, std::nullopt, numbers_of(dx[0]), numbers_of(dx[1]), Numbers{-0.3}});
  expect_close(along[0].select(1, 0), in[1].mv(dx[0]) + dx[1].mv(in[0]) + 2 * in[2] * dx[2], "y along");
  expect_close(along[1], dx[0].unsqueeze(1) * in[1].t() + in[0].unsqueeze(1) * dx[1].t(), "Z along");
  EXPECT_EQ(forward.input(5), "fwd_i0");
  EXPECT_EQ(forward.output(1), "fwd_o1");
  const Tensors back = reverse({x, a, s, std::nullopt, std::nullopt, numbers_of(dy[0]), numbers_of(dy[1])});
  expect_close(back[0].select(1, 0), in[1].t().mv(dy[0]) + (in[1].t() * dy[1]).sum(1), "x back");
  expect_close(back[1], dy[0].unsqueeze(1) * in[0] + dy[1].t() * in[0], "A back");
  expect_close(back[2], (2 * in[2] * dy[0].sum()).reshape({1, 1}), "s back");
  EXPECT_EQ(reverse.input(6), "adj_o1");
  EXPECT_EQ(reverse.output(2), "adj_i2");
}

// A chain: g_k = x_k² x_{k+1} − p, and the energy Σ x_k³.
Tensors chain(const Tensors& in) {
  const Tensor &x = in[0], left = x.narrow(0, 0, 7), right = x.narrow(0, 1, 7);
  return {left * left * right - in[1], (x * x * x).sum()};
}

TEST(ExportedCasadi, HasSparseHessiansAndNothingByParameters) {
  TOWER_NEEDS_C();
  const Tensors in{waves({8}), at::scalar_tensor(0.2, at::kDouble)};
  const CasadiLibrary library(called(chain, in),
                              {.parameters = {1}, .argument_names = {"x", "p"}, .result_names = {"g", "energy"}});
  External f = library["f"], jacobian = library["jac_f"], second = library["jac_adj1_f"];
  EXPECT_EQ(f.input(1), "p");
  EXPECT_TRUE(f.is_differentiated(0));
  EXPECT_FALSE(f.is_differentiated(1));
  const Numbers x = numbers_of(in[0]);
  const Tensors of_first = jacobian({x, Numbers{0.2}, std::nullopt, std::nullopt});
  EXPECT_EQ(jacobian.output(0), "jac_g_x");
  EXPECT_EQ(jacobian.entries(0).size(), 14u);
  EXPECT_TRUE(jacobian.entries(1).empty());
  EXPECT_TRUE(jacobian.entries(3).empty());
  Tensor expected = at::zeros({7, 8}, at::kDouble);
  for (int64_t k = 0; k < 7; ++k) {
    expected[k][k] = 2 * in[0][k] * in[0][k + 1];
    expected[k][k + 1] = in[0][k] * in[0][k];
  }
  expect_close(of_first[0], expected, "g by x");
  expect_close(of_first[2].select(0, 0), 3 * in[0] * in[0], "energy by x");

  // adj1_f gives (adj_x, adj_p) of (x, p, out_g, out_energy, adj_g, adj_energy).
  ASSERT_EQ(second.inputs(), 8u);
  ASSERT_EQ(second.outputs(), 12u);
  EXPECT_EQ(second.output(0), "jac_adj_x_x");
  EXPECT_EQ(second.output(4), "jac_adj_x_adj_g");
  const Tensor weights = waves({7}, 1);
  const MaybeNumbers given{
      x, Numbers{0.2}, std::nullopt, std::nullopt, numbers_of(weights), Numbers{0.5}, std::nullopt, std::nullopt};
  const Tensors of_second = second(given);
  Tensor hessian = at::diag(6 * 0.5 * in[0]);
  for (int64_t k = 0; k < 7; ++k) {
    hessian[k][k] += 2 * weights[k] * in[0][k + 1];
    hessian[k][k + 1] += 2 * weights[k] * in[0][k];
    hessian[k + 1][k] += 2 * weights[k] * in[0][k];
  }
  expect_close(of_second[0], hessian, "the Hessian");
  EXPECT_EQ(second.entries(0).size(), 22u);
  expect_close(of_second[4], expected.t(), "the Jacobian, transposed");
  expect_close(of_second[5].select(1, 0), 3 * in[0] * in[0], "the gradient");
  for (const size_t k : {1, 2, 3, 6, 7, 8, 9, 10, 11}) EXPECT_TRUE(second.entries(k).empty()) << k;
  const Tensors alone =
      second(given, {true, false, false, false, false, false, false, false, false, false, false, false});
  expect_close(alone[0], hessian, "the Hessian, alone");
}

TEST(ExportedCasadi, HasLoopsAndSolvesAndReturnsTheirFaults) {
  TOWER_NEEDS_C();
  const auto solved = [](const Tensors& in) { return Tensors{at::linalg_solve(in[0], in[1])}; };
  const Tensors in{waves({3, 3}) + 4 * at::eye(3, at::kDouble), waves({3}, 1)};
  const CasadiLibrary library(called(solved, in), {.derivatives = 1});
  External f = library["f"], jacobian = library["jac_f"];
  const Tensor x = f({numbers_of(in[0]), numbers_of(in[1])})[0].select(1, 0);
  expect_close(in[0].mv(x), in[1], "A x");
  const Tensors by = jacobian({numbers_of(in[0]), numbers_of(in[1]), std::nullopt});
  const Tensor inverse = at::linalg_inv(in[0]);
  expect_close(by[1], inverse, "x by b");
  // ∂x/∂A_ij = −A⁻¹ e_i x_j
  Tensor by_matrix = at::zeros({3, 9}, at::kDouble);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 3; ++j) by_matrix.select(1, i + 3 * j).copy_(-inverse.select(1, i) * x[j]);
  expect_close(by[0], by_matrix, "x by A");
  f({Numbers(9, 1.0), numbers_of(in[1])});
  EXPECT_EQ(f.returned(), 4) << "singular";
}

TEST(ExportedCasadi, RefusesWhatIsNoMatrixOfDoubles) {
  TOWER_NEEDS_LLVM();
  const Folder folder;
  const auto refused = [&](const Function& compiled, ExportOptions options = {}) {
    options.folder = folder.path();
    options.abi = CAbi::casadi;
    try {
      td::export_c(compiled, "f", options);
    } catch (const tower::Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto doubled = [](const Tensors& in) { return Tensors{in[0] * 2}; };
  EXPECT_TRUE(
      says(refused(called(doubled, {waves({3}).to(at::kFloat)})), {"CasADi", "argument 0", "Float", "float64"}));
  EXPECT_TRUE(says(refused(called([](const Tensors& in) { return Tensors{in[0] > 0}; }, {waves({3})})),
                   {"CasADi", "result 0", "Bool"}));
  EXPECT_TRUE(says(refused(called(doubled, {waves({2, 3, 4})})), {"CasADi", "argument 0", "3 dimensions"}));
  const Function any = td::compile([&](const Tensors& x) { return td::vmap(doubled, {0}, {0})(x); });
  for (const int64_t n : {12, 17}) any({waves({n, 3})});
  EXPECT_TRUE(says(refused(any), {"CasADi", "one example", "vmap"}));
  const Function right = called(doubled, {waves({3})});
  EXPECT_TRUE(says(refused(right, {.captured = ExportOptions::Captured::arguments}), {"CasADi", "captured"}));
  EXPECT_TRUE(says(refused(right, {.derivatives = 3}), {"derivatives", "3"}));
  EXPECT_TRUE(says(refused(right, {.parameters = {1}}), {"1 among the parameters"}));
  EXPECT_TRUE(says(refused(right, {.argument_names = {"x", "y"}}), {"2 names for 1 argument"}));
  EXPECT_TRUE(says(refused(right, {.result_names = {"x", "y"}}), {"2 names for 1 result"}));
  for (const char* name : {"", "a b", "7up", "a__b", "é", "\""})
    EXPECT_TRUE(
        says(refused(right, {.argument_names = {name}}), {("'" + std::string(name) + "' cannot be a name").c_str()}));
}

}  // namespace
