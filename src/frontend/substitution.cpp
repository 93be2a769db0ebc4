#include "frontend/substitution.h"

#include <unordered_map>

#include "core/bind.h"
#include "tower/substitution.h"

namespace tower {
namespace frontend {

struct Substituted {
  struct Pair {
    Tensor original, replacement;  // the former kept alive, so that an address means what it meant
  };
  std::unordered_map<const c10::TensorImpl*, Pair> pairs;

  const Tensor* find(const Tensor& t) const {
    const auto it = pairs.find(t.unsafeGetTensorImpl());
    return it == pairs.end() ? nullptr : &it->second.replacement;
  }
};

namespace {
using Shared = std::shared_ptr<const Substituted>;
const Shared* current() { return static_cast<const Shared*>(thread_state.substitutions); }

bool stands_for_itself(const Tensor& t) {
  const Tensor* replacement = current() ? (*current())->find(t) : nullptr;
  return replacement && replacement->is_same(t);
}
[[maybe_unused]] const bool kHooked = (is_known_by_name = stands_for_itself, true);
}  // namespace

Shared substituted() { return current() ? *current() : nullptr; }

void substitute_in(const Operator& op, Stack& stack) {
  const Substituted& now = **current();
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef) {
    const Tensor* replacement = now.find(t);
    return replacement ? *replacement : t;
  });
}

std::vector<Tensor> stand_ins(std::vector<Tensor> tensors) {
  if (!current()) return tensors;
  const Substituted& now = **current();
  for (Tensor& t : tensors)
    if (const Tensor* replacement = t.defined() ? now.find(t) : nullptr) t = Tensor(*replacement);
  return tensors;
}

std::vector<Tensor> replaced_by(const Tensor& replacement) {
  std::vector<Tensor> originals;
  if (!current()) return originals;
  for (const auto& [address, pair] : (*current())->pairs)
    if (pair.replacement.is_same(replacement)) originals.push_back(pair.original);
  return originals;
}

std::vector<Tensor> replaced() {
  std::vector<Tensor> originals;
  if (!current()) return originals;
  for (const auto& [address, pair] : (*current())->pairs) originals.push_back(pair.original);
  return originals;
}

Shared substituted_by_themselves() {
  if (!current()) return nullptr;
  auto result = std::make_shared<Substituted>(**current());
  for (auto& [address, pair] : result->pairs) pair.replacement = pair.original;
  return result;
}

SubstitutedAs::SubstitutedAs(Shared then) : then_(std::move(then)), now_(thread_state.substitutions) {
  thread_state.substitutions = then_ ? &then_ : nullptr;
  if (then_) keys_.see_every_operator(true);
}

SubstitutedAs::~SubstitutedAs() { thread_state.substitutions = now_; }

}  // namespace frontend

struct Substitution::State {
  explicit State(std::shared_ptr<const frontend::Substituted> all) : scope(std::move(all)) {}
  frontend::SubstitutedAs scope;
};

Substitution::Substitution(const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs) {
  const auto outer = frontend::substituted();
  const auto all = outer ? std::make_shared<frontend::Substituted>(*outer) : std::make_shared<frontend::Substituted>();
  for (const auto& [original, replacement] : pairs) {
    // What replaces may be replaced itself.
    const Tensor* now = outer ? outer->find(replacement) : nullptr;
    all->pairs[original.unsafeGetTensorImpl()] = {original, now ? *now : replacement};
  }
  state_ = std::make_unique<State>(all);
}

Substitution::~Substitution() = default;
}  // namespace tower
