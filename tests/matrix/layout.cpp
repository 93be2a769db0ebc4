#include "matrix/layout.h"

#include <ATen/Parallel.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty_like.h>
#include <gtest/gtest.h>
#include <tower/compile.h>

#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "core/torch_version.h"
#include "matrix/matrix.h"
#include "op_db/tensor_spec.h"
#include "support/device.h"
#include "support/oracles.h"
#include "support/warnings.h"

namespace matrix {
namespace {

// What was found of one operator.
struct Findings {
  long comparisons = 0;
  std::map<std::string, std::vector<std::string>> differences;  // by kind
};

// The sample with its tensors laid out in other ways: all that can be, and where they are few, each alone.
std::vector<op_db::Sample> layouts_of(const op_db::Sample& sample) {
  std::vector<op_db::Sample> result{sample};
  const auto lay = [&](const std::string& layout, auto fits) {
    std::vector<size_t> places;
    for (size_t i = 0; i < sample.leaves.size(); ++i) {
      const auto& spec = sample.leaves[i].spec;
      if (spec.layout.empty() && fits(spec.sizes.size())) places.push_back(i);
    }
    const auto add = [&](const std::vector<size_t>& laid) {
      result.push_back(sample);
      for (const size_t i : laid) result.back().leaves[i].spec.layout = layout;
      result.back().text += laid.size() == places.size() ? ", all " : ", argument " + std::to_string(laid[0]) + " ";
      result.back().text += layout;
    };
    if (!places.empty()) add(places);
    for (const size_t alone : places)
      if (places.size() > 1 && places.size() <= 3) add({alone});
  };
  lay("t", [](size_t rank) { return rank >= 2; });
  lay("cl", [](size_t rank) { return rank == 4; });
  return result;
}

bool leaves_open(const at::Tensor& plain) {
  return !plain.defined() || plain.numel() < 2 || !plain.is_non_overlapping_and_dense();
}

bool lies_as(const at::Tensor& t, const at::Tensor& model) {
  for (int64_t d = 0; d < model.dim(); ++d)
    if (model.size(d) > 1 && t.stride(d) != model.stride(d)) return false;
  return true;
}

std::string strides_of(const at::Tensor& t) {
  std::string text;
  for (const int64_t stride : t.strides()) text += (text.empty() ? "" : ", ") + std::to_string(stride);
  return "(" + text + ")";
}

// The values of `given`, laid out as `models`.
Tensors laid_as(const Tensors& models, const Tensors& given) {
  Tensors result;
  for (size_t i = 0; i < given.size(); ++i) result.push_back(at::empty_like(models[i]).copy_(given[i]));
  return result;
}

class LayoutsOfCase {
 public:
  LayoutsOfCase(const Case& c, Findings& findings) : c_(c), findings_(findings) {}

  void compare() {
    const Problem all = problem_of(c_);
    const auto outputs = plain([&] { return all.f(all.examples[0]); });
    if (!outputs) return;
    compare_mapped("outputs", all, 0, *outputs, {});
    unless_values_are_read(c_, [&] { compare_compiled(all, *outputs); });

    const Problem problem = differentiable_problem_of(c_);
    if (!has_derivatives(problem)) return;
    const Tensors primals = selected(problem.examples[0], problem.differentiable);
    if (!c_.entry.refuses("vjp") && !c_.entry.has("no_autograd")) compare_gradients(problem, primals);
    if (!c_.entry.refuses("jvp")) compare_tangents(problem, primals);
  }

 private:
  // What the plain call gives; nothing where it refuses the layout.
  template <class Call>
  static std::optional<Tensors> plain(Call call) {
    try {
      return call();
    } catch (const c10::Error&) {
      return std::nullopt;
    }
  }

  // What a graph computes itself it may overwrite, and what is a view of its arguments it must not. The second call
  // runs what the first one traced.
  void compare_compiled(const Problem& problem, const Tensors& plain) {
    const td::Function compiled = td::compile([&](const Tensors& arguments) {
      Tensors viewed;
      for (const auto& t : arguments) viewed.push_back(t.defined() ? at::alias(t) : t);
      return problem.f(viewed);
    });
    compiled(problem.examples[0]);
    compare_results("outputs", "compiled", compiled(problem.examples[0]), plain, {});
  }

  // The pullback's arguments are those of the problem, then the cotangents; the pushforward's likewise.
  void compare_gradients(const Problem& problem, const Tensors& primals) {
    Problem pullback = transformed("vjp", problem);
    const size_t first = problem.mappable.size();
    lay_directions(pullback, first, [&](const Tensors& arguments) { return problem.f(arguments); });
    const Tensors cotangents = tail(pullback.examples[0], first);
    const auto f = partial_function(problem, problem.examples[0]);
    const auto gradients = plain([&] { return support::autograd_vjp(f, primals, cotangents); });
    if (!gradients) return;
    compare_results("gradients", "vjp", pullback.f(pullback.examples[0]), *gradients, primals);
    compare_mapped("gradients", pullback, first, *gradients, primals);
  }

  void compare_tangents(const Problem& problem, const Tensors& primals) {
    Problem pushforward = transformed("jvp", problem);
    const size_t first = problem.mappable.size();
    lay_directions(pushforward, first, [&](const Tensors&) { return primals; });
    const Tensors outputs = problem.f(problem.examples[0]);
    compare_results("tangents", "jvp", pushforward.f(pushforward.examples[0]), outputs, {});
    compare_mapped("tangents", pushforward, first, outputs, {});
  }

  static Tensors tail(const Tensors& list, size_t first) {
    return {list.begin() + static_cast<std::ptrdiff_t>(first), list.end()};
  }

