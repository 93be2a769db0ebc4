// The matrix: every operator of the database (op_db/op_db.h) × every check below × every sample × every dtype.
//
// One GoogleTest test is one operator and one group of checks: `--gtest_filter='matrix*sum.dim_IntList/vjp'`, and
// TOWER_OPS='^sum' leaves only the operators that match. A failure names sample, dtype, check and error.
//
// The groups, each a function of a Case in the file of its name:
//   samples      the plain call works, bad samples throw, LibTorch's autograd agrees with finite differences
//   vmap         against a loop: which arguments are mapped, where, batches of three, one and none
//   vjp, jvp     against finite differences and LibTorch's autograd; adjointness; linearize; zero cotangents
//   a(b)         a of b for a and b in {vmap, vjp, jvp}: a's own check applied to the function b(operator)
//   a(b(c))      likewise
//   compiled     a compiled function, transformed inside and outside, on values other than it was compiled with
//   compiled_lanes   compiled maps over 0 to 65 examples, laid out otherwise, in other dtypes
//   in_place, out   those variants against the functional operator, or a tower::Error
//   errors       bad samples throw under every transform
//   served       the transforms are served by rules, not by a loop or LibTorch's formula
#pragma once

#include <tower/coverage.h>
#include <tower/dynamic.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "op_db/op_db.h"
#include "support/compare.h"

namespace matrix {

namespace td = tower::dynamic;
using support::Tensors;

/// Collects what goes wrong in one test, so that a failure in one sample does not hide the next.
class Report {
 public:
  explicit Report(const op_db::Entry& entry) : entry_(entry) {}

  /// Names the sample and dtype of what follows.
  void enter(const op_db::Sample& sample, at::ScalarType dtype);
  /// Runs `body`, a check called `check`; what it throws is a failure. Where the entry says that `check` is refused,
  /// not ending in a tower::Error is the failure.
  void run(const std::string& check, const std::function<void()>& body);
  /// Runs `body`, and counts a tower::Error as an allowed refusal.
  void run_or_refuse(const std::string& check, const std::function<void()>& body);
  /// One comparison: `difference` is empty where it holds.
  void expect(const std::string& what, const std::string& difference);
  void expect_close(const std::string& what, double actual, double expected, double tolerance);

 private:
  void fail(const std::string& what, const std::string& message);

  const op_db::Entry& entry_;
  std::string where_;
  std::string check_;
  int failures_ = 0;
};

/// Totals of the whole run, printed at its end.
struct Totals {
  std::set<std::string> names;  // of the operators
  long samples = 0;
  long comparisons = 0;
  long refusals = 0;
};
Totals& totals();

/// One sample in one dtype.
struct Case {
  const op_db::Entry& entry;
  const op_db::Sample& sample;
  at::ScalarType dtype;
  Report& report;
};

/// A function with arguments to try it on, and which of them have derivatives or examples.
struct Problem {
  td::Function f;
  std::vector<bool> differentiable;  // per argument
  std::vector<bool> mappable;        // per argument
  std::vector<Tensors> examples;     // argument lists that differ in values only
};

constexpr int kExamples = 3;

/// The tensors that the operator gets: the leaves, projected onto their domains.
Tensors arguments_from(const op_db::Sample& sample, const Tensors& leaves);
/// The case's operator as a function of the tensors of its sample; all outputs.
Problem problem_of(const Case& c, int examples = kExamples);
/// The same with the outputs that have derivatives.
Problem differentiable_problem_of(const Case& c, int examples = kExamples);
/// Whether any input and any output has a derivative.
bool has_derivatives(const Problem& problem);
/// Whether all tensors have the precision that finite differences need.
bool is_double(const Problem& problem);

/// The function that a transform (vmap, vjp, jvp) makes of one, as a problem again.
Problem transformed(const std::string& transform, const Problem& problem);
/// That transform's own check applied to the problem.
void check_transform(const std::string& transform, const Problem& problem, const Case& c);

/// Whether LibTorch's autograd is an oracle for the sample: on a device, where LibTorch has the derivative, and
/// rightly.
bool libtorch_differentiates(const Case& c);

void check_samples(const Case& c);
void check_vmap(const Case& c);
void check_vjp(const Case& c);
void check_jvp(const Case& c);
void check_nesting(const std::vector<std::string>& outer_to_inner, const Case& c);
void check_compiled(const std::vector<std::string>& outer_to_inner, const Case& c);
/// Maps over 0 to 65 examples that lie in memory in several ways; of the operator, then also in other dtypes, or of its
/// derivative `inner`.
void check_compiled_lanes(const std::string& inner, const Case& c);
/// Whether LibTorch has the operator on the device under test with these arguments.
bool runs_on_device(const Case& c);
/// Whether a bad sample would take the device under test from the tests that follow.
bool loses_device(const Case& c);
/// Runs `body`, and counts the refusal of an operator that reads values.
void unless_values_are_read(const Case& c, const std::function<void()>& body);
void check_in_place(const Case& c);
void check_out(const Case& c);
void check_errors(const Case& c);
/// Whether coverage() says that a loop, LibTorch's own formula or nothing serves the operator.
bool is_last_resort(const std::string& served);
void check_served(const op_db::Entry& entry, Report& report);

/// Whether the dispatcher has the variant of the entry's operator.
bool has_in_place_variant(const op_db::Entry& entry);
bool has_out_variant(const op_db::Entry& entry);

// What the parts share.

/// The loop over the batch, of use to users, would hide a missing rule here.
class FallbackIsError {
 public:
  explicit FallbackIsError(bool on) : before_(tower::set_fallback_is_error(on)) {}
  ~FallbackIsError() { tower::set_fallback_is_error(before_); }
  FallbackIsError(const FallbackIsError&) = delete;
  FallbackIsError& operator=(const FallbackIsError&) = delete;

 private:
  bool before_;
};

/// Arguments of a mapped call: the examples of the arguments in `mapped` along `dims`, the first example of the others.
Tensors batched_arguments(const Problem& problem, const std::vector<bool>& mapped, const td::Dims& dims);
/// For every example, the arguments that a loop passes.
std::vector<Tensors> looped_arguments(const Problem& problem, const std::vector<bool>& mapped);
/// The i-th tensors of all lists, stacked, for every i.
Tensors stacked(const std::vector<Tensors>& lists);
/// Dimension zero for every mapped argument, nothing for the others.
td::Dims zero_dims(const std::vector<bool>& mapped);
bool any(const std::vector<bool>& flags);

/// The arguments of `values` whose flag is set, and `values` with those replaced.
Tensors selected(const Tensors& values, const std::vector<bool>& flags);
Tensors replaced(const Tensors& values, const std::vector<bool>& flags, const Tensors& by);
/// `problem.f` as a function of its differentiable arguments, the others fixed as in `arguments`.
td::Function partial_function(const Problem& problem, const Tensors& arguments);

/// Registers all tests; call before RUN_ALL_TESTS.
void register_tests(const std::string& op_db_folder);
void print_totals();

}  // namespace matrix
