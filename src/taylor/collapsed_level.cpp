// Read first: CollapsedLevel::process.
#include "taylor/collapsed_level.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "core/bind.h"
#include "interpreters/derivatives.h"
#include "interpreters/history.h"
#include "tower/errors.h"

namespace tower::taylor {

Tensor plus(const Tensor& a, const Tensor& b) {
  if (!a.defined()) return b;
  return b.defined() ? at::add(a, b) : a;
}

Rows for_each_direction(const CollapsedCall& call, int64_t count, const std::function<Rows(Vmap&)>& f) {
  const auto level = c10::make_intrusive<Vmap>(count, Randomness::error, call.label);
  Rows rows;
  {
    const Scope scope(level);
    rows = f(*level);
  }
  for (Tensor& t : rows) {
    if (!t.defined()) continue;
    Wrapper* w = as_wrapper(t);
    const bool own = w && &w->level() == level.get();
    const Tensor value = own ? w->stored().value : t;
    if (own && w->stored().tracked()) {
      t = w->stored().index == 0 ? value : value.movedim(w->stored().index, 0);
    } else {
      Sizes sizes{count};
      sizes.append(value.sizes().begin(), value.sizes().end());
      t = value.unsqueeze(0).expand(sizes);
    }
  }
  return rows;
}

Tensor of_one(Vmap& level, const Tensor& slopes) {
  return slopes.defined() ? wrap(level, Payload{slopes, {}, 0}) : slopes;
}

Rows of_one(Vmap& level, const Rows& slopes) {
  Rows rows;
  for (const Tensor& t : slopes) rows.push_back(of_one(level, t));
  return rows;
}

bool any_defined(const Rows& rows) {
  for (const Tensor& t : rows)
    if (t.defined()) return true;
  return false;
}

size_t number_of(const CollapsedCall& call, size_t arg) {
  return leaf_number(call.op, call.args, LeafRef{static_cast<uint16_t>(arg), 0});
}

Tensor on_factors(const CollapsedCall& call, const Factors& factors, const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return {};
  Stack stack = call.args;
  stack[factors.first] = a;
  stack[factors.second] = b;
  bind_call(call.op, stack);
  return stack[0].toTensor();
}

std::vector<Derivatives> by_series(const CollapsedCall& call, size_t order,
                                   const std::function<Tensor(Growing&, const Tensor&, size_t leaf)>& followed) {
  const auto growing = c10::make_intrusive<Growing>(call.label);
  const Scope scope(growing);
  const c10::AutoFwGradMode following(true);
  Stack stack = call.args;
  replace_tensors(call.op, stack, [&](const Tensor& t, LeafRef leaf) -> Tensor {
    return followed(*growing, t, leaf_number(call.op, call.args, leaf));
  });
  growing->expect(call.outs);
  growing->process(call.op, stack);
  std::vector<Derivatives> result;
  for (const Tensor& t : flatten_outputs(stack)) result.push_back(growing->derivatives(t, order));
  return result;
}

bool is_elementwise(const CollapsedCall& call) {
  if (!call.op.vmap_is_pointwise || std::popcount(call.tracked) != 1 || call.outs.size() != 1) return false;
  const auto arg = static_cast<size_t>(std::countr_zero(call.tracked));
  if (call.op.kind(arg) != ArgKind::tensor || !call.outs[0].isTensor()) return false;
  const Tensor x = call.args[arg].toTensor(), y = call.outs[0].toTensor();
  return x.is_floating_point() && y.is_floating_point() && x.sizes().equals(y.sizes());
}

ByElement by_element(const CollapsedCall& call, size_t order) {
  const size_t number = number_of(call, static_cast<size_t>(std::countr_zero(call.tracked)));
  return {number, by_series(call, order, [&](Growing& growing, const Tensor& x, size_t leaf) {
            return leaf == number ? growing.variable(x) : x;
          })[0]};
}

// ---- affine ---------------------------------------------------------------------------------------------------------

namespace {

// The derivative rule on `tangents`.
Rows by_derivative_rule(const CollapsedCall& call, const Rows& tangents) {
  std::vector<Meta> metas;
  for (const Tensor& t : flatten_outputs(call.outs)) metas.push_back(meta_of_output(t));
  Rows result(metas.size());
  if (!any_defined(tangents)) return result;
  c10::SmallVector<const Meta*, 2> outs_meta;
  for (const Meta& m : metas) outs_meta.push_back(&m);
  const Rows given = tangents;  // a rule may take them
  JvpFrame frame{{call.op, call.args, call.outs, nullptr, 0}, given, {}, outs_meta};
  frame.tangents.resize(metas.size());
  run_jvp(frame, call.tracked, Served::own_rule);
  for (size_t k = 0; k < result.size(); ++k) result[k] = frame.tangents[k];
  return result;
}

// The only tensor that is followed, if it has both slopes and a sum, and is smaller than what else the operator reads:
// then all of them go along as directions, and that is read once for all. Not in a trace: there what puts them together
// would be a call between kernels.
std::optional<size_t> goes_along(const CollapsedCall& call) {
  if (tracing()) return std::nullopt;
  std::optional<size_t> only;
  int64_t others = 0;
  bool several = false;
  for_each_tensor(call.op, call.args, [&](const Tensor& t, LeafRef leaf) {
    const size_t number = leaf_number(call.op, call.args, leaf);
    const auto has = [number](const Rows& rows) { return rows[number].defined(); };
    const bool carries = has(call.sums) || std::any_of(call.slopes.begin(), call.slopes.end(), has);
    if (!carries) return static_cast<void>(others += t.numel());
    several = several || only;
    only = number;
  });
  if (several || !only || !call.sums[*only].defined() || !call.slopes[0][*only].defined() ||
      call.slopes[0][*only].numel() > others)
    return std::nullopt;
  return only;
}

Carried affine_together(const CollapsedCall& call, size_t only) {
  Rows all;
  for (const Rows& rows : call.slopes)
    if (rows[only].defined()) all.push_back(rows[only]);
  all.push_back(call.sums[only].unsqueeze(0));
  Rows tangents(call.sums.size());
  tangents[only] = at::cat(all);
  const Rows rows = for_each_direction(call, tangents[only].size(0),
                                       [&](Vmap& level) { return by_derivative_rule(call, of_one(level, tangents)); });
  Carried carried{std::vector<Rows>(call.slopes.size(), Rows(rows.size())), Rows(rows.size())};
  for (size_t k = 0; k < rows.size(); ++k) {
    if (!rows[k].defined()) continue;
    int64_t from = 0;
    for (size_t order = 0; order < call.slopes.size(); ++order) {
      if (!call.slopes[order][only].defined()) continue;
      const int64_t directions = call.slopes[order][only].size(0);
      carried.slopes[order][k] = rows[k].narrow(0, from, directions);
      from += directions;
    }
    carried.sums[k] = rows[k].select(0, from);
  }
  return carried;
}

int64_t directions_of(const Rows& slopes) {
  for (const Tensor& t : slopes)
    if (t.defined()) return t.size(0);
  return 0;
}

Carried affine(const CollapsedCall& call) {
  if (const auto only = goes_along(call)) return affine_together(call, *only);
  Carried carried;
  for (const Rows& slopes : call.slopes)
    carried.slopes.push_back(for_each_direction(
        call, directions_of(slopes), [&](Vmap& level) { return by_derivative_rule(call, of_one(level, slopes)); }));
  carried.sums = by_derivative_rule(call, call.sums);
  return carried;
}

}  // namespace

// ---- all ------------------------------------------------------------------------------------------------------------

void CollapsedLevel::took(Wrapper& w) { History::show_untracked(w); }

void CollapsedLevel::process(const Operator& op, Stack& stack) {
  const bool follows = autograd_state().get_fw_grad_mode() && !op.no_derivative();
  const Mask tracked = follows ? tracked_args(*this, op, stack) : 0;
  // Rules for some arguments only, or none.
  if (tracked && op.opens_up() && !op.has_jvp(tracked) && decompose(op, stack)) return;

  CollapsedCall call{op, {}, {}, Rows(count_leaves(op, stack)), tracked, label()};
  call.slopes.assign(orders_, call.sums);
  bool records = records_;
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef leaf) -> Tensor {
    Tensor value = t;
    if (Wrapper* w = as_wrapper_of(t, *this)) {
      const Payload& payload = w->payload();
      value = payload.value;
      if (follows && is_tracked(op, leaf, payload)) {
        const size_t number = leaf_number(op, stack, leaf);
        const Derivatives derivatives = derivatives_of(payload);
        for (size_t k = 0; k < call.slopes.size(); ++k) call.slopes[k][number] = derivatives[k];
        call.sums[number] = derivatives.back();
        for (const Tensor& d : derivatives) records = records || (d.defined() && libtorch_follows(d));
      }
    }
    records = records || libtorch_follows(value);
    return value;
  });
  Carried carried;
  {
    Below below(*this);
    if (!this->below() && !records) below.keys().skip_libtorch_autograd();
    if (tracked) call.args = stack;
    bind_call(op, stack);
    if (tracked) {
      call.outs = stack;
      Mask constant_outs = op.nondifferentiable_outs;
      for (size_t i = 0; i < stack.size(); ++i)
        if (stack[i].isTensor() && stack[i].toTensor().defined() && !stack[i].toTensor().is_floating_point() &&
            !stack[i].toTensor().is_complex())
          constant_outs |= Mask{1} << i;
      const Growth growth = growth_of(op, tracked, constant_outs);
      if (growth == Growth::termwise) carried = affine(call);
      else if (op.random())
        throw UnsupportedError(describe() + ": " + op.name() +
                               " draws random numbers that its derivatives depend on, and would draw others for them. "
                               "Draw outside, and pass the numbers in.");
      else carried = carry(call, growth);
      size_t k = 0;
      for (size_t i = 0; i < stack.size(); ++i) {
        const size_t count = stack[i].isTensor() ? 1 : stack[i].isTensorList() ? stack[i].toListRef().size() : 0;
        for (size_t e = 0; e < count; ++e, ++k)
          if (constant_outs >> i & 1) {
            for (Rows& slopes : carried.slopes) slopes[k] = Tensor();
            carried.sums[k] = Tensor();
          }
      }
    }
  }
  replace_outputs(stack, [&](Tensor&& t, size_t k) {
    if (k >= carried.sums.size()) return wrap_constant(*this, std::move(t));
    Derivatives derivatives;
    for (const Rows& slopes : carried.slopes) derivatives.push_back(slopes[k]);
    derivatives.push_back(carried.sums[k]);
    return wrap_series(*this, std::move(t), std::move(derivatives));
  });
}

}  // namespace tower::taylor
