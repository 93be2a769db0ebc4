#include "mesh/lockstep.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tower/tower.h"

namespace lockstep {

namespace {

const char* name(Op op) {
  static constexpr const char* kNames[] = {"sin",  "add",        "multiply",     "psum",     "pmean",      "pmax",
                                           "pmin", "all_gather", "psum_scatter", "ppermute", "all_to_all", "axis_index",
                                           "cond", "while_loop", "fori_loop",    "scan",     "checkpoint", "grad"};
  return kNames[static_cast<int>(op)];
}

// ---- drawing ----

class Drawing {
 public:
  Drawing(uint64_t seed, Grid grid) : random_(seed), grid_(grid) {}

  int64_t number(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  // With `known` registers around it.
  Block block(size_t known, int depth, int64_t steps) {
    Block block;
    for (int64_t k = 0; k < steps; ++k) block.push_back(step(known++, depth));
    return block;
  }

 private:
  Step step(size_t known, int depth) {
    // Two of three speak or steer.
    static constexpr Op kPlain[] = {Op::sin, Op::add, Op::multiply};
    const int64_t last = static_cast<int64_t>(depth > 0 ? Op::grad : Op::axis_index);
    const Op op =
        number(0, 2) == 0 ? kPlain[number(0, 2)] : static_cast<Op>(number(static_cast<int64_t>(Op::psum), last));
    // The newest registers first: what is not used says nothing.
    const auto some = [&] {
      return known - 1 - static_cast<size_t>(number(0, std::min<int64_t>(static_cast<int64_t>(known) - 1, 3)));
    };
    Step s{.op = op, .a = some(), .b = some(), .axis = static_cast<int>(number(0, 1))};
    if (number(0, 1) == 0) s.a = known - 1;
    s.limit = 0.25 * static_cast<double>(number(-4, 6));
    s.count = number(1, 3);
    s.checkpoints = number(0, 2);
    s.compact = 0.5 * static_cast<double>(number(0, 2));
    if (op == Op::ppermute) {
      std::vector<int64_t> to(static_cast<size_t>(grid_.size(s.axis)));
      std::iota(to.begin(), to.end(), 0);
      std::shuffle(to.begin(), to.end(), random_);
      for (int64_t from = 0; from < grid_.size(s.axis); ++from)
        if (number(0, 3) > 0) s.pairs.emplace_back(from, to[static_cast<size_t>(from)]);
    }
    if (op >= Op::cond) s.body = block(known + 1, depth - 1, number(1, 3));
    if (op == Op::cond) s.other = block(known + 1, depth - 1, number(1, 3));
    return s;
  }

  std::mt19937_64 random_;
  Grid grid_;
};

void print(std::string& text, const Block& block, size_t known, const std::string& indent) {
  for (const Step& s : block) {
    text += indent + "r" + std::to_string(known) + " = " + name(s.op) + "(r" + std::to_string(s.a);
    if (s.op == Op::add || s.op == Op::multiply || s.op == Op::scan) text += ", r" + std::to_string(s.b);
    if (s.op >= Op::psum && s.op < Op::cond) text += s.axis == 0 ? ", data" : ", inner";
    for (const auto& [from, to] : s.pairs) text += ", " + std::to_string(from) + "->" + std::to_string(to);
    text += ")";
    if (s.op == Op::cond || s.op == Op::while_loop) text += " limit " + std::to_string(s.limit);
    if (s.op == Op::while_loop || s.op == Op::fori_loop || s.op == Op::scan)
      text += " count " + std::to_string(s.count) + " checkpoints " + std::to_string(s.checkpoints);
    if (s.op == Op::while_loop) text += " compact " + std::to_string(s.compact);
    text += "\n";
    if (!s.body.empty()) print(text, s.body, known + 1, indent + "  ");
    if (!s.other.empty()) {
      text += indent + "else\n";
      print(text, s.other, known + 1, indent + "  ");
    }
    ++known;
  }
}

// What the examples of an axis give to sums, so that they are not all alike.
Tensor weights(int64_t count, double first, double last) { return at::linspace(first, last, count, at::kDouble); }

}  // namespace

std::string Program::text() const {
  std::string text = "grid " + std::to_string(grid.data) + " x " + std::to_string(grid.inner) + "\n";
  print(text, block, 3, "");
  return text;
}

bool has(const Block& block, Op op) {
  return std::any_of(block.begin(), block.end(),
                     [&](const Step& s) { return s.op == op || has(s.body, op) || has(s.other, op); });
}

Program draw(uint64_t seed) {
  std::mt19937_64 random(seed);
  const Grid grid{1 + static_cast<int64_t>(random() % 4), 1 + static_cast<int64_t>(random() % 2)};
  Drawing drawing(random(), grid);
  return {grid, drawing.block(3, 2, drawing.number(2, 5))};
}

Arguments arguments(const Program& program) {
  const auto [data, inner] = program.grid;
  const auto waves = [](at::IntArrayRef sizes, double phase) {
    return (at::arange(c10::multiply_integers(sizes), at::kDouble) * 1.7 + phase).sin().view(sizes) * 1.5;
  };
  return {waves({data, inner, 2}, 0.3), waves({data, 2}, 1.1), waves({2}, 2.3)};
}

// ---- the interpreter ----

namespace {

using List = std::vector<Tensor>;  // of all examples

class Interpreter {
 public:
  explicit Interpreter(Grid grid) : grid_(grid), examples_(static_cast<size_t>(grid.data * grid.inner)) {}

