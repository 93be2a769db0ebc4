// Read first: Growing::process, which makes a Call of an operator's call, then the kinds of calls above it, whose
// `next` gives the next derivative of the results.
#include "taylor/growing.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/bind.h"
#include "interpreters/custom.h"
#include "interpreters/derivatives.h"
#include "interpreters/history.h"
#include "records/linearity.h"
#include "taylor/binomial.h"

namespace tower::taylor {
namespace {

using Tensors = std::vector<Tensor>;

constexpr int64_t kConstant = -1;

bool has_derivative(const Meta& m) { return c10::isFloatingType(m.dtype) || c10::isComplexType(m.dtype); }

std::vector<Meta> metas_of(c10::ArrayRef<IValue> outs) {
  std::vector<Meta> metas;
  for (const Tensor& t : flatten_outputs(outs)) metas.push_back(meta_of_output(t));
  return metas;
}

c10::SmallVector<const Meta*, 2> pointers_to(const std::vector<Meta>& metas) {
  c10::SmallVector<const Meta*, 2> pointers;
  for (const Meta& m : metas) pointers.push_back(&m);
  return pointers;
}

/// While derivatives are computed one level down.
class Under {
 public:
  explicit Under(const Growing& level) : below_(level) {
    if (!level.below() && !level.records()) below_.keys().skip_libtorch_autograd();
  }

 private:
  Below below_;
};

// A sum of terms that may be zero for reasons of structure.
class Sum {
 public:
  void add(const Tensor& term, double factor) {
    if (!term.defined()) return;
    if (value_.defined()) value_ = at::add(value_, term, factor);
    else value_ = factor == 1 ? term : at::mul(term, factor);
  }
  void double_all() {
    if (value_.defined()) value_ = at::mul(value_, 2);
  }
  const Tensor& value() const { return value_; }

 private:
  Tensor value_;
};

// ---- kinds of calls ------------------------------------------------------------------------------------------------

/// That many times a term, of coefficients: of derivatives it is the term itself.
Tensor by_order(const Growing& level, const Tensor& term, double factor) {
  if (!term.defined() || !level.has_coefficients() || factor == 1) return term;
  const Under below(level);
  return at::mul(term, factor);
}

struct Given final : Call {
  Given(const Tensor& value, Derivatives derivatives) {
    while (!derivatives.empty() && !derivatives.back().defined()) derivatives.pop_back();
    degree = derivatives.size();
    known.push_back({value});
    for (Tensor& d : derivatives) known.push_back({std::move(d)});
  }
  Tensors next(Growing&, size_t) override { return {Tensor()}; }
};

/// The derivative of another node.
struct Prime final : Call {
  Prime(Growing& level, int64_t node) : of(node) {
    degree = level.degree(node) == kEndless ? kEndless : level.degree(node) - 1;
    known.push_back({level.derivative(of, 1)});
  }
  Tensors next(Growing& level, size_t k) override {
    return {by_order(level, level.derivative(of, k + 1), static_cast<double>(k + 1))};
  }

  int64_t of;
};

/// A call of an operator.
struct OperatorCall : Call {
  OperatorCall(const Operator& of, Stack arguments, std::vector<Leaf> followed, Mask mask, Stack results)
      : op(of), args(std::move(arguments)), leaves(std::move(followed)), tracked(mask), outs(std::move(results)) {
    if (!of.handle()) owner = c10::intrusive_ptr<const Operator>::reclaim_copy(&of);
    const auto flat = flatten_outputs(outs);
    known.emplace_back(flat.begin(), flat.end());
  }

  int64_t node_of(size_t arg) const {
    for (const Leaf& l : leaves)
      if (l.place.arg == arg) return l.node;
    return kConstant;
  }

