// torch_tower._C: Tower's dynamic layer for Python. torch_tower/*.py gives it the shape of torch.func.
#include "module.h"

#include <tower/detail/spellings.h>
#include <tower/linear_solve.h>
#include <tower/loops.h>
#include <tower/mesh.h>
#include <tower/version.h>

#include "function.h"

namespace {

PyObject* max_steps_error = nullptr;       // torch_tower.MaxStepsError
PyObject* mesh_error = nullptr;            // torch_tower.MeshError
PyObject* no_convergence_error = nullptr;  // torch_tower.NoConvergenceError

// Tower's errors as the kinds of exception that torch.func raises; LibTorch's as torch raises them.
void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const tower::python::ImplementationError& e) {
    e.restore();
  } catch (const tower::python::RefusedByOperator& e) {
    e.restore();
  } catch (const tower::ArgumentError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const tower::MaxStepsError& e) {
    PyErr_SetString(max_steps_error, e.what());
  } catch (const tower::MeshError& e) {
    PyErr_SetString(mesh_error, e.what());
  } catch (const tower::NoConvergenceError& e) {
    PyErr_SetString(no_convergence_error, e.what());
  } catch (const tower::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  } catch (const py::builtin_exception&) {
    throw;  // pybind11's own, such as a wrong argument
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

// What Python's users write.
constexpr tower::detail::Spellings kSpellings{
    .absent_dim = "None",
    .absent_tensor = "None",
    .different_draws = "randomness=\"different\"",
    .same_draws = "randomness=\"same\"",
    .scope = ".",
    .grad = "torch_tower.grad",
    .vjp = "torch_tower.vjp",
    .jvp = "torch_tower.jvp",
    .cond = "torch_tower.cond",
    .while_loop = "torch_tower.while_loop",
    .printed = "print(x) shows it",
    .kernel_cache = "compile's cache",
    .autograd_grad = "torch.autograd.grad",
    .no_grad = "torch.no_grad()",
    .new_operator = "torch.library",
    .changed_gradient = "a torch.autograd.Function",
    .visible_function = "Call it from a torch.autograd.Function of Python, whose forward and backward Tower sees",
};

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::register_local_exception_translator(translate);
  tower::detail::set_spellings(kSpellings);
  module.attr("version") = tower::version();
  max_steps_error = py::exception<tower::MaxStepsError>(module, "MaxStepsError", PyExc_RuntimeError).release().ptr();
  mesh_error = py::exception<tower::MeshError>(module, "MeshError", PyExc_RuntimeError).release().ptr();
  no_convergence_error =
      py::exception<tower::NoConvergenceError>(module, "NoConvergenceError", PyExc_RuntimeError).release().ptr();
  tower::python::define_transforms(module);
  tower::python::define_compiled(module);
  tower::python::define_exported(module);
  tower::python::define_inspection(module);
  tower::python::define_operators(module);
  tower::python::define_new_operators(module);
  tower::python::define_control_flow(module);
  tower::python::define_processes(module);
  tower::python::define_solvers(module);
  tower::python::define_hooks(module);
  tower::python::define_still_there(module);
}