  List run(const Block& block, std::vector<List> registers) const {
    for (const Step& s : block) registers.push_back(one(s, registers));
    return registers.back();
  }

 private:
  // What `f` makes of the list of values along an axis, for each example of it.
  template <class F>
  List along(int axis, const List& x, F&& f) const {
    List result(examples_);
    const int64_t others = grid_.size(1 - axis), count = grid_.size(axis);
    const auto place = [&](int64_t other, int64_t k) {
      return static_cast<size_t>(axis == 0 ? k * grid_.inner + other : other * grid_.inner + k);
    };
    for (int64_t other = 0; other < others; ++other) {
      List line;
      for (int64_t k = 0; k < count; ++k) line.push_back(x[place(other, k)]);
      for (int64_t k = 0; k < count; ++k) result[place(other, k)] = f(line, k);
    }
    return result;
  }

  template <class F>
  List each(F&& f) const {
    List result;
    for (size_t i = 0; i < examples_; ++i) result.push_back(f(i));
    return result;
  }

  List after(const Block& body, std::vector<List> registers, const List& given) const {
    registers.push_back(given);
    return run(body, std::move(registers));
  }

  List one(const Step& s, const std::vector<List>& registers) const {
    const List &a = registers[s.a], &b = registers[s.b];
    const int64_t count = grid_.size(s.axis);
    const Tensor rising = weights(count, 0.5, 1.5), falling = weights(count, 1.2, 0.3);
    switch (s.op) {
      case Op::sin:
        return each([&](size_t i) { return a[i].sin(); });
      case Op::add:
        return each([&](size_t i) { return a[i] + 0.5 * b[i]; });
      case Op::multiply:
        return each([&](size_t i) { return (a[i] * b[i]).tanh(); });
      case Op::psum:
        return along(s.axis, a, [](const List& all, int64_t) { return at::stack(all).sum(0); });
      case Op::pmean:
        return along(s.axis, a, [](const List& all, int64_t) { return at::stack(all).mean(0); });
      case Op::pmax:
        return along(s.axis, a, [](const List& all, int64_t) { return at::stack(all).amax(0); });
      case Op::pmin:
        return along(s.axis, a, [](const List& all, int64_t) { return at::stack(all).amin(0); });
      case Op::all_gather:
        return along(s.axis, a, [&](const List& all, int64_t) {
          return (at::stack(all) * rising.view({-1, 1})).sum(0);
        });
      case Op::psum_scatter:
        return along(s.axis, a, [&](const List& all, int64_t k) { return at::stack(all).sum(0) * rising[k]; });
      case Op::ppermute:
        return along(s.axis, a, [&](const List& all, int64_t k) {
          for (const auto& [from, to] : s.pairs)
            if (to == k) return all[static_cast<size_t>(from)] * 1;
          return at::zeros({2}, at::kDouble);
        });
      case Op::all_to_all:
        return along(s.axis, a, [&](const List& all, int64_t k) {
          return (at::stack(all) * rising[k] * falling.view({-1, 1})).sum(0);
        });
      case Op::axis_index:
        return along(s.axis, a, [&](const List& all, int64_t k) { return all[static_cast<size_t>(k)] * (0.5 + k); });
      case Op::cond:
        return branched(s, registers);
      case Op::while_loop:
        return looped(s, registers);
      case Op::fori_loop: {
        List state = a;
        for (int64_t k = 0; k < s.count; ++k) state = after(s.body, registers, state);
        return state;
      }
      case Op::scan: {
        List carry = a, sum = each([&](size_t) { return at::zeros({2}, at::kDouble); });
        for (int64_t k = 0; k < s.count; ++k) {
          const List given = each([&](size_t i) { return carry[i] + 0.3 * (k + 1) * b[i]; });
          carry = after(s.body, registers, given);
          sum = each([&](size_t i) { return sum[i] + carry[i]; });
        }
        return each([&](size_t i) { return carry[i] + 0.2 * sum[i]; });
      }
      case Op::checkpoint:
        return after(s.body, registers, a);
      case Op::grad: {
        const List by = each([&](size_t i) { return a[i].requires_grad() ? a[i] * 1 : (a[i] * 1).requires_grad_(); });
        const List outs = after(s.body, registers, by);
        const Tensor sum = at::stack(outs).sum();
        if (!sum.requires_grad()) return each([&](size_t i) { return at::zeros_like(a[i]); });
        const List found = torch::autograd::grad({sum}, by, {}, true, true, /*allow_unused=*/true);
        return each([&](size_t i) { return found[i].defined() ? found[i] : at::zeros_like(a[i]); });
      }
    }
    return {};
  }