  const Operator& op;
  c10::intrusive_ptr<const Operator> owner;
  Stack args;  // values
  std::vector<Leaf> leaves;
  Mask tracked;
  Stack outs;  // values
};

struct Termwise final : OperatorCall {
  Termwise(Growing& level, const Operator& of, Stack arguments, std::vector<Leaf> followed, Mask mask, Stack results)
      : OperatorCall(of, std::move(arguments), std::move(followed), mask, std::move(results)) {
    degree = 0;
    bool zero = is_linear(op, tracked);
    for (const Leaf& l : leaves) {
      degree = std::max(degree, level.degree(l.node));
      zero = zero && !level.derivative(l.node, 0).defined();
    }
    if (zero) known[0].assign(known[0].size(), Tensor());
  }
  Tensors next(Growing& level, size_t k) override {
    Tensors tangents(count_leaves(op, args));
    Mask defined = 0;
    for (const Leaf& l : leaves) {
      tangents[l.number] = level.derivative(l.node, k);
      if (tangents[l.number].defined()) defined |= Mask{1} << l.place.arg;
    }
    Tensors result(known[0].size());
    if (!defined) return result;
    const Under below(level);
    const std::vector<Meta> metas = metas_of(outs);
    const auto outs_meta = pointers_to(metas);
    JvpFrame frame{{op, args, outs, nullptr, 0}, tangents, {}, outs_meta};
    frame.tangents.resize(metas.size());
    run_jvp(frame, defined, Served::own_rule);
    for (size_t i = 0; i < result.size(); ++i)
      if (has_derivative(metas[i])) result[i] = std::move(frame.tangents[i]);
    return result;
  }
};

struct Product final : OperatorCall {
  Product(Growing& level, const Operator& of, Stack arguments, std::vector<Leaf> followed, Mask mask, Stack results)
      : OperatorCall(of, std::move(arguments), std::move(followed), mask, std::move(results)),
        factors(factors_of(tracked)),
        first(node_of(factors.first)),
        second(node_of(factors.second)) {
    degree = std::min(kEndless, level.degree(first) + level.degree(second));
    if (!level.derivative(first, 0).defined() || !level.derivative(second, 0).defined()) known[0][0] = Tensor();
  }
  Tensors next(Growing& level, size_t k) override {
    // Of a square the terms are equal in pairs, but for one in the middle.
    const bool square = first == second && rules::linearity_of(op) == rules::Linearity::product;
    Sum sum;
    Binomial binomial(k);
    for (size_t i = 0; square ? 2 * i <= k : i <= k; ++i, ++binomial) {
      const Tensor term = times(level, i, k - i);
      const Under below(level);
      if (square && 2 * i == k) sum.double_all();
      sum.add(term, level.has_coefficients() ? 1 : *binomial);
    }
    if (square && k % 2 == 1) {
      const Under below(level);
      sum.double_all();
    }
    return {sum.value()};
  }

  /// The product of two of the factors' derivatives.
  Tensor times(Growing& level, size_t i, size_t j) const {
    const Tensor a = level.derivative(first, i), b = level.derivative(second, j);
    if (!a.defined() || !b.defined()) return {};
    Stack stack = args;
    stack[factors.first] = a;
    stack[factors.second] = b;
    const Under below(level);
    bind_call(op, stack);
    return stack[0].toTensor();
  }

  Factors factors;
  int64_t first, second;
};

/// y b = a, so y⁽ᵏ⁾ = (a⁽ᵏ⁾ - Σ binomial(k, i) b⁽ⁱ⁾ y⁽ᵏ⁻ⁱ⁾ for i from 1 on) / b.
struct Quotient final : OperatorCall {
  using OperatorCall::OperatorCall;
  Tensors next(Growing& level, size_t k) override {
    Sum sum;
    const int64_t a = node_of(0), b = node_of(1);
    if (a != kConstant) sum.add(level.derivative(a, k), 1);
    Binomial binomial(k);
    for (size_t i = 1; i <= k; ++i) {
      ++binomial;
      const Tensor slope = level.derivative(b, i);
      if (!slope.defined() || !known[k - i][0].defined()) continue;
      const Under below(level);
      sum.add(at::mul(slope, known[k - i][0]), level.has_coefficients() ? -1 : -*binomial);
    }
    if (!sum.value().defined()) return {Tensor()};
    const Under below(level);
    return {at::div(sum.value(), args[1].toTensor())};
  }
};

/// By the derivative rule, which is run when the first derivative is asked for.
struct ByRule final : OperatorCall {
  using OperatorCall::OperatorCall;
  Tensors next(Growing& level, size_t k) override {
    if (k == 1) run(level);
    Tensors result(slopes.size());
    for (size_t i = 0; i < slopes.size(); ++i) {
      if (slopes[i].node != kConstant)
        result[i] = by_order(level, level.derivative(slopes[i].node, k - 1), 1 / static_cast<double>(k));
      else if (k == 1) result[i] = slopes[i].value;
    }
    return result;
  }

