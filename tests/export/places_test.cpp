// Programs for one number of examples, whose kernels know where their lanes are (NOTE [Lanes in places]): as many lanes
// as fill vectors and not, next to each other and apart, of all types; what is missing in a vector does no harm.
#include <gtest/gtest.h>
#include <tower/loops.h>
#include <tower/tower.h>

#include "compile/kernels.h"
#include "compile/specialisations.h"
#include "export/c_library.h"
#include "fuse/pointer_program.h"
#include "support/prelude.h"

namespace {

using export_tests::CLibrary;
using export_tests::mapped_over_all;
using tower::compiler::PointerProgram;

// A function by pointers, called once before; its kernels, or none of them, know their places.
std::shared_ptr<const PointerProgram> program_of(const Function& compiled, const Tensors& args) {
  compiled(args);
  auto program = tower::compiler::specialisations_of(compiled, "test").by_pointers("test");
  int64_t in_places = 0;
  const auto& tables = program->tables();
  for (int64_t s = 0; s < tables.steps; ++s) in_places += tables.step[s].kind == tower::compiler::kStepInPlaces;
  EXPECT_GT(in_places, 0);
  return program;
}

// What it gives, in memory that lies as `like`. Memory around the results stays as it is.
Tensors run(const PointerProgram& program, const Tensors& args, const Tensors& like) {
  constexpr int64_t kAround = 64;
  std::vector<const void*> x;
  std::vector<void*> y;
  std::vector<std::vector<char>> memory;
  for (const Tensor& t : args) x.push_back(t.const_data_ptr());
  for (const Tensor& t : like) {
    memory.emplace_back(t.nbytes() + 2 * kAround, char{77});
    y.push_back(memory.back().data() + kAround);
  }
  program.run(1, x.data(), y.data());
  Tensors results;
  for (size_t k = 0; k < like.size(); ++k) {
    for (int64_t i = 0; i < kAround; ++i)
      EXPECT_TRUE(memory[k][static_cast<size_t>(i)] == 77 &&
                  memory[k][memory[k].size() - 1 - static_cast<size_t>(i)] == 77);
    results.push_back(at::from_blob(y[k], like[k].sizes(), like[k].strides(), like[k].options()).clone());
  }
  return results;
}

// By pointers, the bits of the compiled function, which are near what the operators give.
void expect_in_places(const Function& f, const Tensors& args, double near = 1e-12) {
  const Function compiled = td::compile(f);
  const auto program = program_of(compiled, args);
  const Tensors expected = compiled(args), plain = f(args), results = run(*program, args, expected);
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_TRUE(at::equal(results[k], expected[k])) << "result " << k << " of " << args[0].sizes();
    EXPECT_TRUE(at::allclose(results[k], plain[k], near, near)) << "result " << k << " of " << args[0].sizes();
  }
}

Tensors of_one(const Tensors& x) {
  const Tensor a = x[0], b = x[1];
  return {a.sin() * b + a.sum(), (a * b).sum() / (b.square().sum() + 1), a < b};
}

TEST(LanesInPlaces, AreAsManyAsThereAre) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const int64_t lanes : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33})
      expect_in_places(mapped_over_all(of_one), {waves({lanes, 3}).to(dtype), waves({lanes, 3}, 1).to(dtype)},
                       dtype == at::kFloat ? 1e-5 : 1e-12);
}

TEST(LanesInPlaces, AreDirectionsOfDerivatives) {
  TOWER_NEEDS_LLVM();
  const auto energy = [](const Tensor& x) { return (x.sin() * x.flip(0)).sum() + x.square().sum().sqrt(); };
  for (const int64_t size : {2, 5, 7, 8, 14})
    expect_in_places(
        [=](const Tensors& x) {
          return Tensors{tower::grad(energy)(x[0]), tower::jacfwd(tower::grad(energy))(x[0])};
        },
        {waves({size})});
}

TEST(LanesInPlaces, MayBeApartInMemory) {
  TOWER_NEEDS_LLVM();
  const Function by_columns = [](const Tensors& x) { return td::vmap(of_one, {1, 0}, {1, 0, 1})(x); };
  for (const int64_t lanes : {3, 8, 11}) expect_in_places(by_columns, {waves({3, lanes}), waves({lanes, 3}, 1)});
  // All lanes share what is expanded.
  expect_in_places(mapped_over_all(of_one), {waves({1, 3}).expand({5, 3}), waves({5, 3}, 1)});
}