  // Both branches are run where they are taken: what an example says in one, it says to all that run it.
  List branched(const Step& s, const std::vector<List>& registers) const {
    const List& a = registers[s.a];
    std::vector<bool> takes;
    for (const Tensor& t : a) takes.push_back(t.sum().item<double>() > s.limit);
    const bool some = std::find(takes.begin(), takes.end(), true) != takes.end();
    const bool others = std::find(takes.begin(), takes.end(), false) != takes.end();
    const List first = some ? after(s.body, registers, a) : List();
    const List second = others ? after(s.other, registers, a) : List();
    return each([&](size_t i) { return takes[i] ? first[i] : second[i]; });
  }

  // Steps are made while there is an example that goes on; one that has ended keeps its state, of which it speaks.
  List looped(const Step& s, const std::vector<List>& registers) const {
    List state = registers[s.a];
    std::vector<bool> goes_on(examples_, true);
    for (int64_t made = 0; made < s.count + 1; ++made) {
      for (size_t i = 0; i < examples_; ++i) goes_on[i] = goes_on[i] && state[i].sum().item<double>() > s.limit;
      if (std::find(goes_on.begin(), goes_on.end(), true) == goes_on.end()) break;
      const List next = after(s.body, registers, state);
      state = each([&](size_t i) { return goes_on[i] ? next[i] : state[i]; });
    }
    return state;
  }

  Grid grid_;
  size_t examples_;
};

}  // namespace

Tensor interpreted(const Program& program, const Arguments& arguments) {
  const auto [data, inner] = program.grid;
  List x, u, w;
  for (int64_t i = 0; i < data; ++i)
    for (int64_t j = 0; j < inner; ++j) {
      x.push_back(arguments.x[i][j]);
      u.push_back(arguments.u[i]);
      w.push_back(arguments.w);
    }
  return at::stack(Interpreter(program.grid).run(program.block, {x, u, w})).view({data, inner, 2});
}

// ---- Tower ----

namespace {

class Example {
 public:
  explicit Example(Grid grid) : grid_(grid) {}

  Tensor run(const Block& block, List registers) const {
    for (const Step& s : block) registers.push_back(one(s, registers));
    return registers.back();
  }

 private:
  // What is not an operand is captured.
  std::function<Tensor(const Tensor&)> of_last(const Block& block, const List& registers) const {
    return [self = *this, block, registers](const Tensor& given) {
      List all = registers;
      all.push_back(given);
      return self.run(block, std::move(all));
    };
  }
  static tower::Checkpoints kept(const Step& s) {
    return s.checkpoints == 0 ? tower::Checkpoints::all() : tower::Checkpoints(s.checkpoints);
  }

