// Operators that a program defines by torch.library.custom_op get a kernel for Tower (torch_tower/_custom_ops.py). The
// dispatcher tells of every new operator, at a time when nothing may be done about it; so it is done when a transform
// begins.
#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>

#include "function.h"
#include "module.h"

namespace tower::python {
namespace {

std::atomic<bool> there_are_new = true;
PyObject* meet = nullptr;

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override { there_are_new = true; }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

void listen(py::object handler) {
  const bool first = !meet;
  meet = handler.release().ptr();
  there_are_new = true;
  // For the life of the process.
  if (first)
    new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
}

}  // namespace

void meet_new_operators() {
  if (!there_are_new.load(std::memory_order_relaxed)) return;
  there_are_new = false;
  py::handle{meet}();
}

void define_new_operators(py::module_& module) { module.def("on_new_operators", &listen); }

}  // namespace tower::python
