// Trees: what their leaves are, how they are rebuilt, which types they become, and how axes fit them.
#include "tower/tree.h"

#include <torch/ordered_dict.h>

#include "support/prelude.h"
#include "tower/axes.h"

namespace {

using tower::Axes;

struct Body {
  Tensor position;
  Tensor velocity;
  std::string name;
};
constexpr auto tower_fields(const Body&) { return std::tuple(&Body::position, &Body::velocity); }

struct Scene {
  std::vector<Body> bodies;
  double gravity;
  std::optional<Tensor> wind;
  Tensor not_a_leaf;
};
constexpr auto tower_fields(const Scene&) { return std::tuple(&Scene::bodies, &Scene::gravity, &Scene::wind); }

struct Settings {
  int steps;
};
[[maybe_unused]] constexpr std::tuple<> tower_fields(const Settings&) { return {}; }

enum class Color { red, green };
struct Unregistered {};

// What is a tree, and what holds tensors.
static_assert(tower::TensorTree<Tensor> && tower::TensorTree<Body> && tower::TensorTree<Scene>);
static_assert(tower::TensorTree<std::tuple<int, std::pair<bool, std::array<std::optional<Tensor>, 2>>>>);
static_assert(tower::IsTree<Color> && tower::IsTree<std::string> && tower::IsTree<double> && tower::IsTree<Settings>);
static_assert(!tower::TensorTree<Color> && !tower::TensorTree<std::vector<bool>> && !tower::TensorTree<Settings>);
static_assert(!tower::IsTree<Unregistered> && !tower::IsTree<void>);

// Types of Jacobians: the output's tree with each tensor replaced by the argument's.
template <class T, class R>
using Rebound = tower::Rebound<T, R>;
using Map = std::map<std::string, Tensor>;
static_assert(std::is_same_v<Rebound<Tensor, Body>, Body>);
static_assert(std::is_same_v<Rebound<Body, Tensor>, Body>);
static_assert(std::is_same_v<Rebound<std::vector<Tensor>, Map>, std::vector<Map>>);
static_assert(
    std::is_same_v<Rebound<std::tuple<int, std::optional<Tensor>>, Map>, std::tuple<int, std::optional<Map>>>);
static_assert(std::is_same_v<Rebound<std::pair<std::array<Tensor, 2>, Map>, Body>,
                             std::pair<std::array<Body, 2>, std::map<std::string, Body>>>);
static_assert(
    std::is_same_v<Rebound<torch::OrderedDict<std::string, Tensor>, Map>, torch::OrderedDict<std::string, Map>>);

std::vector<double> numbers(const std::vector<Tensor>& tensors) {
  std::vector<double> result;
  result.reserve(tensors.size());
  for (const Tensor& t : tensors) result.push_back(t.item<double>());
  return result;
}

Scene two_bodies() {
  return {.bodies = {{number(1), number(2), "earth"}, {number(3), number(4), "moon"}},
          .gravity = 9.81,
          .wind = number(5),
          .not_a_leaf = number(100)};
}

template <class T>
std::vector<double> leaves(const T& tree) {
  return numbers(tower::leaves_of(tree));
}

TEST(Tree, LeavesOfContainersComeInOrder) {
  using Numbers = std::vector<double>;
  EXPECT_EQ(leaves(number(7)), (Numbers{7}));
  EXPECT_EQ(leaves(std::vector<Tensor>{number(1), number(2)}), (Numbers{1, 2}));
  EXPECT_EQ(leaves(std::array<Tensor, 2>{number(1), number(2)}), (Numbers{1, 2}));
  EXPECT_EQ(leaves(std::tuple(number(1), 5, number(2))), (Numbers{1, 2}));
  EXPECT_EQ(leaves(std::pair(std::string("a"), number(2))), (Numbers{2}));
  EXPECT_EQ(leaves(Map{{"b", number(1)}, {"a", number(2)}}), (Numbers{2, 1}));
  EXPECT_EQ(leaves(std::optional<Tensor>()), Numbers{});
  EXPECT_EQ(leaves(std::optional<Tensor>(number(3))), (Numbers{3}));
  EXPECT_EQ(leaves(3.5), Numbers{});
}

TEST(Tree, LeavesOfAnOrderedDictComeInInsertionOrder) {
  torch::OrderedDict<std::string, Tensor> dict;
  dict.insert("z", number(1));
  dict.insert("a", number(2));
  EXPECT_EQ(leaves(dict), (std::vector<double>{1, 2}));
  auto rebuilt = tower::with_leaves(dict, {number(10), number(20)});
  EXPECT_EQ(rebuilt["z"].item<double>(), 10);
  EXPECT_EQ(rebuilt["a"].item<double>(), 20);
  EXPECT_EQ(dict["z"].item<double>(), 1);
}

TEST(Tree, LeavesOfAStructAreThoseOfItsNamedFields) {
  EXPECT_EQ(leaves(two_bodies()), (std::vector<double>{1, 2, 3, 4, 5}));
}

TEST(Tree, RebuildingKeepsTheStaticParts) {
  const Scene scene = two_bodies();
  const Scene rebuilt = tower::with_leaves(scene, {number(10), number(20), number(30), number(40), number(50)});
  EXPECT_EQ(leaves(rebuilt), (std::vector<double>{10, 20, 30, 40, 50}));
  EXPECT_EQ(rebuilt.bodies[1].name, "moon");
  EXPECT_EQ(rebuilt.gravity, 9.81);
  EXPECT_TRUE(rebuilt.not_a_leaf.is_same(scene.not_a_leaf));
  EXPECT_EQ(leaves(scene), (std::vector<double>{1, 2, 3, 4, 5}));  // the original is as it was
}

TEST(Tree, AnUndefinedTensorIsAStaticPart) {
  const Body body{number(1), Tensor(), "x"};
  EXPECT_EQ(leaves(body), (std::vector<double>{1}));
  const Body rebuilt = tower::with_leaves(body, {number(2)});
  EXPECT_EQ(rebuilt.position.item<double>(), 2);
  EXPECT_FALSE(rebuilt.velocity.defined());
}

TEST(Tree, RebuildingWithTheWrongNumberOfLeavesIsAnError) {
  const std::vector<Tensor> tree{number(1), number(2)};
  EXPECT_EQ(message_of<tower::ArgumentError>([&] { tower::with_leaves(tree, {number(1)}); }),
            "tree: it has more tensors than the 1 given: give one for each of its tensors");
  EXPECT_EQ(message_of<tower::ArgumentError>([&] {
              tower::with_leaves(tree, {number(1), number(2), number(3)});
            }),
            "tree: it has 2 tensors, but 3 were given: give one for each of its tensors");
}

TEST(Tree, MappingTensorsChangesTheTypeAndKeepsTheStaticParts) {
  const auto tree = std::tuple(number(1), 5, std::vector<Tensor>{number(2), number(3)});
  const auto mapped = tower::map_tensors<Body>(tree, [](const Tensor& t) { return Body{t, t, "b"}; });
  EXPECT_EQ(std::get<0>(mapped).position.item<double>(), 1);
  EXPECT_EQ(std::get<1>(mapped), 5);
  EXPECT_EQ(std::get<2>(mapped)[1].position.item<double>(), 3);
}

TEST(Tree, StaticPartsDoNotKeepTensorsAlive) {
  Tensor tensor = number(1);
  const auto rest = tower::detail::static_parts(std::tuple(tensor, 7));
  EXPECT_EQ(tensor.use_count(), 1);
  EXPECT_EQ(std::get<1>(rest), 7);
  EXPECT_EQ(std::get<0>(tower::with_leaves(rest, {tensor})).item<double>(), 1);
}

template <class... T>
Dims in_dims(const Axes& axes, const T&... args) {
  Dims dims;
  std::size_t index = 0;
  (tower::detail::append_in_dims(axes, tower::detail::shape_of(args), index++, sizeof...(T), dims), ...);
  return dims;
}

template <class T>
Dims out_dims(const Axes& axes, const T& output) {
  return tower::detail::out_dims_for(axes, tower::detail::shape_of(output));
}

TEST(AxesOfATree, ANumberStandsForEveryTensorOfItsPart) {
  EXPECT_EQ(in_dims({2, std::nullopt}, two_bodies(), number(1)), (Dims{2, 2, 2, 2, 2, std::nullopt}));
  EXPECT_EQ(in_dims({1, 0}, std::vector<Tensor>{}, number(1)), (Dims{0}));
}

TEST(AxesOfATree, AListGoesIntoTheTree) {
  EXPECT_EQ(in_dims({{{1, {0, -1}}, std::nullopt, 3}}, two_bodies()), (Dims{1, 1, 0, -1, 3}));
  EXPECT_EQ(in_dims({0, {1, std::nullopt}}, number(1), Map{{"b", number(1)}, {"a", number(2)}}),
            (Dims{0, 1, std::nullopt}));
  EXPECT_EQ(in_dims({{0, std::nullopt}}, std::tuple(number(1), 3)), (Dims{0}));
}

TEST(AxesOfATree, AListMadeAtRunTimeIsTheSame) {
  EXPECT_EQ(in_dims(Axes(std::vector<Axes>{0, 1}), number(1), number(2)), (Dims{0, 1}));
}

TEST(AxesOfATree, UndefinedTensorsHaveNoDimension) {
  EXPECT_EQ(in_dims({{0, 1}}, Body{Tensor(), number(1), "x"}), (Dims{1}));
}

TEST(AxesOfATree, AListOfOneForTheOutputIsForAllOfIt) {
  EXPECT_EQ(out_dims({1}, number(1)), (Dims{1}));
  EXPECT_EQ(out_dims({1}, std::pair(number(1), number(2))), (Dims{1, 1}));
  EXPECT_EQ(out_dims({{1, 2}}, std::vector<std::pair<Tensor, Tensor>>{{number(1), number(2)}}), (Dims{1, 2}));
}

TEST(AxesOfATree, AWrongNumberOfArgumentsSaysBothNumbers) {
  EXPECT_EQ(
      message_of<tower::ArgumentError>([] {
        in_dims({0, 1}, number(1));
      }),
      "vmap: in_dims has 2 entries, but the function was called with 1 argument: give one entry for each argument "
      "(std::nullopt where it is not mapped), or one number for all");
}

TEST(AxesOfATree, AListForATensorNamesTheArgument) {
  EXPECT_EQ(
      message_of<tower::ArgumentError>([] {
        in_dims({0, {0, 1}}, number(1), number(2));
      }),
      "vmap: in_dims gives a list of 2 entries to argument 1, which is a tensor: give a number or std::nullopt for "
      "it");
}

TEST(AxesOfATree, AListOfTheWrongLengthNamesThePartOfTheArgument) {
  EXPECT_EQ(
      message_of<tower::ArgumentError>([] {
        in_dims({{{0, {0, 1, 2}}, std::nullopt, 0}}, two_bodies());
      }),
      "vmap: in_dims gives a list of 3 entries to argument 0[0][1], which is a tree of 2 parts: give one entry for "
      "each part, or one number for all");
}

TEST(AxesOfATree, ThePartsOfMapsAreNamedByTheirKeys) {
  EXPECT_EQ(message_of<tower::ArgumentError>([] {
              in_dims({{0, {0, 1}}}, Map{{"a", number(1)}, {"b", number(2)}});
            }),
            "vmap: in_dims gives a list of 2 entries to argument 0[\"b\"], which is a tensor: give a number or "
            "std::nullopt for it");
  torch::OrderedDict<std::string, Tensor> dict;
  dict.insert("z", number(1));
  const auto shape = tower::detail::shape_of(std::pair(5, std::vector{dict}));
  EXPECT_EQ(tower::detail::name_of_tensor({tower::detail::shape_of(number(1)), shape}, 1), "argument 1[1][0][\"z\"]");
}

TEST(AxesOfATree, ADimensionOfANumberIsRefused) {
  EXPECT_EQ(message_of<tower::ArgumentError>([] {
              in_dims({0, 0}, number(1), 3.0);
            }),
            "vmap: in_dims gives dimension 0 to argument 1, which is no tensor but a static value (a number, a string, "
            "…): give std::nullopt for it");
}

TEST(AxesOfATree, OutDimsThatDoNotFitNameTheOutput) {
  EXPECT_EQ(
      message_of<tower::ArgumentError>([] {
        out_dims({0, 1, 2}, std::pair(number(1), number(2)));
      }),
      "vmap: out_dims gives a list of 3 entries to the output, which is a tree of 2 parts: give one entry for each "
      "part, or one number for all");
}

}  // namespace
