#include "records/overwriting.h"

#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <algorithm>

#include "core/bind.h"

namespace tower::rules {

bool goes_into(const Tensor& part, const Tensor& base) {
  return !part.key_set().has(kKey) && part.scalar_type() == base.scalar_type() && part.device() == base.device() &&
         !libtorch_follows(part);
}

Tensor taken_cotangent(VjpFrame& frame) { return std::move(const_cast<Tensor&>(frame.cotangents[0])); }

void linear_by_overwriting(Operator& record, size_t part) {
  const Mask serves = Mask{1} | Mask{1} << part;
  record.jvp.push_back({serves, Keeps{~serves, serves, 0}, [serves](JvpFrame& f) {
                          const Reuse reuse;
                          jvp_by_calling(f, serves);
                        }});
}

void overwrites(Operator& record, size_t part, Keeps vjp_keeps, std::function<void(VjpFrame&)> vjp) {
  linear_by_overwriting(record, part);
  record.vjp.push_back({Mask{1} | Mask{1} << part, vjp_keeps, std::move(vjp)});
}

void overwrites_with_number(Operator& record, size_t value) {
  const auto zeroed = [value](const Frame& f, Tensor t) {
    Stack call(f.args.begin(), f.args.end());
    call[value] = 0;
    call[0] = std::move(t);
    return call_overwriting(f.op, std::move(call));
  };
  const Keeps keeps{~Mask{1}, 0, 0};
  record.vjp.push_back({Mask{1}, keeps, [zeroed](VjpFrame& f) {
                          if (f.cotangents[0].defined()) f.give(0, zeroed(f, taken_cotangent(f)));
                        }});
  record.jvp.push_back(
      {Mask{1}, keeps, [zeroed](JvpFrame& f) { f.give(0, zeroed(f, std::move(const_cast<Tensor&>(f.tangent(0))))); }});
}

bool in_range(const Tensor& index, int64_t least, int64_t size) {
  if (!index.is_cpu() || index.scalar_type() != at::kLong || index.key_set().has(c10::DispatchKey::Python))
    return false;
  const Tensor flat = index.contiguous();
  const auto* i = flat.const_data_ptr<int64_t>();
  return std::all_of(i, i + flat.numel(), [=](int64_t at) { return least <= at && at < size; });
}

namespace {

template <class View>
Tensor shown(const Tensor& base, c10::ArrayRef<IValue> args) {
  static const Operator& view = record_of(View::name, View::overload_name);
  Stack call{base};
  call.insert(call.end(), args.begin(), args.end());
  bind_call(view, call);
  return std::move(call[0]).toTensor();
}

template <class View>
bool write_part(const Tensor& base, const Stack& stack) {
  const Tensor& written = stack[1].toTensor();
  if (!goes_into(written, base)) return false;
  const Tensor part = shown<View>(base, c10::ArrayRef<IValue>(stack).slice(2));
  if (!part.sizes().equals(written.sizes())) return false;
  part.copy_(written);
  return true;
}

// What stands first on the stack, a plain tensor, or a copy of it, to be written to; undefined if it is of another
// kind.
Tensor own_values(Stack& call) {
  if (call[0].toTensor().key_set().has(kKey) || tracing()) return {};
  const Reuse reuse;
  Tensor base = Reuse::to_overwrite(call);
  if (base.defined()) call.clear();
  return base;
}

template <class View>
void zero_part(const Tensor& base, c10::ArrayRef<IValue> args) {
  DispatchGuard keys;
  keys.see_no_operator();
  shown<View>(base, args).zero_();
}

// The part's gradient first, and a copy: then the cotangent with zeros there is the base's, and may be made in place.
template <class View>
void pull_back_part(VjpFrame& f) {
  if (!f.cotangents[0].defined()) return;
  const auto args = f.args.slice(2);
  Tensor part;
  if (f.wants(1)) {
    part = shown<View>(f.cotangents[0], args);
    if (f.wants(0)) part = part.clone();
    f.give(1, part);
  }
  if (!f.wants(0)) return;
  Stack call{taken_cotangent(f)};
  if (const Tensor base = own_values(call); base.defined()) {
    zero_part<View>(base, args);
    return f.give(0, base);
  }
  // As many as there are examples at once, where it can be seen how many.
  call.emplace_back(part.defined() ? at::zeros_like(part) : at::zeros(f.meta(1).sizes, call[0].toTensor().options()));
  call.insert(call.end(), args.begin(), args.end());
  f.give(0, call_overwriting(f.op, std::move(call)));
}

template <class View, class Scatter>
void scatter_of_view() {
  Operator& record = record_of(Scatter::name, Scatter::overload_name);
  record.unboxed = evaluate_overwriting<Scatter, write_part<View>>;
  overwrites(record, 1, Keeps{0, Mask{1} << 1, 0}, pull_back_part<View>);
}

// Calls `Into`, the form of an operator that writes to a tensor given last.
template <class Into, class... A>
void call_into(const Tensor& into, Stack& stack, Tensor (*)(A...)) {
  Tensor result = into;
  [&]<size_t... i>(std::index_sequence<i...>) { Into::call(detail::unbox<A>(stack[i])..., result); }
  (std::make_index_sequence<sizeof...(A)>{});
  stack.assign(1, std::move(result));
}

template <class Op, class Into>
void evaluate_pointwise(Stack& stack) {
  constexpr typename Op::schema* signature = nullptr;
  static void (*const call)(Stack&) = detail::unboxed_call<Op>(signature);
  if (const Tensor* into = Reuse::to_write_result(stack)) call_into<Into>(*into, stack, signature);
  else call(stack);
}

template <class Op, class Into>
void into_spent() {
  record_of(Op::name, Op::overload_name).unboxed = evaluate_pointwise<Op, Into>;
}

}  // namespace

void pointwise_into_spent() {
  using namespace at::_ops;
  into_spent<add_Tensor, add_out>();
  into_spent<sub_Tensor, sub_out>();
  into_spent<mul_Tensor, mul_out>();
  into_spent<threshold_backward, threshold_backward_grad_input>();
  into_spent<sigmoid_backward, sigmoid_backward_grad_input>();
  into_spent<tanh_backward, tanh_backward_grad_input>();
}

void scatters_of_views() {
  scatter_of_view<at::_ops::select_int, at::_ops::select_scatter>();
  scatter_of_view<at::_ops::slice_Tensor, at::_ops::slice_scatter>();
  scatter_of_view<at::_ops::diagonal, at::_ops::diagonal_scatter>();
}

}  // namespace tower::rules