  void run(Growing& level) {
    slopes.resize(nodes.size());
    Tensors tangents(count_leaves(op, args));
    Mask defined = 0;
    Stack own = args;
    size_t next = 0;
    replace_tensors(op, own, [&](const Tensor& t, LeafRef at) -> Tensor {
      if (next == leaves.size() || leaves[next].place.arg != at.arg || leaves[next].place.element != at.element)
        return t;
      const Leaf& l = leaves[next++];
      tangents[l.number] = level.prime(l.node, t);
      if (tangents[l.number].defined()) defined |= Mask{1} << l.place.arg;
      return level.tensor_of(l.node, t);
    });
    if (!defined) return;
    const std::vector<Meta> metas = metas_of(outs);
    const auto outs_meta = pointers_to(metas);
    Stack results = outs;
    replace_outputs(results,
                    [&](Tensor&& t, size_t k) { return nodes[k] == kConstant ? t : level.tensor_of(nodes[k], t); });
    const Operator::Values saved = save_for_derivatives(op, own, results);
    JvpFrame frame{{op, own, results, nullptr, 0, saved}, tangents, {}, outs_meta};
    frame.tangents.resize(metas.size());
    if (!by_result(own, frame)) run_jvp(frame, defined, served_jvp(op, defined));
    for (size_t k = 0; k < slopes.size(); ++k) {
      if (nodes[k] == kConstant || !frame.tangents[k].defined()) continue;
      Wrapper* w = as_wrapper_of(frame.tangents[k], level);
      slopes[k] = w ? Slope{w->payload().value, w->payload().index} : Slope{frame.tangents[k], kConstant};
    }
  }

  /// By the rule that the record has for series, if it is one for these arguments.
  bool by_result(const Stack& own, JvpFrame& frame) const {
    const rules::SlopeByResult* rule = rules::slope_by_result(op);
    if (!rule) return false;
    Tensor slope = (*rule)(frame.leaves[0], own, frame.outs[0].toTensor());
    if (!slope.defined()) return false;
    frame.tangents[0] = std::move(slope);
    return true;
  }

  struct Slope {
    Tensor value;
    int64_t node = kConstant;
  };
  std::vector<int64_t> nodes;  // of the results
  std::vector<Slope> slopes;   // derivatives of the results
};

// ---- calls that were made before -----------------------------------------------------------------------------------

// Of attributes. False where it is not known: then a call is made that might have been found.
bool are_equal(const IValue& a, const IValue& b) {
  if (a.isNone()) return b.isNone();
  if (a.isInt()) return b.isInt() && a.toInt() == b.toInt();
  if (a.isBool()) return b.isBool() && a.toBool() == b.toBool();
  if (a.isDouble()) return b.isDouble() && a.toDouble() == b.toDouble();
  if (a.isComplexDouble()) return b.isComplexDouble() && a.toComplexDouble() == b.toComplexDouble();
  if (a.isString()) return b.isString() && a.toStringRef() == b.toStringRef();
  if (a.isIntList()) return b.isIntList() && a.toIntVector() == b.toIntVector();
  return false;
}

// Of constants: one tensor, or equal ones among those that numbers are made to.
bool are_equal(const Tensor& a, const Tensor& b) {
  if (a.is_same(b)) return true;
  const auto is_number = [](const Tensor& t) {
    return t.defined() && t.unsafeGetTensorImpl()->is_wrapped_number() && !as_wrapper(t) && t.is_cpu();
  };
  return is_number(a) && is_number(b) && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.itemsize()) == 0;
}

}  // namespace

