// Python's values as the dynamic layer takes them, and back. All of it needs the GIL.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <tower/dynamic.h>

namespace tower::python {

using dynamic::Tensors;

/// A tensor, or None for an undefined one.
at::Tensor to_tensor(py::handle object);
/// The same of each element of a list or tuple.
Tensors to_tensors(py::handle sequence);
/// The list of the tensors, None for undefined ones.
py::list to_list(const Tensors& tensors);
py::object to_object(const at::Tensor& tensor);
/// The same of a list or tuple of integers and None.
dynamic::Dims to_dims(py::handle sequence);
Randomness to_randomness(const std::string& name);
const char* to_name(Randomness randomness);

}  // namespace tower::python
