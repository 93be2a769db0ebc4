// The parts of the extension module torch_tower._C; each names the definitions of one file.
#pragma once

#include "convert.h"

namespace tower::python {

void define_transforms(py::module_& module);
void define_compiled(py::module_& module);
void define_exported(py::module_& module);
void define_inspection(py::module_& module);
void define_operators(py::module_& module);
void define_control_flow(py::module_& module);
void define_solvers(py::module_& module);
void define_block_fits(py::module_& module);
void define_hooks(py::module_& module);
void define_new_operators(py::module_& module);
void define_processes(py::module_& module);
void define_still_there(py::module_& module);

}  // namespace tower::python