const Growing::Made* Growing::made_before(const Operator& op, const Stack& args,
                                          const std::vector<int64_t>& nodes) const {
  const auto is_it = [&](const Made& made) {
    if (made.op != &op || made.arg_nodes != nodes || made.args.size() != args.size()) return false;
    size_t tensor = 0;
    for (size_t i = 0; i < args.size(); ++i) {
      const IValue &a = made.args[i], &b = args[i];
      if (op.kind(i) == ArgKind::other) {
        if (!are_equal(a, b)) return false;
      } else if (a.isTensor() && b.isTensor()) {
        if (a.toTensor().defined() != b.toTensor().defined()) return false;
        if (!a.toTensor().defined()) continue;
        if (nodes[tensor] == kConstant && !are_equal(a.toTensor(), b.toTensor())) return false;
        ++tensor;
      } else if (!a.isNone() || !b.isNone()) {
        return false;  // lists are not looked into
      }
    }
    return true;
  };
  const auto found = std::find_if(made_.begin(), made_.end(), is_it);
  return found == made_.end() ? nullptr : &*found;
}

// ---- the level -----------------------------------------------------------------------------------------------------

Growing::Growing(const char* label, Scaling scaling) : Level(Kind::jvp, label), scaling_(scaling) {}
Growing::~Growing() = default;

void Growing::took(Wrapper& w) { History::show_untracked(w); }

int64_t Growing::add(Call& call, size_t out) {
  nodes_.push_back({&call, out});
  primes_.push_back(kConstant);
  return static_cast<int64_t>(nodes_.size()) - 1;
}

Tensor Growing::given(const Tensor& value, Derivatives derivatives) {
  records_ = records_ || libtorch_follows(value);
  for (const Tensor& d : derivatives) records_ = records_ || (d.defined() && libtorch_follows(d));
  calls_.push_back(std::make_unique<Given>(value, std::move(derivatives)));
  return tensor_of(add(*calls_.back(), 0), value);
}

Tensor Growing::variable(const Tensor& value) { return given(value, {ones_like(value)}); }

Tensor Growing::ones_like(const Tensor& t) {
  const auto is_like = [&](const Tensor& made) {
    return made.scalar_type() == t.scalar_type() && made.sizes().equals(t.sizes()) && made.device() == t.device();
  };
  const auto found = std::find_if(ones_.begin(), ones_.end(), is_like);
  if (found != ones_.end()) return *found;
  const Under below(*this);
  return ones_.emplace_back(at::ones_like(t));
}

bool Growing::is_ones(const Tensor& t) {
  Wrapper* w = as_wrapper_of(t, *this);
  const Tensor& value = w ? w->payload().value : t;
  return std::any_of(ones_.begin(), ones_.end(), [&](const Tensor& made) { return made.is_same(value); });
}

bool Growing::is_other_factor(const Operator& op, Stack& stack) {
  if (ones_.empty() || rules::linearity_of(op) != rules::Linearity::product) return false;
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const Tensor one = stack[i].toTensor(), other = stack[1 - i].toTensor();
    if (!is_ones(one) || one.scalar_type() != other.scalar_type() || !one.sizes().equals(other.sizes())) continue;
    stack.assign(1, as_wrapper_of(other, *this) ? other : wrap_constant(*this, other));
    return true;
  }
  return false;
}

Derivatives Growing::derivatives(const Tensor& result, size_t order) {
  Derivatives all(order);
  Wrapper* w = result.defined() ? as_wrapper_of(result, *this) : nullptr;
  const int64_t node = w ? w->payload().index : kConstant;
  for (size_t k = 1; node != kConstant && k <= order; ++k) all[k - 1] = derivative(node, k);
  return all;
}

Tensor Growing::derivative(int64_t node, size_t k) {
  const auto [call, out] = nodes_[static_cast<size_t>(node)];
  if (k > call->degree) return {};
  while (call->known.size() <= k) {
    auto next = call->next(*this, call->known.size());
    call->known.push_back(std::move(next));
  }
  return call->known[k][out];
}

Tensor Growing::prime(int64_t node, const Tensor& value) {
  if (degree(node) == 0) return {};
  int64_t prime = primes_[static_cast<size_t>(node)];
  if (prime == kConstant) {
    calls_.push_back(std::make_unique<Prime>(*this, node));
    prime = add(*calls_.back(), 0);
    primes_[static_cast<size_t>(node)] = prime;
  }
  Tensor first = derivative(prime, 0);
  if (!first.defined()) {
    const Under below(*this);
    first = at::zeros_like(value);
  }
  return tensor_of(prime, first);
}

