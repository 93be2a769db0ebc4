// What Tower has to see of Python programs, caught without replacing anything that a program can look at: every
// attribute of torch stays the object that it was. Below the attributes are C functions, held by the slots of types, by
// the descriptors that stand for slots, and by definitions of methods. A hook takes the place of such a function, asks
// whether Tower is concerned, and otherwise calls what was there.
//
//   x[i], x[i] = v    the number i may differ between the examples of a batch; LibTorch's indexing reads it out of the
//                     tensor, and knows only functorch's as an exception
//   repr(x), str(x)   show what a tensor of a transform is and holds
//   x.numpy(), x.tolist(), x.new_tensor(data)   of a tensor of a transform, which has no memory
//   torch.tensor(data), torch.as_tensor(data)   of a list with numbers that are such tensors
//   x.requires_grad_(), x.requires_grad = True, nn.Parameter(x)   ask LibTorch's autograd, which does not see inside
//   Function.apply    runs the function as an operator of Tower's
//   run_backward      is what backward() and torch.autograd.grad call; it knows LibTorch's tensors only
//   set_eval_frame    is how torch.compile begins; inside a transform operators run one by one
//   has_backend_fallback   is asked last where a higher-order operator of Python's finds no kernel in its table
//   cond(…) and others that do not look for a kernel first
//   make_saved_tensor, push_saved_tensors_default_hooks   are how torch.utils.checkpoint begins
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_function.h>
#include <tower/inspect.h>

#include <utility>

#include "module.h"

namespace tower::python {
namespace {

// torch_tower's functions that do what it takes.
struct Handlers {
  PyObject *select, *put, *show, *check_readable, *to_list, *new_tensor, *numbers, *no_grad, *apply, *begin_backward,
      *begin_compiled, *find_kernel, *call_at_once, *save_argument, *begin_hooks;
} handlers;

const at::Tensor& tensor_of(PyObject* self) { return THPVariable_Unpack(self); }

bool is_wrapper(PyObject* self) {
  static const c10::DispatchKey key = dispatch_key();
  return tensor_of(self).key_set().has(key);
}

py::object with_front(PyObject* first, PyObject* rest) {
  const auto front = py::reinterpret_steal<py::object>(PyTuple_Pack(1, first));
  return py::reinterpret_steal<py::object>(front ? PySequence_Concat(front.ptr(), rest) : nullptr);
}

// A handler's result for a method's arguments.
PyObject* handle(PyObject* handler, PyObject* self, PyObject* args, PyObject* kwargs) {
  const py::object all = with_front(self, args);
  return all ? PyObject_Call(handler, all.ptr(), kwargs) : nullptr;
}

// ---- indexing -------------------------------------------------------------------------------------------------------

bool is_mapped(at::Tensor t) {
  while (const auto seen = inspect(t)) {
    if (seen->batch_dim) return true;
    t = seen->value;
  }
  return false;
}

bool is_mapped_number(PyObject* index) {
  if (!THPVariable_CheckExact(index)) return false;
  const at::Tensor& t = tensor_of(index);
  return t.dim() == 0 && c10::isIntegralType(t.scalar_type(), /*includeBool=*/false) && is_mapped(t);
}

bool has_mapped_number(PyObject* index) {
  if (!PyTuple_Check(index)) return is_mapped_number(index);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(index); ++i)
    if (is_mapped_number(PyTuple_GET_ITEM(index, i))) return true;
  return false;
}

binaryfunc plain_get = nullptr;
objobjargproc plain_set = nullptr;

PyObject* get_inside(PyObject* self, PyObject* index) {
  HANDLE_TH_ERRORS
  if (has_mapped_number(index)) return PyObject_CallFunctionObjArgs(handlers.select, self, index, nullptr);
  END_HANDLE_TH_ERRORS
  return plain_get(self, index);
}

PyObject* get(PyObject* self, PyObject* index) {
  return inside_transform() ? get_inside(self, index) : plain_get(self, index);
}

int set_inside(PyObject* self, PyObject* index, PyObject* value) {
  HANDLE_TH_ERRORS
  if (value && has_mapped_number(index)) {
    const auto none =
        py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(handlers.put, self, index, value, nullptr));
    return none ? 0 : -1;
  }
  END_HANDLE_TH_ERRORS_RET(-1)
  return plain_set(self, index, value);
}

