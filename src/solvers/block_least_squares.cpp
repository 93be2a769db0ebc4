// BlockLeastSquares: what a fit is made of is checked and put together here, as an operator without derivatives, and
// behind it the implicit function that has them. How steps are found: block_steps.cpp.
#include "tower/block_least_squares.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "core/bind.h"
#include "core/followed.h"
#include "core/tensor_lists.h"
#include "core/wrapper.h"
#include "operators/lifting.h"
#include "solvers/block_steps.h"
#include "solvers/captured.h"
#include "solvers/implicit.h"
#include "tower/errors.h"

namespace tower {

using dynamic::Tensors;

namespace {

const std::string kBlockFit = "block_least_squares";

// Whether some transform, or LibTorch's autograd, tells values or derivatives of it apart.
bool is_followed(Tensor t) {
  if (libtorch_follows(t)) return true;
  while (Wrapper* w = as_wrapper(t)) {
    if (w->payload().tracked()) return true;
    t = Tensor(w->payload().value);
  }
  return libtorch_follows(t);
}

[[noreturn]] void refuse_fit(const std::string& what) { throw ArgumentError(kBlockFit + ": " + what); }

void check_block_options(const BlockFitOptions& options, size_t kinds) {
  for (const auto& [value, name] :
       {std::pair(options.ftol, "ftol"), std::pair(options.xtol, "xtol"), std::pair(options.gtol, "gtol")})
    if (!(value >= 0) || !std::isfinite(value))
      refuse_fit(std::string(name) + " is " + std::to_string(value) + "; it is not negative, and finite.");
  if (!(options.first_damping > 0) || !std::isfinite(options.first_damping))
    refuse_fit("first_damping is " + std::to_string(options.first_damping) + "; it is positive, and finite.");
  if (options.max_steps < 0)
    refuse_fit("max_steps is " + std::to_string(options.max_steps) + "; it must not be negative.");
  if (!(options.cg_tolerance > 0) || !(options.cg_tolerance < 1))
    refuse_fit("cg_tolerance is " + std::to_string(options.cg_tolerance) + "; it is between zero and one.");
  const bool iterates = options.solver == FitSolver::conjugate_gradients;
  if (iterates && options.method == FitMethod::dogleg)
    refuse_fit(
        "the method dogleg takes the whole step of Gauss and Newton, and conjugate gradients come near it. Let "
        "the method be levenberg_marquardt, or the solver another one.");
  if (iterates && options.covariance)
    refuse_fit("covariances take factors, and conjugate gradients have none. Let the solver be another one.");
  if (options.solver == FitSolver::qr && options.eliminate)
    refuse_fit("eliminate is " + std::to_string(*options.eliminate) +
               ", and the solver qr, which has factors of the whole Jacobian, eliminates nothing.");
  if (options.eliminate && *options.eliminate >= kinds)
    refuse_fit("eliminate is " + std::to_string(*options.eliminate) + ", and there are " + std::to_string(kinds) +
               " kinds of unknowns, from 0 on.");
}

void check_bound(const Tensor& bound, const FitUnknowns& kind, const std::string& name) {
  const auto expands = [&] {
    if (bound.dim() > kind.x0.dim()) return false;
    for (int64_t k = 1; k <= bound.dim(); ++k)
      if (bound.size(-k) != 1 && bound.size(-k) != kind.x0.size(-k)) return false;
    return true;
  };
  if (kind.retract)
    refuse_fit(name + " is there, and so is their retract: bounds are of numbers that steps are added to.");
  if (is_followed(bound) || !bound.device().is_cpu() || !c10::isFloatingType(bound.scalar_type()) || !expands() ||
      bound.isnan().any().item<bool>())
    refuse_fit(name + " is " + describe(bound) + ", and they are " + describe(kind.x0) +
               ". It is real numbers, on the CPU, none of them nan, that expand to these, the same for all that "
               "transforms do.");
}

void check_unknowns(const std::vector<FitUnknowns>& unknowns) {
  if (unknowns.empty()) refuse_fit("there are no unknowns.");
  for (size_t k = 0; k < unknowns.size(); ++k) {
    const FitUnknowns& kind = unknowns[k];
    const std::string name = "the unknowns " + std::to_string(k);
    const Tensor& x0 = kind.x0;
    if (!x0.defined() || !c10::isFloatingType(x0.scalar_type()) || x0.dim() == 0 || !x0.device().is_cpu())
      refuse_fit(name + " start at " + (x0.defined() ? describe(x0) : "an undefined tensor") +
                 ". They are rows of a tensor of real numbers, on the CPU.");
    if (x0.scalar_type() != unknowns[0].x0.scalar_type())
      refuse_fit(name + " are " + describe(x0) + ", and the unknowns 0 " + describe(unknowns[0].x0) +
                 ". All are of one dtype.");
    if (kind.retract ? kind.freedom <= 0 : kind.freedom != 0)
      refuse_fit(name + " have freedom " + std::to_string(kind.freedom) +
                 (kind.retract ? "; it is the number of numbers that their retract takes."
                               : ", and no retract, whose numbers these are."));
    if (solvers::numbers_of_step(kind) == 0)
      refuse_fit(name + " are " + describe(x0) + ": one of them has no numbers.");
    if (kind.held.defined() &&
        (kind.held.scalar_type() != at::kBool || !kind.held.sizes().equals(x0.sizes().slice(0, 1)) ||
         is_followed(kind.held) || !kind.held.device().is_cpu()))
      refuse_fit("held of " + name + " is " + describe(kind.held) + "; it is Bool [" + std::to_string(x0.size(0)) +
                 "] on the CPU, the same for all that transforms do.");
    for (const auto& [bound, which] : {std::pair(kind.lower, "lower"), std::pair(kind.upper, "upper")})
      if (bound.defined()) check_bound(bound, kind, which + (" of " + name));
    if (kind.lower.defined() && kind.upper.defined() && !(kind.lower <= kind.upper).all().item<bool>())
      refuse_fit("some numbers of lower of " + name + " are above those of upper.");
  }
}

// Bounds like x0, for what is not held.
Tensor whole_bound(const Tensor& bound, const FitUnknowns& kind, double none) {
  if (!bound.defined()) return bound;
  const Tensor whole =
      value_under_all_levels(bound).detach().to(kind.x0.scalar_type()).expand(kind.x0.sizes()).contiguous();
  if (!kind.held.defined()) return whole;
  std::vector<int64_t> one_each(static_cast<size_t>(whole.dim()), 1);
  one_each[0] = whole.size(0);
  return at::where(kind.held.view(one_each), none, whole);
}

// Where a fit starts it does not depend on; but what is held is a part of what it gives.
void check_held(const FitUnknowns& kind, const std::string& name) {
  if (kind.held.defined() && kind.held.any().item<bool>() && is_differentiated(kind.x0))
    throw UnsupportedError(kBlockFit + ": a derivative by where " + name +
                           " start would be lost, of which some are held: fits have derivatives by data. Make what is "
                           "held data of the terms, or detach() it.");
}

int64_t blocks_of(const FitTerm& term) { return term.uses[0].rows.size(0); }

void check_term(const FitTerm& term, const std::vector<FitUnknowns>& unknowns, const std::string& name,
                const BlockFitOptions& options) {
  if (!term.residual) refuse_fit(name + " has no residual.");
  if (term.uses.empty()) refuse_fit(name + " takes no unknowns.");
  if (!(term.loss.scale() > 0) || !std::isfinite(term.loss.scale()))
    refuse_fit("the scale of the loss of " + name + " is " + std::to_string(term.loss.scale()) +
               "; it is positive, and finite.");
  size_t eliminated = 0;
  for (const FitUse& use : term.uses) {
    if (use.unknowns >= unknowns.size())
      refuse_fit(name + " takes of the unknowns " + std::to_string(use.unknowns) + ", and there are " +
                 std::to_string(unknowns.size()) + " kinds, from 0 on.");
    if (options.eliminate == use.unknowns && ++eliminated > 1)
      refuse_fit(name + " takes two of the unknowns " + std::to_string(use.unknowns) +
                 ", which are to be eliminated first: these must not be tied to each other.");
    const Tensor& rows = use.rows;
    if (!rows.defined() || rows.scalar_type() != at::kLong || rows.dim() != 1 || is_followed(rows) ||
        !rows.device().is_cpu())
      refuse_fit("which of the unknowns " + std::to_string(use.unknowns) + " the blocks of " + name + " take is " +
                 (rows.defined() ? describe(rows) : "an undefined tensor") +
                 "; it is Long [blocks] on the CPU, the same for all that transforms do.");
    if (rows.size(0) != term.uses[0].rows.size(0))
      refuse_fit(name + " has " + std::to_string(blocks_of(term)) + " blocks by the first of its uses, and " +
                 std::to_string(rows.size(0)) + " by another.");
    const int64_t count = unknowns[use.unknowns].x0.size(0);
    const auto least = rows.numel() == 0 ? 0 : rows.min().item<int64_t>();
    const auto most = rows.numel() == 0 ? -1 : rows.max().item<int64_t>();
    if (least < 0 || most >= count)
      refuse_fit("blocks of " + name + " take the unknowns " + std::to_string(use.unknowns) + " from " +
                 std::to_string(least) + " to " + std::to_string(most) + ", and there are " + std::to_string(count) +
                 ".");
  }
  for (const Tensor& t : term.data)
    if (!t.defined() || t.dim() == 0 || t.size(0) != blocks_of(term) || !t.device().is_cpu())
      refuse_fit("data of " + name + " are " + (t.defined() ? describe(t) : "an undefined tensor") + ", and it has " +
                 std::to_string(blocks_of(term)) + " blocks: these are the first dimension of data, on the CPU.");
}

// What is called to see what it gives: the first of `all`, as it is where no transform follows it, so that matrices
// that are inverted or factored can be.
Tensor first_of(const Tensor& all, int64_t row) {
  if (row < all.size(0) && !as_wrapper(all)) return all.detach()[row].clone();
  const auto sizes = all.sizes().slice(1);
  const bool is_square = sizes.size() >= 2 && sizes.back() == sizes[sizes.size() - 2];
  return is_square ? at::eye(sizes.back(), all.options()).expand(sizes) : at::zeros(sizes, all.options());
}
Tensors first_block(const FitTerm& term, const std::vector<FitUnknowns>& unknowns) {
  Tensors block;
  for (const FitUse& use : term.uses)
    block.push_back(first_of(unknowns[use.unknowns].x0, use.rows.numel() > 0 ? use.rows[0].item<int64_t>() : 0));
  for (const Tensor& t : term.data) block.push_back(first_of(t, 0));
  return block;
}

// How many residuals a block has, by those of one that LibTorch's autograd may not follow.
int64_t residuals_of_block(const FitTerm& term, const Tensors& block, const std::string& name) {
  const Tensor r = solvers::block_residuals(term, block), &x = block[0];
  const std::string residual = "the residual of " + name;
  solvers::check_nothing_followed(kBlockFit, residual.c_str(), {r});
  if (r.scalar_type() != x.scalar_type() || r.numel() == 0)
    refuse_fit(residual + " gives " + describe(r) + ", and unknowns are of " + c10::toString(x.scalar_type()) +
               ". It gives real numbers of their dtype, at least one.");
  return r.numel();
}

void check_retract(const FitUnknowns& kind, const std::string& name) {
  if (!kind.retract) return;
  const Tensor x = first_of(kind.x0, 0), moved = kind.retract(x, at::zeros({kind.freedom}, x.options()));
  if (!moved.defined() || !moved.sizes().equals(x.sizes()) || moved.scalar_type() != x.scalar_type())
    refuse_fit("retract of " + name + " gives " + (moved.defined() ? describe(moved) : "an undefined tensor") +
               ", and one of them is " + describe(x) + ". It gives another one, of the same sizes and dtype.");
}

std::shared_ptr<const solvers::BlockPattern> pattern_of(const std::vector<FitUnknowns>& unknowns,
                                                        const std::vector<FitTerm>& terms,
                                                        const BlockFitOptions& options) {
  std::vector<solvers::BlockKind> kinds;
  for (const FitUnknowns& kind : unknowns) {
    kinds.push_back({kind.x0.size(0), solvers::numbers_of_step(kind), {}});
    if (!kind.held.defined()) continue;
    const Tensor held = value_under_all_levels(kind.held).contiguous();
    kinds.back().held.assign(held.const_data_ptr<bool>(), held.const_data_ptr<bool>() + held.numel());
  }
  std::vector<solvers::BlockTerm> of_terms;
  for (const FitTerm& term : terms) {
    solvers::BlockTerm& made = of_terms.emplace_back(solvers::BlockTerm{blocks_of(term), 0, {}});
    for (const FitUse& use : term.uses) {
      const Tensor rows = use.rows.contiguous();
      const auto* data = rows.const_data_ptr<int64_t>();
      made.uses.push_back({static_cast<int64_t>(use.unknowns), {data, data + rows.numel()}, made.columns});
      made.columns += kinds[use.unknowns].size;
    }
  }
  return std::make_shared<const solvers::BlockPattern>(std::move(kinds), std::move(of_terms), options.eliminate,
                                                       options.solver == FitSolver::cholesky);
}

}  // namespace

struct BlockLeastSquares::Parts : solvers::BlockProblem {
  Tensors data;
  std::vector<Tensors> blocks;  // of each term one, to see what residuals give

