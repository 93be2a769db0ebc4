// A vmap whose examples have a name, and may be spread over processes.
#pragma once

#include <map>

#include "interpreters/vmap.h"
#include "mesh/across.h"
#include "tower/mesh.h"

namespace tower::mesh {

/// What collectives know of the examples that one vmap maps over.
class Axis {
 public:
  Axis(std::string name, int64_t here, GroupPointer group)
      : name_(std::move(name)), here_(here), group_(std::move(group)) {}

  const std::string& name() const { return name_; }
  /// Null: all examples are in this process.
  const GroupPointer& group() const { return group_; }
  /// How many examples are in this process.
  int64_t here() const { return here_; }
  /// In each process. The processes tell each other when the first of them is asked, all at the same place.
  const Counts& counts();
  /// In all processes.
  int64_t size();
  /// In the processes before this one.
  int64_t before();

 private:
  std::string name_;
  int64_t here_;
  GroupPointer group_;
  Counts counts_;
};
using AxisPointer = std::shared_ptr<Axis>;

// NOTE [Shared and varying]
// To the levels below, a batch that is spread is like any other: a value that this level maps over is this process's
// part, and one that it does not is the same everywhere. Where an operator has both, the second is turned into the
// first by `vary`, whose transpose sums over the processes. So what is shared, be it an argument or captured, gets the
// derivative of all examples, and operators of shared values alone cost no communication, in either direction.
//
// A custom operator's image below this level is code of its own, in which both kinds may meet again. So it gets what
// was made to vary as something that is mapped: in there, too, what is not mapped is shared.
class AxisVmap final : public Vmap, private SpeakingExamples {
 public:
  AxisVmap(AxisPointer axis, Randomness randomness, const char* label)
      : Vmap(axis->here(), randomness, label), examples_(std::move(axis)) {}
  AxisVmap(AxisPointer axis, Randomness randomness, const char* label, uint64_t number)
      : Vmap(axis->here(), randomness, label, number), examples_(std::move(axis)) {}

  const AxisPointer& examples() const { return examples_; }
  /// Arguments that are not mapped: their derivatives are summed together.
  void share(const dynamic::Tensors& arguments) { shared_ = arguments; }

  void process(const Operator& op, Stack& stack) override;
  Tensor varying(const Tensor& shared) override;
  MakeLevel images() const override;
  SpeakingExamples* named() override { return this; }
  void release_resources() override;

 private:
  int64_t number() override { return examples_->size(); }
  Tensor sum(const Tensor& t) override;
  Tensor holds_for_any(const Tensor& condition) override;
  std::vector<int64_t> in_all_processes(std::vector<int64_t> counts) override;

  // A value that all processes have, as one that may go on differently in each, and what it was then.
  struct Varied {
    Tensor shared, varying;
    uint64_t writes;
  };
  Tensor repeated(const Tensor& value);
  const Tensor* find(const Tensor& shared) const;
  Tensors together_with(const Tensor& shared) const;
  void vary_all(const Tensors& shared);

  AxisPointer examples_;
  bool generators_agree_ = false;  // compared once
  Tensors shared_;
  std::map<std::pair<const c10::TensorImpl*, bool>, Varied> varied_;  // by whether derivatives are recorded
};

// NOTE [Bases across processes]
// jacfwd and jacrev go through the unit vectors of their argument or result. Of one that each process has a part of,
// all processes would take the first at the same time, then the second, and sums over processes would mix them. So they
// are refused.
/// Throws UnsupportedError if jacfwd or hessian differentiates by `t`, a mapped argument.
void refuse_columns(const Tensor& t);
/// The same if jacrev differentiates `t`, a mapped result.
void refuse_rows(const Tensor& t);
/// The same if jacrev is around a gradient by `t`, a mapped argument: that gradient is a part, too, whose rows jacrev
/// might take.
void refuse_rows_of_gradients(const Tensor& t);

/// Where a program is checked, throws unless the values under all levels are the same in all processes.
void check_agreement(Group& group, const char* what, Tensors values);

/// A number for each example, of which each has its own; mapped over by the level.
Tensor examples_of(AxisVmap& level);

/// psum along the level's axis.
Tensor sum_along(const Tensor& t, AxisVmap& level);

// NOTE [Hidden axes]
// The function of an operator that lifts what it captures (checkpoint, cond, a loop) is evaluated where only the levels
// are seen that an operand is mapped over. What it says to the examples of another vmap is a capture, too: it captures
// them. So all running axes are known, and one that is not seen is asked for by its examples, with which the operator
// is called again.
//
// A level in which an operator's image is evaluated maps over the same examples, when the vmap itself may have ended.
class Running {
 public:
  explicit Running(AxisVmap& level);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  /// The innermost of that name, seen or not; null if there is none.
  static AxisVmap* find(std::string_view axis);
  /// Throws ArgumentError if one is across these processes: each would have, of its own part of the outer examples, its
  /// own part of the inner ones, and nobody the others.
  static void refuse_twice(const Group& group);
  /// Notes an image's level, which runs until it has ended.
  static void note(const c10::intrusive_ptr<AxisVmap>& image);

 private:
  AxisVmap& level_;
};

/// The innermost running vmap of that name. Throws NoAxisError, which says what names there are, and
/// InvisibleTensorError where it is hidden.
AxisVmap& find_axis(std::string_view name, const char* who);

}  // namespace tower::mesh