int set(PyObject* self, PyObject* index, PyObject* value) {
  return inside_transform() ? set_inside(self, index, value) : plain_set(self, index, value);
}

// ---- printing -------------------------------------------------------------------------------------------------------

// torch.Tensor, the __repr__ that it was given, and what its slot held, whose one function calls whatever the class
// has.
PyTypeObject* tensor_type = nullptr;
PyObject* own_repr = nullptr;
reprfunc plain_repr = nullptr;

PyObject* repr(PyObject* self) {
  if (is_wrapper(self)) return PyObject_CallFunctionObjArgs(handlers.show, self, nullptr);
  if (!inside_transform()) return plain_repr(self);
  const Suspended outside;
  return plain_repr(self);
}

// ---- methods --------------------------------------------------------------------------------------------------------

PyCFunctionWithKeywords plain_numpy = nullptr, plain_new_tensor = nullptr, plain_tensor = nullptr,
                        plain_as_tensor = nullptr, plain_requires_grad = nullptr, plain_make_subclass = nullptr,
                        plain_apply = nullptr, plain_run_backward = nullptr;
PyCFunction plain_to_list = nullptr, plain_set_eval_frame = nullptr;
setter plain_set_requires_grad = nullptr;

PyObject* numpy(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (is_wrapper(self) && !py::reinterpret_steal<py::object>(handle(handlers.check_readable, self, args, kwargs)))
    return nullptr;
  return plain_numpy(self, args, kwargs);
}

PyObject* to_list(PyObject* self, PyObject* none) {
  return is_wrapper(self) ? PyObject_CallFunctionObjArgs(handlers.to_list, self, nullptr) : plain_to_list(self, none);
}

PyObject* new_tensor(PyObject* self, PyObject* args, PyObject* kwargs) {
  return is_wrapper(self) ? handle(handlers.new_tensor, self, args, kwargs) : plain_new_tensor(self, args, kwargs);
}

// Tensors of transforms in a list are read one by one, past the operators that a transform sees; so they are read
// before.
template <PyCFunctionWithKeywords* plain>
PyObject* tensor_of(PyObject* self, PyObject* args, PyObject* kwargs) {
  const bool of_list = inside_transform() && PyTuple_GET_SIZE(args) > 0 &&
                       (PyList_Check(PyTuple_GET_ITEM(args, 0)) || PyTuple_Check(PyTuple_GET_ITEM(args, 0)));
  if (!of_list) return (*plain)(self, args, kwargs);
  const auto numbers = py::reinterpret_steal<py::object>(
      PyObject_CallFunctionObjArgs(handlers.numbers, PyTuple_GET_ITEM(args, 0), nullptr));
  const auto rest = py::reinterpret_steal<py::object>(PyTuple_GetSlice(args, 1, PY_SSIZE_T_MAX));
  if (!numbers || !rest) return nullptr;
  const py::object all = with_front(numbers.ptr(), rest.ptr());
  return all ? (*plain)(self, all.ptr(), kwargs) : nullptr;
}

// torch.autograd.functional goes on with constants that it lets require grad, and finds zeros.
bool is_asked_by_autograd_functional() {
  PyObject* globals = PyEval_GetGlobals();
  PyObject* name = globals ? PyDict_GetItemString(globals, "__name__") : nullptr;
  return name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "torch.autograd.functional") == 0;
}

// Tells what to do in place of LibTorch's autograd, and that there is an exception.
bool refuse_grad(PyObject* tensor) {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_RuntimeError)) return false;
  PyErr_Clear();
  static_cast<void>(py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(handlers.no_grad, tensor, nullptr)));
  return false;
}

bool is_wrapper_object(PyObject* self) { return THPVariable_Check(self) && is_wrapper(self); }

PyObject* requires_grad(PyObject* self, PyObject* args, PyObject* kwargs) {
  const bool wrapper = is_wrapper(self);
  if (wrapper && is_asked_by_autograd_functional()) {
    const bool asked = PyTuple_GET_SIZE(args) == 0 || PyTuple_GET_ITEM(args, 0) == Py_True;
    if (asked && !refuse_grad(self)) return nullptr;
  }
  PyObject* result = plain_requires_grad(self, args, kwargs);
  if (!result && wrapper) refuse_grad(self);
  return result;
}

