// torch_tower._C: Tower's dynamic layer for Python. torch_tower/*.py gives it the shape of torch.func.
#include "module.h"

#include <tower/version.h>

#include "function.h"

namespace {

// Tower's errors as the kinds of exception that torch.func raises; LibTorch's as torch raises them.
void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const tower::python::ImplementationError& e) {
    e.restore();
  } catch (const tower::ArgumentError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const tower::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  } catch (const py::builtin_exception&) {
    throw;  // pybind11's own, such as a wrong argument
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::register_local_exception_translator(translate);
  module.attr("version") = tower::version();
  tower::python::define_transforms(module);
  tower::python::define_inspection(module);
  tower::python::define_operators(module);
  tower::python::define_indexing(module);
}
