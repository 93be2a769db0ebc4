// The in-place and out= variants of an operator against the functional one; bad samples; and who serves what.
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <tower/coverage.h>
#include <tower/errors.h>

#include <algorithm>
#include <map>

#include "matrix/matrix.h"
#include "support/device.h"

namespace matrix {
namespace {

using Arguments = std::vector<c10::Argument>;

// `variant` takes the arguments of `functional`, in order, and then only `extra` more.
bool takes_the_same(const Arguments& variant, const Arguments& functional, size_t extra) {
  if (variant.size() != functional.size() + extra) return false;
  for (size_t i = 0; i < functional.size(); ++i) {
    if (variant[i].name() != functional[i].name() || *variant[i].type() != *functional[i].type()) return false;
  }
  return true;
}

// The overload of `base` that `matches`.
std::optional<c10::OperatorHandle> find_variant(const std::string& base,
                                                const std::function<bool(const c10::FunctionSchema&)>& matches) {
  static const auto by_base = [] {
    std::map<std::string, std::vector<c10::OperatorName>> result;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) result[name.name].push_back(name);
    return result;
  }();
  const auto overloads = by_base.find(base);
  if (overloads == by_base.end()) return std::nullopt;
  for (const auto& name : overloads->second) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && matches(op->schema())) return op;
  }
  return std::nullopt;
}

std::optional<c10::OperatorHandle> in_place_variant(const op_db::Entry& entry) {
  const auto& schema = entry.op->schema();
  return find_variant(schema.name() + "_", [&](const c10::FunctionSchema& other) {
    return takes_the_same(other.arguments(), schema.arguments(), 0) && other.returns().size() == 1;
  });
}

std::optional<c10::OperatorHandle> out_variant(const op_db::Entry& entry) {
  const auto& schema = entry.op->schema();
  const size_t outputs = schema.returns().size();
  for (const auto& result : schema.returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType) return std::nullopt;
  }
  return find_variant(schema.name(), [&](const c10::FunctionSchema& other) {
    return takes_the_same(other.arguments(), schema.arguments(), outputs) && other.arguments().back().is_out();
  });
}

bool throws(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

// The variant, as a function of the tensors of the functional operator's sample: what a plain call of it does, a call
// under a transform does, and that is what the functional operator does.
void check_variant(const std::string& name, const Problem& variant, const Case& c) {
  const auto plain_difference = [&] {
    const Tensors written = variant.f(variant.examples[0]);
    if (c.entry.unspecified) return std::string();
    Tensors expected = problem_of(c).f(variant.examples[0]);
    expected.resize(written.size(), expected[0]);  // an in-place call gives its tensor twice
    for (size_t i = 0; i < written.size(); ++i) expected[i] = expected[i].to(written[i].scalar_type());
    return support::difference(written, expected, support::same_arithmetic(c.dtype));
  };
  if (!support::runs_on_device(c.entry.name + " " + name, [&] {
        TORCH_CHECK(plain_difference().empty(), "LibTorch's variant gives other values than the operator");
      }))
    return;
  if (throws([&] { variant.f(variant.examples[0]); })) {
    if (!any(variant.mappable) || c.entry.refuses("vmap")) return;
    c.report.run(name, [&] {
      const td::Dims dims = zero_dims(variant.mappable);
      const Tensors arguments = batched_arguments(variant, variant.mappable, dims);
      const bool thrown = throws([&] { td::vmap(variant.f, dims, {0})(arguments); });
      c.report.expect("the plain call throws: so must vmap", thrown ? "" : "did not throw");
    });
    return;
  }
  if (!c.entry.unspecified) {
    c.report.run("plain " + name, [&] { c.report.expect("against the functional operator", plain_difference()); });
  }
  if (any(variant.mappable) && !c.entry.refuses("vmap")) {
    c.report.run_or_refuse("vmap of " + name, [&] { check_transform("vmap", variant, c); });
  }
  if (c.dtype == at::kFloat || !is_double(variant)) return;
  Problem differentiable = variant;
  differentiable.f = [f = variant.f](const Tensors& arguments) {
    Tensors result;
    for (const auto& output : f(arguments)) {
      if (output.is_floating_point() || output.is_complex()) result.push_back(output);
    }
    return result;
  };
  // Comparisons have in-place variants that write ones and zeros as numbers: no derivatives there.
  if (!has_derivatives(differentiable_problem_of(c)) || !c.entry.differentiable_outputs.empty()) return;
  if (!c.entry.refuses("vjp")) {
    c.report.run_or_refuse("vjp of " + name, [&] { check_transform("vjp", differentiable, c); });
  }
  if (!c.entry.refuses("jvp")) {
    c.report.run_or_refuse("jvp of " + name, [&] { check_transform("jvp", differentiable, c); });
  }
}

}  // namespace