int set_requires_grad(PyObject* self, PyObject* value, void* closure) {
  const int failed = plain_set_requires_grad(self, value, closure);
  if (failed && is_wrapper(self)) refuse_grad(self);
  return failed;
}

// What nn.Parameter calls: (class, data, require_grad).
PyObject* make_subclass(PyObject* none, PyObject* args, PyObject* kwargs) {
  PyObject* result = plain_make_subclass(none, args, kwargs);
  if (!result && PyTuple_GET_SIZE(args) > 1 && is_wrapper_object(PyTuple_GET_ITEM(args, 1)))
    refuse_grad(PyTuple_GET_ITEM(args, 1));
  return result;
}

// torch.autograd.Function only: its base, which is called here, is also what functorch's own functions derive from.
PyObject* apply(PyObject* cls, PyObject* args, PyObject* kwargs) {
  if (!inside_transform() || PyObject_IsSubclass(cls, THPFunctionClass) != 1) return plain_apply(cls, args, kwargs);
  return handle(handlers.apply, cls, args, kwargs);
}

PyObject* run_backward(PyObject* engine, PyObject* args, PyObject* kwargs) {
  if (!inside_transform()) return plain_run_backward(engine, args, kwargs);
  if (PyTuple_GET_SIZE(args) == 0) return plain_run_backward(engine, args, kwargs);
  const auto outputs = py::reinterpret_steal<py::object>(
      PyObject_CallFunctionObjArgs(handlers.begin_backward, PyTuple_GET_ITEM(args, 0), nullptr));
  const auto rest = py::reinterpret_steal<py::object>(PyTuple_GetSlice(args, 1, PY_SSIZE_T_MAX));
  if (!outputs || !rest) return nullptr;
  const py::object all = with_front(outputs.ptr(), rest.ptr());
  return all ? plain_run_backward(engine, all.ptr(), kwargs) : nullptr;
}

PyObject* set_eval_frame(PyObject* module, PyObject* callback) {
  if (callback == Py_None || !inside_transform()) return plain_set_eval_frame(module, callback);
  const auto none = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(handlers.begin_compiled));
  return none ? plain_set_eval_frame(module, Py_None) : nullptr;
}

// ---- functions of torch's Python ------------------------------------------------------------------------------------

// What pybind11 defines. The arguments are an array, those by keyword last.
using FastFunction = PyObject*(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords);

FastFunction *plain_has_fallback = nullptr, *plain_save = nullptr, *plain_push_hooks = nullptr;
ternaryfunc plain_call = nullptr;

// Of an operator call all that is known here is the key, also to a wrapper that outlived its transform.
PyObject* has_fallback(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  PyObject* const yes = plain_has_fallback(self, args, count, keywords);
  if (yes != Py_True) return yes;
  const auto none = py::reinterpret_steal<py::object>(PyObject_Vectorcall(handlers.find_kernel, args, count, keywords));
  if (none) return yes;
  Py_DECREF(yes);
  return nullptr;
}

// The slot of a class of Python's, whose one function calls the class's __call__.
PyObject* call_operator(PyObject* op, PyObject* args, PyObject* kwargs) {
  return inside_transform() ? handle(handlers.call_at_once, op, args, kwargs) : plain_call(op, args, kwargs);
}

PyObject* save(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  const bool ours = count > 0 && THPVariable_Check(args[0]) && is_wrapper(args[0]);
  return ours ? PyObject_Vectorcall(handlers.save_argument, args, count, keywords)
              : plain_save(self, args, count, keywords);
}

PyObject* push_hooks(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  if (!inside_transform()) return plain_push_hooks(self, args, count, keywords);
  const auto hooks =
      py::reinterpret_steal<py::object>(PyObject_Vectorcall(handlers.begin_hooks, args, count, keywords));
  if (!hooks) return nullptr;
  PyObject* const pair[] = {PyTuple_GET_ITEM(hooks.ptr(), 0), PyTuple_GET_ITEM(hooks.ptr(), 1)};
  return plain_push_hooks(self, pair, 2, nullptr);
}

