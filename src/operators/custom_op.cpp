// A tour. All that was registered for an operator's name, by whomever, is one CustomRules; a CustomOp adds to it and
// notes how to take that back. Whenever it changes, the operator's record is put back to what it was before the first
// rule and filled anew (`renew`). An operator that is not there yet has no record; its rules wait for the record to be
// made (`complete`).
#include "tower/custom_op.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <mutex>

#include "core/operator.h"
#include "core/wrapper.h"
#include "operators/autograd_kernel.h"
#include "operators/custom_op_rules.h"
#include "tower/decompose.h"
#include "tower/errors.h"

namespace tower {

namespace {

using Where = std::source_location;

std::string place(const Where& where) { return std::string(where.file_name()) + ":" + std::to_string(where.line()); }

struct Registered {
  CustomRules rules;
  std::map<std::string, Where> where;  // of each thing, by what it is
  std::optional<PlainRules> before;    // of the record, once it has rules
  int holders = 0;                     // CustomOps of this operator
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, Registered> operators;
};

// Never destroyed: other libraries' registrations may outlive static destruction.
Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

c10::Dispatcher& dispatcher() { return c10::Dispatcher::singleton(); }

// Puts into the record what is registered now. The caller holds the mutex.
void renew(Operator& op, Registered& registered) {
  if (registered.before) registered.before->restore(op);
  else registered.before.emplace(op);
  fill_record(op, registered.rules);
}

// Rules may have been registered before the operator.
void complete(Operator& op) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  const auto found = r.operators.find(op.name());
  if (found == r.operators.end()) return;
  check_rules(op, found->second.rules);
  found->second.before.reset();  // it was of a record that is gone
  renew(op, found->second);
}

struct Completion {
  Completion() { Operator::complete_records(complete); }
};
const Completion completion;

// A user's kernel. A functional operator's kernel leaves its arguments as they are: LibTorch's autograd, the tape and
// every transform rely on it.
class CheckedKernel final : public c10::OperatorKernel {
 public:
  explicit CheckedKernel(detail::BoxedFunction f) : f_(std::move(f)) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const size_t count = handle.schema().arguments().size();
    const Stack args(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    std::vector<uint64_t> counts;
    each_tensor(args, [&](const Tensor& t, size_t) { counts.push_back(write_count(t)); });
    f_.kernel().callBoxed(handle, keys, stack);
    size_t next = 0;
    each_tensor(args, [&](const Tensor& t, size_t arg) {
      if (write_count(t) != counts[next++])
        throw MutationError(name(handle, arg) +
                            " was written to by the operator's implementation, which the schema denies. Write to a "
                            "clone() of it.");
    });
    const Stack outs(stack->end() - static_cast<std::ptrdiff_t>(handle.schema().returns().size()), stack->end());
    each_tensor(outs, [&](const Tensor& out, size_t) {
      each_tensor(args, [&](const Tensor& t, size_t arg) {
        if (share_memory(out, t))
          throw MutationError(name(handle, arg) +
                              " shares memory with what the operator's implementation returned, which the schema "
                              "denies. Return a clone().");
      });
    });
  }

 private:
  static bool share_memory(const Tensor& a, const Tensor& b) {
    Wrapper *v = as_wrapper(a), *w = as_wrapper(b);
    if (v && w && &v->root() == &w->root()) return true;
    return a.has_storage() && b.has_storage() && a.storage().is_alias_of(b.storage());
  }

  static std::string name(const c10::OperatorHandle& handle, size_t arg) {
    return c10::toString(handle.operator_name()) + ": argument '" + handle.schema().arguments()[arg].name() + "'";
  }

  template <class F>
  static void each_tensor(const Stack& values, F&& f) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].isTensor()) {
        if (values[i].toTensor().defined()) f(values[i].toTensor(), i);
      } else if (values[i].isTensorList() || values[i].isOptionalTensorList()) {
        for (const auto& e : values[i].toListRef())
          if (e.isTensor() && e.toTensor().defined()) f(e.toTensor(), i);
      }
    }
  }

  detail::BoxedFunction f_;
};

