#include "records/op.h"

namespace tower::rules {

namespace detail {

const Tensor& tensor_or_undefined(const IValue& value) {
  static const Tensor undefined;
  return value.isTensor() ? value.toTensor() : undefined;
}

std::vector<Tensor> tensors_or_undefined(const IValue& list) {
  std::vector<Tensor> tensors;
  for (const auto& e : list.toListRef()) tensors.push_back(e.isTensor() ? e.toTensor() : Tensor());
  return tensors;
}

void give_gradient(VjpFrame& frame, size_t arg, std::vector<Tensor> gradients) {
  for (size_t e = 0; e < gradients.size(); ++e) frame.give(arg, std::move(gradients[e]), e);
}

void give_tangents(JvpFrame& frame, std::vector<Tensor> tangents) {
  for (size_t k = 0; k < tangents.size(); ++k) frame.give(k, std::move(tangents[k]));
}

void replace(Stack& stack, Tensor result) { stack.assign(1, std::move(result)); }
void replace(Stack& stack, std::vector<Tensor> list) { stack.assign(1, c10::List<Tensor>(list)); }

}  // namespace detail

void Writing::set_vmap(VmapRule rule, const char* family) {
  record_.vmap = std::move(rule);
  record_.vmap_family = family;
  record_.vmap_is_pointwise = false;
}

void Writing::pointwise() {
  set_vmap(vmap_pointwise, "pointwise");
  record_.vmap_is_pointwise = true;
}

void Writing::along(std::initializer_list<uint8_t> dims, EmptyDims empty) {
  set_vmap([dims = std::vector<uint8_t>(dims), empty](VmapFrame& f) { vmap_along(f, dims, empty); },
           "along dimensions");
}

void Writing::fold_into_items(int64_t rank) {
  set_vmap([rank](VmapFrame& f) { vmap_fold(f, rank); }, "folded into items");
}

void Writing::gives_gradient(Mask serves, const Keeps& keeps, std::function<void(VjpFrame&)> run) {
  record_.vjp.push_back({serves, keeps, std::move(run)});
}

void Writing::gives_tangent(Mask serves, const Keeps& keeps, std::function<void(JvpFrame&)> run) {
  record_.jvp.push_back({serves, keeps, std::move(run)});
}

void Writing::gives_tangent_by_calling(Mask serves, bool keeps_shapes) {
  gives_tangent(serves, Keeps{~serves, keeps_shapes ? serves : 0, 0},
                [serves](JvpFrame& frame) { jvp_by_calling(frame, serves); });
}

void Writing::decomposes_by(std::function<void(const Frame&, Stack&)> run) {
  record_.decomposition =
      std::make_shared<const DecompositionRule>([run = std::move(run), record = &record_](Stack& stack) {
        const std::vector<IValue> args(stack.begin(), stack.end());
        run(Frame{*record, args, {}, nullptr, 0}, stack);
      });
}

}  // namespace tower::rules