  Tensor one(const Step& s, const List& registers) const {
    const Tensor &a = registers[s.a], &b = registers[s.b];
    const char* axis = s.axis == 0 ? "data" : "inner";
    const int64_t count = grid_.size(s.axis);
    const Tensor rising = weights(count, 0.5, 1.5).view({-1, 1}), falling = weights(count, 1.2, 0.3).view({-1, 1});
    const auto body = of_last(s.body, registers);
    switch (s.op) {
      case Op::sin:
        return a.sin();
      case Op::add:
        return a + 0.5 * b;
      case Op::multiply:
        return (a * b).tanh();
      case Op::psum:
        return tower::psum(a, axis);
      case Op::pmean:
        return tower::pmean(a, axis);
      case Op::pmax:
        return tower::pmax(a, axis);
      case Op::pmin:
        return tower::pmin(a, axis);
      case Op::all_gather:
        return (tower::all_gather(a, axis) * rising).sum(0);
      case Op::psum_scatter:
        return tower::psum_scatter(a * rising, axis);
      case Op::ppermute:
        return tower::ppermute(a, axis, s.pairs);
      case Op::all_to_all:
        return (tower::all_to_all(a * rising, axis, 0, 0) * falling).sum(0);
      case Op::axis_index:
        return a * (0.5 + tower::axis_index(axis));
      case Op::cond:
        return tower::cond(a.sum() > s.limit, body, of_last(s.other, registers), a);
      case Op::while_loop: {
        using State = std::pair<Tensor, Tensor>;
        const auto goes_on = [limit = s.limit, most = s.count](const State& state) {
          return at::logical_and(state.second.sum() > limit, state.first < most + 1);
        };
        const auto step = [body](const State& state) { return State(state.first + 1, body(state.second)); };
        return tower::while_loop(goes_on, step, State(at::zeros({}, at::kDouble), a),
                                 {.checkpoints = kept(s), .compact = s.compact})
            .second;
      }
      case Op::fori_loop:
        return tower::fori_loop(0, s.count, [body](int64_t, const Tensor& state) { return body(state); }, a,
                                {.checkpoints = kept(s)});
      case Op::scan: {
        const auto step = [body](const Tensor& carry, const Tensor& input) {
          const Tensor next = body(carry + input);
          return std::pair(next, next);
        };
        const Tensor inputs = 0.3 * (at::arange(s.count, at::kDouble) + 1).view({-1, 1}) * b;
        const auto [last, all] = tower::scan(step, a, inputs, {.checkpoints = kept(s)});
        return last + 0.2 * all.sum(0);
      }
      case Op::checkpoint:
        return tower::checkpoint(body)(a);
      case Op::grad:
        return tower::grad([body](const Tensor& t) { return body(t).sum(); })(a);
    }
    return {};
  }

  Grid grid_;
};

// `shared`: the result is the same for all examples.
Tensor over_the_grid(const std::function<Tensor(const Tensor& x, const Tensor& u, const Tensor& w)>& of_example,
                     const Arguments& arguments, const tower::Mesh& across, bool shared) {
  using tower::dynamic::Dims;
  using tower::dynamic::Tensors;
  const Dims out = {shared ? std::nullopt : std::optional<int64_t>(0)};
  const auto of_one = [&](const Tensors& all) { return Tensors{of_example(all[0], all[1], all[2])}; };
  const auto of_row = tower::dynamic::vmap(of_one, {0, std::nullopt, std::nullopt}, out, {}, {"inner"});
  const auto of_grid = tower::dynamic::vmap(of_row, {0, 0, std::nullopt}, out, {}, {"data", across});
  return of_grid({arguments.x, arguments.u, arguments.w})[0];
}

}  // namespace

Tensor mapped(const Program& program, const Arguments& arguments) {
  const auto of_example = [&](const Tensor& x, const Tensor& u, const Tensor& w) {
    return Example(program.grid).run(program.block, {x, u, w});
  };
  return over_the_grid(of_example, arguments, {}, false);
}

Tensor weighted(const Tensor& results) {
  return (results * at::linspace(1, 2, results.numel(), at::kDouble).view_as(results)).sum();
}

Tensor weighted_sum(const Program& program, const Arguments& arguments, const tower::Mesh& across) {
  const auto of_example = [&](const Tensor& x, const Tensor& u, const Tensor& w) {
    const Tensor result = Example(program.grid).run(program.block, {x, u, w});
    const auto [data, inner] = program.grid;
    const Tensor number = tower::axis_index("data") * inner + tower::axis_index("inner");
    const Tensor weights = at::linspace(1, 2, data * inner * 2, at::kDouble).view({-1, 2});
    const Tensor own = (result * weights.index_select(0, number.view({1})).squeeze(0)).sum();
    return tower::psum(tower::psum(own, "inner"), "data");
  };
  return over_the_grid(of_example, arguments, across, true);
}

Tensor gradients_inside(const Program& program, const Arguments& arguments) {
  const auto of_example = [&](const Tensor& x, const Tensor& u, const Tensor& w) {
    return tower::grad([&](const Tensor& own) {
      return Example(program.grid).run(program.block, {own, u, w}).sum();
    })(x);
  };
  return over_the_grid(of_example, arguments, {}, false);
}

}  // namespace lockstep
