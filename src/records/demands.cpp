#include "records/demands.h"

#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>

#include "core/bind.h"

namespace tower::rules {
namespace {

// A tensor on the CPU without dimensions goes with those of any device.
void demand_same_device(const Example& e) {
  std::optional<at::Device> device;
  for (const uint8_t i : e.op().tensor_args()) {
    if (!e.has(i) || e.dim(i) == 0) continue;
    const at::Device here = e[i].toTensor().device();
    TORCH_CHECK(!device || *device == here, "Expected all tensors to be on the same device, but found at least two, ",
                *device, " and ", here);
    device = here;
  }
}

// Runs `check` and adds to what it throws where that came from.
void run(Check check, const Example& e, const Level* level) {
  try {
    demand_same_device(e);
    check(e);
  } catch (c10::Error& error) {
    error.add_context("of one example, " + (level ? level->describe() + ": " : "") + e.op().name());
    throw;
  }
}

Tensor shape_alone(const Tensor& t, at::IntArrayRef sizes) {
  return at::empty(sizes, at::TensorOptions().dtype(t.scalar_type()).device(at::kMeta));
}

}  // namespace

int64_t Example::size(size_t arg, int64_t d) const {
  const int64_t batch = batch_dim(arg), at = at::maybe_wrap_dim(d, dim(arg));
  return args_[arg].toTensor().size(batch >= 0 && at >= batch ? at + 1 : at);
}

Sizes Example::sizes(size_t arg) const {
  const auto whole = args_[arg].toTensor().sizes();
  Sizes result(whole.begin(), whole.end());
  if (batch_dim(arg) >= 0) result.erase(result.begin() + batch_dim(arg));
  return result;
}

std::vector<Meta> Example::list(size_t arg) const {
  std::vector<Meta> result;
  const auto& elements = args_[arg].toListRef();
  for (size_t k = 0; k < elements.size(); ++k) {
    Meta meta;
    meta.dtype = at::ScalarType::Undefined;
    if (elements[k].isTensor() && elements[k].toTensor().defined()) meta = Meta(elements[k].toTensor());
    const bool has_batch =
        frame_ && !frame_->list_dims.empty() && k < frame_->list_dims[arg].size() && frame_->list_dims[arg][k] >= 0;
    if (has_batch) meta.sizes.erase(meta.sizes.begin() + frame_->list_dims[arg][k]);
    result.push_back(std::move(meta));
  }
  return result;
}

void guard(Operator& record, Check check) {
  const Operator* op = &record;
  if (record.vmap)
    record.vmap = [check, rule = std::move(record.vmap)](VmapFrame& f) {
      run(check, Example(f), &f.level);
      rule(f);
    };
  if (record.decomposition)
    record.decomposition =
        std::make_shared<const DecompositionRule>([check, op, rule = record.decomposition](Stack& stack) {
          run(check, Example(*op, stack), top());
          (*rule)(stack);
        });
}

void ask(const c10::KernelFunction& shape_function, const Example& e) {
  DispatchGuard keys;
  keys.see_no_operator();
  keys.skip_libtorch_autograd();
  Stack stack;
  for (size_t i = 0; i < e.op().num_args(); ++i)
    stack.push_back(e.has(i) ? IValue(shape_alone(e[i].toTensor(), e.sizes(i))) : e[i]);
  shape_function.callBoxed(*e.op().handle(), c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
}

void demand_matrix(const Example& e, size_t arg) {
  TORCH_CHECK(e.dim(arg) >= 2, e.op().name(), ": the tensor '", e.op().argument_name(arg),
              "' must have at least 2 dimensions, but has ", e.dim(arg));
}

void demand_same_dtype(const Example& e, std::initializer_list<size_t> args) {
  const size_t first = *args.begin();
  for (const size_t arg : args)
    TORCH_CHECK(!e.has(arg) || e.dtype(arg) == e.dtype(first), e.op().name(), ": '", e.op().argument_name(first),
                "' and '", e.op().argument_name(arg), "' must have the same dtype, but got ", e.dtype(first), " and ",
                e.dtype(arg));
}

void demand_floating(const Example& e, size_t arg) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(e.dtype(arg)), e.op().name(), " is not implemented for ", e.dtype(arg),
                              " '", e.op().argument_name(arg), "'");
}

void demand_dtype(const Example& e, size_t arg, at::ScalarType type) {
  TORCH_CHECK(e.dtype(arg) == type, e.op().name(), ": expected ", type, " for '", e.op().argument_name(arg),
              "', but got ", e.dtype(arg));
}

}  // namespace tower::rules
