#include "solvers/captured.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "core/bind.h"
#include "operators/lifting.h"

namespace tower::solvers {

using dynamic::Dims;
using dynamic::Function;
using dynamic::Tensors;

Function without_effects(const std::string& name, const char* whose, Function f) {
  return [name, whose, f = std::move(f)](const Tensors& operands) {
    return without_effects(name, whose, operands, [&] { return f(operands); });
  };
}

IterativeOptions<Tensors> without_effects(const std::string& name, IterativeOptions<Tensors> options) {
  if (options.preconditioner)
    options.preconditioner = without_effects(name, "the preconditioner", std::move(options.preconditioner));
  return options;
}

LinearSolveOptions<Tensors> without_effects(const std::string& name, LinearSolveOptions<Tensors> options) {
  options.iteration = without_effects(name, std::move(options.iteration));
  for (auto solver : {&LinearSolveOptions<Tensors>::solve, &LinearSolveOptions<Tensors>::solve_transposed})
    if (options.*solver)
      options.*solver = [name, solve = std::move(options.*solver)](const Function& apply, const Tensors& b) {
        return without_effects(name, "the solver", b, [&] { return solve(apply, b); });
      };
  return options;
}

void check_nothing_followed(const std::string& name, const char* whose, const Tensors& values) {
  if (!c10::GradMode::is_enabled()) return;
  for (const Tensor& t : values)
    if (t.defined() && libtorch_records(value_under_all_levels(t)))
      throw UnsupportedError(name + ": " + whose +
                             " uses a tensor that it captured and that requires grad. LibTorch's autograd sees "
                             "operands only, so its gradient would be lost: pass it as an argument, or detach() it.");
}

void loop_over_examples(HigherOrderRules& rules) {
  const HigherOrderRules of_one = rules;
  rules.vmap = [of_one](const VmapInfo& info, const Dims& in_dims, const Tensors& operands,
                        const Attributes& attributes) {
    // The rules have this rule, too, for a vmap around this one.
    HigherOrderRules nested = of_one;
    loop_over_examples(nested);
    const HigherOrderOperator op(nested);
    // Of no examples one of zeros tells what the outputs are like.
    const int64_t examples = std::max<int64_t>(info.batch_size, 1);
    std::vector<Tensors> outputs;
    for (int64_t b = 0; b < examples; ++b) {
      Tensors example = operands;
      for (size_t i = 0; i < example.size(); ++i) {
        if (!in_dims[i]) continue;
        std::vector<int64_t> sizes = example[i].sizes().vec();
        sizes.erase(sizes.begin() + *in_dims[i]);
        example[i] = info.batch_size == 0 ? at::zeros(sizes, example[i].options()) : example[i].select(*in_dims[i], b);
      }
      const Tensors found = op(example, attributes);
      outputs.resize(found.size());
      for (size_t k = 0; k < found.size(); ++k) outputs[k].push_back(found[k]);
    }
    Tensors stacked;
    for (const Tensors& output : outputs) stacked.push_back(at::stack(output, 0).narrow(0, 0, info.batch_size));
    return std::pair(stacked, Dims(stacked.size(), 0));
  };
}

}  // namespace tower::solvers
