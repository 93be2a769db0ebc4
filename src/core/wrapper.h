// What a transform gives to the user's function in place of a tensor: an ordinary at::Tensor whose implementation
// belongs to a level and carries a payload. There is one class; the payload is replaceable, so an in-place write is
// seen through every handle to the tensor.
//
//   vmap   index = batch dimension of `value`
//   jvp    tangent = derivative of `value` along the direction
//   vjp    index = slot of the tape that `value` came from
//
// A payload without any of these is a constant: the value does not depend on what the level tracks. A constant shares
// its value's storage where that is a plain tensor, so code that reads its memory still works.
#pragma once

#include <c10/core/TensorImpl.h>

#include "core/level.h"
#include "core/operator.h"

namespace tower {

struct Payload {
  Tensor value;  // one level down
  Tensor tangent;
  int64_t index = -1;

  bool tracked() const { return index >= 0 || tangent.defined(); }
};

class Wrapper;

/// How a view tensor is made from its base, so that writes through either are seen by both (see frontend/views.h).
struct View {
  using Args = c10::SmallVector<IValue, 4>;

  c10::intrusive_ptr<Wrapper> base;
  Wrapper* root;       // the tensor at the end of the chain of bases, which keeps it alive
  uint32_t seen;       // generation of the root that the payload reflects
  uint32_t base_form;  // the form that the base had: see base_of()
  bool recorded;       // made in grad mode
  const Operator* op;
  size_t out;  // which output of `op`
  Args args;   // of `op`, the base's place empty
};

/// What the ground asks of views, whose meaning the front end knows and fills in when the library is loaded
/// (frontend/views.h).
struct ViewCalls {
  void (*refresh)(Wrapper&);
  void (*make)(const Operator&, Stack&);
};
extern ViewCalls view_calls;

class Wrapper final : public c10::TensorImpl {
 public:
  Wrapper(c10::intrusive_ptr<Level> level, Payload&& payload);
  ~Wrapper() override;

  Level& level() const { return *level_; }
  const c10::intrusive_ptr<Level>& level_ptr() const { return level_; }

  /// The payload, after taking over writes made through the base or other views of it.
  const Payload& payload() {
    if (view_ != nullptr && view_->seen != root().generation_) view_calls.refresh(*this);
    return payload_;
  }
  /// What is stored, whether or not the base was written since (for the front end).
  const Payload& stored() const { return payload_; }
  /// Takes over a value of this level or below it, or of a level above, to which the tensor then belongs: the write
  /// itself, without telling bases or views (that is the front end's part).
  void take(const Tensor& value);

  /// Gives the value memory of its own, so that it is no part of a larger tensor's. A tensor of the user's keeps the
  /// strides and the offset that it shows.
  void own_memory();

  std::unique_ptr<View>& view() { return view_; }
  /// The tensor at the end of the chain of bases.
  Wrapper& root() {
    Wrapper* w = this;
    while (w->view_) w = w->view_->root;  // an in-place view operator may have given an old root a base
    return *w;
  }
  uint32_t generation() const { return generation_; }
  /// Number of in-place view operators (t_, squeeze_, …) that were applied. Each puts a hidden tensor, the tensor as it
  /// was, under this one; views that were made before it are views of that.
  uint32_t form() const { return form_; }
  /// Makes this tensor a view by `op` of a hidden tensor that is what this one was.
  void change_form(const Operator& op, View::Args args, const Tensor& value);
  /// The newest level that was running when user code made this tensor.
  uint64_t made_in() const { return made_in_ ? made_in_ : level_->id(); }
  void set_made_in(const Level& level) { made_in_ = level.id(); }
  /// Whether it stands for memory that was given to it (set_) and that others may see. It is like a tensor from
  /// outside: what is written to it goes into that memory.
  bool shares_memory() const { return shares_memory_; }
  void set_shares_memory() { shares_memory_ = true; }
  /// Whether views were made of it.
  bool has_views() const { return has_views_; }
  void set_has_views() { has_views_ = true; }
  /// Marks that the payload of this base changed.
  void wrote() { ++generation_; }
  bool has_storage() const override;
  const char* tensorimpl_type_name() const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override;

 private:
  void take_keys();
  void take_metadata();

  c10::intrusive_ptr<Level> level_;
  Payload payload_;
  std::unique_ptr<View> view_;
  uint64_t made_in_ = 0;
  uint32_t generation_ = 0;
  uint32_t form_ = 0;
  bool shares_memory_ = false;
  bool has_views_ = false;
};

/// The tensor that a view was made from, in the form that it had then.
inline Wrapper& base_of(const View& view) {
  Wrapper* base = view.base.get();
  while (base->form() > view.base_form) base = base->view()->base.get();
  return *base;
}

inline Wrapper* as_wrapper(const Tensor& t) {
  return t.defined() && t.key_set().has(kKey) ? static_cast<Wrapper*>(t.unsafeGetTensorImpl()) : nullptr;
}
/// The wrapper if it belongs to `level`, else null. What was written to the base of a view may have taken it there.
inline Wrapper* as_wrapper_of(const Tensor& t, const Level& level) {
  Wrapper* w = as_wrapper(t);
  if (w && w->view()) w->payload();
  return w && &w->level() == &level ? w : nullptr;
}

/// Goes up whenever the tensor, or one that shares its memory, is written to.
inline uint64_t write_count(const Tensor& t) {
  if (Wrapper* w = as_wrapper(t)) return w->root().generation();
  return t.is_inference() ? 0 : t.unsafeGetTensorImpl()->version_counter().current_version();
}

/// Every refusal to give out a tracked tensor's memory has these words.
inline constexpr char kNoMemory[] = "raw memory of a tensor that the transform tracks was asked for";

/// Notes that user code has just made a tensor while the level on top was running.
inline void note_made_here(const Tensor& t) {
  Wrapper* w = as_wrapper(t);
  if (w && top() && &w->level() != top()) w->set_made_in(*top());
}

Tensor wrap(Level& level, Payload&& payload);
inline Tensor wrap_constant(Level& level, Tensor value) { return wrap(level, Payload{std::move(value), {}, -1}); }

/// The value below constants of levels deeper than `depth`, down to a value that some level tracks or a plain tensor.
Tensor strip_constants(const Tensor& t, int depth = 0);

}  // namespace tower