TEST(LanesInPlaces, AreOfAllTypes) {
  TOWER_NEEDS_LLVM();
  const Function f = mapped_over_all([](const Tensors& x) {
    return Tensors{x[0] + x[0].amax(), at::where(x[1], x[0], -x[0].amin()), x[1].any().logical_xor(x[1])};
  });
  for (const auto dtype : {at::kLong, at::kInt, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble})
    for (const int64_t lanes : {5, 19})
      expect_in_places(f, {(waves({lanes, 2}) * 9).to(dtype), waves({lanes, 2}, 1) > 0}, 0);
}

TEST(LanesInPlaces, ThatAreMissingInAVectorDivideByNothing) {
  TOWER_NEEDS_LLVM();
  const Function f = mapped_over_all([](const Tensors& x) { return Tensors{at::floor_divide(x[0], x[1].sum())}; });
  for (const int64_t lanes : {3, 9}) {
    const Tensors args = {at::arange(2 * lanes, at::kLong).view({lanes, 2}) * 7,
                          at::arange(2 * lanes, at::kLong).view({lanes, 2}) + 1};
    const Function compiled = td::compile(f);
    const auto program = program_of(compiled, args);
    EXPECT_TRUE(at::equal(run(*program, args, f(args))[0], f(args)[0]));
    args[1][lanes - 1].zero_();
    EXPECT_ANY_THROW(run(*program, args, {args[0]}));
  }
}

TEST(LanesInPlaces, LoopAndSolveEachForItself) {
  TOWER_NEEDS_LLVM();
  const Function f = mapped_over_all([](const Tensors& x) {
    const Tensor root = tower::while_loop([&](const Tensor& y) { return (y * y - x[0]).abs() > 1e-12 * x[0]; },
                                          [&](const Tensor& y) { return (y + x[0] / y) / 2; }, x[0] + 1);
    return Tensors{root, at::linalg_solve(x[1] + 4 * at::eye(3, at::kDouble), root * x[1][0])};
  });
  for (const int64_t lanes : {1, 3, 11})
    expect_in_places(f, {at::arange(1, lanes + 1, at::kDouble).pow(5), waves({lanes, 3, 3})});
}

// What all lanes have in common is a kernel of one lane: of numbers, of what is true, and of results.
TEST(LanesInPlaces, HaveWhatTheyShareFromOneLane) {
  TOWER_NEEDS_LLVM();
  const auto energy = [](const Tensor& x) {
    Tensor y = x;
    for (int k = 0; k < 3; ++k) y = at::where(y > 0.1, y * y.sin() - 0.25, (y + k).tanh() * y.flip(0)) * x.mean();
    return y.sum();
  };
  const auto scaled = [=](const Tensor& x) { return energy(x) * (energy(2 * x) > 0).to(x.scalar_type()); };
  for (const auto& [dtype, size] : {std::pair{at::kDouble, 3}, {at::kFloat, 8}, {at::kDouble, 11}}) {
    const Tensors args = {waves({size}).to(dtype), waves({size}, 1).to(dtype)};
    const Function f = [=](const Tensors& x) {
      return Tensors{energy(x[0]), tower::grad(scaled)(x[0]), tower::hessian(energy)(x[0]) * (x[1] > energy(x[1]))};
    };
    expect_in_places(f, args, dtype == at::kFloat ? 1e-5 : 1e-12);
    const auto program = program_of(td::compile(f), args);
    bool of_one = false, of_many = false;
    for (const auto& kernel : program->kernels())
      if (kernel) (kernel->lane_code().vector == 1 ? of_one : of_many) = true;
    EXPECT_TRUE(of_one && of_many);
  }
}

std::shared_ptr<const PointerProgram> program_with_products(const Function& compiled) {
  return tower::compiler::specialisations_of(compiled, "test").by_pointers("test");
}

// Derivatives of derivatives have the same tangents along the directions of each: one product of each layer for all.
TEST(LanesInPlaces, ComputeTangentsOfBothDerivativesOnce) {
  TOWER_NEEDS_LLVM();
  constexpr int64_t kWidth = 40;
  const Tensor first = waves({kWidth, 3}, 3), second = waves({kWidth, kWidth}, 4), third = waves({5, kWidth}, 5);
  const auto layers = [=](const Tensor& x) { return third.mv(second.mv(first.mv(x).tanh()).tanh()); };
  const Function f = [=](const Tensors& x) {
    return Tensors{layers(x[0]), tower::jacfwd(layers)(x[0]), tower::jacfwd(tower::jacfwd(layers))(x[0])};
  };
  const Tensors args = {waves({3})};
  const Function compiled = td::compile(f);
  const Tensors expected = compiled(args), plain = f(args);
  const auto program = program_with_products(compiled);
  int64_t products = 0;
  for (int64_t s = 0; s < program->tables().steps; ++s) {
    const auto& step = program->tables().step[s];
    products += step.kind == tower::compiler::kStepOfProducts && step.sizes[step.dims - 1].fixed == kWidth;
  }
  EXPECT_EQ(products, 2 * 3);  // of two layers: values, tangents, and second derivatives
  const Tensors results = run(*program, args, expected);
  for (size_t k = 0; k < expected.size(); ++k) EXPECT_TRUE(at::allclose(results[k], plain[k], 1e-12, 1e-12)) << k;
}

