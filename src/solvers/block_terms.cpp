#include "solvers/block_terms.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/tensor_lists.h"
#include "solvers/losses.h"
#include "tower/compile.h"
#include "tower/dynamic.h"

namespace tower::solvers {
namespace {

using dynamic::Dims;
using dynamic::Function;
using dynamic::FunctionWithAux;
using dynamic::Tensors;

// Blocks that a function is traced for. What is traced holds for any number of them.
constexpr int64_t kBlocksToTrace = 3;

// `of_block`, of an unknown for each use, and data, over all blocks: of x of each use, rows of each use, and data.
Function over_blocks(const FitTerm& term, Function of_block) {
  const size_t uses = term.uses.size();
  Function f = [uses, of_block = std::move(of_block)](const Tensors& given) {
    Tensors block;
    for (size_t u = 0; u < uses; ++u)
      block.push_back(given[u].index_select(0, given[uses + u].unsqueeze(0)).squeeze(0));
    block.insert(block.end(), given.begin() + static_cast<std::ptrdiff_t>(2 * uses), given.end());
    return of_block(block);
  };
  Dims dims(uses);
  dims.resize(2 * uses + term.data.size(), 0);
  return dynamic::vmap(std::move(f), std::move(dims), {0});
}

Tensors with_rows(const std::vector<FitUse>& uses, const Tensors& x, const Tensors& data) {
  Tensors all;
  for (const FitUse& use : uses) all.push_back(x[use.unknowns]);
  for (const FitUse& use : uses) all.push_back(use.rows);
  return joined(std::move(all), data);
}

}  // namespace

int64_t numbers_of_step(const FitUnknowns& unknowns) {
  if (unknowns.retract) return unknowns.freedom;
  return c10::multiply_integers(unknowns.x0.sizes().slice(1));
}

Tensor all_retracted(const FitUnknowns& unknowns, const Tensor& x, const Tensor& step) {
  if (!unknowns.retract) return x + step.view_as(x);
  const Tensor moved = dynamic::vmap([&](const Tensors& at) { return Tensors{unknowns.retract(at[0], at[1])}; }, {0, 0},
                                     {0})({x, step})[0];
  if (!unknowns.held.defined()) return moved;
  // A retraction by zero may round.
  std::vector<int64_t> one_each(static_cast<size_t>(x.dim()), 1);
  one_each[0] = x.size(0);
  return at::where(unknowns.held.view(one_each), x, moved);
}

Tensor block_residuals(const FitTerm& term, const Tensors& unknowns_and_data) {
  Tensors parts;
  for (const Tensor& t : term.residual(unknowns_and_data)) parts.push_back(t.reshape({-1}));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

Tensor cost_of_residuals(const Loss& loss, const Tensor& residuals) {
  if (loss.kind() == Loss::Kind::squares) return 0.5 * residuals.square().sum();
  const double c = loss.scale();
  return 0.5 * c * c * contributions(loss.kind(), residuals.square().sum(1) / (c * c)).value.sum();
}

Tensor cost_of_term(const FitTerm& term, const Tensors& x, const Tensors& data) {
  const Function f = over_blocks(term, [&](const Tensors& block) { return Tensors{block_residuals(term, block)}; });
  return cost_of_residuals(term.loss, f(with_rows(term.uses, x, data))[0]);
}

BlockFunctions::BlockFunctions(const FitTerm& term, const std::vector<FitUnknowns>& unknowns, int64_t residuals)
    : uses_(term.uses) {
  const CompileOptions fast{.math = Math::fast};
  residuals_.function = dynamic::compile(
      over_blocks(term, [term](const Tensors& block) { return Tensors{block_residuals(term, block)}; }), fast);
  std::vector<FitUnknowns> kinds;
  int64_t columns = 0;
  for (const FitUse& use : term.uses) {
    kinds.push_back(unknowns[use.unknowns]);
    columns += numbers_of_step(kinds.back());
  }
  const auto by_steps = [term, kinds, residuals, forward = columns <= residuals](const Tensors& block) {
    Tensors variables;
    for (size_t u = 0; u < kinds.size(); ++u)
      variables.push_back(kinds[u].retract ? at::zeros({kinds[u].freedom}, block[u].options()) : block[u]);
    const FunctionWithAux f = [&](const Tensors& at) {
      Tensors moved = block;
      for (size_t u = 0; u < kinds.size(); ++u) moved[u] = kinds[u].retract ? kinds[u].retract(block[u], at[u]) : at[u];
      const Tensor r = block_residuals(term, moved);
      return std::pair(Tensors{r}, Tensors{r});
    };
    std::vector<int64_t> all(kinds.size());
    std::iota(all.begin(), all.end(), 0);
    auto [jacobians, values] = (forward ? dynamic::jacfwd(f, all) : dynamic::jacrev(f, all))(variables);
    for (size_t u = 0; u < kinds.size(); ++u)
      jacobians[u] = jacobians[u].reshape({residuals, numbers_of_step(kinds[u])});
    return Tensors{values[0], at::cat(jacobians, 1)};
  };
  jacobians_.function = dynamic::compile(over_blocks(term, by_steps), fast);
}

Tensors BlockFunctions::Traced::operator()(const Tensors& all, size_t mapped) const {
  // The first call runs operator by operator: of few blocks.
  if (!called && all[mapped].size(0) > kBlocksToTrace) {
    Tensors few = all;
    for (size_t k = mapped; k < few.size(); ++k) few[k] = few[k].narrow(0, 0, kBlocksToTrace);
    function(few);
    called = true;
  }
  return function(all);
}

Tensor BlockFunctions::residuals(const Tensors& x, const Tensors& data) const {
  return residuals_(with_rows(uses_, x, data), uses_.size())[0];
}

std::pair<Tensor, Tensor> BlockFunctions::jacobians(const Tensors& x, const Tensors& data) const {
  const Tensors both = jacobians_(with_rows(uses_, x, data), uses_.size());
  return {both[0], both[1]};
}

}  // namespace tower::solvers