bool has_in_place_variant(const op_db::Entry& entry) { return in_place_variant(entry).has_value(); }
bool has_out_variant(const op_db::Entry& entry) { return out_variant(entry).has_value(); }

void check_in_place(const Case& c) {
  if (c.sample.leaves.empty() || c.sample.leaves[0].arg != 0 || c.sample.leaves[0].spec.unmapped) return;
  Problem variant = problem_of(c);
  const auto op = in_place_variant(c.entry).value();
  variant.f = [op, sample = c.sample](const Tensors& leaves) {
    Tensors arguments = arguments_from(sample, leaves);
    arguments[0] = at::clone(arguments[0]);
    const Tensors results = op_db::call(op, sample, arguments);
    return Tensors{arguments[0], results.at(0)};
  };
  check_variant("in_place", variant, c);
}

void check_out(const Case& c) {
  const Tensors outputs = problem_of(c).f(problem_of(c).examples[0]);
  Problem variant = problem_of(c);
  const auto op = out_variant(c.entry).value();
  variant.f = [op, sample = c.sample, outputs](const Tensors& leaves) {
    op_db::Stack stack = op_db::fill_in(sample, arguments_from(sample, leaves));
    Tensors results;
    for (const auto& output : outputs) {
      results.push_back(at::empty(output.sizes(), output.options()));
      stack.emplace_back(results.back());
    }
    op.callBoxed(stack);
    return results;
  };
  check_variant("out", variant, c);
}

void check_errors(const Case& c) {
  const Problem problem = problem_of(c);
  const Tensors& first = problem.examples[0];
  const td::Dims dims = zero_dims(problem.mappable);
  c.report.run("errors", [&] {
    if (any(problem.mappable)) {
      const Tensors arguments = batched_arguments(problem, problem.mappable, dims);
      const bool thrown = throws([&] { td::vmap(problem.f, dims, {0})(arguments); });
      c.report.expect("the plain call throws: so must vmap", thrown ? "" : "did not throw");
    }
    if (!any(problem.differentiable)) return;
    const auto f = partial_function(problem, first);
    const Tensors x = selected(first, problem.differentiable);
    c.report.expect("the plain call throws: so must vjp", throws([&] { td::vjp(f, x); }) ? "" : "did not throw");
    c.report.expect("the plain call throws: so must jvp", throws([&] { td::jvp(f, x, x); }) ? "" : "did not throw");
  });
}

bool is_last_resort(const std::string& served) {
  return served == "loop" || served == "LibTorch autograd" || served.rfind("error", 0) == 0;
}

void check_served(const op_db::Entry& entry, Report& report) {
  static const auto served = [] {
    std::map<std::pair<std::string, std::string>, std::string> result;
    for (const auto& line : tower::coverage()) result[{line.op, line.transform}] = line.served;
    return result;
  }();
  for (const std::string transform : {"vmap", "vjp", "jvp"}) {
    if (entry.refuses(transform)) continue;
    const auto line = served.find({entry.full_name(), transform});
    const std::string by = line == served.end() ? "nothing that coverage() lists" : line->second;
    report.expect(transform, line == served.end() || is_last_resort(by) ? entry.name + " is served by " + by : "");
  }
}

}  // namespace matrix
