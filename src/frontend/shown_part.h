// The part of a tensor that is shown through views of views, in terms of the tensor: which elements along each of its
// dimensions, and in which order the view has these. So what is read and written through them costs the part, and not
// what lies between.
//
//   y.slice(1, 0, 50).select(0, i)    of y: along dimension 0 element i, along dimension 1 the first 50
//   y.t().select(0, j)                of y: along dimension 1 element j
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/wrapper.h"

namespace tower::frontend {

class ShownPart {
 public:
  /// What `view` shows of the farthest of its bases from which on this can be told; nothing if its own operator is none
  /// of those that choose and order elements along dimensions.
  static std::optional<ShownPart> shown_by(Wrapper& view);
  /// The same of what `op`, if it is select or slice, makes of `base`; nothing if the call is wrong.
  static std::optional<ShownPart> shown_by(Wrapper& base, const Operator& op, c10::ArrayRef<IValue> args);

  Wrapper& base() const { return *base_; }
  /// Whether all views between were made in this mode of recording.
  bool made_in_grad_mode(bool enabled) const { return enabled ? !any_unrecorded_ : !any_recorded_; }
  int64_t numel() const;

  Tensor read() const;
  /// The base with `value` as the part. With `replaced`, a view of the base or the base itself whose old value is given
  /// up, it may be overwritten.
  Tensor write(const Tensor& value, Wrapper* replaced) const;

 private:
  struct Range {
    int64_t start, step, length, size;
  };
  struct Step {
    const Operator* view;
    View::Args args;
  };

  explicit ShownPart(Wrapper& base);
  static std::optional<ShownPart> along(Wrapper& base, c10::ArrayRef<const View*> links);
  bool show(const Operator& op, c10::ArrayRef<IValue> args, size_t out);
  void select(int64_t dim, int64_t index);
  void slice(int64_t dim, int64_t start, int64_t end, int64_t step);
  void squeeze(const std::vector<int64_t>& dims);
  bool keeps(size_t base_dim) const;
  int64_t rank() const { return static_cast<int64_t>(dims_.size()); }
  int64_t size(int64_t dim) const;

  std::vector<Step> steps() const;
  std::vector<int64_t> order() const;
  Tensor arranged(Tensor t) const;
  Tensor arranged_back(Tensor t) const;

  Wrapper* base_;
  std::vector<Range> ranges_;  // by dimension of the base
  std::vector<int64_t> dims_;  // by dimension of the view: which of the base's it is, or kAdded
  bool any_recorded_ = false, any_unrecorded_ = false;
};

}  // namespace tower::frontend
