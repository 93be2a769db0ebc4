#include "mesh/random_programs.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "support/functions.h"
#include "tower/tower.h"

namespace mesh_programs {

namespace td = tower::dynamic;
using at::Tensor;
using programs::Action;
using programs::Call;
using programs::Draw;
using programs::Kind;
using support::waves;

Tensor Value::own(const Tensor& whole, const World& world) const {
  Tensor result = whole;
  for (size_t a = 0; a < spread.size(); ++a)
    for (const int64_t dim : spread[a]) result = world.parts[a].of(result, dim);
  return result;
}

namespace {

constexpr std::array<const char*, 2> kNames{"data", "inner"};
constexpr std::array<int64_t, 2> kSizes{kBatch, kInner};

// ---- actions that speak of an axis ---------------------------------------------------------------------------------

std::vector<Action> collectives(size_t which) {
  const std::string axis = kNames[which], of = ", " + axis + ")";
  const int64_t size = kSizes[which];
  const auto any = [](Draw& d) { d.any(); };
  const auto like_first = [](const Call& c) { return c[0].clone(); };
  const auto makes = [&](const std::string& text, std::function<Tensor(const Tensor&)> f) {
    return Action{Kind::makes, text, any, [f](const Call& c) { return f(c[0]); }, like_first};
  };
  // Each of the examples' own number times the operand, along a new first dimension.
  const auto for_each = [size](const Tensor& x) {
    std::vector<int64_t> alongside(static_cast<size_t>(x.dim()) + 1, 1);
    alongside[0] = size;
    return x.unsqueeze(0) * waves({size}).view(alongside);
  };
  std::vector<std::pair<int64_t, int64_t>> around, some;
  for (int64_t i = 0; i < size; ++i) {
    around.emplace_back(i, (i + 1) % size);
    if (i % 2 == 0) some.emplace_back(i, size - 1 - i);
  }
  return {
      makes("psum($0" + of + " / 5", [=](const Tensor& x) { return tower::psum(x, axis) / 5; }),
      makes("pmean($0" + of, [=](const Tensor& x) { return tower::pmean(x, axis); }),
      makes("pmean($0.sin()" + of + " * $0", [=](const Tensor& x) { return tower::pmean(x.sin(), axis) * x; }),
      makes("pmax($0" + of, [=](const Tensor& x) { return tower::pmax(x, axis); }),
      makes("pmin($0.sin()" + of, [=](const Tensor& x) { return tower::pmin(x.sin(), axis); }),
      makes("ppermute($0, around" + of, [=](const Tensor& x) { return tower::ppermute(x, axis, around); }),
      makes("ppermute($0, some" + of, [=](const Tensor& x) { return tower::ppermute(x, axis, some); }),
      makes("$0 * (axis_index + 1) / axis_size" + of,
            [=](const Tensor& x) { return x * (tower::axis_index(axis) + 1) / tower::axis_size(axis); }),
      makes("psum_scatter(for each $0" + of, [=](const Tensor& x) { return tower::psum_scatter(for_each(x), axis); }),
      makes("all_to_all(for each $0" + of + ".sum(0)",
            [=](const Tensor& x) { return tower::all_to_all(for_each(x), axis, 0, 0).sum(0).sin(); }),
      {Kind::makes, "all_gather($0" + of, any, [=](const Call& c) { return tower::all_gather(c[0], axis); },
       [=](const Call& c) { return for_each(c[0]); }},
      {Kind::makes, "psum({$0.sin(), $1}" + of + ", multiplied",
       [](Draw& d) {
         const Tensor& a = d.any();
         d.any([sizes = a.sizes().vec()](const Tensor& t) { return t.sizes() == at::IntArrayRef(sizes); });
       },
       [=](const Call& c) {
         const auto [a, b] = tower::psum(std::pair(c[0].sin(), c[1]), axis);
         return (a * b).sin();
       },
       like_first},
      // How many steps an example takes is its own.
      makes("while_loop from $0 with pmean" + of,
            [=](const Tensor& x) {
              using State = std::pair<Tensor, Tensor>;
              const Tensor limit = at::sigmoid(x.detach().sum() * 5) * 3;
              const auto step = [=](const State& s) {
                return State(s.first + 1, (s.second + tower::pmean(s.second, axis) / 2).sin());
              };
              return tower::while_loop([=](const State& s) { return s.first < limit; }, step,
                                       State(at::zeros({}, at::kDouble), x))
                  .second;
            }),
      makes("cond($0.sum() > 0, with pmean, without" + of,
            [=](const Tensor& x) {
              return tower::cond(
                  x.sum() > 0, [=](const Tensor& t) { return tower::pmean(t.sin(), axis) * t; },
                  [](const Tensor& t) { return t.cos(); }, x);
            }),
      makes("checkpoint(with psum" + of + "($0)",
            [=](const Tensor& x) {
              return tower::checkpoint([=](const Tensor& t) { return (tower::psum(t.sin(), axis) * t).sin(); })(x);
            }),
      makes("fori_loop from $0 with ppermute" + of,
            [=](const Tensor& x) {
              return tower::fori_loop(
                  0, 2, [=](int64_t i, const Tensor& t) { return (t + i * tower::ppermute(t, axis, around)).sin(); },
                  x);
            }),
      makes("scan from $0 with pmean" + of,
            [=](const Tensor& x) {
              const auto step = [=](const Tensor& carry, const Tensor& number) {
                const Tensor next = (carry * number + tower::pmean(carry, axis)).sin();
                return std::pair(next, next.sum());
              };
              const auto [last, sums] = tower::scan(step, x, waves({3}));
              return last * sums.mean();
            }),
      makes("grad(psum of sin" + of + "($0)",
            [=](const Tensor& x) {
              return tower::grad([=](const Tensor& t) { return tower::psum(t.sin().sum(), axis); })(x) / 5;
            }),
  };
}

// Half of the steps speak of an axis.
std::vector<Action> actions_of(size_t axes) {
  std::vector<Action> own, all = programs::actions();
  for (size_t a = 0; a < axes; ++a)
    for (const Action& action : collectives(a)) own.push_back(action);
  const size_t ordinary = all.size();
  for (size_t k = 0; k < ordinary; ++k) all.push_back(own[k % own.size()]);
  return all;
}

// ---- transforms ----------------------------------------------------------------------------------------------------

// A function in some world, and what it takes and gives.
struct Typed {
  std::function<Function(const World&)> in;
  std::vector<Value> ins, outs;
};

void put_in_front(Value& value, int64_t size, std::optional<size_t> axis) {
  value.sizes.insert(value.sizes.begin(), size);
  for (auto& dims : value.spread)
    for (int64_t& dim : dims) ++dim;
  if (axis) value.spread[*axis].push_back(0);
}

Tensors directions(const std::vector<Value>& values, double phase, const World& world) {
  Tensors result;
  for (const Value& v : values) result.push_back(v.own(waves(v.sizes, phase++), world));
  return result;
}

bool is_spread(const Value& v, size_t spread) { return !v.spread[0].empty() || (spread > 1 && !v.spread[1].empty()); }

// Of one output by one argument: their dimensions one behind the other.
Value joined(Value a, const Value& b) {
  for (size_t axis = 0; axis < a.spread.size(); ++axis)
    for (const int64_t dim : b.spread[axis]) a.spread[axis].push_back(static_cast<int64_t>(a.sizes.size()) + dim);
  a.sizes.insert(a.sizes.end(), b.sizes.begin(), b.sizes.end());
  return a;
}

class Nesting {
 public:
  Nesting(std::mt19937_64& random, size_t spread, Typed program)
      : random_(random), spread_(spread), typed_(std::move(program)) {}

