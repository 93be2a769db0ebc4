// What a function writes to an argument reaches the caller's tensor when the transform returns. Until then that tensor,
// and whatever shares its memory, is out of date: a function that captured it is told so and does not read old values.
#pragma once

#include "core/wrapper.h"

namespace tower::frontend {

/// The arguments of a transformed function while it runs.
class Arguments {
 public:
  /// `given`: what the function gets at `level` for the caller's tensors. Both outlive this.
  Arguments(const Level& level, const std::vector<Tensor>& given, const std::vector<Tensor>& callers);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  /// Whether the function of the level of `root` runs, and `root` is no argument of that or of another that runs.
  static bool made_inside(const Wrapper& root);
  /// Notes that `root`, which may be an argument, is written to for the first time.
  static void note_write(const Wrapper& root);
  /// Throws MutationError if `reader` was given a tensor that is out of date.
  static void check_read(const std::string& reader, const Tensor& t);

 private:
  const Level& level_;
  c10::ArrayRef<Tensor> given_, callers_;
  c10::SmallVector<size_t, 2> written_;
  Arguments* outer_;
};

/// Throws MutationError if an argument of the call is out of date. Costs one thread-local read where nothing is.
inline void check_up_to_date(const Operator& op, const Stack& stack) {
  if (thread_state.written_arguments == 0) return;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) { Arguments::check_read(op.name(), t); });
}

/// Whether two tensors share memory, or may: then what is written to one may change the other.
bool may_overlap(const Tensor& a, const Tensor& b);

}  // namespace tower::frontend
