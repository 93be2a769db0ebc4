// How sparse derivatives are found: colours, mirrored entries, layouts, trees.
#include "solvers/sparse_cases.h"
#include "sparse/colouring.h"
#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/sparse.h"
#include "tower/transforms.h"

namespace {

using sparse_cases::five_points;
using sparse_cases::laplacian;
using tower::Sparsity;

Sparsity pattern_of(const Tensor& matrix) { return Sparsity::of(matrix); }

// Long first row and column beside the diagonal.
Tensor arrow(int64_t n) {
  Tensor matrix = at::eye(n, at::kDouble);
  matrix[0].fill_(1);
  matrix.select(1, 0).fill_(1);
  return matrix;
}
Tensor random_pattern(int64_t rows, int64_t columns, double density, uint64_t seed) {
  at::manual_seed(seed);
  return at::rand({rows, columns}, at::kDouble).lt(density).to(at::kDouble);
}

TEST(Colouring, ColumnsOfAColourShareNoRow) {
  for (const Tensor& matrix : {arrow(12), random_pattern(40, 30, 0.1, 1), random_pattern(10, 80, 0.05, 2),
                               at::ones({4, 4}, at::kDouble), at::zeros({3, 5}, at::kDouble)}) {
    const auto colouring = tower::sparse::colour_columns(pattern_of(matrix));
    const Tensor colours = at::tensor(colouring.colours, at::kLong);
    EXPECT_LE(colours.max().item<int64_t>(), colouring.count - 1);
    for (int64_t k = 0; k < colouring.count; ++k) {
      const Tensor together = matrix.index_select(1, at::nonzero(colours.eq(k)).flatten());
      ASSERT_GT(together.size(1), 0);
      EXPECT_LE(together.sum(1).max().item<double>(), 1);
    }
    EXPECT_TRUE(at::equal(colours.lt(0), matrix.sum(0).eq(0)));
  }
}

TEST(Colouring, OfStarsFindsEachEntryHereOrMirrored) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    const Tensor half = random_pattern(60, 60, seed == 4 ? 0.2 : 0.03, seed);
    const Tensor matrix = (half + half.t() + at::eye(60, at::kDouble)).ne(0).to(at::kDouble);
    const auto colouring = tower::sparse::colour_stars(pattern_of(matrix));
    const Tensor groups = at::one_hot(at::tensor(colouring.colours, at::kLong), colouring.count).to(at::kDouble);
    // How many entries of row i are in the colour of j.
    const Tensor together = matrix.mm(groups).mm(groups.t());
    EXPECT_TRUE((matrix.eq(0) | together.eq(1) | together.t().eq(1)).all().item<bool>()) << seed;
  }
}

TEST(Colouring, OfGridsIsTheOptimum) {
  const auto count = [](auto f, at::IntArrayRef sizes) {
    return tower::sparse_jacobian(f, tower::jacobian_sparsity(f, waves(sizes))).num_colours();
  };
  EXPECT_EQ(count(five_points, {40, 31}), 5);
  EXPECT_EQ(count([](const Tensor& x) { return x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1) + x.cos(); },
                  {30, 40}),
            5);
  const auto nine = [](const Tensor& x) {
    const Tensor k = at::arange(1, 10, at::kDouble).view({1, 1, 3, 3});
    return at::conv2d(x.unsqueeze(0).unsqueeze(0), k, {}, 1, 1);
  };
  EXPECT_EQ(count(nine, {20, 30}), 9);
}

TEST(SparseJacobian, LongRowsAndTheRestAreTakenApart) {
  const auto f = [](const Tensor& x) {
    return at::cat({x.square().sum().unsqueeze(0), x.slice(0, 1).exp() + x[0].sin()});
  };
  const Tensor x = waves({50});
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, x));
  EXPECT_EQ(jacobian.num_colours(), 3);
  EXPECT_EQ(jacobian.num_row_colours(), 1);
  EXPECT_TRUE(same(jacobian(x).to_dense(), tower::jacfwd(f)(x)));
}