  // What the operator gives: x, what bounds hold, cost, status, steps, covariance.
  Tensors fitted(const Tensors& operands) const {
    const auto middle = operands.begin() + static_cast<std::ptrdiff_t>(unknowns.size());
    const solvers::BlockSolution found = solve({operands.begin(), middle}, {middle, operands.end()});
    Tensors all = joined(found.x, found.at_bound);
    all.push_back(at::scalar_tensor(found.cost, found.x[0].options()));
    all.push_back(at::scalar_tensor(static_cast<int64_t>(found.status), at::kLong));
    all.push_back(at::scalar_tensor(found.steps, at::kLong));
    return joined(std::move(all), found.covariance);
  }

  // x with the derivatives of the point, `at`, where the gradient is zero: of a step
  // from there, which is zero.
  static Tensors with_derivatives(const std::shared_ptr<const Parts>& self, const Tensors& at, const Tensors& at_bound,
                                  const Tensor& is_minimum, const Tensors& given);
};

Tensors BlockLeastSquares::Parts::with_derivatives(const std::shared_ptr<const Parts>& self, const Tensors& at,
                                                   const Tensors& at_bound, const Tensor& is_minimum,
                                                   const Tensors& given) {
  const size_t kinds = self->unknowns.size();
  struct Split {
    Tensors x, at_bound, data;
  };
  // The last of `params` is whether it is a minimum.
  const auto split = [kinds](const Tensors& params) {
    const auto at_bounds = params.begin() + static_cast<std::ptrdiff_t>(kinds),
               data = at_bounds + static_cast<std::ptrdiff_t>(kinds);
    return Split{{params.begin(), at_bounds}, {at_bounds, data}, {data, params.end() - 1}};
  };
  const auto free = [self](size_t k, const Tensors& at_bounds, const Tensor& step, const Tensor& otherwise) {
    const Tensor& held = self->unknowns[k].held;
    const Tensor inside = self->has_bounds(k) ? at::where(at_bounds[k], otherwise, step) : step;
    return held.defined() ? at::where(held.unsqueeze(1), otherwise, inside) : inside;
  };
  const dynamic::Residual root = [self, split, free](const Tensors& step, const Tensors& params) {
    const auto [x, at_bounds, all] = split(params);
    const dynamic::Function cost = [&, &x = x, &at_bounds = at_bounds, &all = all](const Tensors& d) {
      Tensors moved, sums;
      for (size_t k = 0; k < x.size(); ++k)
        moved.push_back(
            solvers::all_retracted(self->unknowns[k], x[k], free(k, at_bounds, d[k], at::zeros_like(d[k]))));
      for (size_t t = 0; t < self->terms.size(); ++t)
        sums.push_back(solvers::cost_of_term(self->terms[t], moved, self->data_of(t, all)));
      return Tensors{at::stack(sums).sum()};
    };
    std::vector<int64_t> every(step.size());
    for (size_t k = 0; k < step.size(); ++k) every[k] = static_cast<int64_t>(k);
    Tensors gradient = dynamic::grad(cost, every)(step);
    for (size_t k = 0; k < step.size(); ++k) gradient[k] = free(k, at_bounds, gradient[k], step[k]);
    return gradient;
  };
  const auto solver = [self](const Tensors& params) {
    Tensors zeros;
    for (const FitUnknowns& kind : self->unknowns)
      zeros.push_back(at::zeros({kind.x0.size(0), solvers::numbers_of_step(kind)}, kind.x0.options()));
    zeros.push_back(params.back());
    return zeros;
  };
  ImplicitOptions options;
  options.linear.method = LinearMethod::cg;
  options.linear.symmetric = options.linear.per_example = true;
  options.preconditioner = [self, split](const Tensors&, const Tensors& params) {
    const Split parts = split(params);
    return self->preconditioner(parts.x, parts.data);
  };
  const Tensors step = solvers::implicit_root_with_reports(kBlockFit, root, solver,
                                                           joined(joined(joined(at, at_bound), given), {is_minimum}),
                                                           /*reports=*/1, options);
  Tensors x;
  for (size_t k = 0; k < kinds; ++k)
    x.push_back(self->unknowns[k].retract ? solvers::all_retracted(self->unknowns[k], at[k], step[k])
                                          : at[k] + step[k].view_as(at[k]));
  return x;
}

BlockLeastSquares::BlockLeastSquares(std::vector<FitUnknowns> unknowns, std::vector<FitTerm> terms,
                                     BlockFitOptions options) {
  check_unknowns(unknowns);
  check_block_options(options, unknowns.size());
  if (terms.empty()) refuse_fit("there are no terms.");
  for (size_t k = 0; k < unknowns.size(); ++k) {
    const std::string name = "the unknowns " + std::to_string(k);
    check_retract(unknowns[k], name);
    if (unknowns[k].held.defined()) unknowns[k].held = value_under_all_levels(unknowns[k].held);
    check_held(unknowns[k], name);
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    unknowns[k].lower = whole_bound(unknowns[k].lower, unknowns[k], -kInfinite);
    unknowns[k].upper = whole_bound(unknowns[k].upper, unknowns[k], kInfinite);
  }
  for (FitTerm& term : terms)
    for (FitUse& use : term.uses)
      if (use.rows.defined() && !is_followed(use.rows)) use.rows = value_under_all_levels(use.rows);
  auto parts = std::make_shared<Parts>();
  for (size_t t = 0; t < terms.size(); ++t) {
    const std::string name = "term " + std::to_string(t);
    check_term(terms[t], unknowns, name, options);
    parts->data = joined(std::move(parts->data), terms[t].data);
    parts->blocks.push_back(first_block(terms[t], unknowns));
    // Each fit has data of its own: of these the sizes are kept.
    for (Tensor& own : terms[t].data) own = at::empty({}, own.options()).expand(own.sizes());
    const int64_t residuals = residuals_of_block(terms[t], parts->blocks[t], name);
    parts->functions.push_back(std::make_shared<const solvers::BlockFunctions>(terms[t], unknowns, residuals));
    parts->num_residuals += residuals * blocks_of(terms[t]);
  }
  parts->pattern = pattern_of(unknowns, terms, options);
  for (FitUnknowns& kind : unknowns) kind.x0 = kind.x0.detach();
  parts->unknowns = std::move(unknowns);
  parts->terms = std::move(terms);
  parts->options = options;
  parts_ = std::move(parts);
}

BlockFit BlockLeastSquares::operator()() const { return (*this)(parts_->data); }

BlockFit BlockLeastSquares::operator()(const Tensors& data) const {
  const Parts& p = *parts_;
  if (data.size() != p.data.size())
    refuse_fit(std::to_string(data.size()) + " tensors of data are given, and the terms have " +
               std::to_string(p.data.size()) + ".");
  for (size_t k = 0; k < data.size(); ++k)
    if (!data[k].defined() || !Meta(p.data[k]).matches(data[k]) || !data[k].device().is_cpu())
      refuse_fit("data " + std::to_string(k) + " are " +
                 (data[k].defined() ? describe(data[k]) : "an undefined tensor") + ", and the terms' own are " +
                 describe(p.data[k]) + ".");
  for (size_t t = 0; t < p.terms.size(); ++t) residuals_of_block(p.terms[t], p.blocks[t], "term " + std::to_string(t));
  Tensors operands;
  for (const FitUnknowns& kind : p.unknowns) operands.push_back(kind.x0);
  for (const Tensor& t : data) operands.push_back(t.detach());
  HigherOrderRules rules;
  rules.name = kBlockFit;
  rules.forward = [parts = parts_](const Tensors& given, const Attributes&) { return parts->fitted(given); };
  // What was compiled holds what it captured.
  rules.lift = [](const Tensor& captured) -> HigherOrderRules {
    throw UnsupportedError(kBlockFit + ": a residual, or a retract, captured a tensor of a transform, " +
                           describe(captured) +
                           ". They are kept and compiled: what is mapped, differentiated or an argument of a compiled "
                           "function is among a term's data; what all blocks share is expanded.");
  };
  solvers::loop_over_examples(rules);
  Tensors found = HigherOrderOperator(rules)(operands);
  const auto end = [&](size_t k) { return found.begin() + static_cast<std::ptrdiff_t>(k); };
  const size_t kinds = p.unknowns.size();
  const Tensors at_bound(end(kinds), end(2 * kinds));
  BlockFit fit{{found.begin(), end(kinds)},
               found[2 * kinds],
               found[2 * kinds + 1],
               found[2 * kinds + 2],
               {end(2 * kinds + 3), found.end()}};
  if (std::any_of(data.begin(), data.end(), is_followed)) {
    const Tensor is_minimum = fit.status <= static_cast<int64_t>(FitStatus::small_step);
    fit.x = Parts::with_derivatives(parts_, fit.x, at_bound, is_minimum, data);
  }
  return fit;
}

int64_t BlockLeastSquares::num_unknowns() const {
  int64_t all = 0;
  for (const solvers::BlockKind& kind : parts_->pattern->kinds()) all += kind.count * kind.size;
  return all;
}

std::pair<int64_t, int64_t> BlockLeastSquares::factored() const {
  return {parts_->pattern->num_remaining(), parts_->pattern->entry_values()};
}

}  // namespace tower
