#include "compile/sizes_programs.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>

namespace sizes {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

int64_t rows(const Tensor& x) { return x.size(0); }
Tensor as_double(const Tensor& x) { return x.to(at::kDouble); }
std::vector<int64_t> with_rows(const Tensor& x, int64_t last) { return {x.size(0), last}; }

#define TOWER_UNARY(expression)                                                                           \
  {                                                                                                       \
#expression, 1, [](const Tensor& x, const Tensor&, int64_t, int64_t) -> Tensor { return expression; } \
  }
#define TOWER_WITH_NUMBERS(expression)                                  \
  {                                                                     \
#expression, 1,                                                     \
        [](const Tensor& x, const Tensor&, [[maybe_unused]] int64_t a,  \
           [[maybe_unused]] int64_t b) -> Tensor { return expression; } \
  }
#define TOWER_BINARY(expression)                                                                            \
  {                                                                                                         \
#expression, 2, [](const Tensor& x, const Tensor& y, int64_t, int64_t) -> Tensor { return expression; } \
  }

// In place, on what is nobody else's.
template <class F>
Tensor written(const Tensor& x, F write) {
  Tensor t = x.clone();
  write(t);
  return t;
}

std::vector<Action> elementwise() {
  return {
      TOWER_UNARY(x.sin()),
      TOWER_UNARY(x.cos()),
      TOWER_UNARY(x.clamp(-3, 3).exp()),
      TOWER_UNARY(x.tanh()),
      TOWER_UNARY(x.sigmoid()),
      TOWER_UNARY(x.abs()),
      TOWER_UNARY(-x),
      TOWER_UNARY(x.relu()),
      TOWER_UNARY(x.clamp(-9, 9).square()),
      TOWER_UNARY(x.atan()),
      TOWER_UNARY(x.erf()),
      TOWER_UNARY(x.abs().log1p()),
      TOWER_UNARY(x.abs().sqrt()),
      TOWER_UNARY(x.sign()),
      TOWER_UNARY((x * 3).floor()),
      TOWER_UNARY((x * 3).ceil()),
      TOWER_UNARY((x * 3).trunc()),
      TOWER_UNARY(x.frac()),
      TOWER_UNARY((x.abs() + 1).reciprocal()),
      TOWER_UNARY((x.abs() + 1).rsqrt()),
      TOWER_UNARY(x.clamp(-2, 2).expm1()),
      TOWER_UNARY(x.asinh()),
      TOWER_UNARY(at::softplus(x)),
      TOWER_UNARY(at::gelu(x)),
      TOWER_UNARY(at::silu(x)),
      TOWER_UNARY(at::hardtanh(x)),
      TOWER_UNARY(at::leaky_relu(x)),
      TOWER_UNARY(x.clamp_min(0.1)),
      TOWER_UNARY(as_double(x.gt(0.2))),
      TOWER_UNARY(x.to(at::kFloat).to(at::kDouble)),
      TOWER_UNARY(x.clone()),
      TOWER_UNARY(x.contiguous()),
      TOWER_UNARY(at::nan_to_num(x)),
      TOWER_UNARY(x * 2.5),
      TOWER_UNARY(x + 1),
      TOWER_UNARY(1 - x),
      TOWER_UNARY(x.detach() * x),
      TOWER_UNARY(x.masked_fill(x.gt(0.3), 0.5)),
      TOWER_UNARY(at::where(x.gt(0), x, x * 0.1)),
      TOWER_BINARY(x + y),
      TOWER_BINARY(x - y),
      TOWER_BINARY(x * y),
      TOWER_BINARY(x / (y.abs() + 1)),
      TOWER_BINARY(at::maximum(x, y)),
      TOWER_BINARY(at::minimum(x, y)),
      TOWER_BINARY(at::atan2(x, y + 3)),
      TOWER_BINARY(at::hypot(x, y)),
      TOWER_BINARY(at::where(x.gt(y), x, y)),
      TOWER_BINARY(at::lerp(x, y, 0.3)),
      TOWER_BINARY(at::addcmul(x, x, y)),
      TOWER_BINARY(as_double(x.ge(y))),
      TOWER_BINARY(at::copysign(x, y)),
      TOWER_BINARY(at::logaddexp(x, y)),
  };
}

std::vector<Action> over_elements() {
  return {
      TOWER_UNARY(x.sum()),
      TOWER_UNARY(x.sum(0)),
      TOWER_UNARY(x.sum(-1, true)),
      TOWER_UNARY(x.mean()),
      TOWER_UNARY(x.mean(0)),
      TOWER_UNARY(x.mean(-1)),
      TOWER_UNARY(x.amax(0)),
      TOWER_UNARY(x.amin(-1)),
      TOWER_UNARY(x.clamp(-1, 1).prod(0)),
      TOWER_UNARY(x.var(0)),
      TOWER_UNARY(x.std(-1)),
      TOWER_UNARY(at::linalg_vector_norm(x)),
      TOWER_UNARY(x.logsumexp(0)),
      TOWER_UNARY(as_double(x.argmax(0))),
      TOWER_UNARY(std::get<0>(x.max(0))),
      TOWER_UNARY(x.softmax(0)),
      TOWER_UNARY(x.softmax(-1)),
      TOWER_UNARY(x.log_softmax(-1)),
      TOWER_UNARY(x.cumsum(0)),
      TOWER_UNARY(x.clamp(-1, 1).cumprod(-1)),
      TOWER_UNARY(std::get<0>(x.sort(0))),
      TOWER_UNARY(x.flip(0)),
      TOWER_UNARY(x.roll(1, 0)),
      TOWER_UNARY(x.tril()),
      TOWER_UNARY(x.diff()),
      TOWER_UNARY(x.repeat_interleave(2, 0)),
      TOWER_UNARY(x.flatten().outer(x.flatten())),
      TOWER_UNARY(x.matmul(x.transpose(0, -1))),
      TOWER_UNARY(x.trace()),
      TOWER_UNARY(at::diag_embed(x)),
      TOWER_UNARY(at::constant_pad_nd(x, {1, 2})),
      TOWER_UNARY(x.index_select(0, at::zeros({2}, at::kLong))),
      TOWER_UNARY(at::einsum("...i,...i->...", {x, x})),
      TOWER_UNARY(at::einsum("i...->...i", {x})),
      TOWER_UNARY(x.sum_to_size(x.sizes())),
      TOWER_UNARY(written(x, [](Tensor& t) { t.slice(0, 0, 2).add_(1); })),
      TOWER_UNARY(written(x, [](Tensor& t) { t.select(0, 0).fill_(7); })),
      TOWER_UNARY(written(x, [](Tensor& t) { t.movedim(0, 1).mul_(2); })),
      TOWER_UNARY(written(x, [](Tensor& t) { t.reshape(-1).mul_(2); })),
      TOWER_UNARY(written(x, [](Tensor& t) { t.t().reshape(-1).add_(1); })),
      TOWER_UNARY(written(x, [](Tensor& t) { t.t().contiguous().add_(1); })),
      TOWER_UNARY(written(x, [](Tensor& t) { t.slice(0, 1).zero_(); })),
      TOWER_BINARY(at::cat({x, y}, 0)),
      TOWER_BINARY(at::cat({x, y}, -1)),
      TOWER_BINARY(at::stack({x, y})),
      TOWER_BINARY(x.matmul(y)),
      TOWER_BINARY(x.matmul(y.transpose(0, -1))),
      TOWER_BINARY(at::kron(x, y)),
      TOWER_BINARY(x.unsqueeze(1) * y),
      TOWER_BINARY(x.unsqueeze(-1) * y.unsqueeze(0)),
      TOWER_BINARY(at::slice_scatter(x, y.slice(0, 0, 1), 0, 0, 1)),
      TOWER_WITH_NUMBERS(x.repeat({a})),
      TOWER_WITH_NUMBERS(x.tile({2, a})),
      TOWER_WITH_NUMBERS(std::get<0>(x.topk(a, 0))),
      TOWER_WITH_NUMBERS(at::select_scatter(x, x.select(0, a), 0, 0)),
  };
}

std::vector<Action> views() {
  return {
      TOWER_WITH_NUMBERS(x.slice(0, 0, a)),
      TOWER_WITH_NUMBERS(x.slice(0, a)),
      TOWER_WITH_NUMBERS(x.slice(0, 0, 8 * a)),
      TOWER_WITH_NUMBERS(x.slice(0, -a)),
      TOWER_WITH_NUMBERS(x.slice(0, 0, -a)),
      TOWER_WITH_NUMBERS(x.slice(0, 0, kEnd, a)),
      TOWER_WITH_NUMBERS(x.slice(0, a, kEnd, 2)),
      TOWER_WITH_NUMBERS(x.slice(-1, 0, a)),
      TOWER_WITH_NUMBERS(x.slice(-1, a)),
      TOWER_UNARY(x.slice(0)),
      TOWER_UNARY(x.slice(0, 0, rows(x))),
      TOWER_UNARY(x.slice(0, 0, rows(x) - 1)),
      TOWER_WITH_NUMBERS(x.select(0, a)),
      TOWER_WITH_NUMBERS(x.select(0, -a)),
      TOWER_WITH_NUMBERS(x.select(-1, a)),
      TOWER_UNARY(x.select(0, rows(x) - 1)),
      TOWER_UNARY(x.select(0, rows(x) / 2)),
      TOWER_WITH_NUMBERS(x.narrow(0, 0, a)),
      TOWER_UNARY(x.narrow(0, rows(x) / 2, 1)),
      TOWER_UNARY(x.narrow(0, 0, (rows(x) + 1) / 2)),
      TOWER_WITH_NUMBERS(x.narrow(-1, 0, a)),
      TOWER_WITH_NUMBERS(x.diagonal(a - 1)),
      TOWER_WITH_NUMBERS(x.diagonal(-a)),
      TOWER_WITH_NUMBERS(x.unfold(0, a, b)),
      TOWER_WITH_NUMBERS(x.unfold(-1, a, b)),
      TOWER_UNARY(x.t()),
      TOWER_UNARY(x.transpose(0, -1)),
      TOWER_UNARY(x.movedim(0, -1)),
      TOWER_UNARY(x.permute({1, 0})),
      TOWER_UNARY(x.permute({2, 0, 1})),
      TOWER_UNARY(x.unsqueeze(0)),
      TOWER_UNARY(x.unsqueeze(-1)),
      TOWER_UNARY(x.unsqueeze(1).squeeze(1)),
      TOWER_UNARY(x.squeeze()),
      TOWER_UNARY(x.squeeze(0)),
      TOWER_UNARY(x.squeeze(-1)),
      TOWER_WITH_NUMBERS(x.unsqueeze(0).expand({a, -1})),
      TOWER_WITH_NUMBERS(x.unsqueeze(-1).expand({x.size(0), a})),
      TOWER_UNARY(x.unsqueeze(0).expand({rows(x), x.size(0)})),
      TOWER_UNARY(x.view(-1)),
      TOWER_UNARY(x.reshape(-1)),
      TOWER_UNARY(x.reshape({-1, 1})),
      TOWER_UNARY(x.reshape({1, -1})),
      TOWER_UNARY(x.reshape({rows(x), -1})),
      TOWER_UNARY(x.view({rows(x), -1})),
      TOWER_UNARY(x.reshape({-1, rows(x)})),
      TOWER_UNARY(x.transpose(0, -1).reshape(-1)),
      TOWER_WITH_NUMBERS(x.reshape({-1, a})),
      TOWER_WITH_NUMBERS(x.reshape({a, -1})),
      TOWER_WITH_NUMBERS(x.unflatten(0, {-1, a})),
      TOWER_WITH_NUMBERS(x.unflatten(-1, {a, -1})),
      TOWER_UNARY(x.flatten()),
      TOWER_UNARY(x.flatten(0, 1)),
      TOWER_WITH_NUMBERS(x.chunk(a).at(0)),
      TOWER_WITH_NUMBERS(x.chunk(a).back()),
      TOWER_WITH_NUMBERS(x.split(a).at(0)),
      TOWER_WITH_NUMBERS(x.split(a).back()),
      TOWER_WITH_NUMBERS(x.split(a, -1).back()),
      TOWER_WITH_NUMBERS(x.tensor_split(a + 1).at(1)),
      TOWER_UNARY(x.unbind(0).at(0)),
      TOWER_UNARY(x.unbind(-1).at(0)),
      TOWER_UNARY(x.alias()),
      TOWER_UNARY(x.detach()),
      TOWER_UNARY(at::view_as_real(at::complex(x, x)).select(-1, 1)),
      TOWER_UNARY(at::view_as_real(at::complex(x, x))),
      TOWER_BINARY(x.expand_as(y)),
      TOWER_BINARY(x.view_as(y)),
      TOWER_BINARY(x.reshape_as(y)),
      TOWER_BINARY(x.broadcast_to(y.sizes())),
  };
}

std::vector<Action> factories() {
  return {
      TOWER_UNARY(x.select(-1, 0) + at::zeros({rows(x)}, at::kDouble)),
      TOWER_UNARY(x + at::ones(x.sizes(), at::kDouble)),
      TOWER_UNARY(x * at::full({rows(x), 1}, 2.5, at::kDouble)),
      TOWER_UNARY(x * at::arange(rows(x), at::kDouble)),
      TOWER_UNARY(x.sum() * at::arange(0, rows(x), 2, at::kDouble)),
      TOWER_UNARY(x.sum() * at::arange(3, at::kDouble)),
      TOWER_UNARY(x * at::linspace(0, 1, rows(x), at::kDouble)),
      TOWER_UNARY(x * at::eye(rows(x), at::kDouble)),
      TOWER_UNARY(x.sum() + at::ones({rows(x), 3}, at::kDouble)),
      TOWER_UNARY(x + at::zeros_like(x)),
      TOWER_UNARY(x * at::ones_like(x) * 2),
      TOWER_UNARY(x + at::full_like(x, 0.7)),
      TOWER_UNARY(x.sum() + x.new_zeros(with_rows(x, 2))),
      TOWER_UNARY(x.sum() + at::empty(with_rows(x, 2), at::kDouble).fill_(1.5)),
      TOWER_WITH_NUMBERS(x.sum() + at::zeros(with_rows(x, 2), at::kDouble).slice(0, 0, a)),
      TOWER_WITH_NUMBERS(x.sum() + at::zeros_like(x.slice(0, 0, a))),
      TOWER_WITH_NUMBERS(x.sum() + at::ones({rows(x)}, at::kDouble).slice(0, 0, kEnd, a + 1)),
      TOWER_WITH_NUMBERS(x.sum() * at::ones({rows(x)}, at::kDouble).cumsum(0).clamp_max(1)),
      TOWER_WITH_NUMBERS(x.sum() * at::arange(rows(x), at::kDouble).slice(0, 0, a)),
      TOWER_WITH_NUMBERS(x.sum() * at::arange(rows(x), at::kDouble).clamp_max(a).sum()),
      TOWER_WITH_NUMBERS(x.sum() + at::full({a}, 2., at::kDouble)),
      TOWER_UNARY(x / static_cast<double>(rows(x))),
      TOWER_UNARY(x.sum() + at::ones({rows(x), rows(x)}, at::kDouble).tril().sum(0)),
      TOWER_UNARY(x.sum() + at::ones({rows(x)}, at::kDouble).expand({2, -1})),
      TOWER_UNARY(x.sum() + at::ones({2, rows(x)}, at::kDouble).view(-1)),
  };
}

Tensor value_of(const std::vector<Tensor>& registers, const Step& step) {
  const Action& action = actions()[step.action];
  return action.run(registers[step.x], registers[action.operands > 1 ? step.y : step.x], step.a, step.b);
}

}  // namespace

