#include "core/wrapper.h"

#include <ATen/ops/detach.h>
#include <c10/core/GradMode.h>

#include "core/bind.h"
#include "core/layout.h"
#include "core/made_since.h"
#include "core/of_thread.h"
#include "core/torchscript.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower {

ViewCalls view_calls{};

namespace {
// LibTorch allocates a version counter for every tensor that is not an inference tensor. A wrapper needs none: it
// counts writes in its generation, and what LibTorch's autograd would compare versions of is never a wrapper.
class WithoutVersionCounter {
 public:
  WithoutVersionCounter() : state_(autograd_state()), saved_(state_.get_inference_mode()) {
    state_.set_inference_mode(true);
  }
  ~WithoutVersionCounter() { state_.set_inference_mode(saved_); }
  WithoutVersionCounter(const WithoutVersionCounter&) = delete;
  WithoutVersionCounter& operator=(const WithoutVersionCounter&) = delete;

  c10::DispatchKeySet keys() const { return kKeySet; }

 private:
  c10::AutogradState& state_;
  bool saved_;
};
}  // namespace

// The temporary lives until the base class is constructed.
Wrapper::Wrapper(c10::intrusive_ptr<Level> level, Payload&& payload)
    : TensorImpl(WithoutVersionCounter().keys(), payload.value.dtype(), payload.value.device()),
      level_(std::move(level)),
      payload_(std::move(payload)) {
  MadeSince::note(*this);
  take_metadata();
}

namespace {
// LibTorch's autograd outside is to know where the value came from, whoever runs now.
Tensor resolved(const Tensor& t, const Level& level) {
  Below below(level);
  if (libtorch_follows(t)) below.keys().with_libtorch_autograd();
  const c10::AutoGradMode record(t.requires_grad());
  return t.resolve_conj().resolve_neg();
}
}  // namespace

// NOTE [Constants may require grad]
// LibTorch takes a tensor without autograd's keys for one made in inference mode, which can neither require grad nor be
// saved by autograd. What a level tracks is left so: who asks it to require grad shall hear no. A constant has the
// keys, so that modules and parameters can be made inside; that it requires grad means nothing to the levels.
constexpr c10::DispatchKeySet kConstantKeys =
    kKeySet | c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradOther});

void Wrapper::take_keys() {
  const bool saved = saved_by_torchscript();
  key_set_ = payload_.tracked() && !saved ? kKeySet : kConstantKeys;
  if (saved && !version_counter().enabled()) set_version_counter(c10::VariableVersion(0));
}

void Wrapper::take_metadata() {
  // A wrapper shows no lazy conjugation or negation, so its value must have none: view_as_real would refuse it.
  if (payload_.value.is_conj() || payload_.value.is_neg()) payload_.value = resolved(payload_.value, *level_);
  const TensorImpl* value = payload_.value.unsafeGetTensorImpl();
  if (level_->kind() == Kind::vmap && payload_.index >= 0) {
    TORCH_INTERNAL_ASSERT(payload_.index < value->dim());
    if (payload_.index == 0 && value->is_contiguous()) {
      set_sizes_contiguous(value->sizes().slice(1));
    } else {
      Layout layout(value->sizes(), value->strides());
      layout.take_out(payload_.index);
      set_sizes_and_strides(layout.sizes, layout.strides);
    }
    storage_offset_ = 0;
    data_type_ = value->dtype();
    take_keys();
    if (storage_) storage_ = c10::Storage();
    storage_access_should_throw_ = true;
    if (value->requires_grad() || autograd_meta()) level_->took(*this);
    return;
  }
  copy_generic_tensor_metadata(value, this);
  take_keys();
  storage_ = !payload_.tracked() && value->has_storage() ? value->storage() : c10::Storage();
  storage_access_should_throw_ = !storage_;
  if (level_->kind() == Kind::vjp || value->requires_grad() || autograd_meta()) level_->took(*this);
}

void Wrapper::take(const Tensor& value) {
  Wrapper* w = as_wrapper(value);
  if (w && w->level().depth() > level_->depth()) level_ = w->level_ptr();
  payload_ = w && &w->level() == level_.get() ? w->payload() : Payload{value, {}, -1};
  take_metadata();
}

