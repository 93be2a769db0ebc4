#include "decompositions/decompositions.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <tower/decompose.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>

#include "decompositions/calls.h"
#include "matrix/matrix.h"
#include "support/device.h"
#include "support/oracles.h"

namespace decompositions {
namespace {

using matrix::Case;
using op_db::Stack;
using support::Tensors;

// One decomposition with what the database has for its operator.
struct Subject {
  std::string name;
  tower::Decomposition decomposition;
  std::vector<op_db::Entry> entries;
};

struct Outcome {
  Tensors tensors;
  std::string error;  // empty if there was none
};

Outcome outcome_of(const std::function<void(Stack&)>& call, const Stack& arguments) {
  Stack stack = deep_copy(arguments);
  try {
    call(stack);
  } catch (const c10::Error& error) {
    return {{}, error.what_without_backtrace()};  // to name the functions of a backtrace takes long
  } catch (const std::exception& error) {
    return {{}, error.what()};
  }
  return {op_db::tensors_of(stack), ""};
}

// What a kernel makes of infinities depends on the order in which it adds and multiplies: infinite or not a number.
Tensors with_one_kind_of_infinity(const Tensors& tensors) {
  Tensors result;
  for (const auto& t : tensors) {
    const bool inexact = t.defined() && (t.is_floating_point() || t.is_complex());
    result.push_back(inexact ? t.masked_fill(at::isfinite(t).logical_not(), NAN) : t);
  }
  return result;
}

class Comparison {
 public:
  Comparison(const Subject& subject, const Case& c, std::string group)
      : subject_(subject), case_(c), group_(std::move(group)) {}

  void expect_alike(const Call& call) {
    if (case_.entry.has("decomposition " + group_ + ", " + call.what)) return;
    const auto& op = *case_.entry.op;
    if (support::loses_device(op, call.arguments)) return;
    const Outcome expected = outcome_of([&](Stack& s) { op.callBoxed(s); }, call.arguments);
    const Outcome actual = outcome_of([&](Stack& s) { subject_.decomposition.call_boxed(s); }, call.arguments);
    ++matrix::totals().comparisons;
    const std::string text = disagreement(call, expected, actual);
    // A decomposition is of the operator that the CPU has.
    if (!text.empty() && support::runs_on_device(subject_.name, [&] { check_it_is_the_cpus(call, expected); }))
      fail(call.what, text);
  }

 private:
  std::string disagreement(const Call& call, const Outcome& expected, const Outcome& actual) const {
    const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
    if (!expected.error.empty()) {
      const bool by_the_way = group_ == "special" || group_ == "dtypes" || group_ == "layouts";
      const bool lenient = case_.entry.has("decomposition accepts " + group_) || by_the_way;
      if (actual.error.empty() && !lenient)
        return "the operator throws and the decomposition does not: " + first_line(expected.error);
      return {};
    }
    if (!actual.error.empty()) return "only the decomposition throws: " + first_line(actual.error);
    return difference(call, actual.tensors, expected.tensors);
  }

  std::string difference(const Call& call, const Tensors& actual, const Tensors& expected) const {
    const bool special = group_ == "special" || group_ == "attributes";  // these have infinities, too
    return support::difference(
        special ? with_one_kind_of_infinity(actual) : actual, special ? with_one_kind_of_infinity(expected) : expected,
        support::same_arithmetic(support::coarsest(op_db::tensors_of(call.arguments), support::coarsest(expected))));
  }

  void check_it_is_the_cpus(const Call& call, const Outcome& there) const {
    const Outcome here = outcome_of([&](Stack& s) { case_.entry.op->callBoxed(s); }, support::on_cpu(call.arguments));
    Tensors copied;
    for (const auto& t : there.tensors) copied.push_back(t.defined() ? t.cpu() : t);
    TORCH_CHECK(here.error.empty() == there.error.empty() && difference(call, copied, here.tensors).empty(),
                "LibTorch's operator is another one there than on the CPU, in dtypes, shapes or errors");
  }

  void fail(const std::string& what, const std::string& message) {
    if (++failures_ > 5) return;
    ADD_FAILURE() << subject_.name << "(" << case_.sample.text << ") in " << c10::toString(case_.dtype) << ", " << what
                  << "\n  " << message;
  }

