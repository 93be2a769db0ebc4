#include "loops/programs.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <map>

#include "tower/checkpoint.h"
#include "tower/cond.h"
#include "tower/function.h"
#include "tower/transforms.h"

namespace loops {
namespace {

using at::Tensor;
using tower::Checkpoints;
namespace td = tower::dynamic;

Loops hand_written() {
  Loops loops;
  loops.while_loop = [](const td::Predicate& predicate, const td::Function& body, const Tensors& start) {
    Tensors state = start;
    while (predicate(state).item<bool>()) state = body(state);
    return state;
  };
  loops.fori_loop = [](int64_t lower, int64_t upper, const td::ForiStep& body, const Tensors& start) {
    Tensors state = start;
    for (int64_t i = lower; i < upper; ++i) state = body(i, state);
    return state;
  };
  loops.scan = [](const td::ScanStep& step, const Tensors& start, const Tensors& inputs, bool reverse) {
    const int64_t length = inputs[0].size(0);
    std::pair<Tensors, Tensors> result{start, {}};
    std::vector<Tensors> outputs;
    for (int64_t k = 0; k < length; ++k) {
      const int64_t i = reverse ? length - 1 - k : k;
      Tensors element;
      for (const Tensor& t : inputs) element.push_back(t[i]);
      auto [next, outs] = step(result.first, element);
      outputs.resize(outs.size());
      for (size_t o = 0; o < outs.size(); ++o)
        outputs[o].insert(reverse ? outputs[o].begin() : outputs[o].end(), outs[o]);
      result.first = next;
    }
    for (const Tensors& output : outputs) result.second.push_back(at::stack(output));
    return result;
  };
  loops.associative_scan = [](const td::Combine& combine, const Tensors& elements, bool reverse) {
    const int64_t length = elements[0].size(0);
    std::vector<Tensors> prefixes(elements.size());
    Tensors last;
    for (int64_t k = 0; k < length; ++k) {
      Tensors element;
      for (const Tensor& t : elements) element.push_back(t[reverse ? length - 1 - k : k]);
      last = k == 0 ? element : combine(last, element);
      for (size_t o = 0; o < last.size(); ++o)
        prefixes[o].insert(reverse ? prefixes[o].begin() : prefixes[o].end(), last[o]);
    }
    Tensors result;
    for (const Tensors& prefix : prefixes) result.push_back(at::stack(prefix));
    return result;
  };
  loops.checkpoint = [](const td::Function& f, const Tensors& operands) { return f(operands); };
  return loops;
}

Loops towers(Checkpoints few) {
  Loops loops;
  loops.while_loop = [few](const td::Predicate& predicate, const td::Function& body, const Tensors& start) {
    return td::while_loop(predicate, body, start, {.checkpoints = few});
  };
  loops.fori_loop = [few](int64_t lower, int64_t upper, const td::ForiStep& body, const Tensors& start) {
    return td::fori_loop(lower, upper, body, start, {.checkpoints = few});
  };
  loops.scan = [few](const td::ScanStep& step, const Tensors& start, const Tensors& inputs, bool reverse) {
    return td::scan(step, start, inputs, {.reverse = reverse, .checkpoints = few});
  };
  loops.associative_scan = [](const td::Combine& combine, const Tensors& elements, bool reverse) {
    return td::associative_scan(combine, elements, {.reverse = reverse});
  };
  loops.checkpoint = [](const td::Function& f, const Tensors& operands) { return td::checkpoint(f, operands); };
  return loops;
}

// ---- programs ------------------------------------------------------------------------------------------------------

// Heron's root of 1.5 + x: converges after a number of steps that depends on x.
Tensors root(const Loops& loops, const Tensors& in) {
  const Tensor a = 3 * in[0] + 3.5;
  return loops.while_loop([a](const Tensors& s) { return (s[0] * s[0] - a).abs() > 1e-9; },
                          [a](const Tensors& s) { return Tensors{(s[0] + a / s[0]) / 2}; }, {at::ones_like(a)});
}

// A step of an ended example takes the root of a negative number; some examples make no step.
Tensors descent(const Loops& loops, const Tensors& in) {
  const Tensor w = in[1];
  auto s = loops.while_loop([](const Tensors& s) { return s[0] > 0.1; },
                            [w](const Tensors& s) {
                              return Tensors{s[0] - 0.4, s[1] + w * (s[0] - 0.1).sqrt() * s[1]};
                            },
                            {2 * in[0], in[1].sin()});
  return {s[0] * s[1], s[1]};
}

// The steps of an ended example divide by zero exactly, and overflow.
Tensors division(const Loops& loops, const Tensors& in) {
  const Tensor a = in[0];
  return {loops.while_loop([](const Tensors& s) { return s[1] < s[2]; },
                           [a](const Tensors& s) {
                             const Tensor left = s[2] - s[1];
                             return Tensors{s[0] + a / left + a * (2000 * (0.5 - left)).exp(), s[1] + 1, s[2]};
                           },
                           {a, at::zeros_like(a), (3 * (a + 1)).floor()})[0]};
}

// An integer counts; the number of rounds is the same for all examples.
Tensors counted(const Loops& loops, const Tensors& in) {
  const Tensor x = in[0];
  return {loops.while_loop([](const Tensors& s) { return s[1] < 4; },
                           [x](const Tensors& s) {
                             return Tensors{(s[0] * x).sin() + s[0], s[1] + 1};
                           },
                           {x, at::zeros({}, at::kLong)})[0]};
}

Tensors counted_by_example(const Loops& loops, const Tensors& in) {
  const Tensor x = in[0], rounds = (2 * x + 2).to(at::kLong);
  return {loops.while_loop([rounds](const Tensors& s) { return s[1] < rounds; },
                           [x](const Tensors& s) {
                             return Tensors{(s[0] * x).sin() + s[0], s[1] + 1};
                           },
                           {x.cos(), at::zeros({}, at::kLong)})[0]};
}

Tensors never(const Loops& loops, const Tensors& in) {
  return loops.while_loop([](const Tensors& s) { return s[0] > 100; },
                          [](const Tensors& s) { return Tensors{(s[0] - 200).sqrt()}; }, {in[0].sin()});
}

// The state is the same for all examples until the first step.
Tensors becomes_batched(const Loops& loops, const Tensors& in) {
  const Tensor x = in[0];
  return loops.while_loop([](const Tensors& s) { return s[0] < 2; },
                          [x](const Tensors& s) {
                            return Tensors{s[0] + x.exp(), s[1] * x + s[0]};
                          },
                          {at::zeros({}, at::kDouble), at::ones({}, at::kDouble)});
}

Tensors nested(const Loops& loops, const Tensors& in) {
  const Tensor w = in[1];
  return loops.while_loop([](const Tensors& s) { return s[0] > 0.3; },
                          [&loops, w](const Tensors& s) {
                            const Tensor outer = s[0];
                            const Tensors inner =
                                loops.while_loop([](const Tensors& t) { return t[0].abs() > 0.5; },
                                                 [w, outer](const Tensors& t) {
                                                   return Tensors{t[0] * 0.6, t[1] + w * outer * t[0].log()};
                                                 },
                                                 {outer + 0.2, s[1]});
                            return Tensors{s[0] - 0.5, inner[1] + inner[0]};
                          },
                          {in[0] + 1, w});
}

// A vector, and a predicate that reduces it.
Tensors vectors(const Loops& loops, const Tensors& in) {
  const Tensor m = at::stack({in[0], in[0].cos()}, 1) / 3;
  return loops.while_loop([](const Tensors& s) { return s[0].square().sum() > 0.05; },
                          [m](const Tensors& s) { return Tensors{m.mv(s[0]) * 0.9}; }, {in[0] + 1});
}

// Derivatives inside of the step, and a function with a rule of its own.
Tensors newton(const Loops& loops, const Tensors& in) {
  const Tensor a = in[0];
  const auto residual = [a](const Tensor& y) { return y.exp() + y - a - 3; };
  static const auto damped = tower::custom_vjp([](const Tensor& t) { return t * 1; },
                                               [](const Tensor& t) { return std::pair(t * 1, at::ones_like(t)); },
                                               [](const Tensor& one, const Tensor& ct) { return ct * one; })
                                 .linear_backward();
  return loops.while_loop(
      [residual](const Tensors& s) { return residual(s[0]).abs() > 1e-9; },
      [residual](const Tensors& s) { return Tensors{damped(s[0] - residual(s[0]) / tower::grad(residual)(s[0]))}; },
      {at::zeros_like(a)});
}

Tensors branches_inside(const Loops& loops, const Tensors& in) {
  const Tensor w = in[1];
  return loops.while_loop([](const Tensors& s) { return s[0] < 1; },
                          [w](const Tensors& s) {
                            return Tensors{tower::cond(
                                s[0] > 0, [w](const Tensor& v) { return v + 0.3 + v.sqrt() * w.square(); },
                                [](const Tensor& v) { return v + 0.4 + v.sin() * 0.1; }, s[0])};
                          },
                          {in[0]});
}

Tensors power(const Loops& loops, const Tensors& in) {
  const Tensor x = in[0];
  return loops.fori_loop(
      1, 6, [x](int64_t i, const Tensors& s) { return Tensors{s[0] * x.sin() + static_cast<double>(i)}; }, {in[1]});
}

Tensors recurrent(const Loops& loops, const Tensors& in) {
  const Tensor w = in[1];
  auto [last, all] = loops.scan(
      [w](const Tensors& h, const Tensors& x) {
        const Tensor next = (h[0] * w + x[0]).tanh();
        return std::pair(Tensors{next}, Tensors{next * x[1], h[0]});
      },
      {w.cos()}, {in[0], in[0].square()}, false);
  return {last[0], all[0], all[1]};
}

Tensors backwards(const Loops& loops, const Tensors& in) {
  const Tensor w = in[1];
  auto [last, all] = loops.scan(
      [w](const Tensors& h, const Tensors& x) { return std::pair(Tensors{h[0] * w + x[0]}, Tensors{h[0].sin()}); }, {w},
      {in[0]}, true);
  return {last[0], all[0]};
}

Tensors while_in_scan(const Loops& loops, const Tensors& in) {
  auto [last, all] = loops.scan(
      [&loops](const Tensors& h, const Tensors& x) {
        const Tensor limit = x[0];
        const auto s = loops.while_loop([](const Tensors& t) { return t[0] < 1; },
                                        [limit](const Tensors& t) { return Tensors{t[0] * 1.5 + 0.1 * limit}; },
                                        {h[0].square() / 2 + 0.2});
        return std::pair(s, s);
      },
      {in[1]}, {in[0]}, false);
  return {last[0], all[0]};
}

Tensors recurrence(const Loops& loops, const Tensors& in) {
  return loops.associative_scan(
      [](const Tensors& a, const Tensors& b) {
        return Tensors{a[0] * b[0], a[1] * b[0] + b[1]};
      },
      {in[0], in[1]}, false);
}

Tensors products_from_the_end(const Loops& loops, const Tensors& in) {
  return loops.associative_scan([](const Tensors& a, const Tensors& b) { return Tensors{a[0].mm(b[0])}; }, {in[0]},
                                true);
}

Tensors checkpointed(const Loops& loops, const Tensors& in) {
  const Tensor w = in[1];
  Tensor h = in[0];
  for (int layer = 0; layer < 2; ++layer)
    h = loops.checkpoint(
        [&loops, w](const Tensors& x) {
          const Tensor scale = w + x[1];
          return loops.checkpoint([scale](const Tensors& y) { return Tensors{(y[0] * scale).sin() + y[0]}; }, {x[0]});
        },
        {h, w})[0];
  return {h};
}

}  // namespace

const Loops& by_hand() {
  static const Loops loops = hand_written();
  return loops;
}

const Loops& by_tower() { return by_tower(Checkpoints::all()); }

const Loops& by_tower(Checkpoints few) {
  static auto* made = new std::map<int64_t, Loops>;
  const int64_t key = few.is_all() ? -1 : few.number_for(1000000);
  return made->try_emplace(key, towers(few)).first->second;
}

const std::vector<Program>& programs() {
  static const std::vector<Program> all{
      {"root", root, {{}}},
      {"descent", descent, {{}, {}}},
      {"division", division, {{}}},
      {"counted", counted, {{}}},
      {"counted_by_example", counted_by_example, {{}}},
      {"never", never, {{}}},
      {"becomes_batched", becomes_batched, {{}}},
      {"nested", nested, {{}, {}}},
      {"vectors", vectors, {{2}}},
      {"newton", newton, {{}}},
      {"branches_inside", branches_inside, {{}, {}}},
      {"power", power, {{}, {}}},
      {"recurrent", recurrent, {{5}, {}}},
      {"backwards", backwards, {{4}, {}}},
      {"while_in_scan", while_in_scan, {{3}, {}}},
      {"recurrence", recurrence, {{7}, {7}}},
      {"products_from_the_end", products_from_the_end, {{6, 2, 2}}},
      {"checkpointed", checkpointed, {{2}, {}}},
  };
  return all;
}

}  // namespace loops
