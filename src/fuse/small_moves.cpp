// Operators that move elements. Where each comes from, the operator says itself: it is run on the elements' numbers.
#include <ATen/Functions.h>

#include "fuse/small.h"

namespace tower::compiler {
namespace {

// All operands' elements have numbers, one after the other, from `first` on.
std::vector<Tensor> numbers_of(const SmallCall& c, int64_t first) {
  std::vector<Tensor> numbers;
  for (const Small* t : c.operands) {
    const auto n = static_cast<int64_t>(t->ids.size());
    numbers.push_back(at::arange(first, first + n, at::kLong).view(t->sizes));
    first += n;
  }
  return numbers;
}

Id element(const SmallCall& c, size_t number) {
  for (const Small* t : c.operands) {
    if (number < t->ids.size()) return t->ids[number];
    number -= t->ids.size();
  }
  return kNone;
}

// `results` are numbers of elements: the tensors of these elements. Numbers below `first` stand for `filled`.
SmallResults moved(const SmallCall& c, c10::ArrayRef<Tensor> results, int64_t first, double filled) {
  SmallResults all;
  for (size_t k = 0; k < results.size(); ++k) {
    const Tensor flat = results[k].contiguous();
    const auto* numbers = flat.const_data_ptr<int64_t>();
    Small t{Sizes(flat.sizes()), {}, c.dtypes[k]};
    const Type type = c.type(k);
    for (int64_t i = 0; i < flat.numel(); ++i)
      t.ids.push_back(numbers[i] < first ? c.graph.constant(type, filled)
                                         : c.graph.cast(element(c, static_cast<size_t>(numbers[i] - first)), type));
    all.push_back(std::move(t));
  }
  return all;
}

c10::SmallVector<Tensor, 2> run(const SmallCall& c, const std::vector<Tensor>& operands) {
  Stack stack = c.call.args;
  size_t next = 0;
  replace_tensors(*c.call.op, stack, [&](const Tensor&, LeafRef) { return operands[next++]; });
  c.call.op->call(stack);
  return flatten_outputs(stack);
}

SmallResults move(const SmallCall& c) { return moved(c, run(c, numbers_of(c, 0)), 0, 0); }
// Of operators that put zeros between the elements that they move: zero is then no element's number.
SmallResults move_and_fill(const SmallCall& c) { return moved(c, run(c, numbers_of(c, 1)), 1, 0); }

SmallResults same(const SmallCall& c) { return moved(c, numbers_of(c, 0), 0, 0); }

SmallResults pad(const SmallCall& c) {
  const Tensor padded = at::constant_pad_nd(numbers_of(c, 1)[0], c.arg(1).toIntVector(), 0);
  return moved(c, {padded}, 1, c.arg(2).toScalar().toDouble());
}

// Strides are about memory, which elements have none of.
SmallResults reshape(const SmallCall& c) {
  return moved(c, {numbers_of(c, 0)[0].reshape(c.arg(1).toIntVector())}, 0, 0);
}

}  // namespace

const SmallRules& small_moves() {
  static const SmallRules& rules = *new SmallRules([] {
    SmallRules all;
    for (const char* name : {"select.int",
                             "slice.Tensor",
                             "expand",
                             "permute",
                             "transpose.int",
                             "t",
                             "unsqueeze",
                             "squeeze",
                             "squeeze.dim",
                             "squeeze.dims",
                             "view",
                             "_unsafe_view",
                             "diagonal",
                             "unfold",
                             "split.Tensor",
                             "unbind.int",
                             "split_with_sizes",
                             "flip",
                             "roll",
                             "rot90",
                             "repeat",
                             "cat",
                             "stack",
                             "select_scatter",
                             "slice_scatter",
                             "diagonal_scatter",
                             "narrow_copy",
                             "expand_copy",
                             "permute_copy",
                             "unsafe_split.Tensor",
                             "unsafe_split_with_sizes",
                             "movedim.intlist",
                             "channel_shuffle",
                             "pixel_shuffle",
                             "pixel_unshuffle"})
      all.emplace(std::string("aten::") + name, move);
    for (const char* name : {"select_backward", "slice_backward", "diagonal_backward", "tril", "triu", "diag_embed"})
      all.emplace(std::string("aten::") + name, move_and_fill);
    for (const char* name : {"alias", "detach", "clone", "contiguous", "lift", "lift_fresh"})
      all.emplace(std::string("aten::") + name, same);
    all.emplace("aten::constant_pad_nd", pad);
    all.emplace("aten::_reshape_alias", reshape);
    return all;
  }());
  return rules;
}

}  // namespace tower::compiler
