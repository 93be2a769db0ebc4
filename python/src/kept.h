// Python objects that Tower keeps beyond the call that they came with: for as long as a tape lives.
#pragma once

#include <memory>
#include <utility>

#include "convert.h"

namespace tower::python {

/// Such an object. It is let go of wherever that ends, with the GIL or without it.
class Kept {
 public:
  explicit Kept(py::object object) : object_(object.release()) {}
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() {
    if (!object_ || !Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    object_.dec_ref();
  }
  py::handle get() const { return object_; }

 private:
  py::handle object_;
};

inline std::shared_ptr<const Kept> keep(py::object object) { return std::make_shared<const Kept>(std::move(object)); }

}  // namespace tower::python
