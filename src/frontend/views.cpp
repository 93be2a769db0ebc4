#include "frontend/views.h"

#include "core/bind.h"
#include "tower/errors.h"

namespace tower::frontend {
namespace {

Payload payload_for(Level& level, const Tensor& t) {
  if (Wrapper* w = as_wrapper_of(t, level)) return w->payload();
  return Payload{t, {}, -1};
}

void tie(const Tensor& out, const Tensor& base, const Operator& op, const std::vector<IValue>& args, size_t index) {
  Wrapper* view = as_wrapper(out);
  Wrapper* of = as_wrapper(base);
  if (!view || view == of || view->view() || &view->level() != &of->level()) return;
  of->set_has_views();
  view->view() = std::make_unique<View>(
      View{c10::intrusive_ptr<Wrapper>::reclaim_copy(of), &op, args, index, of->root().generation(), &of->root()});
}

}  // namespace

void make_view(const Operator& op, Stack& stack) {
  const size_t place = op.tensor_args()[0];
  const Tensor base = stack[place].isTensor() ? stack[place].toTensor() : Tensor();
  if (!as_wrapper(base)) return bind_call(op, stack);
  std::vector<IValue> args(stack.begin(), stack.end());
  args[place] = IValue(Tensor());
  bind_call(op, stack);
  size_t index = 0;
  for (const auto& out : stack) {
    if (out.isTensor()) tie(out.toTensor(), base, op, args, index++);
    else if (out.isTensorList())
      for (const auto& e : out.toListRef()) tie(e.toTensor(), base, op, args, index++);
  }
}

void refresh(Wrapper& w) {
  View& view = *w.view();
  Wrapper& root = w.root();
  Stack stack(view.args.begin(), view.args.end());
  const Tensor base(view.base);
  as_wrapper(base)->payload();  // the base may be an old view itself
  stack[view.op->tensor_args()[0]] = base;
  bind_call(*view.op, stack);
  w.set_payload(payload_for(w.level(), flatten_outputs(stack)[view.out]));
  view.seen = root.generation();
}

void write_through(Wrapper& target, Payload payload, const Operator& writer) {
  if (!target.view()) {
    target.set_payload(std::move(payload));
    target.wrote();
    return;
  }
  View& view = *target.view();
  if (!view.op->view_inverse)
    throw MutationError(target.level().describe() + ": " + writer.name() + " writes through a view made by " +
                        view.op->name() +
                        ", and such a write cannot be carried to the tensor it views. Write to that tensor directly, "
                        "or clone() the view first.");
  const Tensor base(view.base);
  const Tensor written = wrap(target.level(), Payload(payload));
  Tensor updated = view.op->view_inverse(base, written, view.args, view.out);
  write_through(*as_wrapper(base), payload_for(target.level(), updated), writer);
  target.set_payload(std::move(payload));
  view.seen = target.root().generation();
}

}  // namespace tower::frontend
