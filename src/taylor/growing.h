// Series that grow by one derivative at a time (McIlroy, "Power series, power serious", 1999; Karczmarczuk, "Functional
// differentiation of computer programs", 2001): the interpreter in which a level of Taylor mode runs one operator.
//
// An operator's derivative rule is its recurrence. y' = Df(x) x' is an expression of x, x' and y, and its k-th
// derivative needs the first k of those of y, and gives y's next. So the rule is run once, on tensors of this level,
// which makes a small program of calls; each call keeps the derivatives that it has, and makes the next from its
// arguments' when it is asked. Calls in the rule that are neither affine nor products (taylor/growth.h) grow by their
// own rules, and a call that is there already is not made again: sin and cos need each other, and are two calls.
//
//   y = tanh(x)    y' = x' · p    p = 1 - y²    one product and one square: K² of them for K orders
//
// What is kept of each order is the derivative, or the coefficient of the power, which is smaller by k!. With the
// former a rule's derivative is a series without its first term, and products have binomials; with the latter that
// takes a factor for each order, and products, of which there are K², have none.
#pragma once

#include <memory>
#include <vector>

#include "core/level.h"
#include "taylor/growth.h"
#include "taylor/series.h"
#include "tower/taylor.h"

namespace tower::taylor {

/// An argument of a call that is followed.
struct Leaf {
  LeafRef place;
  size_t number;  // among all tensors of the arguments
  int64_t node;
};

class Growing;

/// A call's results with the derivatives that they have by now.
struct Call {
  virtual ~Call() = default;
  /// Derivative `k` of all results, k being the number of those that are known.
  virtual std::vector<Tensor> next(Growing& level, size_t k) = 0;

  static constexpr size_t kEndless = ~size_t{0} / 4;
  size_t degree = kEndless;                // derivatives beyond are zero for reasons of structure
  std::vector<std::vector<Tensor>> known;  // by order, by result; undefined: zero
};

class Growing final : public Level {
 public:
  explicit Growing(const char* label, Scaling scaling = Scaling::derivatives);
  ~Growing() override;

  void process(const Operator& op, Stack& stack) override;
  void took(Wrapper& w) override;

  /// The results of the operator that is processed next, where they are known: it is not evaluated again.
  void expect(Stack values) { expected_ = std::move(values); }
  /// `value` with the derivatives from the first on; those behind them are zero.
  Tensor given(const Tensor& value, Derivatives derivatives);
  /// With the derivatives 1, 0, 0, …: products with that one are their other factor.
  Tensor variable(const Tensor& value);
  /// The first `order` derivatives of a result.
  Derivatives derivatives(const Tensor& result, size_t order);

  // ---- for calls ----

  /// Derivative `k` of a node; 0 is the value, undefined if that is zero for reasons of structure.
  Tensor derivative(int64_t node, size_t k);
  size_t degree(int64_t node) const { return nodes_[static_cast<size_t>(node)].call->degree; }
  /// A node as a tensor of this level; `value`: its value, also where that is zero.
  Tensor tensor_of(int64_t node, const Tensor& value) { return wrap(*this, Payload{value, {}, node}); }
  /// The derivative of a node as a tensor of this level; undefined if it is zero with all of its own.
  Tensor prime(int64_t node, const Tensor& value);
  /// What the terms are that calls keep, and are asked for: "derivatives" stands for either.
  bool has_coefficients() const { return scaling_ == Scaling::coefficients; }
  /// While values one level down are computed: whether LibTorch's autograd may follow them.
  bool records() const { return records_; }

 private:
  struct Node {
    Call* call;
    size_t out;
  };
  // What was called, and what came of it: the nodes of the tensors among arguments and results; -1: constants.
  struct Made {
    const Operator* op;
    c10::intrusive_ptr<const Operator> owner;
    Stack args;
    std::vector<int64_t> arg_nodes;
    Stack outs;
    std::vector<int64_t> out_nodes;
  };

  int64_t add(Call& call, size_t out);
  const Made* made_before(const Operator& op, const Stack& args, const std::vector<int64_t>& nodes) const;
  void wrap_results(Stack& stack, const std::vector<int64_t>& nodes);
  /// g · op(1, …) in place of op(g, …).
  void factor(const Operator& op, Stack& stack);
  /// Tensors of ones, which products know by identity.
  Tensor ones_like(const Tensor& t);
  bool is_ones(const Tensor& t);
  /// Of a product of ones and what the result is like: that.
  bool is_other_factor(const Operator& op, Stack& stack);

  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<Node> nodes_;
  std::vector<int64_t> primes_;  // by node: that of its derivative; -1 where nobody has asked
  std::vector<Made> made_;
  Stack expected_;
  std::vector<Tensor> ones_;
  Scaling scaling_;
  bool records_ = false;
};

}  // namespace tower::taylor
