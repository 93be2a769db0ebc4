// What rows come to, compiled, beside LibTorch's operator and long doubles: on numbers with offsets from 1e3 to 1e8 and
// on scales whose squares are out of range.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "compile/kernels.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using td::Function;
using td::Tensors;

using Row = std::vector<long double>;

long double sum(const Row& x) {
  long double s = 0;
  for (const long double v : x) s += v;
  return s;
}
Row of_each(const Row& x, const std::function<long double(long double)>& f) {
  Row y;
  for (const long double v : x) y.push_back(f(v));
  return y;
}
long double mean(const Row& x) { return sum(x) / static_cast<long double>(x.size()); }
long double variance(const Row& x, long double correction = 1) {
  const long double m = mean(x);
  return sum(of_each(x, [m](long double v) { return (v - m) * (v - m); })) /
         (static_cast<long double>(x.size()) - correction);
}
Row probabilities(const Row& x) {
  long double top = x[0];
  for (const long double v : x) top = std::max(top, v);
  const Row p = of_each(x, [top](long double v) { return std::exp(v - top); });
  const long double all = sum(p);
  return of_each(p, [all](long double v) { return v / all; });
}
long double log_sum(const Row& x) {
  long double top = x[0];
  for (const long double v : x) top = std::max(top, v);
  return top + std::log(sum(of_each(x, [top](long double v) { return std::exp(v - top); })));
}
long double length(const Row& x) {
  return std::sqrt(sum(of_each(x, [](long double v) { return v * v; })));
}

struct Fold {
  const char* name;
  Tensor (*of)(const Tensor& x);  // of the last dimension
  Row (*exact)(const Row& x);
  // In what an error is counted besides the result: what the rounding of an operand is to it.
  long double (*size)(const Row& x);
};

long double largest(const Row& x) {
  long double most = 0;
  for (const long double v : x) most = std::max(most, std::fabs(v));
  return most;
}
long double nothing(const Row&) { return 0; }
long double of_terms(const Row& x) {
  return sum(of_each(x, [](long double v) { return std::fabs(v); }));
}

template <at::ScalarType dtype>
constexpr long double epsilon() {
  return dtype == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

// Equal numbers have no variance; what is left of a mean that is off by a rounding has the square of that.
const std::vector<Fold>& folds() {
  static const std::vector<Fold> all{
      {"sum", [](const Tensor& x) { return x.sum(-1); }, [](const Row& x) { return Row{sum(x)}; }, of_terms},
      {"mean", [](const Tensor& x) { return x.mean(-1); }, [](const Row& x) { return Row{mean(x)}; },
       [](const Row& x) { return of_terms(x) / static_cast<long double>(x.size()); }},
      {"var", [](const Tensor& x) { return x.var(-1); }, [](const Row& x) { return Row{variance(x)}; }, nothing},
      {"var of all", [](const Tensor& x) { return x.var({-1}, 0); }, [](const Row& x) { return Row{variance(x, 0)}; },
       nothing},
      {"std", [](const Tensor& x) { return x.std(-1); }, [](const Row& x) { return Row{std::sqrt(variance(x))}; },
       nothing},
      {"norm", [](const Tensor& x) { return at::linalg_vector_norm(x, 2, at::IntArrayRef({-1})); },
       [](const Row& x) { return Row{length(x)}; }, nothing},
      {"norm of order 1", [](const Tensor& x) { return at::linalg_vector_norm(x, 1, at::IntArrayRef({-1})); },
       [](const Row& x) { return Row{of_terms(x)}; }, nothing},
      {"logsumexp", [](const Tensor& x) { return at::logsumexp(x, {-1}); },
       [](const Row& x) { return Row{log_sum(x)}; }, nothing},
      {"softmax", [](const Tensor& x) { return at::softmax(x, -1); }, probabilities, [](const Row&) { return 1.0L; }},
      {"log_softmax", [](const Tensor& x) { return at::log_softmax(x, -1); },
       [](const Row& x) {
         const long double all = log_sum(x);
         return of_each(x, [all](long double v) { return v - all; });
       },
       [](const Row& x) { return std::fabs(log_sum(x) - largest(x)) + 1; }},
      {"layer_norm", [](const Tensor& x) { return at::layer_norm(x, {x.size(-1)}); },
       [](const Row& x) {
         const long double m = mean(x), s = std::sqrt(variance(x, 0) + 1e-5L);
         return of_each(x, [=](long double v) { return (v - m) / s; });
       },
       [](const Row&) { return 1.0L; }},
  };
  return all;
}

// The largest error of a row, in units of its largest exact number and `size`; infinite where one is finite and the
// other is not. What the type cannot hold is an infinity, or zero.
long double error(const Tensor& found, const Row& exact, long double size) {
  const Tensor y = found.to(at::kDouble).contiguous();
  const bool narrow = found.scalar_type() == at::kFloat;
  const long double most = narrow ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
  const long double tiny =
      narrow ? std::numeric_limits<float>::denorm_min() : std::numeric_limits<double>::denorm_min();
  long double worst = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const long double v = y.const_data_ptr<double>()[i];
    if (std::isfinite(v) != (std::fabs(exact[i]) <= most)) return INFINITY;
    if (std::isfinite(v)) worst = std::max(worst, std::fabs(v - exact[i]));
  }
  return worst / std::max({largest(exact), size, tiny});
}

