// x[i] and x[i] = v where i is a number of its own for each example, a mapped integer tensor without dimensions.
// LibTorch's indexing reads the number out of such a tensor, and knows only functorch's as an exception. So
// torch.Tensor gets methods that look for one, and leave every other index to the functions that were there.
#include <tower/inspect.h>

#include "module.h"

namespace tower::python {
namespace {

// torch_tower._indexing, which does what it takes.
PyObject* selects = nullptr;
PyObject* puts = nullptr;

bool is_mapped(at::Tensor t) {
  while (const auto seen = inspect(t)) {
    if (seen->batch_dim) return true;
    t = seen->value;
  }
  return false;
}

bool is_mapped_number(PyObject* index) {
  if (!THPVariable_CheckExact(index)) return false;
  const at::Tensor& t = THPVariable_Unpack(index);
  return t.dim() == 0 && c10::isIntegralType(t.scalar_type(), /*includeBool=*/false) && is_mapped(t);
}

bool has_mapped_number(PyObject* index) {
  if (!PyTuple_Check(index)) return is_mapped_number(index);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(index); ++i)
    if (is_mapped_number(PyTuple_GET_ITEM(index, i))) return true;
  return false;
}

// What torch's C++ class, the base of torch.Tensor, does.
const PyMappingMethods& original() {
  return *reinterpret_cast<PyTypeObject*>(THPVariableClass)->tp_base->tp_as_mapping;
}

PyObject* get(PyObject* self, PyObject* index) {
  if (inside_transform() && has_mapped_number(index))
    return PyObject_CallFunctionObjArgs(selects, self, index, nullptr);
  return original().mp_subscript(self, index);
}

PyObject* set(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "__setitem__ takes 2 arguments, got %zd", count);
  if (inside_transform() && has_mapped_number(args[0]))
    return PyObject_CallFunctionObjArgs(puts, self, args[0], args[1], nullptr);
  if (original().mp_ass_subscript(self, args[0], args[1]) != 0) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef get_definition{"__getitem__", get, METH_O, "Return self[key]."};
PyMethodDef set_definition{"__setitem__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(set)), METH_FASTCALL,
                           "Set self[key] to value."};

void install(const py::object& getter, const py::object& setter) {
  selects = getter.inc_ref().ptr();
  puts = setter.inc_ref().ptr();
  auto* type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  const py::handle tensor(THPVariableClass);
  tensor.attr("__getitem__") = py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &get_definition));
  tensor.attr("__setitem__") = py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &set_definition));
}

}  // namespace

void define_indexing(py::module_& module) {
  module.def("install_indexing", &install);
  module.def("is_mapped_number", [](py::handle index) { return is_mapped_number(index.ptr()); });
}

}  // namespace tower::python
