// What LibTorch's autograd is shown of tensors that a tape tracks, so that requires_grad(), is_leaf() and grad_fn()
// answer inside a transform what they answer in LibTorch: an input of the differentiated function is a leaf that
// requires grad, and what was computed from one is not a leaf. LibTorch's composite operators ask, too.
//
// It is for show: the derivative is the tape's. Whoever starts LibTorch's engine from such a tensor, or asks it for a
// hook, is told so.
#pragma once

#include <memory>

#include "core/wrapper.h"

namespace tower {

class History {
 public:
  History();
  ~History();

  void show_input(Wrapper& w);
  void show_result(Wrapper& w);
  /// A tensor that is on no tape: it requires grad if LibTorch's autograd outside records the plain value, or if user
  /// code asked it to.
  static void show_untracked(Wrapper& w);

  /// After a function ran with `inputs`: throws UnsupportedError if it asked for what cannot be given, a hook or an
  /// input that does not require grad any more.
  void check(c10::ArrayRef<Tensor> inputs, const Level& level) const;

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;  // made with the first input
};

}  // namespace tower