// All of them, of what a kernel has computed.
Tensors fold_all(const Tensor& x) {
  Tensors results;
  for (const Fold& fold : folds()) results.push_back(fold.of(x * 1 + 0.));
  return results;
}

struct Numbers {
  double offset, scale;
};

// How rows lie: each by itself, as columns of a matrix, or in examples of a vmap.
enum class Lie { as_rows, as_columns, in_examples };

// Compiled, an error is of the order of LibTorch's own, or of the roundings that a sum of this length in blocks has.
template <at::ScalarType dtype>
void expect_accurate(Lie lie, int64_t n, Numbers of) {
  constexpr long double eps = epsilon<dtype>();
  const bool lanes = lie == Lie::in_examples;
  const int64_t rows = lanes ? 19 : 6;
  Tensor x = (at::randn({rows, n}, at::kDouble) * of.scale + of.offset).to(dtype);
  if (lie == Lie::as_columns) x = x.t().contiguous().t();
  const Function rows_of = [](const Tensors& in) { return fold_all(in[0]); };
  const Function compiled = td::compile(lanes ? Function(td::vmap(rows_of, {0}, {0})) : rows_of);
  Tensors all;
  for (int run = 0; run < 3; ++run) all = compiled({x});
  for (size_t k = 0; k < folds().size(); ++k) {
    const Fold& fold = folds()[k];
    const Tensor found = all[k], plain = fold.of(x), wide = x.to(at::kDouble);
    for (int64_t r = 0; r < rows; ++r) {
      const double* begin = wide.const_data_ptr<double>() + r * n;
      const Row row(begin, begin + n), exact = fold.exact(row);
      const long double size = fold.size(row), ours = error(found[r], exact, size), its = error(plain[r], exact, size);
      // Of squares that LibTorch takes in this type: its layer_norm is then NaN or 0, by the length of the row.
      if (std::isinf(its)) continue;
      EXPECT_TRUE(at::equal(found[r].isnan(), plain[r].isnan())) << fold.name << ' ' << of.scale << found[r];
      EXPECT_LE(static_cast<double>(ours), static_cast<double>(4 * its + 16 * eps))
          << fold.name << " of " << n << ' ' << toString(dtype) << (lanes ? ", mapped" : "")
          << (lie == Lie::as_columns ? ", columns" : "") << ", offset " << of.offset << ", scale " << of.scale << ": "
          << found[r].flatten()[0].item<double>() << ", LibTorch " << plain[r].flatten()[0].item<double>() << ", exact "
          << static_cast<double>(exact[0]);
    }
  }
}

TEST(FoldAccuracy, IsLibTorchsWhateverTheOffset) {
  TOWER_NEEDS_LLVM();
  for (const double offset : {0., 1e3, -1e6, 1e8})
    for (const int64_t n : {5, 100}) {
      expect_accurate<at::kFloat>(Lie::as_rows, n, {offset, 1});
      expect_accurate<at::kDouble>(Lie::as_rows, n, {offset, 1});
    }
  expect_accurate<at::kFloat>(Lie::in_examples, 5, {1e6, 1});
  expect_accurate<at::kDouble>(Lie::in_examples, 5, {1e6, 1});
}

TEST(FoldAccuracy, IsLibTorchsWhateverTheScale) {
  TOWER_NEEDS_LLVM();
  for (const double scale : {1e-30, 1e-20, 1e20, 1e30}) expect_accurate<at::kFloat>(Lie::as_rows, 70, {0, scale});
  for (const double scale : {1e-200, 1e-150, 1e150, 1e200}) expect_accurate<at::kDouble>(Lie::as_rows, 70, {0, scale});
  expect_accurate<at::kFloat>(Lie::in_examples, 5, {0, 1e25});
  expect_accurate<at::kFloat>(Lie::in_examples, 5, {0, 1e-25});
}

