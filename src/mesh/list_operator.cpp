#include "mesh/list_operator.h"

#include <ATen/Functions.h>

#include "core/bind.h"
#include "core/tensor_lists.h"
#include "frontend/enter.h"

namespace tower::mesh {

ListOperator::ListOperator(const std::string& name)
    : MadeOperator(name, c10::FunctionSchema(name, "", {c10::Argument("operands", c10::ListType::ofTensors())},
                                             {c10::Argument("", c10::ListType::ofTensors())})) {
  foreign_ = false;
  MadeOperator::vmap = [this](VmapFrame& frame) { map(frame); };
  vjp.push_back({1, {}, [this](VjpFrame& frame) {
                   if (begin_pull_back(frame)) return;
                   const AsUserCode user;
                   const Tensors gradients = pull_back(frame.saved, frame.cotangents);
                   for (const LeafRef& leaf : frame.wanted)
                     if (leaf.element < gradients.size()) frame.give(0, gradients[leaf.element], leaf.element);
                 }});
  jvp.push_back({1, {}, [this](JvpFrame& frame) {
                   const AsUserCode user;
                   const Tensors tangents = push_forward(frame.saved, frame.leaves);
                   for (size_t k = 0; k < tangents.size(); ++k) frame.tangents[k] = tangents[k];
                 }});
}

Tensors ListOperator::operator()(const Tensors& operands) const {
  Stack stack{c10::List<Tensor>(operands)};
  enter(*this, stack);
  return tensors_of(stack[0]);
}

void ListOperator::map_alongside(VmapFrame& frame, bool moves) const {
  Tensors operands = tensors_of(frame.stack[0]);
  c10::SmallVector<int64_t, 4> dims(frame.list_dims[0].begin(), frame.list_dims[0].end());
  // To one place: where the examples lie is each process's own, and what it sends is what all of them send.
  for (size_t k = 0; k < operands.size(); ++k)
    if (dims[k] != VmapFrame::kUnbatched) operands[k] = operands[k].movedim(dims[k], moves ? -1 : 0);
  frame.stack[0] = c10::List<Tensor>(operands);
  bind_call(*this, frame.stack);
  const auto& outs = frame.stack[0].toListRef();
  dims.resize(outs.size());
  for (size_t k = 0; k < outs.size(); ++k)
    if (dims[k] != VmapFrame::kUnbatched) dims[k] = moves ? outs[k].toTensor().dim() - 1 : 0;
  frame.out_dims = std::move(dims);
}

}  // namespace tower::mesh
