// A known number of steps over a state, as loops run them, and how few of their states reverse mode keeps.
#pragma once

#include "core/operator.h"
#include "tower/loops.h"

namespace tower {

/// What every step's state must be like.
class StateLike {
 public:
  StateLike(const char* loop, const dynamic::Tensors& start, detail::NameTensor name);
  /// Throws ArgumentError that names the leaf which is not.
  void check(c10::ArrayRef<at::Tensor> next) const;
  const char* loop() const { return loop_; }
  size_t size() const { return metas_.size(); }

 private:
  const char* loop_;
  std::vector<Meta> metas_;
  detail::NameTensor name_;
};

/// `captured`: as in evaluate_without_record.
struct KnownSteps {
  /// Operands: the state, and this step's elements of the inputs. Results: the next state, this step's outputs.
  using Step =
      std::function<dynamic::Tensors(int64_t index, const dynamic::Tensors& operands, dynamic::Tensors& captured)>;
  const char* loop;
  Step step;
  size_t states;  // number of tensors of the state
  bool reverse = false;
  bool by_index = false;  // a step may depend on its index

  /// Steps first, first + 1, …, `count` of them (at least one), over the operands: the state, and the inputs, stacked.
  /// The last state, and the outputs, stacked. With `checkpoints`, a tape keeps that many states, and one step.
  dynamic::Tensors run(int64_t first, int64_t count, std::optional<int64_t> checkpoints,
                       const dynamic::Tensors& operands, dynamic::Tensors& captured) const;

  /// The same as they are, recorded where that is done. The outputs can be left out.
  dynamic::Tensors run_steps(int64_t first, int64_t count, const dynamic::Tensors& operands, dynamic::Tensors& captured,
                             bool with_outputs = true) const;
};

}  // namespace tower
