#include "door/typed_door.h"

#include <ATen/core/op_registration/infer_schema.h>

#include <memory>

#include "core/bind.h"
#include "core/key.h"
#include "core/operator.h"
#include "core/torchscript.h"

namespace tower {
namespace {

// The stacks of the thread's calls, one for each depth of nesting: a call inside a call takes the next one.
struct Stacks {
  std::vector<std::unique_ptr<Stack>> by_depth;
  size_t depth = 0;
};
constinit thread_local Stacks* stacks __attribute__((tls_model("initial-exec"))) = nullptr;

Stacks& make_stacks() {
  struct Owner {
    ~Owner() {
      delete stacks;
      stacks = nullptr;
    }
  };
  thread_local Owner owner;
  stacks = new Stacks;
  return *stacks;
}

/// An empty stack for the time of a call; its memory stays with the thread.
class BorrowedStack {
 public:
  BorrowedStack() : stacks_(stacks ? *stacks : make_stacks()) {
    if (stacks_.depth == stacks_.by_depth.size()) stacks_.by_depth.push_back(std::make_unique<Stack>());
    stack_ = stacks_.by_depth[stacks_.depth++].get();
  }
  ~BorrowedStack() {
    stack_->clear();
    --stacks_.depth;
  }
  BorrowedStack(const BorrowedStack&) = delete;
  BorrowedStack& operator=(const BorrowedStack&) = delete;
  Stack& operator*() { return *stack_; }
  Stack* operator->() { return stack_; }

 private:
  Stacks& stacks_;
  Stack* stack_;
};

template <class... A>
class TypedDoor final : public c10::OperatorKernel {
 public:
  explicit TypedDoor(const Operator& op) : op_(op) {}

  Tensor operator()(c10::DispatchKeySet keys, A... args) {
    BorrowedStack stack;
    (stack->emplace_back(args), ...);
    arrive(op_, *stack, keys);
    return std::move(stack->front()).toTensor();
  }

 private:
  const Operator& op_;
};

// detach() where a TorchScript function is differentiable: NOTE [TorchScript].
class DetachDoor final : public c10::OperatorKernel {
 public:
  explicit DetachDoor(const Operator& detach) : detach_(detach), alias_(*Operator::find("aten::alias", "")) {}

  Tensor operator()(c10::DispatchKeySet keys, const Tensor& t) {
    return (in_differentiable_graph() ? alias_ : detach_)(keys, t);
  }

 private:
  TypedDoor<const Tensor&> detach_, alias_;
};

template <class A>
bool is_passed_as(const c10::Argument& argument) {
  const c10::TypeKind kind = argument.type()->kind();
  return kind == (std::is_same_v<A, const Tensor&> ? c10::TypeKind::TensorType : c10::TypeKind::NumberType);
}

template <class Door, class... A>
void open_as(const Operator& op, std::vector<c10::RegistrationHandleRAII>& handles) {
  handles.push_back(c10::Dispatcher::singleton().registerImpl(
      op.handle()->operator_name(), kKey,
      c10::KernelFunction::makeFromUnboxedFunctor<false, Door>(std::make_unique<Door>(op)),
      c10::impl::CppSignature::make<Tensor(A...)>(), nullptr, "tower"));
}

/// Opens the door if the operator has the signature Tensor(A...), where every A is a tensor or a number.
template <class... A>
void open(const Operator& op, std::vector<c10::RegistrationHandleRAII>& handles) {
  const auto& args = op.schema().arguments();
  const auto& returns = op.schema().returns();
  if (args.size() != sizeof...(A) || returns.size() != 1 || op.mutates()) return;
  size_t next = 0;
  if (!(is_passed_as<A>(args[next++]) && ...) || !is_passed_as<const Tensor&>(returns[0])) return;
  if (op.name() == "aten::detach") open_as<DetachDoor, const Tensor&>(op, handles);
  else open_as<TypedDoor<A...>, A...>(op, handles);
}

}  // namespace

std::vector<c10::RegistrationHandleRAII> open_typed_doors() {
  std::vector<c10::RegistrationHandleRAII> handles;
  for (const Operator* op : Operator::all()) {
    open<const Tensor&>(*op, handles);
    open<const Tensor&, const Tensor&>(*op, handles);
    open<const Tensor&, const at::Scalar&>(*op, handles);
    open<const Tensor&, const Tensor&, const at::Scalar&>(*op, handles);
  }
  return handles;
}

}  // namespace tower
