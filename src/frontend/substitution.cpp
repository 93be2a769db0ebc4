#include "frontend/substitution.h"

#include <unordered_map>

#include "tower/substitution.h"

namespace tower {
namespace {
using Map = std::unordered_map<const c10::TensorImpl*, Tensor>;
}  // namespace

struct Substitution::State {
  Map map;
  std::vector<Tensor> originals;  // kept alive, so that an address means what it meant
  const Map* outer = nullptr;
  DispatchGuard keys;
};

namespace {
const Map* current() { return static_cast<const Map*>(thread_state.substitutions); }

const Tensor* found(const Map& map, const Tensor& t) {
  const auto it = map.find(t.unsafeGetTensorImpl());
  return it == map.end() ? nullptr : &it->second;
}
}  // namespace

Substitution::Substitution(const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs)
    : state_(std::make_unique<State>()) {
  state_->outer = current();
  if (current()) state_->map = *current();
  for (const auto& [original, replacement] : pairs) {
    state_->originals.push_back(original);
    // What replaces may be replaced itself.
    const Tensor* now = current() ? found(*current(), replacement) : nullptr;
    state_->map[original.unsafeGetTensorImpl()] = now ? *now : replacement;
  }
  thread_state.substitutions = &state_->map;
  state_->keys.see_every_operator(true);
}

Substitution::~Substitution() { thread_state.substitutions = state_->outer; }

namespace frontend {

void substitute_in(const Operator& op, Stack& stack) {
  const Map& map = *current();
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef) {
    const Tensor* replacement = found(map, t);
    return replacement ? *replacement : t;
  });
}

std::vector<Tensor> replaced_by(const Tensor& replacement) {
  std::vector<Tensor> originals;
  if (!current()) return originals;
  for (const auto& [original, value] : *current())
    if (value.is_same(replacement))
      originals.emplace_back(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
          const_cast<c10::TensorImpl*>(original)));
  return originals;
}

}  // namespace frontend
}  // namespace tower
