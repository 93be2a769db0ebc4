// Registration of decompositions. The record of an operator holds the one that is in force (Tower's own are put there
// by records/op.h, when the library is loaded); this file keeps what it covers, to restore it.
#include "tower/decompose.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <list>
#include <mutex>

#include "operators/decompositions.h"
#include "tower/errors.h"

namespace tower {

namespace detail {

std::string schema_difference(const c10::FunctionSchema& inferred, const c10::FunctionSchema& specified) {
  const auto own = inferred.cloneWithRealTypes();
  // A function may take sizes as numbers or as symbols.
  if (!c10::findSchemaDifferences(own, specified.cloneWithRealTypes(true))) return "";
  return c10::findSchemaDifferences(own, specified.cloneWithRealTypes(false)).value_or("");
}

}  // namespace detail

namespace {

using Rule = std::shared_ptr<const DecompositionRule>;

struct Replacement {
  uint64_t id;
  Operator* op;
  Rule rule;
  Rule covered;  // in force before it
};

struct Registrations {
  std::mutex mutex;
  std::list<Replacement> all;
  uint64_t last_id = 0;
};

// Never destroyed: registrations of other libraries may outlive static destruction.
Registrations& registrations() {
  static auto* instance = new Registrations;
  return *instance;
}

c10::OperatorName parsed(std::string_view name) {
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) return {std::string(name), ""};
  return {std::string(name.substr(0, dot)), std::string(name.substr(dot + 1))};
}

c10::OperatorHandle find(std::string_view name) {
  const auto wanted = parsed(name);
  if (auto found = c10::Dispatcher::singleton().findSchema(wanted)) return *found;
  std::vector<std::string> overloads;
  for (const auto& other : c10::Dispatcher::singleton().getAllOpNames())
    if (other.name == wanted.name) overloads.push_back(c10::toString(other));
  std::sort(overloads.begin(), overloads.end());
  std::string message = "decompose: there is no operator " + std::string(name);
  if (overloads.empty())
    throw ArgumentError(message +
                        ". Names are written with their namespace, as in \"aten::add.Tensor\", and the "
                        "library that defines the operator must be loaded before.");
  message += ", but there is";
  for (const auto& overload : overloads) message += " " + overload;
  throw ArgumentError(message + ".");
}

}  // namespace

bool is_decomposed_by_user(const Operator& op) {
  Registrations& r = registrations();
  const std::lock_guard lock(r.mutex);
  return std::any_of(r.all.begin(), r.all.end(), [&](const Replacement& it) { return it.op == &op; });
}

RegisteredDecomposition decompose(const c10::OperatorHandle& handle, detail::BoxedFunction f) {
  Operator& op = Operator::of(handle);
  if (op.mutates())
    throw ArgumentError("decompose: " + op.name() +
                        " writes to its arguments. Transforms run the functional operator in its place and write the "
                        "result: decompose that one.");
  const std::string difference = detail::schema_difference(f.schema(), op.schema());
  if (!difference.empty())
    throw ArgumentError("decompose: the function does not fit " + c10::toString(op.schema()) + ". " + difference);
  auto rule = std::make_shared<const DecompositionRule>([f = std::move(f), handle](Stack& stack) { f(handle, stack); });
  Registrations& r = registrations();
  std::lock_guard lock(r.mutex);
  r.all.push_back({++r.last_id, &op, rule, op.decomposition});
  op.decomposition = std::move(rule);
  return RegisteredDecomposition(r.last_id);
}

RegisteredDecomposition decompose(std::string_view op, detail::BoxedFunction f) {
  return decompose(find(op), std::move(f));
}

RegisteredDecomposition& RegisteredDecomposition::operator=(RegisteredDecomposition&& other) noexcept {
  if (this != &other) {
    remove();
    id_ = std::exchange(other.id_, 0);
  }
  return *this;
}

void RegisteredDecomposition::remove() {
  const uint64_t id = std::exchange(id_, 0);
  if (id == 0) return;
  Registrations& r = registrations();
  std::list<Replacement> removed;  // the user's function is destroyed after the lock
  std::lock_guard lock(r.mutex);
  const auto found = std::find_if(r.all.begin(), r.all.end(), [&](const Replacement& it) { return it.id == id; });
  // The next registration for the operator covers this one, or this one is in force.
  const auto above = std::find_if(std::next(found), r.all.end(), [&](const auto& it) { return it.op == found->op; });
  (above == r.all.end() ? found->op->decomposition : above->covered) = found->covered;
  removed.splice(removed.end(), r.all, found);
}

void Decomposition::call_boxed(Stack& stack) const {
  if (!run_) throw ArgumentError("Decomposition: there is none to call. Test it before.");
  if (stack.size() != schema_->arguments().size())
    throw ArgumentError("Decomposition of " + c10::toString(*schema_) + ": it was called with " +
                        std::to_string(stack.size()) + " arguments. Give all of them, those with defaults, too.");
  (*run_)(stack);
}

void Decomposition::require(const c10::FunctionSchema& signature) const {
  if (!run_) throw ArgumentError("Decomposition: there is none to call. Test it before.");
  const std::string difference = detail::schema_difference(signature, *schema_);
  if (!difference.empty())
    throw ArgumentError("Decomposition: the signature asked for does not fit " + c10::toString(*schema_) + ". " +
                        difference);
}

Decomposition decomposition(std::string_view name) {
  const Operator& op = Operator::of(find(name));
  Decomposition result;
  result.schema_ = &op.schema();
  result.run_ = op.decomposition;
  return result;
}

std::vector<std::string> decomposed_operators() {
  std::vector<std::string> names;
  for (const Operator* op : Operator::all())
    if (op->decomposition) names.push_back(op->name());
  return names;
}

}  // namespace tower
