// Python functions of lists of tensors that Tower keeps, and runs again in the backward pass.
#pragma once

#include <tower/detail/foreign_frame.h>
#include <tower/loops.h>

#include "function.h"
#include "kept.h"

namespace tower::python {

using SharedFunction = std::shared_ptr<const Kept>;

SharedFunction keep_function(py::object function);

template <class... Args>
py::object call(const SharedFunction& function, Args&&... args) {
  const detail::ForeignFrame frame;
  try {
    return function->get()(std::forward<Args>(args)...);
  } catch (py::error_already_set& error) {
    if (frame.has_lost()) frame.find_again(py::str(error.value()).cast<std::string>());
    throw;
  }
}

/// A function that takes a list and returns one.
dynamic::Function of_lists(py::object function);
/// The same, or an empty one of None.
dynamic::Function of_lists_or_none(py::object function);

/// How many states a loop keeps for the backward pass: a number, "all" or "automatic".
Checkpoints to_checkpoints(py::handle value);

}  // namespace tower::python
