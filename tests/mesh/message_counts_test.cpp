// How many messages programs send: counted by a backend that notes what it is asked for.
#include "material_newton/newton.h"
#include "mesh/groups.h"
#include "mesh/harness.h"
#include "mesh/on_the_way_back.h"
#include "private_digits/network.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using processes::Noting;
using processes::on_the_way_back;
using tower::Mesh;

struct Noted {
  explicit Noted(int rank, int size) {
    const auto around = [this](processes::Backend gloo) {
      backend = c10::make_intrusive<Noting>(std::move(gloo));
      return backend;
    };
    mesh = Mesh::from_group(processes::group_of(rank, size, "noted", std::chrono::seconds(20), around), {{"data", -1}});
    tower::sum_across(mesh, "data", number(1));  // none ends before all are connected
  }
  std::string operator()(const std::function<void()>& f) const {
    backend->said();
    f();
    return backend->said();
  }

  c10::intrusive_ptr<Noting> backend;
  Mesh mesh;
};

// In two processes, which say the same.
void expect_messages(const std::string& expected, const std::function<void(const Mesh&)>& f) {
  expect_all(2, [&](int rank) {
    const Noted noted(rank, 2);
    EXPECT_EQ(noted([&] { f(noted.mesh); }), expected);
  });
}

using tower::psum;

const decltype(tower::Mapping::in_dims) kSharedAndMapped{std::nullopt, 0};

TEST(MessageCounts, OfSharedValuesAndTheirDerivativesAreNone) {
  expect_messages("", [](const Mesh& mesh) {
    const auto f = [](const Tensor& w, const Tensor& x) { return std::pair((w.sin() * w).sum(), x * 2); };
    const auto mapped =
        tower::vmap(f, {.in_dims = kSharedAndMapped, .out_dims = {std::nullopt, 0}, .axis = "data", .across = mesh});
    const auto first = [&](const Tensor& w) { return mapped(w, waves({2})).first; };
    const Tensor w = waves({3});
    EXPECT_TRUE(same(tower::hessian(first)(w), tower::hessian([](const Tensor& v) { return (v.sin() * v).sum(); })(w)));
    tower::vmap(tower::grad(first))(waves({2, 3}));
  });
}

// Of a shared value the sum is a multiple: it takes the number of all examples.
TEST(MessageCounts, OfCollectivesOfSharedValuesAreTheSizesOfTheParts) {
  expect_messages("all", [](const Mesh& mesh) {
    const auto f = [](const Tensor& w, const Tensor& x) {
      return psum(w.sin(), "data") + tower::pmean(w, "data") + tower::pmax(w, "data") +
             tower::all_gather(w, "data").sum() + 0 * x;
    };
    tower::vmap(f, {.in_dims = kSharedAndMapped, .axis = "data", .across = mesh})(waves({3}), waves({2}));
  });
}

TEST(MessageCounts, AskForTheSizesOfPartsOnceInACallOfAVmap) {
  const auto f = [](const Tensor& x) {
    const Tensor mean = tower::pmean(x, "data"), scaled = mean * x * tower::axis_size("data");
    return scaled + tower::pmean(x * x, "data") + tower::axis_index("data");
  };
  expect_messages("all all all",
                  [&](const Mesh& mesh) { tower::vmap(f, {.axis = "data", .across = mesh})(waves({2})); });
  // Their derivatives know them; that of the second is one of a shared cotangent.
  expect_messages("all all all all",
                  [&](const Mesh& mesh) { tower::vmap(tower::grad(f), {.axis = "data", .across = mesh})(waves({2})); });
}

// Where the processes have seen before how much comes, the first message has room for it.
TEST(MessageCounts, OfATreeAreThoseOfOneTensor) {
  const auto total = [](const std::vector<Tensor>& tree, int times = 1) {
    return [=](const Mesh& mesh) {
      const auto f = [](const std::vector<Tensor>& t) { return psum(t, "data"); };
      for (int i = 0; i < times; ++i) tower::vmap(f, {.axis = "data", .across = mesh})(tree);
    };
  };
  expect_messages("all", total({waves({2, 2})}));
  expect_messages("all", total(std::vector<Tensor>(100, waves({2, 2}))));
  expect_messages("all",
                  total({waves({2, 2}), waves({2, 3}).to(at::kFloat), waves({2, 2}), waves({2}).to(at::kFloat)}));
  expect_messages("all sum", total(std::vector<Tensor>(100, waves({2, 50}))));
  expect_messages("all sum sum", total({waves({2, 900}), waves({2, 900}).to(at::kFloat), waves({2, 900})}));
  expect_messages("all sum all sum all all", total(std::vector<Tensor>(100, waves({2, 50})), 4));
  expect_messages("", [](const Mesh& mesh) {
    tower::vmap([](const Tensor& x) { return psum(std::vector<Tensor>{}, "data").empty() ? x : -x; },
                {.axis = "data", .across = mesh})(waves({2}));
  });
}

// A program whose sizes are never the same.
TEST(MessageCounts, AreForeseenOfSoManyMessagesAtMost) {
  tower::mesh::Foresight foresight(2);
  constexpr size_t kMost = tower::mesh::Foresight::kMarks;
  for (int64_t mark = 1; mark <= 3 * static_cast<int64_t>(kMost); ++mark) foresight.learn(mark, 5000);
  EXPECT_LE(foresight.remembered(), kMost);
  for (int i = 0; i < 2; ++i)
    for (const int64_t mark : {-1, -2}) foresight.learn(mark, -5000 * mark);
  EXPECT_EQ(foresight.room(), 5000);
  foresight.learn(-1, 5000);
  EXPECT_EQ(foresight.room(), 10000);
}