TEST(SparseJacobian, LongColumnsAndTheRestAreTakenApart) {
  // Rows are few colours, but for two columns that all of them have.
  const Tensor wide = at::cat({at::ones({30, 2}, at::kDouble), at::eye(30, at::kDouble).repeat({1, 20})}, 1);
  const auto f = [&](const Tensor& x) { return at::mv(wide, x.sin()); };
  const Tensor x = waves({602});
  const auto jacobian = tower::sparse_jacobian(f, pattern_of(wide));
  EXPECT_EQ(jacobian.num_colours(), 3);
  EXPECT_EQ(jacobian.num_row_colours(), 1);
  EXPECT_TRUE(same(jacobian(x).to_dense(), tower::jacrev(f)(x)));
}

TEST(SparseJacobian, RandomPatternsOfAllShapes) {
  for (const auto& [rows, columns, density] :
       {std::tuple(30, 30, 0.05), std::tuple(30, 30, 0.3), std::tuple(8, 60, 0.1), std::tuple(60, 8, 0.1)}) {
    Tensor matrix = random_pattern(rows, columns, density, 7) * (waves({rows, columns}) + 2);
    matrix[1] = 1;
    matrix.select(1, 2).fill_(2);
    const auto f = [&](const Tensor& x) { return at::mv(matrix, x.exp()); };
    const Tensor x = waves({columns});
    EXPECT_TRUE(same(tower::sparse_jacobian(f, pattern_of(matrix))(x).to_dense(), tower::jacrev(f)(x)));
  }
}

TEST(SparseHessian, OfAnArrowTakesTwoDirections) {
  const auto f = [](const Tensor& x) { return (x[0] * x.slice(0, 1).exp()).sum() + x.pow(4).sum(); };
  const Tensor x = waves({40});
  const auto hessian = tower::sparse_hessian(f, tower::hessian_sparsity(f, x));
  EXPECT_EQ(hessian.num_colours(), 2);
  EXPECT_TRUE(same(hessian(x).to_dense(), tower::hessian(f)(x)));
}

TEST(SparseHessian, OfRandomGraphs) {
  for (const uint64_t seed : {1, 2, 3}) {
    at::manual_seed(seed);
    const Tensor from = at::randint(25, {40}, at::kLong), to = at::randint(25, {40}, at::kLong);
    const auto f = [&](const Tensor& x) {
      return (x.index_select(0, from) - x.index_select(0, to).sin()).pow(4).sum() + x.square().sum();
    };
    const Tensor x = waves({25});
    const auto hessian = tower::sparse_hessian(f, tower::hessian_sparsity(f, x));
    EXPECT_TRUE(same(hessian(x).to_dense(), tower::hessian(f)(x))) << seed;
  }
}

TEST(SparseHessian, WantsASquarePattern) {
  const auto f = [](const Tensor& x) { return x.sum(); };
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] {
                         tower::sparse_hessian(f, pattern_of(at::ones({2, 3}, at::kDouble)));
                       }),
                       "the pattern is 2 × 3"));
}

TEST(SparseJacobian, HasTheLayoutThatIsAskedFor) {
  const auto f = [](const Tensor& x) { return laplacian(x).sin() * x.flip(0); };
  const Tensor x = waves({12});
  const Sparsity pattern = tower::jacobian_sparsity(f, x);
  const Tensor expected = tower::jacfwd(f)(x);
  for (const at::Layout layout : {at::kSparseCsr, at::kSparseCsc, at::kSparse, at::kSparseBsr}) {
    const Tensor found = tower::sparse_jacobian(f, pattern, {.layout = layout, .block = {3, 2}})(x);
    EXPECT_EQ(found.layout(), layout);
    EXPECT_TRUE(same(found.to_dense(), expected)) << layout;
    // LibTorch's own checks of the indices.
    EXPECT_NO_THROW({
      if (layout == at::kSparse)
        at::_validate_sparse_coo_tensor_args(found._indices(), found._values(), found.sizes(), true);
      else if (layout == at::kSparseCsc)
        at::_validate_sparse_csc_tensor_args(found.ccol_indices(), found.row_indices(), found.values(), {12, 12});
      else
        at::_validate_sparse_compressed_tensor_args(found.crow_indices(), found.col_indices(), found.values(), {12, 12},
                                                    layout);
    }) << layout;
  }
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] {
                         tower::sparse_jacobian(f, pattern, {.layout = at::kSparseBsr, .block = {5, 2}});
                       }),
                       "blocks of 5 × 2 do not make up a matrix of 12 × 12"));
  EXPECT_TRUE(
      contains(message_of<tower::ArgumentError>([&] { tower::sparse_jacobian(f, pattern, {.layout = at::kStrided}); }),
               "the layout is Strided"));
}

