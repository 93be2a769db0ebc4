// Every operator of the database (op_db/op_db.h) in mapped functions across two processes: they give what they give in
// one process on the whole batch. Of a sample's arguments some are mapped over the spread axis, and some are the same
// for all.
//
// There are some 40,000 programs: samples × what is mapped × ways. Of these every kEvery-th runs, or every one with
// TOWER_SPREAD=all.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "matrix/matrix.h"
#include "mesh/harness.h"
#include "mesh/programs.h"
#include "tower/collectives.h"
#include "tower/errors.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using matrix::Problem;
using mesh_programs::Function;
using mesh_programs::kBatch;
using mesh_programs::Part;
using mesh_programs::Tensors;

constexpr const char* kAxis = "data";
constexpr int kEvery = 7;

// An operator, arguments for it, and where the examples are.
struct Setting {
  const op_db::Entry& entry;
  const Problem& values;  // all results
  const Problem& smooth;  // those that have derivatives
  std::vector<bool> mapped;
  Part part;
  tower::NamedExamples examples;

  td::Dims dims() const { return matrix::zero_dims(mapped); }
  std::vector<int64_t> differentiable() const {
    std::vector<int64_t> result;
    for (size_t i = 0; i < smooth.differentiable.size(); ++i)
      if (smooth.differentiable[i]) result.push_back(static_cast<int64_t>(i));
    return result;
  }
  Tensors own(Tensors whole, int64_t dim = 0) const {
    for (size_t i = 0; i < whole.size(); ++i)
      if (mapped[i]) whole[i] = part.of(whole[i], dim);
    return whole;
  }
  Tensors whole_arguments() const { return matrix::batched_arguments(values, mapped, dims()); }
  Tensors arguments() const { return own(whole_arguments()); }
  Function spread(const Function& f, bool shared_result = false) const {
    return td::vmap(f, dims(), {shared_result ? std::nullopt : std::optional<int64_t>(0)}, {}, examples);
  }
};

// Each value with the dimension that is spread, if there is one.
struct Results {
  Tensors values;
  td::Dims mapped;
};

Results mapped_results(const Tensors& values, int64_t dim = 0) { return {values, td::Dims(values.size(), dim)}; }

// The sum over all examples of products of the results with fixed numbers.
Function total(const Function& f) {
  return [f](const Tensors& in) {
    const Tensors outs = f(in), weights = support::random_like(outs, 5);
    Tensor sum = at::zeros({}, at::kDouble);
    for (size_t k = 0; k < outs.size(); ++k) {
      const Tensor product = outs[k] * weights[k].conj();
      sum = sum + (product.is_complex() ? at::real(product) : product).sum();
    }
    return td::psum({sum}, kAxis);
  };
}

// Directions for the differentiable arguments, this process's part of those that are mapped.
Tensors tangents(const Setting& s) {
  const Tensors whole = s.whole_arguments();
  Tensors directions = support::random_like(whole, 9);
  for (size_t i = 0; i < whole.size(); ++i)
    if (!s.smooth.differentiable[i]) directions[i] = at::zeros_like(whole[i]);
  directions = s.own(directions);
  for (size_t i = 0; i < whole.size(); ++i)
    if (!s.smooth.differentiable[i]) directions[i] = Tensor();
  return directions;
}

// A gradient by the differentiable arguments.
Results by_arguments(const Setting& s, const Tensors& gradients) {
  Results results{gradients, {}};
  for (const int64_t i : s.differentiable()) results.mapped.push_back(s.dims()[static_cast<size_t>(i)]);
  return results;
}

Results plain(const Setting& s) { return mapped_results(s.spread(s.values.f)(s.arguments())); }

Results under_vmap(const Setting& s) {
  Problem rotated = s.values;
  std::rotate(rotated.examples.begin(), rotated.examples.begin() + 1, rotated.examples.end());
  Tensors first = s.whole_arguments(), second = matrix::batched_arguments(rotated, s.mapped, s.dims());
  td::Dims outer;
  for (size_t i = 0; i < first.size(); ++i) {
    outer.push_back(s.values.mappable[i] ? std::optional<int64_t>(0) : std::nullopt);
    if (outer[i]) first[i] = at::stack({first[i], second[i]});
  }
  return mapped_results(td::vmap(s.spread(s.values.f), outer, {0})(s.own(first, 1)), 1);
}