// In tiles of several rows and of one, and column by column; of matrices that lie by rows and by columns; several with
// one matrix in common; with sums that are continued.
TEST(LanesInPlaces, HaveBetweenThemProductsOfAllSizes) {
  TOWER_NEEDS_LLVM();
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    Tensors args;
    for (const int64_t terms : {1, 257}) {
      for (const int64_t rows : {1, 2, 3, 9}) args.push_back(waves({3, rows, terms}, rows).to(dtype));
      for (const int64_t columns : {1, 3, 33, 70}) args.push_back(waves({terms, columns}, columns).to(dtype));
    }
    const Function f = [](const Tensors& x) {
      Tensors results;
      for (const Tensor& all : x)
        for (const Tensor& b : x) {
          if (all.dim() != 3 || b.dim() != 2 || all.size(2) != b.size(0)) continue;
          const Tensor a = all[1];
          results.push_back(a.mm(b));
          results.push_back(at::addmm(a.mm(b) * 2, a, b));
          results.push_back(td::vmap([&](const Tensors& y) { return Tensors{y[0].mm(b)}; }, {0}, {0})({all})[0]);
          results.push_back(b.t().mm(a.t()));
        }
      return results;
    };
    const Function compiled = td::compile(f);
    const Tensors expected = compiled(args), results = run(*program_with_products(compiled), args, expected);
    for (Tensor& t : args) t = t.to(at::kDouble);
    const Tensors plain = f(args);
    for (size_t k = 0; k < plain.size(); ++k) {
      const double near = dtype == at::kFloat ? 1e-4 : 1e-12;
      EXPECT_TRUE(at::allclose(results[k].to(at::kDouble), plain[k], near, near)) << k << ' ' << plain[k].sizes();
    }
  }
}

TEST(LanesInPlaces, LeaveEqualConstantsApartThatAreGiven) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& x) {
    const at::TensorOptions f64 = at::kDouble;
    return Tensors{at::ones({3}, f64) * 2, at::ones({3}, f64) * 2,
                   x[0] * at::full({3}, 2, f64) + at::full({3}, 2, f64)};
  };
  const Function compiled = td::compile(f);
  for (int call = 0; call < 2; ++call) {
    const Tensors results = compiled({waves({3})});
    results[0].zero_();
    EXPECT_TRUE(at::equal(results[1], at::full({3}, 2, at::kDouble)));
    EXPECT_TRUE(at::equal(results[2], waves({3}) * 2 + 2));
  }
}

TEST(LanesInPlaces, AreInACLibraryWithCapturedTensorsAsNumbersOrArguments) {
  TOWER_NEEDS_C();
  const Tensor weight = waves({40, 7}, 3), bias = waves({40}, 4), last = waves({5, 40}, 5);
  const auto layer = [=](const Tensor& x) { return last.mv((weight.mv(x) + bias).tanh()); };
  const Function f = [=](const Tensors& x) {
    return Tensors{layer(x[0]), tower::jacfwd(layer)(x[0]), x[0].sin() * bias.narrow(0, 3, 7),
                   tower::jacfwd(tower::jacfwd(layer))(x[0])};
  };
  const Tensors args = {waves({7})};
  const Function compiled = td::compile(f);
  compiled(args);
  const Tensors expected = f(args);
  for (const auto captured : {tower::ExportOptions::Captured::constants, tower::ExportOptions::Captured::arguments}) {
    const CLibrary library(compiled, {.captured = captured});
    Tensors all = args, results;
    const auto program = tower::compiler::specialisations_of(compiled, "test").by_pointers("test");
    if (captured == tower::ExportOptions::Captured::arguments)
      for (const auto& constant : program->constants())
        if (constant.captured) all.push_back(constant.tensor);
    ASSERT_EQ(library.call(1, all, expected, results), 0);
    for (size_t k = 0; k < expected.size(); ++k) EXPECT_TRUE(at::allclose(results[k], expected[k], 1e-13, 1e-13)) << k;
  }
}

}  // namespace