void Wrapper::own_memory() {
  for (Tensor* t : {&payload_.value, &payload_.tangent}) {
    if (!t->defined()) continue;
    if (Wrapper* w = as_wrapper(*t)) {
      w->view_.reset();  // what it was taken of has been written to here, and is nobody's who would write to it below
      w->own_memory();
    } else if (t->has_storage() && !libtorch_follows(*t)) {  // a series in the tangent's place has no memory itself
      const Below below(*level_);
      *t = t->clone();
    }
  }
  if (!payload_.tracked()) take_metadata();  // a constant shows its memory
}

void Wrapper::change_form(const Operator& op, View::Args args, const Tensor& value) {
  auto hidden = c10::make_intrusive<Wrapper>(level_, Payload(payload()));
  hidden->view_ = std::move(view_);
  hidden->generation_ = generation_;
  hidden->made_in_ = made_in_;
  hidden->form_ = form_++;
  hidden->shares_memory_ = std::exchange(shares_memory_, false);
  hidden->has_views_ = true;
  Wrapper& root = hidden->root();
  view_ = std::make_unique<View>(
      View{hidden, &root, root.generation_, hidden->form_, c10::GradMode::is_enabled(), &op, 0, std::move(args)});
  take(value);
}

namespace {
std::string no_memory(const Level& level) {
  return level.describe() + ": " + kNoMemory +
         " (data_ptr, accessor, storage or a kernel that reads memory itself); there is no memory of one example or "
         "one tracked value. Use operators, or register a rule for the operator that reads it; " +
         detail::spellings().printed + ".";
}
}  // namespace

// LibTorch asks this before every access to raw memory; the message is only made when there is none to give.
bool Wrapper::has_storage() const {
  auto* self = const_cast<Wrapper*>(this);
  if (view_) self->payload();  // what was written to the base since
  if (storage_) return true;
  self->release_storage_and_set_meta_custom_data_ptr_error_msg_(no_memory(*level_));
  self->storage_access_should_throw_ = true;
  return false;
}

// LibTorch asks this for the text of its refusal to give out storage.
const char* Wrapper::tensorimpl_type_name() const {
  struct Kept {
    std::string text;
  };
  std::string& text = of_thread<Kept>().text;
  text = "a tensor inside a transform. " + no_memory(*level_);
  return text.c_str();
}

void Wrapper::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& given) {
  const Tensor t(given), memory = strip_constants(t);
  if (!payload().tracked() && !view_ && !has_views_ && !as_wrapper(memory)) {
    // As set_(): what is written to it from now on goes into that memory.
    if (Wrapper* w = as_wrapper(t)) w->root().set_shares_memory();
    payload_.value = memory;
    take_metadata();
    shares_memory_ = true;
    return wrote();
  }
  throw UnsupportedError(level_->describe() +
                         ": set_data (x.data = y) gives a tensor other memory, which bypasses the transform and would "
                         "lose what it tracks. Write with x.copy_(y), or use y in place of x.");
}

// tensor.data() and variable_data() ask for a tensor with the same memory and no history.
c10::intrusive_ptr<c10::TensorImpl> Wrapper::shallow_copy_and_detach(const c10::VariableVersion&, bool) const {
  return at::detach(Tensor(c10::intrusive_ptr<TensorImpl>::reclaim_copy(const_cast<Wrapper*>(this))))
      .unsafeReleaseIntrusivePtr();
}
c10::intrusive_ptr<c10::TensorImpl> Wrapper::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                     bool allow_tensor_metadata_change) const {
  return shallow_copy_and_detach(version, allow_tensor_metadata_change);
}

// Chains of views can be long: free them one by one instead of recursively.
Wrapper::~Wrapper() {
  std::unique_ptr<View> view = std::move(view_);
  while (view) {
    c10::intrusive_ptr<Wrapper> base = std::move(view->base);
    view = base && base.use_count() == 1 ? std::move(base->view_) : nullptr;
  }
}

Tensor wrap(Level& level, Payload&& payload) {
  return Tensor(c10::make_intrusive<Wrapper>(c10::intrusive_ptr<Level>::reclaim_copy(&level), std::move(payload)));
}

Tensor strip_constants(const Tensor& t, int depth) {
  Tensor v = t;
  while (Wrapper* w = as_wrapper(v)) {
    if (w->level().depth() <= depth || w->payload().tracked()) break;
    v = Tensor(w->payload().value);  // a copy: the wrapper may go with `v`
  }
  return v;
}

}  // namespace tower
