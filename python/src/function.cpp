#include "function.h"

namespace tower::python {

py::object Callback::call(const Tensors& args) const {
  c10::SmallVector<PyObject*, 8> objects;
  for (const at::Tensor& arg : args) objects.push_back(THPVariable_Wrap(arg));
  auto result =
      py::reinterpret_steal<py::object>(PyObject_Vectorcall(function_.ptr(), objects.data(), objects.size(), nullptr));
  for (PyObject* object : objects) Py_DECREF(object);
  if (!result) throw py::error_already_set();
  return has_aux_ || !THPVariable_CheckExact(result.ptr()) ? depart_(result) : result;
}

std::pair<Tensors, Tensors> Callback::operator()(const Tensors& args) const {
  py::gil_scoped_acquire gil;
  const py::object result = call(args);
  if (THPVariable_Check(result.ptr())) return {{THPVariable_Unpack(result.ptr())}, {}};
  if (!PyTuple_Check(result.ptr())) return {to_tensors(result), {}};
  const auto pair = py::cast<py::tuple>(result);
  return {to_tensors(pair[0]), to_tensors(pair[1])};
}

}  // namespace tower::python