  const Subject& subject_;
  const Case& case_;
  std::string group_;
  int failures_ = 0;
};

// ---- derivatives ----

// The decomposition as a function of the sample's tensors.
matrix::Problem with_decomposition(const Subject& subject, const Case& c, matrix::Problem problem) {
  problem.f = [d = subject.decomposition, sample = c.sample](const Tensors& leaves) {
    Stack stack = op_db::fill_in(sample, matrix::arguments_from(sample, leaves));
    d.call_boxed(stack);
    return op_db::tensors_of(stack);
  };
  return problem;
}

Tensors differentiable_outputs(const Tensors& outputs, const Case& c) {
  Tensors result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& chosen = c.entry.differentiable_outputs;
    const bool wanted = chosen.empty() || std::count(chosen.begin(), chosen.end(), static_cast<int64_t>(i)) != 0;
    if (wanted && outputs[i].defined() && (outputs[i].is_floating_point() || outputs[i].is_complex()))
      result.push_back(outputs[i]);
  }
  return result;
}

void check_derivatives(const Subject& subject, const Case& c) {
  const matrix::Problem plain = matrix::problem_of(c);
  const matrix::Problem decomposed = with_decomposition(subject, c, plain);

  if (matrix::any(plain.mappable) && !c.entry.refuses("vmap")) {
    const auto dims = matrix::zero_dims(plain.mappable);
    const auto mapped = matrix::td::vmap(decomposed.f, dims, {0});
    std::vector<Tensors> looped;
    for (const auto& example : matrix::looped_arguments(plain, plain.mappable)) looped.push_back(plain.f(example));
    c.report.expect("vmap against a loop of the operator",
                    support::difference(mapped(matrix::batched_arguments(plain, plain.mappable, dims)),
                                        matrix::stacked(looped), support::same_arithmetic(c.dtype)));
  }

  matrix::Problem smooth = plain, smooth_decomposed = decomposed;
  smooth.f = [f = plain.f, c](const Tensors& in) { return differentiable_outputs(f(in), c); };
  smooth_decomposed.f = [f = decomposed.f, c](const Tensors& in) { return differentiable_outputs(f(in), c); };
  if (c.dtype == at::kFloat || !matrix::is_double(smooth) || !matrix::has_derivatives(smooth) || c.entry.has("no_fd") ||
      c.entry.refuses("vjp"))
    return;
  for (const auto& example : smooth.examples) {
    const auto f = matrix::partial_function(smooth, example);
    const auto g = matrix::partial_function(smooth_decomposed, example);
    const Tensors x = matrix::selected(example, smooth.differentiable);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      const Tensors direction = support::random_like(x, seed);
      const Tensors measured = support::directional_derivative(f, x, direction);
      const Tensors pushed = matrix::td::jvp(g, x, direction).second;
      c.report.expect("jvp against finite differences of the operator",
                      support::difference(pushed, measured, {c.entry.tolerance, c.entry.tolerance}));
      const auto [outputs, pullback] = matrix::td::vjp(g, x);
      const Tensors cotangents = support::random_like(outputs, seed + 10);
      const Tensors gradients = pullback(cotangents);
      const double scale = 1 + support::magnitude(gradients) + support::magnitude(measured);
      c.report.expect_close("vjp against finite differences of the operator", support::inner(gradients, direction),
                            support::inner(cotangents, measured), 10 * c.entry.tolerance * scale);
    }
  }
}

// ---- tests ----

using Calls = std::function<std::vector<Call>(const Stack&)>;

class DecompositionTest : public testing::Test {
 public:
  DecompositionTest(std::shared_ptr<const Subject> subject, std::string group, std::function<void(const Case&)> check,
                    bool bad)
      : subject_(std::move(subject)), group_(std::move(group)), check_(std::move(check)), bad_(bad) {}

  void TestBody() override {
    const long before = matrix::totals().comparisons, left_out = support::calls_left_out();
    bool excepted = false;
    for (const auto& entry : subject_->entries) {
      if (entry.has("decomposition " + group_)) {
        excepted = true;
        continue;
      }
      matrix::Report report(entry);
      for (const auto dtype : dtypes_of(entry)) {
        for (const auto& text : entry.sample_texts) {
          if ((text[0] == '!') != bad_) continue;
          const auto sample = op_db::parse_sample(entry, text, dtype);
          report.enter(sample, dtype);
          const Case c{entry, sample, dtype, report};
          if (bad_ ? matrix::loses_device(c) : !matrix::runs_on_device(c)) continue;
          report.run(group_, [&] { check_(c); });
        }
      }
    }
    const bool may_be_empty = group_ == "special" || group_ == "dtypes" || group_ == "attributes";
    if (support::calls_left_out() > left_out && matrix::totals().comparisons == before)
      GTEST_SKIP() << "left out on " << support::device();
    if (excepted || may_be_empty)
      return;  // there are operators of integers alone, of complex numbers, without attributes
    EXPECT_GT(matrix::totals().comparisons, before) << "nothing was compared: this test cannot fail";
  }