Results gradient_around(const Setting& s) {
  return by_arguments(s, td::grad(s.spread(total(s.smooth.f), true), s.differentiable())(s.arguments()));
}

Results gradient_inside(const Setting& s) {
  return mapped_results(s.spread(td::grad(total(s.smooth.f), s.differentiable()))(s.arguments()));
}

Results tangent_around(const Setting& s) {
  const Tensors x = s.arguments(), along = tangents(s);
  Results results = mapped_results(td::jvp(s.spread(s.smooth.f), x, along).second);
  results.values.push_back(td::jvp(s.spread(total(s.smooth.f), true), x, along).second[0]);
  results.mapped.emplace_back();
  return results;
}

Results tangent_inside(const Setting& s) {
  const Function along_fixed = [f = s.smooth.f, &s](const Tensors& in) {
    Tensors directions = support::random_like(in, 13);
    for (size_t i = 0; i < in.size(); ++i)
      if (!s.smooth.differentiable[i]) directions[i] = Tensor();
    return td::jvp(f, in, directions).second;
  };
  return mapped_results(s.spread(along_fixed)(s.arguments()));
}

Results tangent_of_gradient(const Setting& s) {
  const Function gradient = td::grad(s.spread(total(s.smooth.f), true), s.differentiable());
  return by_arguments(s, td::jvp(gradient, s.arguments(), tangents(s)).second);
}

struct Way {
  const char* name;
  Results (*run)(const Setting&);
  int derivatives;
};
constexpr Way kWays[] = {{"vmap", plain, 0},
                         {"vmap around", under_vmap, 0},
                         {"grad around", gradient_around, 1},
                         {"grad inside", gradient_inside, 1},
                         {"jvp around", tangent_around, 1},
                         {"jvp inside", tangent_inside, 1},
                         {"jvp(grad) around", tangent_of_gradient, 2}};

bool applies(const Way& way, const Setting& s) {
  if (s.entry.by_address && way.run == under_vmap) return false;
  if (way.derivatives == 0) return true;
  return !s.differentiable().empty() && matrix::has_derivatives(s.smooth) && matrix::is_double(s.smooth) &&
         !(way.derivatives > 1 && s.entry.has("no_second"));
}

support::Tolerance tolerance(const Tensors& expected, const Way& way) {
  const auto coarsest = support::coarsest(expected);
  return coarsest == at::kDouble && way.derivatives > 0 ? support::Tolerance{1e-9, 1e-9}
                                                        : support::same_arithmetic(coarsest);
}

// All mapped; each of the first and the last alone.
std::vector<std::vector<bool>> choices(const std::vector<bool>& mappable) {
  std::vector<std::vector<bool>> result;
  if (matrix::any(mappable)) result.push_back(mappable);
  if (std::count(mappable.begin(), mappable.end(), true) < 2) return result;
  const auto first = std::find(mappable.begin(), mappable.end(), true) - mappable.begin();
  const auto last = mappable.rend() - std::find(mappable.rbegin(), mappable.rend(), true) - 1;
  for (const auto alone : {first, last}) {
    result.emplace_back(mappable.size());
    result.back()[static_cast<size_t>(alone)] = true;
  }
  return result;
}

struct Counts {
  int64_t samples = 0, programs = 0, refused = 0;
};

// What one process of two does.
class Comparison {
 public:
  void family(const std::string& name, const std::vector<op_db::Entry>& entries) {
    for (const op_db::Entry& entry : entries) {
      if (entry.family != name || entry.has("no_samples") || entry.refuses("vmap") || entry.unspecified) continue;
      std::vector<at::ScalarType> dtypes;
      if (entry.real) dtypes.push_back(at::kDouble);
      if (entry.complex) dtypes.push_back(at::kComplexDouble);
      for (const auto dtype : dtypes)
        for (const std::string& text : entry.sample_texts)
          if (text[0] != '!') sample(entry, op_db::parse_sample(entry, text, dtype), dtype);
    }
  }
  const Counts& counts() const { return counts_; }