TEST(MessageCounts, OfTheGradientsOfAllSharedArgumentsAreOne) {
  const auto loss = [](const Mesh& mesh) {
    const auto f = [](const std::vector<Tensor>& w, const Tensor& x) {
      Tensor y = x;
      for (const Tensor& t : w) y = (y * t).sin();
      return psum(y, "data");
    };
    return tower::vmap(f, {.in_dims = kSharedAndMapped, .out_dims = std::nullopt, .axis = "data", .across = mesh});
  };
  const auto gradient = [&](at::ScalarType last) {
    return [&loss, last](const Mesh& mesh) {
      std::vector<Tensor> w(9, number(0.3));
      w.push_back(number(0.4).to(last));
      tower::grad(loss(mesh))(w, waves({2}));
    };
  };
  expect_messages("all all", gradient(at::kDouble));
  expect_messages("all all", gradient(at::kFloat));
}

constexpr int64_t kLarge = 600'000;  // doubles: more than a bucket

// Sums begin where their gradients are there, behind their layer and before the one below it.
TEST(MessageCounts, OfLargeGradientsAreABucketEachAndBeginOnTheWayBack) {
  expect_all(2, [](int rank) {
    const Noted noted(rank, 2);
    const auto layer = [&](const Tensor& w, const Tensor& h, const std::string& name) {
      return on_the_way_back((w * h).sin().sum(), [&, name] { noted.backend->note(name); });
    };
    const auto loss = [&](const std::vector<Tensor>& w, const Tensor& x) {
      const Tensor h = layer(w[1], layer(w[0], x, "first"), "second");
      return psum(layer(w[2], h, "third"), "data");
    };
    const auto gradient = tower::grad(tower::vmap(
        loss, {.in_dims = kSharedAndMapped, .out_dims = std::nullopt, .axis = "data", .across = noted.mesh}));
    const std::vector<Tensor> w(3, waves({kLarge}) / kLarge);
    EXPECT_EQ(noted([&] { gradient(w, waves({2})); }), "all third all second sum all first sum all sum");
  });
}

TEST(MessageCounts, OfPpermuteAreOneToEachReceiver) {
  expect_all(3, [](int rank) {
    const Noted noted(rank, 3);
    // Process 0 has examples 0 and 1, process 1 example 2 and process 2 example 3.
    const auto moved = [&](const std::vector<std::pair<int64_t, int64_t>>& pairs) {
      const auto f = [&](const std::vector<Tensor>& tree) { return tower::ppermute(tree, "data", pairs); };
      const std::vector<Tensor> tree(5, waves({rank == 0 ? 2 : 1, 3}));
      return noted([&] { tower::vmap(f, {.axis = "data", .across = noted.mesh})(tree); });
    };
    const std::string sends[] = {" to 1 to 2", "", " to 0"};
    EXPECT_EQ(moved({{0, 2}, {1, 3}, {3, 0}}), "all" + sends[rank]);
    EXPECT_EQ(moved({{0, 1}, {1, 0}, {2, 2}}), "all");
    EXPECT_EQ(moved({{0, 2}, {2, 0}, {1, 1}}),
              std::vector<std::string>({"all to 1", "all to 0", "all"})[static_cast<size_t>(rank)]);
  });
}

// ---- the examples' steps -------------------------------------------------------------------------------------------

// The sum of the gradients of all images, 6,090 numbers: for the third step it is known what comes.
TEST(MessageCounts, OfAStepOfPrivateDigitsAreOne) {
  expect_messages("all sum all sum all", [](const Mesh& mesh) {
    at::manual_seed(1);
    private_digits::DigitNet network;
    const auto of_one = [gradient = tower::grad(private_digits::loss_of(network))](
                            const private_digits::Parameters& p, const Tensor& image, const Tensor& label) {
      return psum(gradient(p, image, label), "data");
    };
    const auto step = tower::vmap(
        of_one, {.in_dims = {std::nullopt, 0, 0}, .out_dims = std::nullopt, .axis = "data", .across = mesh});
    for (int i = 0; i < 3; ++i) step(tower::parameters_of(network), at::rand({4, 1, 8, 8}), at::zeros({4}, at::kLong));
  });
}

// Whether to go on is decided together.
TEST(MessageCounts, OfAStepOfMaterialNewtonAreOne) {
  expect_messages("all", [](const Mesh& mesh) {
    using namespace material_newton;
    constexpr int64_t n = 4;
    const auto f64 = at::dtype(at::kDouble);
    const Material material{Constants{}};
    const Step step{3e-3 * waves({n, 6}), at::ones({n}, f64), at::zeros({n, 6}, f64), at::zeros({n}, f64)};
    const auto correct = tower::vmap(
        [&](const Tensor& one, const Step& s) {
          const auto [corrected, norm] = correct_one_point(material, one, s);
          return std::pair(corrected, tower::pmax(norm, "data"));
        },
        {.out_dims = {0, std::nullopt}, .axis = "data", .across = mesh});
    correct(first_guess(material, step), step);
  });
}

}  // namespace
