#include "convert.h"

namespace tower::python {

at::Tensor to_tensor(py::handle object) {
  if (THPVariable_Check(object.ptr())) return THPVariable_Unpack(object.ptr());
  if (object.is_none()) return {};
  throw py::type_error("expected a torch.Tensor or None, got " + py::str(py::type::of(object)).cast<std::string>());
}

namespace {

// Calls `take` for each element of a list or tuple.
template <class Take>
void for_each_element(py::handle sequence, Take&& take) {
  const bool is_list = PyList_Check(sequence.ptr());
  if (!is_list && !PyTuple_Check(sequence.ptr()))
    throw py::type_error("expected a list or tuple, got " + py::str(py::type::of(sequence)).cast<std::string>());
  const Py_ssize_t size = is_list ? PyList_GET_SIZE(sequence.ptr()) : PyTuple_GET_SIZE(sequence.ptr());
  for (Py_ssize_t i = 0; i < size; ++i)
    take(py::handle(is_list ? PyList_GET_ITEM(sequence.ptr(), i) : PyTuple_GET_ITEM(sequence.ptr(), i)));
}

}  // namespace

Tensors to_tensors(py::handle sequence) {
  Tensors tensors;
  for_each_element(sequence, [&](py::handle element) { tensors.push_back(to_tensor(element)); });
  return tensors;
}

py::object to_object(const at::Tensor& tensor) { return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)); }

py::list to_list(const Tensors& tensors) {
  py::list list(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), to_object(tensors[i]).release().ptr());
  return list;
}

dynamic::Dims to_dims(py::handle sequence) {
  dynamic::Dims dims;
  for_each_element(sequence, [&](py::handle element) {
    dims.push_back(element.is_none() ? std::nullopt : std::optional(element.cast<int64_t>()));
  });
  return dims;
}

Randomness to_randomness(const std::string& name) {
  if (name == "error") return Randomness::error;
  if (name == "different") return Randomness::different;
  if (name == "same") return Randomness::same;
  throw py::value_error("randomness is '" + name + "'; it must be 'error', 'different' or 'same'.");
}

const char* to_name(Randomness randomness) {
  switch (randomness) {
    case Randomness::error:
      return "error";
    case Randomness::different:
      return "different";
    case Randomness::same:
      return "same";
  }
  return "error";
}

}  // namespace tower::python