// What was written to a frame's f_locals becomes the values of its variables, as it does by itself since Python 3.13.
void write_locals(py::handle frame) {
#if PY_VERSION_HEX < 0x030D0000
  PyFrame_LocalsToFast(reinterpret_cast<PyFrameObject*>(frame.ptr()), /*clear=*/0);
#else
  static_cast<void>(frame);
#endif
}

// ---- taking the places
// -----------------------------------------------------------------------------------------------

template <class F>
void* as_pointer(F* f) {
  return reinterpret_cast<void*>(f);
}

py::object attribute(PyTypeObject* type, const char* name) {
  return py::object(py::handle(reinterpret_cast<PyObject*>(type)).attr("__dict__"))[name];
}

[[noreturn]] void refuse(const std::string& what) {
  throw py::import_error("torch_tower: " + what + " is not made as in the torch that torch_tower was written for.");
}

// `hook` in place of what the definition of a method calls, which is returned.
template <class F>
F* hook_definition(PyMethodDef* definition, int flags, F* hook) {
  if ((definition->ml_flags & ~METH_CLASS) != flags) refuse(definition->ml_name);
  auto* plain = reinterpret_cast<F*>(as_pointer(definition->ml_meth));
  definition->ml_meth = reinterpret_cast<PyCFunction>(as_pointer(hook));
  return plain;
}

template <class F>
F* hook_method(PyTypeObject* type, const char* name, int flags, F* hook) {
  const py::object descriptor = attribute(type, name);
  if (!Py_IS_TYPE(descriptor.ptr(), &PyMethodDescr_Type) && !Py_IS_TYPE(descriptor.ptr(), &PyClassMethodDescr_Type))
    refuse(name);
  return hook_definition(reinterpret_cast<PyMethodDescrObject*>(descriptor.ptr())->d_method, flags, hook);
}

PyCFunctionWithKeywords hook_method(PyTypeObject* type, const char* name, PyCFunctionWithKeywords hook) {
  return hook_method(type, name, METH_VARARGS | METH_KEYWORDS, hook);
}

FastFunction* hook_function(py::handle module, const char* name, FastFunction* hook) {
  const py::object function = module.attr(name);
  if (!PyCFunction_CheckExact(function.ptr())) refuse(name);
  return hook_definition(reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml, METH_FASTCALL | METH_KEYWORDS,
                         hook);
}

// A function of a module, or a static method.
PyCFunctionWithKeywords hook_function(const py::object& function, PyCFunctionWithKeywords hook) {
  if (!PyCFunction_CheckExact(function.ptr())) refuse("a function of torch");
  PyMethodDef* definition = reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml;
  return hook_definition(definition, definition->ml_flags & ~METH_CLASS, hook);
}

// What the descriptor calls must be what the slot calls: by that, CPython fills the slot of a class made later.
void hook_descriptor(PyTypeObject* type, const char* name, void* plain, void* hook) {
  const py::object descriptor = attribute(type, name);
  auto* wrapper = reinterpret_cast<PyWrapperDescrObject*>(descriptor.ptr());
  if (!Py_IS_TYPE(descriptor.ptr(), &PyWrapperDescr_Type) || wrapper->d_wrapped != plain) refuse(name);
  wrapper->d_wrapped = hook;
}

template <class Visit>
void for_each_subclass(PyTypeObject* type, const Visit& visit) {
  visit(type);
  for (const py::handle subclass : py::handle(reinterpret_cast<PyObject*>(type)).attr("__subclasses__")())
    for_each_subclass(reinterpret_cast<PyTypeObject*>(subclass.ptr()), visit);
}

void hook_indexing(PyTypeObject* base) {
  plain_get = base->tp_as_mapping->mp_subscript;
  plain_set = base->tp_as_mapping->mp_ass_subscript;
  hook_descriptor(base, "__getitem__", as_pointer(plain_get), as_pointer(get));
  hook_descriptor(base, "__setitem__", as_pointer(plain_set), as_pointer(set));
  hook_descriptor(base, "__delitem__", as_pointer(plain_set), as_pointer(set));
  for_each_subclass(base, [](PyTypeObject* type) {
    PyMappingMethods* methods = type->tp_as_mapping;
    if (methods->mp_subscript == plain_get) methods->mp_subscript = get;
    if (methods->mp_ass_subscript == plain_set) methods->mp_ass_subscript = set;
  });
}