// LibTorch warns when a library's kernel is put aside. Here that is asked for.
struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Every backend's own key: at the alias, a composite kernel of the operator would come first.
constexpr std::array kAutogradKeys = {c10::DispatchKey::AutogradOther, c10::DispatchKey::AutogradCPU,
                                      c10::DispatchKey::AutogradCUDA,  c10::DispatchKey::AutogradMeta,
                                      c10::DispatchKey::AutogradMPS,   c10::DispatchKey::AutogradXPU,
                                      c10::DispatchKey::AutogradXLA,   c10::DispatchKey::AutogradPrivateUse1};

}  // namespace

struct detail::CustomOpState {
  explicit CustomOpState(c10::OperatorName operator_name) : op(std::move(operator_name)), name(c10::toString(op)) {
    Registry& r = registry();
    std::lock_guard lock(r.mutex);
    ++r.operators[name].holders;
  }

  ~CustomOpState() {
    while (!undo.empty()) {
      undo.back()();
      undo.pop_back();
    }
    Registry& r = registry();
    std::lock_guard lock(r.mutex);
    if (--r.operators[name].holders == 0) r.operators.erase(name);
  }
  CustomOpState(const CustomOpState&) = delete;
  CustomOpState& operator=(const CustomOpState&) = delete;

  /// Registers `what`: `put` changes the rules, `take` takes that back.
  template <class Put, class Take>
  void add(const std::string& what, const Where& where, Put&& put, Take take) {
    change([&](Registered& registered) {
      const auto [first, fresh] = registered.where.emplace(what, where);
      if (!fresh)
        throw ArgumentError("custom_op: " + name + " has a " + what + " already, registered at " +
                            place(first->second) + ". Take that registration back before another is made.");
      try {
        put(registered.rules);
        check(registered.rules);
      } catch (...) {
        take(registered.rules);
        registered.where.erase(what);
        throw;
      }
    });
    undo.emplace_back([this, what, take] {
      change([&](Registered& registered) {
        take(registered.rules);
        registered.where.erase(what);
      });
    });
  }

  /// Puts `kernel` at the key, until this registration ends.
  void add_kernel(c10::DispatchKey key, c10::KernelFunction kernel, const Where& where) {
    Quiet quiet;
    const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    keep(dispatcher().registerImpl(op, key, std::move(kernel), std::nullopt, nullptr, "registered at " + place(where)));
  }

  void keep(c10::RegistrationHandleRAII handle) {
    auto held = std::make_shared<c10::RegistrationHandleRAII>(std::move(handle));
    undo.emplace_back([held]() mutable { held.reset(); });
  }

  /// LibTorch's autograd then records the operator's rules. `defined`: the operator is defined here, so that nobody
  /// else has a kernel for autograd.
  void add_bridge(const Where& where, bool defined) {
    if (defined) add_kernel(c10::DispatchKey::Autograd, autograd_kernel(), where);
    else
      for (const auto key : kAutogradKeys) add_kernel(key, autograd_kernel(), where);
    add(
        defined ? "kernel for autograd" : "kernel for autograd of its backward", where,
        [](CustomRules& rules) { ++rules.bridges; }, [](CustomRules& rules) { --rules.bridges; });
  }

  Operator* record() const {
    const auto handle = dispatcher().findSchema(op);
    return handle ? &Operator::of(*handle) : nullptr;
  }

  c10::OperatorName op;
  std::string name;
  std::vector<std::function<void()>> undo;

 private:
  void check(const CustomRules& rules) const {
    if (changing) check_rules(*changing, rules);
  }

  template <class F>
  void change(F&& f) {
    changing = record();
    CustomRules before;  // what goes is destroyed after the lock
    Registry& r = registry();
    std::lock_guard lock(r.mutex);
    Registered& registered = r.operators[name];
    before = registered.rules;
    f(registered);
    if (changing) renew(*changing, registered);
  }

  Operator* changing = nullptr;
};

namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

