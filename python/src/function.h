// The user's Python function as a function of the dynamic layer.
//
// Tower runs without the GIL, as LibTorch's operators do: only so can its pullbacks run LibTorch's autograd engine, and
// other Python threads go on. `without_gil` lets go of it around a call of the dynamic layer; a `Callback` takes it
// back while the user's function runs. A Python exception passes through Tower as py::error_already_set, with type and
// traceback, and Tower's guards put the transform stack back on its way.
#pragma once

#include <tower/errors.h>

#include <functional>
#include <memory>
#include <utility>

#include "convert.h"

namespace tower::python {

/// Gives operators of torch.library.custom_op that were defined since the last time their kernels (new_operators.cpp).
void meet_new_operators();
/// Takes the place of a __repr__ of torch.Tensor that somebody had replaced and has put back (hooks.cpp).
void hook_printing_again();

/// Calls of the user's function. It gets the tensors of the arguments one by one. Where it does not return a plain
/// tensor, or with `has_aux`, `depart` makes a list of tensors of the result, or a pair of two lists: outputs and aux.
/// Refers to Python objects that the caller keeps alive.
class Callback {
 public:
  Callback(py::handle function, py::handle depart, bool has_aux = false)
      : function_(function), depart_(depart), has_aux_(has_aux) {
    meet_new_operators();
    hook_printing_again();
  }
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  std::pair<Tensors, Tensors> operator()(const Tensors& args) const;

  /// In the forms that the dynamic layer takes.
  dynamic::FunctionWithAux with_aux() const { return std::cref(*this); }
  dynamic::Function without_aux() const {
    return [this](const Tensors& args) { return (*this)(args).first; };
  }

 protected:
  /// What the function returned if that is a tensor, else what `depart` made of it.
  py::object call(const Tensors& args) const;

 private:
  py::handle function_, depart_;
  bool has_aux_;
};

/// What an implementation raised that vmap cannot look into: Tower may catch it and evaluate example by example. Where
/// it does not, Python gets back its own exception.
class ImplementationError : public UnsupportedError {
 public:
  explicit ImplementationError(py::error_already_set& error)
      : UnsupportedError(error.what()), error_(std::make_shared<py::error_already_set>(error)) {}
  void restore() const { error_->restore(); }

 private:
  std::shared_ptr<py::error_already_set> error_;
};

/// What a function raised in which an operator refused its operands. To Tower it is the operator's error, as it is in a
/// function in C++; Python gets back its own exception.
class RefusedByOperator : public c10::Error {
 public:
  explicit RefusedByOperator(py::error_already_set& error)
      : Error({__func__, __FILE__, __LINE__}, error.what()), error_(std::make_shared<py::error_already_set>(error)) {}
  void restore() const { error_->restore(); }

 private:
  std::shared_ptr<py::error_already_set> error_;
};

/// Runs something of Tower's or LibTorch's. Its warnings become Python's.
template <class Run>
auto without_gil(Run&& run) {
  torch::PyWarningHandler warnings;
  try {
    py::gil_scoped_release no_gil;
    return run();
  } catch (...) {
    warnings.set_in_exception();
    throw;
  }
}

}  // namespace tower::python
