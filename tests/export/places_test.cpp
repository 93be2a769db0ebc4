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

TEST(LanesInPlaces, AreInACLibraryWithCapturedTensorsAsNumbersOrArguments) {
  TOWER_NEEDS_C();
  const Tensor weight = waves({40, 7}, 3), bias = waves({40}, 4), last = waves({5, 40}, 5);
  const auto layer = [=](const Tensor& x) { return last.mv((weight.mv(x) + bias).tanh()); };
  const Function f = [=](const Tensors& x) {
    return Tensors{layer(x[0]), tower::jacfwd(layer)(x[0]), x[0].sin() * bias.narrow(0, 3, 7)};
  };
  const Tensors args = {waves({7})};
  const Function compiled = td::compile(f);
  const Tensors expected = compiled(args);
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
