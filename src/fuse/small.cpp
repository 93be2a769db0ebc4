#include "fuse/small.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>

#include "numbers/fold.h"

namespace tower::compiler {

const CodeInNumbers* code_in_numbers(const Operator& op) { return dynamic_cast<const CodeInNumbers*>(known_code(op)); }

bool has_small_form(const Operator& op) {
  return op.moves != Moves::no || op.contraction || fold_rule(op) || small_rule(op);
}
bool is_known_in_numbers(const Operator& op) { return has_small_form(op) || element_rule(op); }

namespace {

SmallResults element_by_element(const SmallCall& c) {
  std::vector<int64_t> sizes;
  for (const Small* t : c.operands) sizes = at::infer_size(sizes, t->sizes);
  SmallResults results;
  const Sizes shape(sizes);
  for (const at::ScalarType dtype : c.dtypes) results.push_back({shape, {}, dtype});
  std::vector<std::vector<size_t>> read;
  for (const Small* t : c.operands) read.push_back(broadcast(t->sizes, shape));
  const auto n = static_cast<size_t>(c10::multiply_integers(sizes));
  std::vector<ElementArgument> arguments(c.args.size());
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < c.operands.size(); ++k) {
      const Small& t = *c.operands[k];
      arguments[c.places[k].arg] = {t.ids[read[k][i]], t.dtype, t.sizes.empty(), t.number};
    }
    const std::vector<Id> ids = elements(c.graph, c.op, c.args, arguments, c.dtypes);
    if (ids.empty()) return {};
    for (size_t k = 0; k < ids.size(); ++k) results[k].ids.push_back(ids[k]);
  }
  return results;
}

bool has_half_types(const SmallCall& call) {
  return std::any_of(call.operands.begin(), call.operands.end(),
                     [](const Small* t) { return t->dtype == at::kHalf || t->dtype == at::kBFloat16; });
}

}  // namespace

SmallResults small_results(const SmallCall& call) {
  const Operator& op = call.op;
  if (const CodeInNumbers* code = code_in_numbers(op)) return code->in_numbers(call);
  if (const SmallRule* rule = small_rule(op)) {
    // Where LibTorch's kernels round half types no rule for small tensors knows: those that compute are not asked.
    if (op.depends != Depends::on_moved && has_half_types(call)) return {};
    return (*rule)(call);
  }
  if (op.moves != Moves::no) return moved(call);
  if (op.contraction) return contracted(call);
  if (fold_rule(op)) return folded(call);
  return element_rule(op) ? element_by_element(call) : SmallResults{};
}

}  // namespace tower::compiler
