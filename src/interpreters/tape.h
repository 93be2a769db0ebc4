// The tape of a vjp level: nodes {operator, arguments, what its rule keeps} in order of execution, and slots, one for
// each tensor on the path from the inputs to the outputs. It is data, so one tape serves pullbacks (reverse),
// `linearize` (forward), and inspection. Indices instead of pointers: no recursion anywhere, however deep the graph.
#pragma once

#include "core/operator.h"
#include "interpreters/chunks.h"

namespace tower {

/// An argument that the differentiated function holds itself, and may write to, as a tape keeps it. A tensor that
/// cannot be seen here is kept as it is: it is refused, or stands for another, by the name that its code knows it by.
Tensor as_held(const Tensor& t);

struct Node {
  struct Input {
    LeafRef leaf;
    int64_t slot;
  };
  using Inputs = c10::SmallVector<Input, 2>;

  Node(const Operator& op, Inputs&& inputs, Mask tracked, Served served, const Keeps& keeps)
      : op(&op), inputs(std::move(inputs)), keeps(keeps), tracked(tracked), served(served) {
    if (!op.handle()) owner = c10::intrusive_ptr<const Operator>::reclaim_copy(&op);
  }

  const Operator* op;
  c10::intrusive_ptr<const Operator> owner;   // for operators that are not LibTorch's and may otherwise die
  c10::SmallVector<IValue, 5> kept;           // arguments, outputs, what the operator saved; None where not kept
  Inputs inputs;                              // tracked tensors among the arguments
  std::unique_ptr<std::vector<Meta>> shapes;  // of the arguments in `keeps.shapes`
  Keeps keeps;
  Mask tracked;            // arguments with a tracked tensor
  int64_t first_slot = 0;  // outputs, flattened: first_slot + k
  uint32_t num_outs = 0;
  uint64_t versions = 0;  // sum of the kept tensors' write counts
  Served served;          // how the derivative is served: decided once, when recorded

  bool empty() const { return op == nullptr; }
  /// Forgets the call and lets go of what was kept for it.
  void release() {
    op = nullptr;
    owner.reset();
    kept.clear();
    inputs.clear();
    shapes.reset();
  }
};

class Tape : public c10::intrusive_ptr_target {
 public:
  /// What the nodes keep: enough for vjp rules (pullback) or for jvp rules (pushforward).
  enum class Purpose : uint8_t { pullback, pushforward };

  Tape(Purpose purpose, std::string label) : purpose_(purpose), label_(std::move(label)) {}

  Purpose purpose() const { return purpose_; }
  /// From now on it is an error to record while LibTorch's hooks for saved tensors are active, which see none of what
  /// is kept. (For users' functions; a derivative that is computed with a tape is no place for hooks.)
  void refuse_hooks() { refuses_hooks_ = true; }
  /// A slot without a node: an input of the differentiated function.
  int64_t add_input(const Tensor& value);

  /// Records one call. `args` are values one level down; `inputs` the tracked ones; `held` the arguments that the
  /// function itself holds and may write to, of which what is kept are copies. The outputs get slots afterwards.
  Node& record(const Operator& op, c10::ArrayRef<IValue> args, Node::Inputs&& inputs, Mask tracked, Mask held);
  /// Completes the newest node with its outputs and what the operator's `save` gave; returns the first slot.
  int64_t complete(Node& node, c10::ArrayRef<IValue> outs, Operator::Values saved = {});

  /// Forgets the newest node, whose slots stay.
  void release_newest() {
    if (nodes_.size() > 0) nodes_[nodes_.size() - 1].release();
  }

  const Meta& meta(int64_t slot) const { return slots_[static_cast<size_t>(slot)]; }
  size_t num_nodes() const { return nodes_.size(); }

  /// Drops what the outputs do not depend on.
  void prune(c10::ArrayRef<int64_t> outputs);

  /// Cotangents of `inputs` from those of `outputs` (slots, -1: not on the tape; undefined: zero). With `consume` nodes
  /// are freed as soon as they were used, and the tape cannot be run again.
  std::vector<Tensor> pull_back(c10::ArrayRef<int64_t> outputs, c10::ArrayRef<Tensor> cotangents,
                                c10::ArrayRef<int64_t> inputs, bool consume);

  /// Tangents of `outputs` from those of `inputs`.
  std::vector<Tensor> push_forward(c10::ArrayRef<int64_t> inputs, c10::ArrayRef<Tensor> tangents,
                                   c10::ArrayRef<int64_t> outputs);

  /// Gives what was kept memory of its own where it shares that of `original`, before the caller's tensor is written
  /// to.
  void preserve(const Tensor& original);

 private:
  void check_unchanged(const Node& node) const;
  static Frame frame_of(const Node& node);

  Purpose purpose_;
  bool consumed_ = false;
  bool refuses_hooks_ = false;
  bool plain_ = true;  // only plain tensors that LibTorch's autograd does not track were kept
  std::string label_;
  Chunks<Node> nodes_;
  Chunks<Meta> slots_;
};

}  // namespace tower