// Who gives the class a new __repr__ puts the hook aside, as it should be.
void hook_printing(PyTypeObject* tensor) {
  tensor_type = tensor;
  own_repr = attribute(tensor, "__repr__").release().ptr();
  plain_repr = tensor->tp_repr;
  for_each_subclass(tensor, [](PyTypeObject* type) {
    if (type->tp_repr == plain_repr) type->tp_repr = repr;
  });
}

void install(const py::kwargs& functions) {
  const auto keep = [&](const char* name) { return py::object(functions[name]).release().ptr(); };
  const bool first = !handlers.select;
  handlers = {
      keep("select"),         keep("put"),         keep("show"),         keep("check_readable"), keep("to_list"),
      keep("new_tensor"),     keep("numbers"),     keep("no_grad"),      keep("apply"),          keep("begin_backward"),
      keep("begin_compiled"), keep("find_kernel"), keep("call_at_once"), keep("save_argument"),  keep("begin_hooks")};
  if (!first) return;  // somebody imports the package anew
  auto* tensor = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  PyTypeObject* base = tensor->tp_base;
  hook_indexing(base);
  hook_printing(tensor);
  plain_numpy = hook_method(base, "numpy", numpy);
  plain_to_list = hook_method(base, "tolist", METH_NOARGS, &to_list);
  plain_new_tensor = hook_method(base, "new_tensor", new_tensor);
  plain_requires_grad = hook_method(base, "requires_grad_", requires_grad);
  const py::object property = attribute(base, "requires_grad");
  if (!Py_IS_TYPE(property.ptr(), &PyGetSetDescr_Type)) refuse("requires_grad");
  PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(property.ptr())->d_getset;
  plain_set_requires_grad = std::exchange(definition->set, &set_requires_grad);
  plain_make_subclass =
      hook_function(py::handle(reinterpret_cast<PyObject*>(base)).attr("_make_subclass"), make_subclass);
  const py::object c = py::module_::import("torch._C");
  plain_tensor = hook_function(c.attr("_VariableFunctions").attr("tensor"), tensor_of<&plain_tensor>);
  plain_as_tensor = hook_function(c.attr("_VariableFunctions").attr("as_tensor"), tensor_of<&plain_as_tensor>);
  const py::object function_base = c.attr("_FunctionBase");
  plain_apply = hook_method(reinterpret_cast<PyTypeObject*>(function_base.ptr()), "apply", apply);
  const py::object engine = c.attr("_ImperativeEngine");
  plain_run_backward = hook_method(reinterpret_cast<PyTypeObject*>(engine.ptr()), "run_backward", run_backward);
  const py::object begin = c.attr("_dynamo").attr("eval_frame").attr("set_eval_frame");
  if (!PyCFunction_CheckExact(begin.ptr())) refuse("set_eval_frame");
  plain_set_eval_frame =
      hook_definition(reinterpret_cast<PyCFunctionObject*>(begin.ptr())->m_ml, METH_O, &set_eval_frame);
  plain_has_fallback = hook_function(c, "_dispatch_has_backend_fallback", has_fallback);
  plain_save = hook_function(c.attr("_autograd"), "_make_saved_tensor", save);
  plain_push_hooks = hook_function(c.attr("_autograd"), "_push_saved_tensors_default_hooks", push_hooks);
  for (const py::handle op : functions["called_at_once"])
    plain_call = std::exchange(Py_TYPE(op.ptr())->tp_call, call_operator);
}

}  // namespace

void hook_printing_again() {
  if (tensor_type->tp_repr == plain_repr && attribute(tensor_type, "__repr__").ptr() == own_repr)
    tensor_type->tp_repr = repr;
}

void define_hooks(py::module_& module) {
  module.def("install_hooks", &install);
  module.def("write_locals", &write_locals);
  module.def("is_mapped_number", [](py::handle index) { return is_mapped_number(index.ptr()); });
}

}  // namespace tower::python
