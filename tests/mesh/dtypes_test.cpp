// Tensors of every dtype, in messages of all lengths: what LibTorch says of the whole, or an error after which the mesh
// goes on.
#include <limits>

#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using tower::Mesh;
using tower::MeshError;

const std::vector<at::ScalarType> kTypes{
    at::kBool,   at::kByte,     at::kChar,   at::kShort,         at::kInt,          at::kLong,
    at::kHalf,   at::kBFloat16, at::kFloat,  at::kDouble,        at::kComplexFloat, at::kComplexDouble,
    at::kUInt16, at::kUInt32,   at::kUInt64, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

// Below, at and above what fits into a first message, and again when it is known what comes.
std::vector<int64_t> lengths_of(at::ScalarType type) {
  const auto first = (2048 - 16) / static_cast<int64_t>(c10::elementSize(type));
  return {1, first - 1, first, first + 1, first + 1, 9 * first, 80 * first, 80 * first};
}

bool is_reduced(at::ScalarType type) { return !c10::isBarebonesUnsignedType(type) && !c10::isFloat8Type(type); }

// Of two processes, a row each. Floating-point numbers have such among them that are none, and infinite ones.
Tensor rows_of(at::ScalarType type, int64_t length, bool special) {
  Tensor x = 50 * waves({2, length}, 0.3);
  if (c10::isComplexType(type)) return at::complex(x, x.cos()).to(type);
  if (special && c10::isFloatingType(type)) {
    x[0].slice(0, 0, length, 3).fill_(std::numeric_limits<double>::quiet_NaN());
    x[1][0] = -std::numeric_limits<double>::infinity();
    x[1].slice(0, 1, length, 5).fill_(std::numeric_limits<double>::infinity());
    x[0].slice(0, 2, length, 7).fill_(-0.0);
    x[1].slice(0, 2, length, 14).fill_(-std::numeric_limits<double>::quiet_NaN());
  }
  return x.to(type);
}

void expect_equal(const Tensor& found, const Tensor& expected, const std::string& what, double tolerance = 0) {
  ASSERT_EQ(found.scalar_type(), expected.scalar_type()) << what;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const auto wide = [](const Tensor& t) { return t.to(t.is_complex() ? at::kComplexDouble : at::kDouble); };
  EXPECT_TRUE(at::allclose(wide(found), wide(expected), tolerance, tolerance, /*equal_nan=*/true)) << what;
}

std::string text_of(at::ScalarType type, int64_t length) {
  return std::string(c10::toString(type)) + " [" + std::to_string(length) + "]";
}

TEST(Dtypes, HaveOneExtremumAndOneSumAtAnyLength) {
  expect_all(2, [](int rank) {
    Mesh mesh = processes::mesh_of_all();
    const auto across = [&](auto collective, const Tensor& whole) {
      return tower::vmap(collective,
                         {.out_dims = std::nullopt, .axis = "data", .across = mesh})(whole.narrow(0, rank, 1));
    };
    const auto sum = [](const Tensor& e) { return tower::psum(e, "data"); };
    const auto most = [](const Tensor& e) { return tower::pmax(e, "data"); };
    const auto least = [](const Tensor& e) { return tower::pmin(e, "data"); };
    for (const at::ScalarType type : kTypes)
      for (const int64_t length : lengths_of(type)) {
        if (!is_reduced(type)) continue;
        const std::string what = text_of(type, length);
        const double rounding = type == at::kHalf || type == at::kBFloat16 ? 1e-2 : 1e-6;
        for (const bool special : {false, true}) {
          const Tensor whole = rows_of(type, length, special);
          expect_equal(across(sum, whole), whole.sum(0), "psum of " + what, rounding);
          expect_equal(tower::sum_across(mesh, "data", whole[rank]), whole.sum(0, /*keepdim=*/false, type),
                       "sum_across of " + what, rounding);
          if (c10::isComplexType(type)) continue;
          expect_equal(across(most, whole), whole.amax(0), "pmax of " + what);
          expect_equal(across(least, whole), whole.amin(0), "pmin of " + what);
        }
      }
  });
}

// LibTorch has no sum of these. They are not sent, and the mesh goes on.
TEST(Dtypes, WithoutASumAreErrorsThatLeaveTheMeshAsItIs) {
  expect_all(2, [](int rank) {
    const Mesh mesh = processes::mesh_of_all();
    for (const at::ScalarType type : kTypes)
      for (const int64_t length : {3, 3000}) {
        if (is_reduced(type)) continue;
        const std::string text = message_of<tower::UnsupportedError>(
            [&] { tower::sum_across(mesh, "data", rows_of(type, length, false)[rank]); });
        EXPECT_TRUE(contains(text, "sum_across over axis 'data' (process " + std::to_string(rank) + " of 2): of " +
                                       text_of(type, length) + " LibTorch has no sum. Convert it before"))
            << text;
        EXPECT_EQ(tower::sum_across(mesh, "data", number(rank)).item<double>(), 1);
      }
  });
}

TEST(Dtypes, MoveAsTheyAre) {
  expect_all(2, [](int rank) {
    const Mesh mesh = processes::mesh_of_all();
    const auto moved = [&](const Tensor& whole, const auto& f) {
      const auto mapped = tower::vmap(f, {.axis = "data"});
      const auto spread = tower::vmap(f, {.axis = "data", .across = mesh});
      return std::pair(spread(whole.narrow(0, 2 * rank, 2)), mapped(whole).narrow(0, 2 * rank, 2));
    };
    const auto bits = [](const Tensor& t) {
      return t.contiguous().view({t.numel()}).view(at::kByte);  // of NaN, too
    };
    for (const at::ScalarType type : kTypes)
      for (const int64_t length : lengths_of(type)) {
        const Tensor whole = rows_of(type, 2 * length, true).view({4, length}), part = whole.narrow(0, 2 * rank, 2);
        const std::string what = text_of(type, length);
        EXPECT_TRUE(at::equal(bits(tower::gather_across(mesh, "data", part)), bits(whole))) << what;
        const auto [there, expected] = moved(whole, [](const Tensor& e) {
          return tower::ppermute(e, "data", {{0, 2}, {1, 0}, {2, 3}, {3, 1}});
        });
        EXPECT_TRUE(at::equal(bits(there), bits(expected))) << "ppermute of " << what;
        const auto [all, whole_of_all] = moved(whole.view({4, 1, length}).expand({4, 4, length}).contiguous(),
                                               [](const Tensor& e) { return tower::all_to_all(e, "data", 0, 0); });
        EXPECT_TRUE(at::equal(bits(all), bits(whole_of_all))) << "all_to_all of " << what;
      }
  });
}

}  // namespace