c10::FunctionSchema parsed(const std::string& text) {
  try {
    return torch::jit::parseSchema(text, /*allow_typevars=*/false);
  } catch (const std::exception& error) {
    throw ArgumentError("custom_op: the schema \"" + text +
                        "\" does not parse. Write it as \"mylib::foo(Tensor x, float alpha=1.0) -> Tensor\". " +
                        first_line(error.what()));
  }
}

c10::OperatorName parsed_name(std::string_view text) {
  try {
    return torch::jit::parseName(std::string(text));
  } catch (const std::exception& error) {
    throw ArgumentError("custom_op: the name \"" + std::string(text) +
                        "\" does not parse. Write it as \"mylib::foo\" or \"mylib::foo.overload\". " +
                        first_line(error.what()));
  }
}

std::shared_ptr<detail::CustomOpState> define(c10::FunctionSchema schema, std::vector<at::Tag> tags,
                                              const Where& where) {
  const c10::OperatorName name = schema.operator_name();
  if (!name.getNamespace())
    throw ArgumentError("custom_op: the name \"" + name.name +
                        "\" has no namespace. Operators belong to a library: \"mylib::" + name.name + "\".");
  if (const auto there = dispatcher().findSchema(name))
    throw ArgumentError("custom_op: " + c10::toString(name) + " is defined already, " + there->debug() +
                        ". To add rules to that operator, give its name without a schema.");
  auto state = std::make_shared<detail::CustomOpState>(name);
  state->keep(dispatcher().registerDef(std::move(schema), "registered at " + place(where), std::move(tags)));
  state->add(
      "definition", where, [](CustomRules& rules) { rules.defined = true; },
      [](CustomRules& rules) { rules.defined = false; });
  state->add_bridge(where, /*defined=*/true);
  return state;
}

}  // namespace

CustomOp custom_op(std::string_view schema_or_name, std::vector<at::Tag> tags, std::source_location where) {
  if (schema_or_name.find('(') == std::string_view::npos)
    return CustomOp(std::make_shared<detail::CustomOpState>(parsed_name(schema_or_name)));
  return CustomOp(define(parsed(std::string(schema_or_name)), std::move(tags), where));
}

CustomOp detail::define(std::string_view text, const BoxedFunction& f, const std::vector<std::string>& arguments,
                        std::source_location where) {
  const c10::OperatorName name = parsed_name(text);
  const auto& inferred = f.schema();
  if (arguments.size() != inferred.arguments().size())
    throw ArgumentError("custom_op: " + c10::toString(name) + " was given " + std::to_string(arguments.size()) +
                        " names of arguments for a function that has " + std::to_string(inferred.arguments().size()) +
                        ".");
  std::vector<c10::Argument> named;
  for (size_t i = 0; i < arguments.size(); ++i)
    named.emplace_back(arguments[i], inferred.arguments()[i].type(), inferred.arguments()[i].real_type());
  CustomOp op(tower::define({name.name, name.overload_name, std::move(named), inferred.returns()}, {}, where));
  op.add_kernel(std::nullopt, f, where);
  return op;
}

const std::string& CustomOp::name() const { return state_->name; }

// Never destroyed: other libraries may call the operator until the process ends.
void CustomOp::keep() const {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::shared_ptr<detail::CustomOpState>>;
  std::lock_guard lock(mutex);
  kept->push_back(state_);
}

c10::OperatorHandle CustomOp::handle(const c10::FunctionSchema& signature) const {
  const auto found = dispatcher().findSchema(state_->op);
  if (!found)
    throw ArgumentError("custom_op: there is no operator " + name() +
                        " yet. Load the library that defines it first, or give a schema to define it.");
  const std::string difference = detail::schema_difference(signature, found->schema());
  if (!difference.empty())
    throw ArgumentError("custom_op: the type asked for does not fit " + c10::toString(found->schema()) + ". " +
                        difference);
  return *found;
}