 private:
  // Reduced precision comes with the group "dtypes".
  std::vector<at::ScalarType> dtypes_of(const op_db::Entry& entry) const {
    std::vector<at::ScalarType> result;
    if (entry.real) result.push_back(at::kDouble);
    if (entry.real && !entry.has("no_float32") && (group_ == "values" || group_ == "derivatives"))
      result.push_back(at::kFloat);
    if (entry.complex && group_ != "dtypes") result.push_back(at::kComplexDouble);
    return result;
  }

  std::shared_ptr<const Subject> subject_;
  std::string group_;
  std::function<void(const Case&)> check_;
  bool bad_;
};

class MissingTest : public testing::Test {
 public:
  explicit MissingTest(std::string name) : name_(std::move(name)) {}
  void TestBody() override {
    FAIL() << name_ << " has a decomposition and no entry in tests/op_db: add one, with samples of all its arguments.";
  }

 private:
  std::string name_;
};

void register_test(const std::string& name, const std::function<testing::Test*()>& make) {
  testing::RegisterTest("decompositions", name.c_str(), nullptr, nullptr, __FILE__, __LINE__, make);
}

// The arguments of the sample's call.
Stack arguments_of(const Case& c) {
  return op_db::fill_in(c.sample, matrix::arguments_from(c.sample, op_db::make_leaves(c.entry, c.sample, c.dtype, 0)));
}

bool has_bad_samples(const Subject& subject) {
  for (const auto& entry : subject.entries)
    for (const auto& text : entry.sample_texts)
      if (text[0] == '!') return true;
  return false;
}

// LibTorch calls these itself with arguments that fit, and they do not look again.
bool is_internal(const std::string& name) {
  return name[0] == '_' || name.starts_with("native_") || name.find("_backward") != std::string::npos ||
         name.find("_forward") != std::string::npos || name.ends_with("_jvp");
}

void register_subject(const std::shared_ptr<const Subject>& subject) {
  const std::string name = subject->name.substr(subject->name.find("::") + 2);
  const auto add = [&](const std::string& group, const std::function<void(const Case&)>& check, bool bad = false) {
    register_test(name + "/" + group, [=] { return new DecompositionTest(subject, group, check, bad); });
  };
  const auto compare = [&](const std::string& group, const Calls& derived) {
    add(group, [subject, group, derived](const Case& c) {
      Comparison comparison(*subject, c, group);
      const Stack arguments = arguments_of(c);
      const auto calls = derived ? derived(arguments) : std::vector<Call>{{"as it is", arguments}};
      for (const auto& call : calls) comparison.expect_alike(call);
    });
  };
  compare("values", nullptr);
  compare("layouts", layouts);
  compare("special", special_values);
  compare("dtypes", dtypes);
  if (!is_internal(name)) {
    compare("shapes", shapes);
    compare("attributes", [schema = subject->decomposition.schema()](const Stack& arguments) {
      return attributes(arguments, schema);
    });
  }
  add("derivatives", [subject](const Case& c) { check_derivatives(*subject, c); });
  if (has_bad_samples(*subject))
    add(
        "errors",
        [subject](const Case& c) {
          const auto thrown = outcome_of([&](Stack& s) { subject->decomposition.call_boxed(s); }, arguments_of(c));
          c.report.expect("a bad sample", thrown.error.empty() ? "the decomposition did not throw" : "");
        },
        true);
}

}  // namespace

void register_tests(const std::string& op_db_folder) {
  std::map<std::string, std::shared_ptr<Subject>> subjects;
  for (const auto& name : tower::decomposed_operators())
    subjects[name] = std::make_shared<Subject>(Subject{name, tower::decomposition(name), {}});
  for (auto& entry : op_db::load(op_db_folder)) {
    const auto found = subjects.find("aten::" + entry.name);
    if (found != subjects.end()) found->second->entries.push_back(std::move(entry));
  }
  const bool filtered = std::getenv("TOWER_OPS") != nullptr;
  for (const auto& [name, subject] : subjects) {
    if (!subject->entries.empty() && subject->entries[0].has("no_samples")) continue;
    if (!subject->entries.empty()) {
      register_subject(subject);
    } else if (!filtered) {
      register_test(name.substr(name.find("::") + 2) + "/has_samples", [name] { return new MissingTest(name); });
    }
  }
}

}  // namespace decompositions