  void transforms(size_t most) {
    for (size_t count = random_() % (most + 1); count > 0; --count) transform("vvjjrrFRH"[random_() % 9]);
  }
  void transform(char kind) {
    if (std::string("FRH").find(kind) != std::string::npos && !jacobian(kind)) kind = 'r';
    const double phase = 0.3 + static_cast<double>(text_.size());
    const auto f = typed_.in;
    if (kind == 'v') map();
    if (kind == 'j')
      typed_.in = [f, ins = typed_.ins, phase](const World& w) -> Function {
        return [f = f(w), along = directions(ins, phase, w)](const Tensors& x) { return td::jvp(f, x, along).second; };
      };
    if (kind == 'r') {
      for (const Value& v : typed_.ins) gradient_by_part_ = gradient_by_part_ || is_spread(v, spread_);
      typed_.in = [f, outs = typed_.outs, phase](const World& w) -> Function {
        return [f = f(w), along = directions(outs, phase, w)](const Tensors& x) { return td::vjp(f, x).second(along); };
      };
      typed_.outs = typed_.ins;
    }
    text_ = kind + text_;
  }

  // Maps over examples that have a name; all results are mapped, or the mean of each is the same for all.
  void axis(size_t axis, const std::vector<bool>& mapped) {
    td::Dims dims;
    for (size_t i = 0; i < mapped.size(); ++i) {
      dims.push_back(mapped[i] ? std::optional<int64_t>(0) : std::nullopt);
      if (mapped[i]) put_in_front(typed_.ins[i], kSizes[axis], axis);
    }
    const bool reduces = random_() % 2 == 0;
    typed_.in = [f = typed_.in, dims, reduces, axis](const World& w) -> Function {
      const auto g = [f = f(w), reduces, name = kNames[axis]](const Tensors& x) {
        return reduces ? td::pmean(f(x), name) : f(x);
      };
      return td::vmap(g, dims, {reduces ? std::nullopt : std::optional<int64_t>(0)}, {}, w.axes[axis]);
    };
    if (!reduces)
      for (Value& v : typed_.outs) put_in_front(v, kSizes[axis], axis);
    text_ = std::string(reduces ? " mean over " : " ") + kNames[axis] + " " + text_;
  }