void CustomOp::add_kernel(std::optional<at::DeviceType> device, detail::BoxedFunction f, Where where) const {
  if (device && Operator::of(*dispatcher().findSchema(state_->op)).tensor_args().empty())
    throw ArgumentError("custom_op: " + state_->name +
                        " takes no tensors, so LibTorch has none to choose a kernel by the device of. Register "
                        "kernel(f), for all devices.");
  const std::string what =
      "kernel for " + (device ? c10::DeviceTypeName(*device, /*lower_case=*/false) : std::string("all devices"));
  state_->add(
      what, where, [&](CustomRules& rules) { rules.signatures.emplace(what, f.schema()); },
      [what](CustomRules& rules) { rules.signatures.erase(what); });
  const auto key = device ? c10::computeDispatchKey(std::nullopt, at::kStrided, at::Device(*device))
                          : c10::DispatchKey::CompositeExplicitAutograd;
  state_->add_kernel(key, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<CheckedKernel>(std::move(f))),
                     where);
}

void CustomOp::add_decomposition(detail::BoxedFunction f, Where where) const {
  auto registered = std::make_shared<RegisteredDecomposition>(decompose(name(), std::move(f)));
  state_->add(
      "decomposition", where, [](CustomRules&) {}, [](CustomRules&) {});
  state_->undo.emplace_back([registered] { registered->remove(); });
}

const CustomOp& CustomOp::save_for_backward(detail::SaveFunction save, Where where) const {
  const auto held = std::make_shared<const detail::SaveFunction>(std::move(save));
  state_->add(
      "save_for_backward", where, [&](CustomRules& rules) { rules.save = held; },
      [](CustomRules& rules) { rules.save = nullptr; });
  return *this;
}

void CustomOp::add_backward(detail::BackwardFunction f, BackwardOptions options, Where where) const {
  const auto held = std::make_shared<const detail::BackwardFunction>(std::move(f));
  state_->add(
      "backward", where,
      [&](CustomRules& rules) {
        rules.backward = held;
        rules.backward_options = options;
      },
      [](CustomRules& rules) { rules.backward = nullptr; });
  state_->add_bridge(where, /*defined=*/false);
}

const CustomOp& CustomOp::linear_backward(Where where) const {
  state_->add(
      "declaration of linear_backward", where, [](CustomRules& rules) { rules.linear_backward = true; },
      [](CustomRules& rules) { rules.linear_backward = false; });
  return *this;
}

const CustomOp& CustomOp::no_gradient(std::initializer_list<const char*> arguments, Where where) const {
  state_->add(
      "declaration of no_gradient", where,
      [&](CustomRules& rules) { rules.no_gradient.assign(arguments.begin(), arguments.end()); },
      [](CustomRules& rules) { rules.no_gradient.clear(); });
  return *this;
}

const CustomOp& CustomOp::jvp(detail::JvpFunction f, Where where) const {
  const auto held = std::make_shared<const detail::JvpFunction>(std::move(f));
  state_->add(
      "jvp", where, [&](CustomRules& rules) { rules.jvp = held; }, [](CustomRules& rules) { rules.jvp = nullptr; });
  return *this;
}

void CustomOp::add_sparsity(const detail::BoxedFunction& f, Where where) const {
  const std::string what = "sparsity rule";
  const auto held = std::make_shared<const std::function<void(Stack&)>>(
      [f, name = state_->op](Stack& stack) { f(*dispatcher().findSchema(name), stack); });
  state_->add(
      what, where,
      [&](CustomRules& rules) {
        rules.sparsity = held;
        rules.signatures.emplace(what, f.schema());
      },
      [what](CustomRules& rules) {
        rules.sparsity = nullptr;
        rules.signatures.erase(what);
      });
}

void CustomOp::add_vmap(detail::VmapFunction f, c10::FunctionSchema signature, Where where) const {
  const auto held = std::make_shared<const detail::VmapFunction>(std::move(f));
  state_->add(
      "vmap rule", where,
      [&](CustomRules& rules) {
        rules.vmap = held;
        rules.signatures.emplace("vmap rule", std::move(signature));
      },
      [](CustomRules& rules) {
        rules.vmap = nullptr;
        rules.signatures.erase("vmap rule");
      });
}

}  // namespace tower