  template <class Models>
  static void lay_directions(Problem& problem, size_t first, Models models) {
    for (auto& example : problem.examples) {
      const Tensors arguments(example.begin(), example.begin() + static_cast<std::ptrdiff_t>(first));
      const Tensors laid = laid_as(models(arguments), tail(example, first));
      std::copy(laid.begin(), laid.end(), example.begin() + static_cast<std::ptrdiff_t>(first));
    }
  }

  // All arguments mapped; those from `directions` on alone, as Jacobians map them; and with each of a few others.
  void compare_mapped(const char* kind, const Problem& problem, size_t directions, const Tensors& plain,
                      const Tensors& like) {
    if (c_.entry.refuses("vmap")) return;
    const size_t count = problem.mappable.size(), others = directions == 0 ? count : directions;
    std::set<std::vector<bool>> choices{problem.mappable};
    std::vector<bool> alone(count);
    for (size_t i = others; i < count; ++i) alone[i] = true;
    choices.insert(alone);
    for (size_t i = 0; i < others && others <= 3; ++i) {
      std::vector<bool> one = alone;
      one[i] = problem.mappable[i];
      choices.insert(one);
    }
    for (const auto& mapped : choices) {
      if (!any(mapped)) continue;
      const td::Dims dims = zero_dims(mapped);
      std::string how = directions == 0 ? "vmap" : std::string(kind) + " under vmap";
      for (size_t i = 0; i < count; ++i) how += (i == 0 ? ", mapped " : " ") + std::string(mapped[i] ? "0" : "-");
      Tensors results = td::vmap(problem.f, dims, {0})(batched_arguments(problem, mapped, dims));
      for (auto& t : results) t = t.select(0, 0);
      compare_results(kind, how, results, plain, like);
    }
  }

  void compare_results(const char* kind, const std::string& how, const Tensors& actual, const Tensors& plain,
                       const Tensors& like) {
    for (size_t i = 0; i < plain.size(); ++i) {
      if (leaves_open(plain[i])) continue;
      ++findings_.comparisons;
      if (lies_as(actual.at(i), plain[i])) continue;
      if (!like.empty() && !leaves_open(like[i]) && lies_as(actual[i], like[i])) continue;
      findings_.differences[kind].push_back(c_.entry.name + "(" + c_.sample.text + "): " + how + ": result " +
                                            std::to_string(i) + " has strides " + strides_of(actual[i]) + ", plain " +
                                            strides_of(plain[i]));
    }
  }

  const Case& c_;
  Findings& findings_;
};

void compare_layouts(const op_db::Entry& entry, Findings& findings) {
  if (entry.unspecified) return;
  const auto dtype = entry.real ? at::kDouble : at::kComplexDouble;
  Report report(entry);
  for (const auto& text : entry.sample_texts) {
    if (text[0] == '!') continue;
    for (const auto& sample : layouts_of(op_db::parse_sample(entry, text, dtype))) {
      try {
        LayoutsOfCase({entry, sample, dtype, report}, findings).compare();
      } catch (const std::exception& error) {
        ADD_FAILURE() << entry.name << "(" << sample.text << ") threw where the plain call does not: " << error.what();
      }
    }
  }
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Each with a kind of its results.
std::set<std::pair<std::string, std::string>> listed_operators() {
  std::set<std::pair<std::string, std::string>> listed;
  for (const auto& [reason, operators] : laid_otherwise())
    for (const auto& [kinds, names] : operators)
      for (const auto& name : words_of(names))
        for (const auto& kind : words_of(kinds))
          EXPECT_TRUE(listed.emplace(name, kind).second) << name << ": its " << kind << " are in the list twice";
  if (!tower::torch_version::kLaysAs213) listed.emplace("group_norm", "tangents");  // its results lie by rows
  return listed;
}

// The samples are small: threads would wait for each other most of the time.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

class LayoutTest : public testing::Test {
 public:
  explicit LayoutTest(std::string folder) : folder_(std::move(folder)) {}

  void TestBody() override {
    const OneThread one_thread;
    const support::Warnings silenced;
    std::map<std::string, Findings> found;  // by operator, which may have several entries
    for (const auto& entry : op_db::load(folder_))
      if (!entry.has("no_samples")) compare_layouts(entry, found[entry.name]);

    const auto listed = listed_operators();
    for (const auto& [name, kind] : listed) {
      const auto of_operator = found.find(name);
      const bool lacks_it =
          !support::device().is_cpu() && of_operator != found.end() && of_operator->second.comparisons == 0;
      if (of_operator == found.end() || lacks_it || !tower::torch_version::kLaysAs213) continue;
      EXPECT_TRUE(of_operator->second.differences.count(kind) != 0)
          << name << ": its " << kind << " lie as the plain call's. Take it from the list.";
    }
    long comparisons = 0;
    for (const auto& [name, findings] : found) {
      comparisons += findings.comparisons;
      for (const auto& [kind, differences] : findings.differences)
        if (listed.count({name, kind}) == 0)
          ADD_FAILURE() << kind << " lie otherwise than the plain call's in " << differences.size()
                        << " comparisons, of which the first: " << differences[0];
    }
    EXPECT_GT(comparisons, 0);
  }

 private:
  std::string folder_;
};

}  // namespace

void register_layout_test(const std::string& op_db_folder) {
  testing::RegisterTest("Layout", "IsThatOfThePlainCallUnderEveryTransform", nullptr, nullptr, __FILE__, __LINE__,
                        [=]() -> testing::Test* { return new LayoutTest(op_db_folder); });
}

}  // namespace matrix