// Longer than what a kernel adds up in registers, and than LibTorch's blocks.
TEST(FoldAccuracy, IsLibTorchsHoweverLongTheRow) {
  TOWER_NEEDS_LLVM();
  for (const Lie lie : {Lie::as_rows, Lie::as_columns}) {
    expect_accurate<at::kFloat>(lie, 20'000, {1e6, 1});
    expect_accurate<at::kDouble>(lie, 20'000, {1e6, 1});
    expect_accurate<at::kFloat>(lie, 1000, {0, 1});
  }
  expect_accurate<at::kFloat>(Lie::in_examples, 100, {1e6, 1});
  expect_accurate<at::kDouble>(Lie::in_examples, 100, {1e6, 1});
}

// What examples are added up to, and a gradient by what they share, which is such a sum: here of the data themselves.
TEST(FoldAccuracy, SumsOverExamplesAreLibTorchs) {
  TOWER_NEEDS_LLVM();
  const Function total = [](const Tensors& in) {
    return Tensors{td::vmap([](const Tensors& e) { return Tensors{e[0] * 1 + 0.}; }, {0}, {0})({in[1]})[0].sum(0)};
  };
  const Function loss = [](const Tensors& in) {
    const auto of_one = [](const Tensors& e) { return Tensors{e[0] * e[1]}; };
    return Tensors{td::vmap(of_one, {std::nullopt, 0}, {0})(in)[0].sum()};
  };
  for (const auto dtype : {at::kFloat, at::kDouble})
    for (const int64_t n : {1000, 50'000}) {
      const Tensor x = (at::randn({n, 3}, at::kDouble) + 1e6).to(dtype), w = at::ones({3}, dtype);
      const Tensor plain = x.sum(0), wide = x.to(at::kDouble).t().contiguous();
      for (const Function& f : {total, td::grad(loss, {0})}) {
        const Function compiled = td::compile(f);
        Tensor found;
        for (int run = 0; run < 3; ++run) found = compiled({w, x})[0];
        for (int64_t k = 0; k < 3; ++k) {
          const double* begin = wide.const_data_ptr<double>() + k * n;
          const Row exact{sum(Row(begin, begin + n))};
          const long double eps = dtype == at::kFloat ? epsilon<at::kFloat>() : epsilon<at::kDouble>();
          EXPECT_LE(static_cast<double>(error(found[k], exact, 0)),
                    static_cast<double>(4 * error(plain[k], exact, 0) + 16 * eps))
              << toString(dtype) << " of " << n;
        }
      }
    }
}

// Of one row whose numbers are equal, whatever their sum is rounded to.
TEST(FoldAccuracy, EqualNumbersDoNotVary) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : {at::kFloat, at::kDouble})
    for (const double number : {0.1, 1e8 / 3, -1e-3}) {
      const Tensor x = at::full({4, 100}, number, dtype);
      const Function compiled = td::compile([](const Tensors& in) {
        const Tensor t = in[0] * 1 + 0.;
        return Tensors{t.var(1), t.std(1)};
      });
      for (int run = 0; run < 3; ++run) {
        const Tensors found = compiled({x});
        const double rounding = std::fabs(number) * std::numeric_limits<double>::epsilon();
        EXPECT_TRUE((found[0] >= 0).all().item<bool>()) << found[0];
        EXPECT_LE(found[0].max().item<double>(), rounding * rounding);
        EXPECT_LE(found[1].max().item<double>(), rounding);
      }
    }
}

// What is not finite, and rows of one number.
TEST(FoldAccuracy, NumbersThatAreNotFiniteSpreadAsInLibTorch) {
  TOWER_NEEDS_LLVM();
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const auto dtype : {at::kFloat, at::kDouble})
    for (const double number : {inf, -inf, std::numeric_limits<double>::quiet_NaN(), 1e5}) {
      Tensor x = at::randn({3, 70}, at::kDouble).to(dtype);
      x[1][33] = number;
      for (const Tensor& t : {x, x.narrow(1, 33, 1).contiguous()}) {
        const Function f = [](const Tensors& in) { return fold_all(in[0]); };
        const Function compiled = td::compile(f);
        const Tensors expected = f({t});
        Tensors found;
        for (int run = 0; run < 3; ++run) found = compiled({t});
        for (size_t k = 0; k < found.size(); ++k)
          EXPECT_TRUE(at::allclose(found[k], expected[k], 1e-4, 1e-5, /*equal_nan=*/true))
              << folds()[k].name << " with " << number << ": " << found[k] << expected[k];
      }
    }
}

}  // namespace
