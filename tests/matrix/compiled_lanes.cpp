// Compiled maps of operators against the same uncompiled, for numbers of examples that vectors divide and do not, and
// for arguments that lie otherwise in memory than those of the first call. One more operator reads each result, so that
// there are two, which is what a kernel takes.
#include <ATen/Functions.h>
#include <tower/compile.h>
#include <tower/errors.h>

#include <algorithm>

#include "matrix/matrix.h"
#include "support/generated_once.h"
#include "support/oracles.h"
#include "support/seeds.h"

namespace matrix {
namespace {

constexpr size_t kCalls = 2;  // the first traces, the second runs what was compiled

Tensors each_negated(const Tensors& results) {
  Tensors negated;
  for (const at::Tensor& t : results) {
    if (t.scalar_type() == at::kBool) negated.push_back(t.logical_not());
    else negated.push_back(-t);
  }
  return negated;
}

// Integers may give float32.
std::string difference(const Tensors& actual, const Tensors& expected) {
  if (actual.size() != expected.size()) return "another number of results";
  std::string text;
  for (size_t k = 0; k < expected.size() && text.empty(); ++k)
    text = support::difference(actual[k], expected[k], support::same_arithmetic(expected[k].scalar_type()));
  return text;
}

bool takes(const td::Function& f, const Tensors& arguments) {
  try {
    f(arguments);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

// Operators with one more behind them, mapped over any number of examples of the problem.
class OverExamples {
 public:
  OverExamples(std::string name, Problem problem, const Case& c)
      : name_(std::move(name)), problem_(std::move(problem)), dims_(zero_dims(problem_.mappable)), c_(c) {
    const td::Function f = [inner = problem_.f](const Tensors& x) { return each_negated(inner(x)); };
    mapped_ = td::vmap(f, dims_, {0});
    compiled_ = td::compile(mapped_, support::generated_once());
  }

  bool takes_examples() const { return takes(mapped_, batch(2)); }

  // 64 and 65 are traced, and give the graph of the others where it does not depend on their number.
  void compare_numbers() {
    for (const int64_t n : {64, 65, 7, 1}) compare_number(n);
    if (!c_.entry.by_data)
      compare("no examples", mapped_, compiled_,
              changed(batch(1), [](size_t, const auto& t) { return t.narrow(0, 0, 0); }));
  }

  void compare_number(int64_t n) { compare(std::to_string(n) + " examples", mapped_, compiled_, batch(n)); }

  void compare_layouts() {
    constexpr int64_t n = 7;
    compare("every second example", mapped_, compiled_,
            changed(batch(2 * n), [](size_t, const auto& t) { return t.slice(0, 0, 2 * n, 2); }));
    compare("from the second example on", mapped_, compiled_,
            changed(batch(n + 1), [](size_t, const auto& t) { return t.narrow(0, 1, n); }));
    compare("one example, expanded", mapped_, compiled_, changed(batch(1), [](size_t, const auto& t) {
              auto sizes = t.sizes().vec();
              sizes[0] = n;
              return t.expand(sizes);
            }));
    const Tensors apart = batch(n);
    const Tensors same = changed(apart, [&](size_t, const auto& t) {
      if (!t.is_floating_point()) return t;  // indices must be those of the sample
      return *std::find_if(apart.begin(), apart.end(),
                           [&](const at::Tensor& u) { return u.sizes() == t.sizes() && u.dtype() == t.dtype(); });
    });
    if (takes(mapped_, same)) compare("equal arguments", mapped_, compiled_, same);
    if (c_.entry.by_address) return;
    td::Dims last = dims_;
    for (auto& dim : last)
      if (dim) dim = -1;
    const td::Function mapped =
        td::vmap([inner = problem_.f](const Tensors& x) { return each_negated(inner(x)); }, last, {0});
    compare("examples in the last dimension", mapped, td::compile(mapped, support::generated_once()),
            changed(apart, [](size_t, const auto& t) { return t.movedim(0, -1).contiguous(); }));
  }

 private:
  Tensors batch(int64_t n) const {
    Problem many = problem_;
    for (int64_t i = 0; i < n; ++i)
      if (static_cast<size_t>(i) >= problem_.examples.size())
        many.examples.push_back(problem_.examples[static_cast<size_t>(i) % problem_.examples.size()]);
    many.examples.resize(static_cast<size_t>(n));
    return batched_arguments(many, problem_.mappable, dims_);
  }

  template <class F>
  Tensors changed(Tensors arguments, F f) const {
    for (size_t i = 0; i < arguments.size(); ++i)
      if (problem_.mappable[i]) arguments[i] = f(i, arguments[i]);
    return arguments;
  }

  void compare(const std::string& how, const td::Function& f, const td::Function& compiled, const Tensors& arguments) {
    const Tensors expected = f(arguments);
    for (size_t call = 0; call < kCalls; ++call)
      c_.report.expect("compile(" + name_ + "), " + how + ", call " + std::to_string(call),
                       difference(compiled(arguments), expected));
  }

  std::string name_;
  Problem problem_;
  td::Dims dims_;
  const Case c_;
  td::Function mapped_, compiled_;
};

}  // namespace

namespace {

// The same in the dtypes that no other check is in, where the operator takes them.
void check_other_dtypes(const Case& c) {
  for (const auto dtype : {at::kLong, at::kInt, at::kBool, at::kHalf, at::kBFloat16}) {
    op_db::Sample sample;
    Problem problem;
    try {
      sample = op_db::parse_sample(c.entry, c.sample.text, dtype);
      problem = problem_of({c.entry, sample, dtype, c.report});
      problem.f(problem.examples[0]);
    } catch (const std::exception&) {
      continue;
    }
    // There are no integers with which a matrix is sure to be regular.
    const bool is_matrix = std::any_of(sample.leaves.begin(), sample.leaves.end(), [](const auto& leaf) {
      return leaf.spec.domain == "spd" || leaf.spec.domain == "well" || leaf.spec.domain == "herm";
    });
    if (is_matrix && at::isIntegralType(dtype, /*includeBool=*/true)) continue;
    c.report.enter(sample, dtype);
    OverExamples over("vmap", problem, {c.entry, sample, dtype, c.report});
    if (!over.takes_examples()) continue;
    // What becomes of numbers of examples is no matter of dtypes.
    if (support::whole()) over.compare_numbers();
    else over.compare_number(65);
  }
  c.report.enter(c.sample, c.dtype);
}

}  // namespace

void check_compiled_lanes(const std::string& inner, const Case& c) {
  const FallbackIsError guard(false);
  if (c.entry.unspecified) return;
  Problem problem = inner.empty() ? problem_of(c) : differentiable_problem_of(c);
  if (!inner.empty() && !has_derivatives(problem)) return;
  if (!inner.empty()) problem = transformed(inner, problem);
  if (!any(problem.mappable)) return;
  unless_values_are_read(c, [&] {
    OverExamples over(inner.empty() ? "vmap" : "vmap(" + inner + ")", problem, c);
    over.compare_numbers();
    if (c.dtype == at::kFloat || inner == "jvp") return;  // they are read as those of float64 and of vjp
    over.compare_layouts();
    if (inner.empty() && c.dtype == at::kDouble && !c.sample.leaves.empty()) check_other_dtypes(c);
  });
}

}  // namespace matrix
