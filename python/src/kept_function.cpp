#include "kept_function.h"

namespace tower::python {

SharedFunction keep_function(py::object function) {
  meet_new_operators();
  hook_printing_again();
  return keep(std::move(function));
}

dynamic::Function of_lists(py::object function) {
  return [f = keep_function(std::move(function))](const Tensors& given) {
    py::gil_scoped_acquire gil;
    return to_tensors(call(f, to_list(given)));
  };
}

dynamic::Function of_lists_or_none(py::object function) {
  return function.is_none() ? dynamic::Function() : of_lists(std::move(function));
}

Checkpoints to_checkpoints(py::handle value) {
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  return value.equal(py::str("automatic")) ? Checkpoints::automatic() : Checkpoints::all();
}

}  // namespace tower::python