 private:
  void sample(const op_db::Entry& entry, const op_db::Sample& sample, at::ScalarType dtype) {
    ++counts_.samples;
    matrix::Report report(entry);
    const matrix::Case c{entry, sample, dtype, report};
    const Problem values = matrix::problem_of(c, kBatch), smooth = matrix::differentiable_problem_of(c, kBatch);
    for (const auto& mapped : choices(values.mappable)) {
      // Also where one process has nothing.
      const int64_t of_first = entry.by_data ? 3 : 3 + counts_.samples % 3;
      const Part part = mesh_.rank() == 0 ? Part{0, of_first} : Part{of_first, kBatch - of_first};
      const Setting whole{entry, values, smooth, mapped, {}, {kAxis}};
      const Setting spread{entry, values, smooth, mapped, part, {kAxis, mesh_}};
      for (const Way& way : kWays) {
        if (number_++ % every_ != 0 || !applies(way, whole)) continue;
        std::string what = entry.name + "(" + sample.text + ") in " + c10::toString(dtype) + ", mapped ";
        for (const bool m : mapped) what += m ? '1' : '0';
        compare(what + ", " + std::to_string(of_first) + " examples in the first process, " + way.name, way, whole,
                spread);
      }
    }
  }

  void compare(const std::string& what, const Way& way, const Setting& whole, const Setting& spread) {
    Results expected;
    try {
      expected = way.run(whole);
    } catch (const std::exception& error) {
      const bool declared = std::any_of(whole.entry.notes.begin(), whole.entry.notes.end(),
                                        [](const auto& note) { return note.first.rfind("refuses", 0) == 0; });
      EXPECT_TRUE(declared) << what << ", in one process: " << error.what();
      ++counts_.refused;
      return;
    }
    ++counts_.programs;
    std::string failure;
    try {
      const Results actual = way.run(spread);
      for (size_t k = 0; k < expected.values.size(); ++k)
        if (const auto dim = expected.mapped[k]) expected.values[k] = spread.part.of(expected.values[k], *dim);
      failure = support::difference(actual.values, expected.values, tolerance(expected.values, way));
    } catch (const std::exception& error) {
      failure = std::string(error.what()).substr(0, 1000);
    }
    EXPECT_TRUE(failure.empty()) << what << ": " << failure;
    if (!processes::all_went_well(mesh_, failure.empty())) mesh_ = processes::mesh_of_all();
  }

  tower::Mesh mesh_ = processes::mesh_of_all();
  const int every_ = std::getenv("TOWER_SPREAD") ? 1 : kEvery;
  int64_t number_ = 0;
  Counts counts_;
};

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(TOWER_OP_DB_DIR))
    if (file.path().extension() == ".ops") names.push_back(file.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

class OperatorsAcrossProcesses : public testing::TestWithParam<std::string> {
 protected:
  static void TearDownTestSuite() {
    std::cout << "operators across processes: " << all_.samples << " samples, " << all_.programs
              << " programs compared, " << all_.refused << " declared refusals\n";
  }
  static Counts all_;
};
Counts OperatorsAcrossProcesses::all_;

TEST_P(OperatorsAcrossProcesses, GiveWhatTheyGiveInOne) {
  if (!processes::can_start()) GTEST_SKIP() << "Tower was built without gloo's headers";
  static const auto entries = op_db::load(TOWER_OP_DB_DIR);
  const auto ended = processes::start(
      2,
      [&](int) {
        Comparison comparison;
        comparison.family(GetParam(), entries);
        const Counts& counts = comparison.counts();
        std::cout << "\ncounts " << counts.samples << ' ' << counts.programs << ' ' << counts.refused << '\n';
      },
      std::chrono::minutes(10));
  processes::expect_well(ended);
  if (HasFailure()) return;
  Counts counts;
  std::istringstream(ended[0].said.substr(ended[0].said.rfind("counts ") + 7)) >> counts.samples >> counts.programs >>
      counts.refused;
  EXPECT_GT(counts.programs, 0) << ended[0].said;
  all_.samples += counts.samples;
  all_.programs += counts.programs;
  all_.refused += counts.refused;
}

INSTANTIATE_TEST_SUITE_P(Family, OperatorsAcrossProcesses, testing::ValuesIn(families()),
                         [](const auto& family) { return family.param; });

}  // namespace