const std::vector<Action>& actions() {
  static const std::vector<Action> all = [] {
    std::vector<Action> list = elementwise();
    for (const auto& more : {over_elements(), views(), factories()}) list.insert(list.end(), more.begin(), more.end());
    return list;
  }();
  return all;
}

Tensor Program::operator()(const Tensors& in) const {
  std::vector<Tensor> registers = in;
  for (const Step& step : steps) registers.push_back(value_of(registers, step));
  return registers.back();
}

std::string Program::text() const {
  std::string text;
  for (size_t n = 0; n < steps.size(); ++n) {
    const Step& s = steps[n];
    text += "r" + std::to_string(inputs + n) + " = " + actions()[s.action].text + ", x = r" + std::to_string(s.x) +
            ", y = r" + std::to_string(s.y) + ", a = " + std::to_string(s.a) + ", b = " + std::to_string(s.b) + "\n";
  }
  return text;
}

Program without_dead_steps(const Program& program) {
  std::vector<bool> needed(program.inputs + program.steps.size());
  needed.back() = true;
  for (size_t n = program.steps.size(); n-- > 0;) {
    if (!needed[program.inputs + n]) continue;
    needed[program.steps[n].x] = true;
    if (actions()[program.steps[n].action].operands > 1) needed[program.steps[n].y] = true;
  }
  Program result{program.inputs, {}};
  std::vector<size_t> number(needed.size());
  for (size_t r = 0; r < program.inputs; ++r) number[r] = r;
  for (size_t n = 0; n < program.steps.size(); ++n) {
    if (!needed[program.inputs + n]) continue;
    Step step = program.steps[n];
    step.x = number[step.x];
    step.y = actions()[step.action].operands > 1 ? number[step.y] : step.x;
    number[program.inputs + n] = program.inputs + result.steps.size();
    result.steps.push_back(step);
  }
  return result;
}

Program generate(std::mt19937_64& random, const std::vector<Tensors>& arguments, int64_t most) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  Program program{arguments[0].size(), {}};
  std::vector<std::vector<Tensor>> registers(arguments.begin(), arguments.end());
  const size_t length = 2 + below(4);
  // Operators that the drawn operands do not fit are drawn again.
  for (size_t tries = 0; program.steps.size() < length && tries < 200; ++tries) {
    const size_t count = registers[0].size();
    // Later registers more often, so that programs are deep.
    const auto any = [&] { return std::max(below(count), below(count)); };
    const Step step{below(actions().size()), any(), any(), static_cast<int64_t>(1 + below(3)),
                    static_cast<int64_t>(1 + below(2))};
    std::vector<Tensor> made;
    try {
      for (const auto& of : registers) made.push_back(value_of(of, step));
    } catch (const std::exception&) {
      continue;
    }
    if (std::any_of(made.begin(), made.end(),
                    [&](const Tensor& t) { return t.numel() > most || t.dim() > 4 || t.scalar_type() != at::kDouble; }))
      continue;
    for (size_t k = 0; k < registers.size(); ++k) registers[k].push_back(made[k]);
    program.steps.push_back(step);
  }
  return without_dead_steps(program);
}

}  // namespace sizes