void Growing::wrap_results(Stack& stack, const std::vector<int64_t>& nodes) {
  replace_outputs(stack, [&](Tensor&& t, size_t k) {
    return k < nodes.size() && nodes[k] != kConstant ? tensor_of(nodes[k], t) : wrap_constant(*this, std::move(t));
  });
}

void Growing::factor(const Operator& op, Stack& stack) {
  const Tensor g = stack[0].toTensor();
  stack[0] = ones_like(as_wrapper_of(g, *this)->payload().value);
  process(op, stack);
  static const Operator& mul = *Operator::find("aten::mul", "Tensor");
  Stack product{g, stack[0]};
  process(mul, product);
  stack = std::move(product);
}

void Growing::process(const Operator& op, Stack& stack) {
  Stack expected = std::exchange(expected_, {});
  if (expected.empty() && is_other_factor(op, stack)) return;
  const bool follows = autograd_state().get_fw_grad_mode() && !op.no_derivative();
  const Mask tracked = follows ? tracked_args(*this, op, stack) : 0;
  // Rules for some arguments only, or none.
  if (tracked && op.opens_up() && !op.has_jvp(tracked) && decompose(op, stack)) return;
  const auto growth_given = [&](Mask constant_outs) { return growth_of(op, tracked, constant_outs); };
  if (tracked && growth_given(op.nondifferentiable_outs) == Growth::factored) return factor(op, stack);

  std::vector<Leaf> leaves;
  std::vector<int64_t> nodes;
  bool wrapped = false;
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef leaf) {
    Tensor value = t;
    int64_t node = kConstant;
    if (Wrapper* w = as_wrapper_of(t, *this)) {
      value = w->payload().value;
      if (follows && is_tracked(op, leaf, w->payload())) node = w->payload().index;
    }
    if (node != kConstant) leaves.push_back({leaf, leaf_number(op, stack, leaf), node});
    nodes.push_back(node);
    records_ = records_ || libtorch_follows(value);
    wrapped = wrapped || value.key_set().has(kKey);
    return value;
  });
  if (tracked && !op.random())
    if (const Made* made = made_before(op, stack, nodes)) {
      Stack outs = made->outs;
      wrap_results(outs, made->out_nodes);
      stack = std::move(outs);
      return;
    }

  Stack args;
  if (tracked) args = stack;
  if (!expected.empty()) {
    stack = std::move(expected);
  } else {
    const Under below(*this);
    call_below(*this, op, stack, wrapped);
  }
  if (!tracked) return wrap_results(stack, {});
  Mask constant_outs = op.nondifferentiable_outs;
  for (size_t i = 0; i < stack.size(); ++i)
    if (stack[i].isTensor() && !has_derivative(meta_of_output(stack[i].toTensor()))) constant_outs |= Mask{1} << i;

  const auto make = [&]<class C>(std::unique_ptr<C> call) -> C& {
    C& made = *call;
    calls_.push_back(std::move(call));
    return made;
  };
  std::vector<int64_t> out_nodes;
  const auto give_nodes = [&](Call& call) {
    for (size_t i = 0; i < stack.size(); ++i) {
      const size_t count = stack[i].isTensor() ? 1 : stack[i].isTensorList() ? stack[i].toListRef().size() : 0;
      for (size_t e = 0; e < count; ++e)
        out_nodes.push_back(constant_outs >> i & 1 ? kConstant : add(call, out_nodes.size()));
    }
  };
  switch (growth_given(constant_outs)) {
    case Growth::termwise:
      give_nodes(make(std::make_unique<Termwise>(*this, op, args, leaves, tracked, stack)));
      break;
    case Growth::product:
      give_nodes(make(std::make_unique<Product>(*this, op, args, leaves, tracked, stack)));
      break;
    case Growth::quotient:
      give_nodes(make(std::make_unique<Quotient>(op, args, leaves, tracked, stack)));
      break;
    default: {
      ByRule& call = make(std::make_unique<ByRule>(op, args, leaves, tracked, stack));
      give_nodes(call);
      call.nodes = out_nodes;
    }
  }
  const auto owner = op.handle() ? nullptr : c10::intrusive_ptr<const Operator>::reclaim_copy(&op);
  made_.push_back({&op, owner, std::move(args), std::move(nodes), stack, out_nodes});
  wrap_results(stack, out_nodes);
}

}  // namespace tower::taylor
