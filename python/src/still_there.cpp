// Whether a function still finds what it found when it was traced (torch_tower/_found.py): asked at each call.
#include "module.h"

namespace tower::python {
namespace {

// `...` in the place of what does not matter.
bool is_expected(PyObject* now, PyObject* expected) { return now == expected || expected == Py_Ellipsis; }

bool has_values(PyObject* holder, PyObject* expected) {
  const Py_ssize_t size = PyTuple_GET_SIZE(expected);
  if (PyList_Check(holder)) {
    if (PyList_GET_SIZE(holder) != size) return false;
    for (Py_ssize_t i = 0; i < size; ++i)
      if (!is_expected(PyList_GET_ITEM(holder, i), PyTuple_GET_ITEM(expected, i))) return false;
    return true;
  }
  if (PyDict_GET_SIZE(holder) != size) return false;
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  for (Py_ssize_t i = 0; i < size && PyDict_Next(holder, &position, &key, &value); ++i)
    if (!is_expected(value, PyTuple_GET_ITEM(expected, i))) return false;
  return true;
}

bool has_attribute(PyObject* holder, PyObject* name, PyObject* expected) {
  py::object now = py::reinterpret_steal<py::object>(PyObject_GetAttr(holder, name));
  if (!now) PyErr_Clear();  // gone, which is an answer
  return now.ptr() == expected;
}

bool is_there(PyObject* place) {
  PyObject *holder = PyTuple_GET_ITEM(place, 0), *key = PyTuple_GET_ITEM(place, 1);
  PyObject* expected = PyTuple_GET_ITEM(place, 2);
  if (PyCell_Check(holder)) return PyCell_GET(holder) == expected;
  if (key == Py_None) return has_values(holder, expected);
  if (!PyDict_Check(holder)) return has_attribute(holder, key, expected);
  PyObject* now = PyDict_GetItemWithError(holder, key);
  if (!now) PyErr_Clear();
  return (now ? now : Py_None) == expected;
}

// Of places (holder, key, value), as Found has them.
bool still_there(const py::list& places) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(places.ptr()); ++i)
    if (!is_there(PyList_GET_ITEM(places.ptr(), i))) return false;
  return true;
}

}  // namespace

void define_still_there(py::module_& module) { module.def("still_there", &still_there); }

}  // namespace tower::python