  const Typed& typed() const { return typed_; }
  const std::string& text() const { return text_; }
  bool mixes() const { return mixes_; }

 private:
  // Over two examples without a name, of some of the arguments.
  void map() {
    td::Dims dims(typed_.ins.size());
    dims[random_() % dims.size()] = 0;
    for (size_t i = 0; i < dims.size(); ++i) {
      if (random_() % 2) dims[i] = 0;
      if (dims[i]) put_in_front(typed_.ins[i], 2, {});
    }
    for (Value& v : typed_.outs) put_in_front(v, 2, {});
    typed_.in = [f = typed_.in, dims](const World& w) { return td::vmap(f(w), dims, {0}); };
  }

  // False where it would be large.
  bool jacobian(char kind) {
    const size_t out = random_() % typed_.outs.size();
    const auto argument = static_cast<int64_t>(random_() % typed_.ins.size());
    const Value &y = typed_.outs[out], &x = typed_.ins[static_cast<size_t>(argument)];
    Value result = joined(y, x);
    if (kind == 'H') result = joined(result, x);
    if (c10::multiply_integers(result.sizes) > 3000) return false;
    mixes_ = mixes_ || (kind != 'R' && is_spread(x, spread_)) ||
             (kind != 'F' && (is_spread(y, spread_) || gradient_by_part_));
    gradient_by_part_ = gradient_by_part_ || (kind != 'F' && is_spread(x, spread_));
    typed_.in = [f = typed_.in, kind, out, argument](const World& w) -> Function {
      const Function one = [f = f(w), out](const Tensors& in) { return Tensors{f(in)[out]}; };
      if (kind == 'F') return td::jacfwd(one, {argument});
      return kind == 'R' ? td::jacrev(one, {argument}) : td::hessian(one, {argument});
    };
    typed_.outs = {result};
    return true;
  }

  std::mt19937_64& random_;
  size_t spread_;
  Typed typed_;
  std::string text_;
  bool mixes_ = false, gradient_by_part_ = false;
};

// The program over copies, for it may write to its arguments.
Function on_copies(const programs::Program& program) {
  return [program](const Tensors& in) {
    Tensors copies;
    for (const Tensor& t : in) copies.push_back(t.clone());
    return program(copies);
  };
}

// What it takes and gives within the axes.
Typed of_example(const programs::Program& program, size_t axes) {
  Typed result{[f = on_copies(program)](const World&) { return f; }, {}, {}};
  Tensors x;
  for (const auto& sizes : program.inputs) {
    result.ins.push_back({sizes});
    x.push_back(waves(sizes));
  }
  std::vector<int64_t> examples;
  Function f = [&](const Tensors&) {
    result.outs.clear();
    Tensors outs = on_copies(program)(x);
    for (const Tensor& t : outs) result.outs.push_back({t.sizes().vec()});
    return outs;
  };
  for (size_t a = 0; a < axes; ++a) {
    f = td::vmap(f, {0}, {0}, {}, {kNames[a]});
    examples.insert(examples.begin(), kSizes[a]);
  }
  f({at::zeros(examples)});
  return result;
}

}  // namespace

Drawn draw(uint64_t seed, size_t spread) {
  static const std::array<std::vector<Action>, 2> actions{actions_of(1), actions_of(2)};
  std::mt19937_64 random(seed * 7919 + spread);
  const size_t axes = spread == 2 ? 2 : 1 + random() % 2;
  const programs::Program program = programs::generate(seed, actions[axes - 1], 3);

  // The inner vmap may be that of either axis; of the arguments the first is always mapped, the last never.
  Nesting nesting(random, spread, of_example(program, axes));
  std::vector<size_t> order{0};
  if (axes == 2) order.insert(random() % 2 ? order.begin() : order.end(), 1);
  nesting.transforms(1);
  for (const size_t axis : order) {
    nesting.axis(axis, {true, random() % 2 == 0, false});
    nesting.transforms(axis == order.back() ? 2 : 1);
  }

  Drawn drawn{program.text() + nesting.text(), nesting.mixes(), nesting.typed().outs, {}};
  drawn.run = [typed = nesting.typed()](const World& world) {
    Tensors x;
    double phase = 0.1;
    for (const Value& v : typed.ins) x.push_back(v.own(waves(v.sizes, phase++), world));
    return typed.in(world)(x);
  };
  return drawn;
}

}  // namespace mesh_programs
