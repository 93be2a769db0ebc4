// Looking inside: what wrappers hold, what ran, how operators are served.
#include <pybind11/stl.h>
#include <tower/coverage.h>
#include <tower/explain.h>
#include <tower/inspect.h>
#include <tower/memory.h>

#include "function.h"
#include "module.h"

namespace tower::python {
namespace {

bool is_wrapped(py::handle object) {
  return THPVariable_Check(object.ptr()) && inspect(THPVariable_Unpack(object.ptr())).has_value();
}

// The text of a tensor; `plain` gives that of a plain one.
std::string text_of(py::handle object, const py::function& plain) {
  return to_string(to_tensor(object), [&](const at::Tensor& t) { return plain(to_object(t)).cast<std::string>(); });
}

// (transform, label, level, ended, constant, value, tangent, batch_dim), or None for a plain tensor.
py::object inspect_tensor(py::handle object) {
  const auto seen = inspect(to_tensor(object));
  if (!seen) return py::none();
  return py::make_tuple(seen->transform, seen->label, seen->level, seen->ended, seen->constant, to_object(seen->value),
                        to_object(seen->tangent), py::cast(seen->batch_dim));
}

// The function's result, with the transforms of this thread suspended while it runs.
py::object suspended(py::handle function) {
  Suspended outside;
  return function();
}

// The function's result, and the table of what ran.
py::tuple explain(py::handle function) {
  Explainer explainer;
  py::object result = function();
  return py::make_tuple(std::move(result), explainer.table());
}

py::list coverage_rows() {
  py::list rows;
  for (const CoverageRow& row : without_gil([] { return coverage(); }))
    rows.append(py::make_tuple(row.op, row.transform, row.served));
  return rows;
}

}  // namespace

void define_inspection(py::module_& module) {
  module.attr("dispatch_key") = c10::toString(dispatch_key());
  module.def("is_wrapper", &is_wrapped);
  module.def("text_of", &text_of);
  module.def("is_batched", [](py::handle t) { return is_batched(to_tensor(t)); });
  module.def("is_tracked", [](py::handle t) { return is_tracked(to_tensor(t)); });
  module.def("inspect", &inspect_tensor);
  module.def("inside_transform", &inside_transform);
  module.def("suspended", &suspended);
  module.def("explain", &explain);
  module.def("coverage", &coverage_rows);
  module.def("set_fallback_is_error", &set_fallback_is_error);
  module.def("memory_cached", &memory_cached, "Bytes that the caches of all threads hold, and no tensor uses.");
  module.def("memory_limit", &memory_limit, "How many bytes the cache of one thread may hold.");
  module.def("set_memory_limit", &set_memory_limit, py::arg("bytes_per_thread"),
             "Sets how many bytes the cache of one thread may hold, `bytes_per_thread`, for all threads. 0: no cache.");
  module.def("release_memory", &release_memory, "Gives back what all caches hold; returns how many bytes that were.");
}

}  // namespace tower::python