struct Fields {
  Tensor heat;
  std::vector<Tensor> species;
};
constexpr auto tower_fields(const Fields&) { return std::tuple(&Fields::heat, &Fields::species); }

Tensor as_vector(const Fields& f) { return at::cat({f.heat, f.species[0].flatten(), f.species[1]}); }
Fields as_fields(const Tensor& v) { return {v.narrow(0, 0, 6), {v.narrow(0, 6, 6).view({2, 3}), v.narrow(0, 12, 4)}}; }

TEST(SparseJacobian, OfTreesIsThatOfAllTheirElements) {
  const auto f = [](const Fields& x) {
    const Tensor rate = x.heat.exp() * x.species[0].flatten();
    return std::tuple(rate.view({3, 2}), Fields{laplacian(x.heat), {x.species[0].sin(), x.species[1] * x.heat[5]}});
  };
  const Tensor v = waves({16});
  const auto on_vectors = [&](const Tensor& v) {
    const auto [rate, rest] = f(as_fields(v));
    return at::cat({rate.flatten(), as_vector(rest)});
  };
  const Tensor expected = tower::jacfwd(on_vectors)(v);
  const Sparsity pattern = tower::jacobian_sparsity(f, as_fields(v));
  EXPECT_TRUE(at::equal(pattern.mask(), expected.ne(0)));
  const auto jacobian = tower::sparse_jacobian(f, pattern);
  EXPECT_TRUE(same(jacobian(as_fields(v)).to_dense(), expected));
  EXPECT_LT(jacobian.num_colours(), 6);
}

TEST(SparseHessian, OfTreesIsThatOfAllTheirElements) {
  const auto f = [](const Fields& x) {
    return (x.heat.exp() * x.species[0].flatten()).sum() + laplacian(x.heat).square().sum() + x.species[1].pow(3).sum();
  };
  const Tensor v = waves({16});
  const Tensor expected = tower::hessian([&](const Tensor& v) { return f(as_fields(v)); })(v);
  const Sparsity pattern = tower::hessian_sparsity(f, as_fields(v));
  EXPECT_TRUE(at::equal(pattern.mask(), expected.ne(0)));
  EXPECT_TRUE(same(tower::sparse_hessian(f, pattern)(as_fields(v)).to_dense(), expected));
}

TEST(SparseHessian, ItsValuesAreMappedOverParameters) {
  const auto energy = [](const Tensor& k) {
    return [k](const Tensor& x) { return (k * (x.slice(0, 1) - x.slice(0, 0, -1)).cosh()).sum() + x.pow(4).sum(); };
  };
  const Tensor ks = waves({3, 5}) + 2, xs = waves({3, 6}, 0.9);
  const Sparsity pattern = tower::hessian_sparsity(energy(ks[0]), xs[0]);
  const Tensor values = tower::vmap(
      [&](const Tensor& k, const Tensor& x) { return tower::sparse_hessian(energy(k), pattern).values(x); })(ks, xs);
  const auto plain = tower::sparse_hessian(energy(ks[0]), pattern);
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_TRUE(same(plain.matrix(values[i]).to_dense(), tower::hessian(energy(ks[i]))(xs[i])));
}

TEST(SparseJacobian, ItsValuesAreCompiled) {
  const auto f = [](const Tensor& x) { return laplacian(x) * x.exp(); };
  const Tensor x = waves({8});
  const auto jacobian = tower::sparse_jacobian(f, tower::jacobian_sparsity(f, x));
  const auto compiled = tower::compile([&](const Tensor& v) { return jacobian.values(v); });
  EXPECT_TRUE(same(jacobian.matrix(compiled(x)).to_dense(), tower::jacfwd(f)(x)));
  const Tensor other = waves({8}, 1.7);
  EXPECT_TRUE(same(jacobian.matrix(compiled(other)).to_dense(), tower::jacfwd(f)(other)));
}

}  // namespace
